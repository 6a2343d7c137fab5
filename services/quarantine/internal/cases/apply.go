package cases

import (
	"errors"
	"fmt"
	"strings"

	"github.com/cockroachdb/pebble/v2"

	"colophon/shared/completed"
	"colophon/shared/event"
)

// Entry is one message of the log.
type Entry struct {
	completed.Position
	Subject string
	Pass    int            // from the header of a replayed message, else 0
	By      *event.Request // from the same
	Data    []byte
}

// Applied says what a piece of the log did.
type Applied struct {
	Touched    []string // cases whose slot or state moved: look whether a change is due
	Unreadable []error  // facts that were passed over
}

// stored is a change as history keeps it; the bytes are those of the log.
type stored struct {
	Generation uint64 `json:"generation"` // of the last reading that met it
	ID         string `json:"id"`
	Subject    string `json:"subject"`
	Data       []byte `json:"data"`
}

// Apply reads a piece of the log and the position behind it, in one commit. It
// may be given the same piece again. The commit is not synced: what it stores
// can be read from the log again. A fact that this build cannot read is passed
// over and reported: at worst its case stays open.
func (s *Store) Apply(entries []Entry) (Applied, error) {
	var a Applied
	if len(entries) == 0 {
		return a, nil
	}
	gen, err := s.counter(counterGeneration)
	if err != nil {
		return a, err
	}
	b := s.db.NewIndexedBatch()
	defer b.Close() //nolint:errcheck // see adopt
	w := writer{b, gen, &a}
	for _, e := range entries {
		f, err := event.DecodeFact(e.Subject, e.Data)
		if err != nil {
			a.Unreadable = append(a.Unreadable, fmt.Errorf("cases: message %d of the log, %s: %w", e.Sequence, e.Subject, err))
			continue
		}
		if err := w.fact(f, e); err != nil {
			return a, err
		}
	}
	if err := setJSON(b, prefixPosition+FollowLog, entries[len(entries)-1].Position); err != nil {
		return a, err
	}
	return a, commit(b, pebble.NoSync)
}

// writer applies facts to one batch.
type writer struct {
	b   *pebble.Batch
	gen uint64
	a   *Applied
}

func (w writer) fact(f event.Fact, e Entry) error {
	switch f := f.(type) {
	case event.FrameCaptured:
		return w.slot(f.Work, e, func(s *slot, m moment) { s.captured(f.Work, m) }, event.Capture, event.SourceChanged)
	case event.FrameFixed:
		return w.slot(f.Work, e, func(s *slot, m moment) { s.completed(event.Fixity, f.Work, m) }, event.Fixity)
	case event.DerivativeMade:
		o := event.Derivative(f.Derived.Profile)
		return w.slot(f.Work, e, func(s *slot, m moment) { s.completed(o, f.Work, m) }, o)
	case event.AttemptFailed:
		return w.slot(f.Work, e, func(s *slot, m moment) { s.failed(f, m) }, f.Operation)
	case event.BatchFact:
		return w.batch(f, e)
	case event.CaseFact:
		return w.changed(f, e)
	}
	return nil
}

func (w writer) slot(work event.Work, e Entry, apply func(*slot, moment), ops ...event.Operation) error {
	if work.Frame == "" {
		return nil
	}
	m := moment{pass: max(work.Pass, e.Pass, 1), revision: work.Revision, by: work.Requested, at: e.Stored}
	if e.By != nil {
		m.by = e.By
	}
	key := prefixSlot + work.Slot.String()
	var s slot
	if _, err := getJSON(w.b, key, &s); err != nil {
		return err
	}
	apply(&s, m)
	for _, o := range ops {
		if err := w.touch(event.CaseID(o, work.Slot, "")); err != nil {
			return err
		}
	}
	return setJSON(w.b, key, s)
}

func (w writer) touch(id string) error {
	var r Record
	ok, err := getJSON(w.b, prefixCase+id, &r)
	if err == nil && ok && !r.Settled() {
		w.a.Touched = append(w.a.Touched, id)
	}
	return err
}

func (w writer) batch(f event.BatchFact, e Entry) error {
	key := prefixDeclared + f.Batch.Encode()
	var b Batch
	if _, err := getJSON(w.b, key, &b); err != nil {
		return err
	}
	b.declare(f, e.Stored)
	if err := setJSON(w.b, key, b); err != nil {
		return err
	}
	return eachKey(w.b, prefixBatch+f.Batch.Encode()+"\x00", "", func(id string) (bool, error) {
		var r Record
		ok, err := getJSON(w.b, prefixCase+id, &r)
		if err == nil && ok && r.Frame == "" && !r.Settled() {
			w.a.Touched = append(w.a.Touched, id)
		}
		return err == nil, err
	})
}

// changed moves a case. Changes are numbered: one that is known already, or a
// second one under a number, moves nothing.
func (w writer) changed(f event.CaseFact, e Entry) error {
	if f.ID == "" || f.Number < 1 || strings.ContainsRune(f.ID+f.Code+f.Service+string(f.Operation), 0) {
		w.a.Unreadable = append(w.a.Unreadable, fmt.Errorf("cases: message %d of the log: %w", e.Sequence, errors.New("a case fact without its case or number")))
		return nil
	}
	var old Record
	if _, err := getJSON(w.b, prefixCase+f.ID, &old); err != nil {
		return err
	}
	if f.Number <= old.Number {
		return w.reread(f, e)
	}
	r := Record{CaseFact: f, OpenedAt: old.OpenedAt}
	if f.State == event.CaseOpened || old.Number == 0 {
		r.OpenedAt = f.At
	}
	if err := setJSON(w.b, historyKey(f), stored{w.gen, f.MsgID(), e.Subject, e.Data}); err != nil {
		return err
	}
	w.a.Touched = append(w.a.Touched, f.ID)
	return w.record(r)
}

// reread notes that the log holds a change that is known.
func (w writer) reread(f event.CaseFact, e Entry) error {
	var h stored
	ok, err := getJSON(w.b, historyKey(f), &h)
	if err != nil || !ok || h.ID != f.MsgID() || h.Generation == w.gen {
		return err
	}
	h.Generation = w.gen
	return setJSON(w.b, historyKey(f), h)
}

func (w writer) record(r Record) error {
	if err := setJSON(w.b, prefixCase+r.ID, r); err != nil {
		return err
	}
	m := summarise(r).encode()
	indexes := []string{prefixAll + r.ID}
	if r.Batch != "" {
		indexes = append(indexes, prefixBatch+r.Batch.Encode()+"\x00"+r.ID)
	}
	if r.Open() {
		indexes = append(indexes, prefixOpen+r.ID)
	} else if err := w.b.Delete([]byte(prefixOpen+r.ID), nil); err != nil {
		return err
	}
	for _, key := range indexes {
		if err := w.b.Set([]byte(key), m, nil); err != nil {
			return err
		}
	}
	return nil
}

func historyKey(f event.CaseFact) string { return prefixHistory + f.ID + "\x00" + number(f.Number) }
