package capture

import (
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"colophon/shared/event"
	"colophon/shared/schema"
	"colophon/shared/topology"
)

// change is one commit of the view in the making. Counts and convergence move
// with each message, so that they do not depend on where a commit ends; slots
// and their places are written once, at its end.
type change struct {
	b       *pebble.Batch
	slots   map[event.Slot]*entry
	batches map[event.Name]*batchRecord
	unread  []uint64 // messages of the log that are no facts
}

// entry is a slot in a change.
type entry struct {
	event.Progress
	known bool        // in the view's commits before
	order string      // its place there
	state event.State // as counted; empty: not yet
}

func newChange(v *view) *change {
	return &change{b: v.db.NewIndexedBatch(), slots: map[event.Slot]*entry{}, batches: map[event.Name]*batchRecord{}}
}

func (c *change) batch(b event.Name) (*batchRecord, error) {
	if r := c.batches[b]; r != nil {
		return r, nil
	}
	r := new(batchRecord)
	if _, err := getJSON(c.b, viewBatch+b.Encode(), r); err != nil {
		return nil, err
	}
	r.Batch = b
	c.batches[b] = r
	return r, nil
}

// touch notes which message a batch was changed by.
func (r *batchRecord) touch(stored time.Time, seen *uint64, seq uint64) {
	*seen = seq
	if stored.After(r.Changed) {
		r.Changed = stored
	}
}

func (c *change) slot(s event.Slot) (*entry, *batchRecord, error) {
	r, err := c.batch(s.Batch)
	if err != nil || c.slots[s] != nil {
		return c.slots[s], r, err
	}
	e := &entry{Progress: event.Progress{Slot: s}}
	if e.known, err = getJSON(c.b, viewSlot+s.String(), &e.Progress); err != nil {
		return nil, nil, err
	}
	if e.known {
		e.order, e.state = orderKey(r.Order, &e.Progress), e.State(r.Profiles)
	}
	c.slots[s] = e
	return e, r, nil
}

// count moves a slot from the state it was counted as to the one it has.
func (r *batchRecord) count(e *entry) {
	if e.state != "" {
		r.Totals.Count(e.state, -1)
	}
	e.state = e.State(r.Profiles)
	r.Totals.Count(e.state, 1)
	r.judge()
}

// judge tells what follows from new counts.
func (r *batchRecord) judge() {
	r.Totals.Declare(r.Count)
	r.Converged = r.Converged && r.Totals.Converged()
}

// frame applies a capture message: a slot was asked for. A message nobody can
// read changes nothing here; the worker makes a dead letter of it.
func (c *change) frame(m topology.Message) error {
	var f event.FrameMessage
	if event.Unmarshal(m.Data, &f) != nil || f.Validate() != nil || schema.Check(m.Subject, m.Data) != nil {
		return nil
	}
	if kind, _, batch, err := event.ParseCaptureSubject(m.Subject); err != nil || kind != "frame" || batch != f.Batch {
		return nil
	}
	pass, err := event.PassOf(m.Header.Get(event.HeaderPass), f.Pass)
	if err != nil {
		return nil
	}
	e, r, err := c.slot(f.Slot)
	if err != nil {
		return err
	}
	e.Request(f, pass, m.Sequence)
	r.count(e)
	r.touch(m.Stored, &r.Read.Frame, m.Sequence)
	var before asked
	if _, err := getJSON(c.b, viewAsked+f.Slot.String(), &before); err != nil || pass < before.Pass {
		return err
	}
	return setJSON(c.b, viewAsked+f.Slot.String(), asked{m.MsgID, m.Subject, pass, own(m.Header), m.Data})
}

// fact applies a fact of the log.
func (c *change) fact(m topology.Message) error {
	f, err := event.DecodeFact(m.Subject, m.Data)
	if errors.Is(err, event.ErrUnknownSchema) {
		return err // of a newer version: never guessed at
	}
	if err != nil { // no fact: somebody published by hand, and the log keeps it for good
		c.unread = append(c.unread, m.Sequence)
		return nil
	}
	switch f := f.(type) {
	case event.BatchFact:
		return c.declared(f, m)
	case event.OpFact:
		return errors.Join(c.sentAgain(f), c.toldOf(f))
	}
	s, ok := slotOf(f)
	if !ok {
		return nil
	}
	e, r, err := c.slot(s)
	if err != nil {
		return err
	}
	pass := 0
	if h := m.Header.Get(event.HeaderPass); h != "" {
		if pass, err = event.PassOf(h, 0); err != nil {
			pass = 0
		}
	}
	e.Apply(f, m.Sequence, pass)
	r.count(e)
	r.touch(m.Stored, &r.Read.Fact, m.Sequence)
	switch f := f.(type) {
	case event.CaseFact:
		return c.decided(f)
	case event.FrameFixed:
		if f.Revision > 1 {
			return c.b.Set([]byte(viewOld+s.String()), nil, nil)
		}
	}
	return nil
}

