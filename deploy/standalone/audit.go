package standalone

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"colophon/services/premis"
	"colophon/shared/event"
	"colophon/shared/topology"
)

// signingKey is where the key that signs checkpoints lies: where it was told
// to, or beside the archive's folder, so that a copy of the folder never holds
// it. Where nothing can be written there the ledger is kept unsigned.
func (o Options) signingKey() string {
	path := o.SigningKey()
	if o.CheckpointKey != "" {
		return path
	}
	if _, err := os.Stat(path); err == nil {
		return path
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".colophon-*")
	if err != nil {
		o.Log.Warn("checkpoints_unsigned", slog.String("key", path), slog.Any("error", err),
			slog.String("hint", "the ledger's checkpoints are not signed; name a place for the key with --checkpoint-key"))
		return ""
	}
	if err := errors.Join(f.Close(), os.Remove(f.Name())); err != nil {
		o.Log.Warn("temporary_left", slog.Any("error", err))
	}
	return path
}

// SigningKey is the path of the key, whether it is there or not.
func (o Options) SigningKey() string {
	if o.CheckpointKey != "" {
		return o.CheckpointKey
	}
	return filepath.Clean(o.Archive) + ".checkpoint-key"
}

// ledgerOrigin is the origin of an archive's ledger where none is told.
func (o Options) ledgerOrigin() string {
	if o.Origin != "" {
		return o.Origin
	}
	return premis.Defaults().Origin
}

// Rebuilt is what `colophon audit rebuild` found and did.
type Rebuilt struct {
	premis.Position
	Ledger     string             `json:"ledger"`               // folder of the ledger that stands now
	Difference *premis.Difference `json:"difference,omitempty"` // from the ledger that was there; none: there was none
	Replaced   bool               `json:"replaced"`
	Old        string             `json:"old,omitempty"` // where the replaced ledger lies
}

// Agrees reports whether the ledger that was there is what the log gives.
func (r Rebuilt) Agrees() bool {
	return r.Difference == nil || r.Difference.SameRoot || r.Difference.SameNames()
}

// Rebuild makes the ledger from the log alone, beside the one that is there,
// and compares the two. With replace, or where there was none, it takes the
// place of the old one, which is kept; the line must not run then.
func Rebuild(ctx context.Context, o Options, replace bool) (out Rebuilt, err error) {
	e, err := Evidence(ctx, o)
	if err != nil {
		return out, err
	}
	defer e.Close() //nolint:errcheck // what counts is closed below
	if replace && e.broker == nil {
		return out, fmt.Errorf("%w: the line runs: stop it before its ledger is replaced", ErrUsage)
	}
	state := filepath.Join(e.Options.Archive, "state")
	if err := os.MkdirAll(state, 0o750); err != nil {
		return out, fmt.Errorf("standalone: rebuild: %w", err)
	}
	dir, err := os.MkdirTemp(state, "premis-rebuild-")
	if err != nil {
		return out, fmt.Errorf("standalone: rebuild: %w", err)
	}
	defer os.RemoveAll(dir) //nolint:errcheck // moved away, or a scratch
	out.Ledger = e.Ledger
	origin := o.ledgerOrigin()
	old, err := premis.OpenEvidence(e.Ledger)
	switch {
	case err == nil:
		origin = old.Position().Origin
		defer func() { err = errors.Join(err, old.Close()) }()
	case !replace && !missing(e.Ledger):
		return out, err
	default:
		replace, old = e.broker != nil, nil // damaged, or not there
	}
	if out.Position, err = premis.Rebuild(ctx, e.JS, dir, origin, o.Log); err != nil {
		return out, err
	}
	if old != nil {
		if out.Difference, err = differ(old, dir); err != nil {
			return out, err
		}
	}
	if !replace {
		return out, nil
	}
	if !missing(e.Ledger) {
		out.Old = fmt.Sprintf("%s.old-%d", e.Ledger, time.Now().Unix())
		if err := os.Rename(e.Ledger, out.Old); err != nil {
			return out, fmt.Errorf("standalone: rebuild: %w", err)
		}
	}
	out.Replaced = true
	return out, os.Rename(dir, e.Ledger)
}

func missing(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "."))
	return errors.Is(err, fs.ErrNotExist)
}

func differ(old *premis.Evidence, dir string) (*premis.Difference, error) {
	made, err := premis.OpenEvidence(dir)
	if err != nil {
		return nil, err
	}
	d, err := premis.Differ(old, made)
	return &d, errors.Join(err, made.Close())
}

// Store publishes a message and returns once its stream holds it.
func (c *Client) Store(ctx context.Context, m *nats.Msg) (*jetstream.PubAck, error) {
	return c.log.Publish(ctx, m, nil)
}

// TakenIn returns when the ledger and quarantine have taken in what the log and
// the dead letters hold now: with the line in this process, nobody else would.
func (a *Archive) TakenIn(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, takeWait)
	defer cancel()
	letters, err := a.JS.Stream(ctx, event.StreamDeadLetter)
	if err != nil {
		return fmt.Errorf("standalone: %w", err)
	}
	for {
		info, errInfo := letters.Info(ctx)
		taken, errTaken := a.JS.Consumer(ctx, event.StreamDeadLetter, topology.Quarantine)
		if err := errors.Join(errInfo, errTaken); err != nil {
			return fmt.Errorf("standalone: %w", err)
		}
		end, err := a.JS.Stream(ctx, event.StreamIngest)
		if err != nil {
			return fmt.Errorf("standalone: %w", err)
		}
		p, err := Call[premis.Position](ctx, a.Client, event.EndpointPremisPosition, struct{}{})
		if err != nil {
			return err
		}
		if taken.CachedInfo().AckFloor.Stream >= info.State.LastSeq && p.Sequence >= end.CachedInfo().State.LastSeq {
			return nil
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("standalone: the ledger stands at %d of %d: %w", p.Sequence, end.CachedInfo().State.LastSeq, ctx.Err())
		}
	}
}

// takeWait bounds how long the ledger may lag behind a check.
const takeWait = 2 * time.Minute
