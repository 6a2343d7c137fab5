package cases

import (
	"time"

	"colophon/shared/event"
)

// Words of decisions that nobody made in so many words.
const (
	UnknownActor  = "unknown"
	NoteRawReplay = "raw replay"
	NoteRerun     = "re-run"
	NoteImage     = "the image is faulty: "
)

// Due gives a case and the changes that the log demands of it by now, in
// order, none when there is nothing to do: replayed, when a later pass began
// without a recorded release; resolved, when the slot's operation is complete;
// rescan-requested, when the opening says that the policy asks for it. The
// answer is a function of the log alone.
func (s *Store) Due(id string) (Record, []event.CaseFact, error) {
	r, ok, err := s.Case(id)
	if err != nil || !ok || r.Settled() {
		return r, nil, err
	}
	switch {
	case r.Batch == "": // undecodable: it belongs to no slot
		return r, nil, nil
	case r.Frame == "":
		return s.dueBatch(r)
	}
	var sl slot
	if _, err := getJSON(s.db, prefixSlot+r.Slot.String(), &sl); err != nil {
		return r, nil, err
	}
	var out []event.CaseFact
	if op := sl.get(r.Operation); op.Pass > r.Pass && r.Open() {
		out = append(out, released(r.CaseFact, op))
	}
	if at, ok := sl.completeFor(r.Operation, r.Revision); ok {
		out = append(out, resolved(last(r, out), at))
	}
	if len(out) == 0 && r.State == event.CaseOpened && r.Rescan {
		by := event.Request{Actor: event.ActorPolicy, Note: NoteImage + r.Code}
		out = append(out, Decided(r, event.CaseRescan, by, nextPass(r, sl), r.At))
	}
	return r, out, nil
}

// NextPass gives the pass that bytes scanned again come in: above every pass
// of the slot, so that each stage behind takes them for a later one.
func (s *Store) NextPass(r Record) (int, error) {
	var sl slot
	_, err := getJSON(s.db, prefixSlot+r.Slot.String(), &sl)
	return nextPass(r, sl), err
}

func nextPass(r Record, sl slot) int { return max(r.Pass, sl.pass()) + 1 }

// dueBatch: a case of a whole batch is resolved by the next declaration that
// is accepted, or by convergence.
func (s *Store) dueBatch(r Record) (Record, []event.CaseFact, error) {
	b, err := s.Batch(r.Batch)
	if err != nil || !b.At.After(r.OpenedAt) {
		return r, nil, err
	}
	return r, []event.CaseFact{resolved(r.CaseFact, b.At)}, nil
}

func last(r Record, changes []event.CaseFact) event.CaseFact {
	if n := len(changes); n > 0 {
		return changes[n-1]
	}
	return r.CaseFact
}

// change begins the next change of a case.
func change(c event.CaseFact, state string, at time.Time) event.CaseFact {
	c.State, c.Number, c.Actor, c.Note, c.NextPass, c.Rescan = state, c.Number+1, "", "", 0, false
	if at.After(c.At) {
		c.At = at
	}
	return c
}

// released: a later pass began. Who asked for it stands in its facts; where
// nobody does, other bytes than those that failed answer the rescan that was
// asked for, and the same bytes were sent by hand.
func released(c event.CaseFact, op opState) event.CaseFact {
	was := c
	c = change(c, event.CaseReplayed, op.Begun)
	c.NextPass, c.Actor, c.Note = op.Pass, UnknownActor, NoteRawReplay
	switch {
	case op.By != nil && op.By.Actor != "":
		c.Actor, c.Note = op.By.Actor, op.By.Note
		if c.Note == "" {
			c.Note = NoteRerun
		}
	case was.State == event.CaseRescan && op.Revision > was.Revision:
		c.Actor, c.Note = was.Actor, was.Note
	}
	return c
}

func resolved(c event.CaseFact, at time.Time) event.CaseFact {
	return change(c, event.CaseResolved, at)
}

// Decided gives the change that a person's decision makes.
func Decided(r Record, state string, by event.Request, nextPass int, at time.Time) event.CaseFact {
	c := change(r.CaseFact, state, at)
	c.Actor, c.Note, c.NextPass = by.Actor, by.Note, nextPass
	return c
}