// decided notes what a decision asks of others than the slot.
func (c *change) decided(d event.CaseFact) error {
	if d.State == event.CaseRescan {
		return c.b.Set([]byte(viewRescan+d.Slot.String()), nil, nil)
	}
	if frees(d) {
		return c.b.Set([]byte(viewUnstage+d.Slot.String()), nil, nil)
	}
	return nil
}

// frees reports whether a decision lets staged bytes go: those of an unfinished
// slot that is discarded, or the other bytes that came for a done one.
func frees(d event.CaseFact) bool {
	_, derivative := d.Operation.Profile()
	return d.State == event.CaseDiscarded && !derivative || d.State == event.CaseResolved && d.Operation == event.SourceChanged
}

func slotOf(f event.Fact) (event.Slot, bool) {
	if w, ok := event.WorkOf(f); ok {
		return w.Slot, w.Frame != ""
	}
	if c, ok := f.(event.CaseFact); ok {
		return c.Slot, c.Frame != ""
	}
	return event.Slot{}, false
}

// declared applies a declaration or a convergence. States follow the profiles
// and places the order, so a batch that changes those is gone through anew.
func (c *change) declared(f event.BatchFact, m topology.Message) error {
	r, err := c.batch(f.Batch)
	if err != nil {
		return err
	}
	if f.State == "converged" {
		if f.Number > r.Convergence {
			r.Convergence, r.At, r.Sequence = f.Number, m.Stored, m.Sequence
			r.Converged = r.Totals.Converged() // other facts may have come before it
			r.touch(m.Stored, &r.Read.Fact, m.Sequence)
		}
		return nil
	}
	if r.Known && f.Number < r.Number {
		return nil
	}
	again := f.Order != r.Order || !slices.Equal(f.Profiles, r.Profiles)
	if again {
		if err := c.store(); err != nil { // under the order that it was read in
			return err
		}
	}
	r.BatchFact, r.Known = f, true
	r.touch(m.Stored, &r.Read.Fact, m.Sequence)
	if again {
		if err := c.recount(r); err != nil {
			return err
		}
	}
	r.judge()
	return nil
}

func (c *change) recount(r *batchRecord) error {
	r.Totals = event.Totals{}
	order := viewOrder + r.Batch.Encode() + "/"
	if err := c.b.DeleteRange([]byte(order), upper(order), nil); err != nil {
		return err
	}
	return look{c.b}.each(viewSlot+r.Batch.Encode()+"/", "", func(_ string, value []byte) error {
		var p event.Progress
		if err := json.Unmarshal(value, &p); err != nil {
			return err
		}
		r.Totals.Count(p.State(r.Profiles), 1)
		return c.b.Set([]byte(order+orderKey(r.Order, &p)), []byte(p.Frame), nil)
	})
}

// store writes the slots changed so far, and their places.
func (c *change) store() error {
	for s, e := range c.slots {
		order := viewOrder + s.Batch.Encode() + "/"
		now := orderKey(c.batches[s.Batch].Order, &e.Progress)
		if e.known && e.order != now {
			if err := c.b.Delete([]byte(order+e.order), nil); err != nil {
				return err
			}
		}
		if !e.known || e.order != now {
			if err := c.b.Set([]byte(order+now), []byte(s.Frame), nil); err != nil {
				return err
			}
		}
		if err := setJSON(c.b, viewSlot+s.String(), &e.Progress); err != nil {
			return err
		}
	}
	clear(c.slots)
	return nil
}

func (c *change) flush() error {
	if err := c.store(); err != nil {
		return err
	}
	for b, r := range c.batches {
		if err := setJSON(c.b, viewBatch+b.Encode(), r); err != nil {
			return err
		}
	}
	return nil
}
