package premis

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/nats-io/nats.go/jetstream"

	"colophon/shared/event"

	"colophon/services/premis/internal/ledger"
)

// Rebuild makes a ledger in dir, which must be empty, from the log alone, and
// tells where it stands. It has the root of every other ledger that followed
// this log.
func Rebuild(ctx context.Context, js jetstream.JetStream, dir, origin string, log *slog.Logger) (p Position, err error) {
	l, err := ledger.Open(dir, ledger.Options{Origin: origin, Logger: log})
	if err != nil {
		return p, fmt.Errorf("premis: rebuild: %w", err)
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	if l.Position().Sequence != 0 {
		return p, fmt.Errorf("premis: rebuild: %s holds a ledger", dir)
	}
	stream, err := js.Stream(ctx, event.StreamIngest)
	if err != nil {
		return p, fmt.Errorf("premis: rebuild: stream %s: %w", event.StreamIngest, err)
	}
	s := &Service{cfg: Config{Batch: ledger.MaxBatch}, ledger: l, log: log}
	if last := stream.CachedInfo().State.LastSeq; last > 0 {
		err = s.readRange(ctx, js, 1, last+1)
	}
	return s.Position(), err
}

// Difference is how two ledgers of one log differ.
type Difference struct {
	SameRoot bool     `json:"same_root"`
	Only     []string `json:"only,omitempty"`    // names that the first alone has
	Missing  []string `json:"missing,omitempty"` // names that the second alone has
}

// SameNames reports whether both hold the same events: what two ledgers must
// agree on where the log was healed between them.
func (d Difference) SameNames() bool { return len(d.Only) == 0 && len(d.Missing) == 0 }

// fewNames bounds each list of a difference.
const fewNames = 100

// Differ compares two ledgers up to the shorter one's position in the log.
func Differ(a, b *Evidence) (d Difference, err error) {
	at := min(a.l.Position().Sequence, b.l.Position().Sequence)
	if a.l.Root() == b.l.Root() && a.l.Size() == b.l.Size() {
		return Difference{SameRoot: true}, nil
	}
	if d.Only, err = lacks(a.l, b.l, at); err != nil {
		return d, err
	}
	d.Missing, err = lacks(b.l, a.l, at)
	if n := min(a.l.Size(), b.l.Size()); err == nil && d.SameNames() {
		d.SameRoot, err = sameRoot(a.l, b.l, n)
	}
	return d, err
}

// lacks lists names of records up to a position that other does not have.
func lacks(l, other *ledger.Ledger, at uint64) (out []string, err error) {
	for n := range l.Size() {
		r, err := l.Get(n)
		if err != nil {
			return nil, err
		}
		if r.Sequence > at {
			break
		}
		_, found, err := other.Number(r.Name)
		if err != nil {
			return nil, err
		}
		if !found {
			if out = append(out, r.Name); len(out) == fewNames {
				break
			}
		}
	}
	return out, nil
}

func sameRoot(a, b *ledger.Ledger, size int64) (bool, error) {
	one, errOne := a.RootAt(size)
	two, errTwo := b.RootAt(size)
	return one == two, errors.Join(errOne, errTwo)
}
