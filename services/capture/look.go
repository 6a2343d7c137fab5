package capture

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"strings"

	"github.com/cockroachdb/pebble/v2"

	"colophon/shared/completed"
	"colophon/shared/event"
)

// look reads the view: as it is at each call, or one state of it.
type look struct{ r pebble.Reader }

func (l look) slot(s event.Slot) (event.Progress, bool, error) {
	var p event.Progress
	ok, err := getJSON(l.r, viewSlot+s.String(), &p)
	return p, ok, err
}

func (l look) batch(b event.Name) (batchRecord, error) {
	var r batchRecord
	_, err := getJSON(l.r, viewBatch+b.Encode(), &r)
	r.Batch = b
	return r, err
}

func (l look) position(stream string) (completed.Position, error) {
	var p completed.Position
	_, err := getJSON(l.r, viewPos+stream, &p)
	return p, err
}

func (l look) made(b event.Name) (made, error) {
	var m made
	_, err := getJSON(l.r, viewMade+b.Encode(), &m)
	return m, err
}

func (l look) asked(s event.Slot) (asked, bool, error) {
	var a asked
	ok, err := getJSON(l.r, viewAsked+s.String(), &a)
	return a, ok, err
}

// errEnough ends an each early.
var errEnough = errors.New("enough")

// each goes through the keys of a prefix, from one on.
func (l look) each(prefix, from string, do func(key string, value []byte) error) (err error) {
	it, err := l.r.NewIter(&pebble.IterOptions{LowerBound: []byte(prefix + from), UpperBound: upper(prefix)})
	if err != nil {
		return fmt.Errorf("capture: view: %w", err)
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	for it.First(); it.Valid(); it.Next() {
		v, err := it.ValueAndErr()
		if err != nil {
			return fmt.Errorf("capture: view: %w", err)
		}
		if err := do(string(it.Key()), v); err != nil {
			if errors.Is(err, errEnough) {
				return nil
			}
			return err
		}
	}
	return it.Error()
}

func upper(prefix string) []byte {
	b := []byte(prefix)
	b[len(b)-1]++
	return b
}

// orderKey gives the place of a slot in its batch: by declared sequence, or by
// the natural order of names; arrival never gives it.
func orderKey(order string, p *event.Progress) string {
	key := event.NaturalKey(string(p.Frame))
	if order == event.OrderNatural {
		return string(key)
	}
	return string(binary.BigEndian.AppendUint64(nil, uint64(p.Sequence))) + string(key) //nolint:gosec // a sequence is at least 1
}

// batches goes through all batches, from behind one.
func (l look) batches(after string) iter.Seq2[batchRecord, error] {
	return func(yield func(batchRecord, error) bool) {
		err := l.each(viewBatch, after, func(key string, value []byte) error {
			if strings.TrimPrefix(key, viewBatch) == after {
				return nil
			}
			var r batchRecord
			if err := json.Unmarshal(value, &r); err != nil {
				return err
			}
			if !yield(r, nil) {
				return errEnough
			}
			return nil
		})
		if err != nil {
			yield(batchRecord{}, err)
		}
	}
}

// frameAt is a slot and its place.
type frameAt struct {
	event.Progress
	cursor string
}

// frames goes through a batch's slots in its order, from behind a cursor. On a
// snapshot it reads one state, whatever happens meanwhile.
func (l look) frames(b event.Name, after string) iter.Seq2[frameAt, error] {
	return func(yield func(frameAt, error) bool) {
		prefix := viewOrder + b.Encode() + "/"
		err := l.each(prefix, after, func(key string, frame []byte) error {
			f := frameAt{cursor: strings.TrimPrefix(key, prefix)}
			if f.cursor == after {
				return nil
			}
			if _, err := getJSON(l.r, viewSlot+event.Slot{Batch: b, Frame: event.Name(frame)}.String(), &f.Progress); err != nil {
				return err
			}
			if !yield(f, nil) {
				return errEnough
			}
			return nil
		})
		if err != nil {
			yield(frameAt{}, err)
		}
	}
}

// status is a batch at one position of the log.
func (l look) status(b event.Name) (event.BatchStatus, error) {
	// The positions first: what they stand for is then in what is read after.
	log, err := l.position(event.StreamIngest)
	if err != nil {
		return event.BatchStatus{}, err
	}
	asked, err := l.position(event.StreamCapture)
	if err != nil {
		return event.BatchStatus{}, err
	}
	r, err := l.batch(b)
	if err != nil {
		return event.BatchStatus{}, err
	}
	st, err := l.statusOf(r)
	st.Position, st.CapturePosition = log.Sequence, asked.Sequence
	return st, err
}

func (l look) statusOf(r batchRecord) (event.BatchStatus, error) {
	m, err := l.made(r.Batch)
	if err != nil {
		return event.BatchStatus{}, err
	}
	return event.BatchStatus{
		Batch: r.Batch, Known: r.Known, Number: r.Number, Count: r.Count, Order: r.Order, Profiles: r.Profiles, PolicyDigest: r.PolicyDigest, Policy: r.Policy,
		Totals: r.Totals, Settled: r.Totals.Settled(), Converged: r.Converged, Convergence: r.Convergence,
		Bag: m.Bag, Manifest: m.Manifest, Problem: m.Problem, Changed: r.Changed,
	}, nil
}
