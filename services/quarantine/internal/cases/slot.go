package cases

import (
	"time"

	"colophon/shared/event"
)

// slot is what the log says of one slot, as far as its cases need it. Done is
// the batch view's ([event.Progress]): complete by the slot's own fact, of any
// pass, for its current revision. A test holds the two together.
type slot struct {
	Revision int                          `json:"revision,omitempty"`
	Digest   event.Digest                 `json:"digest,omitempty"`
	Ops      map[event.Operation]*opState `json:"ops,omitempty"`
}

// opState is one operation of a slot.
type opState struct {
	Pass     int            `json:"pass,omitempty"`     // highest that its facts speak of
	Begun    time.Time      `json:"begun,omitzero"`     // stored time of the first fact of that pass
	Revision int            `json:"revision,omitempty"` // that the first fact of that pass speaks of
	By       *event.Request `json:"by,omitempty"`       // who asked for that pass
	Done     bool           `json:"done,omitempty"`
	DoneAt   time.Time      `json:"done_at,omitzero"`
	Declared event.Digest   `json:"declared,omitempty"` // digest that the last failure found declared
}

func (s *slot) op(o event.Operation) *opState {
	if s.Ops == nil {
		s.Ops = map[event.Operation]*opState{}
	}
	if s.Ops[o] == nil {
		s.Ops[o] = &opState{}
	}
	return s.Ops[o]
}

func (s *slot) get(o event.Operation) opState {
	if op := s.Ops[o]; op != nil {
		return *op
	}
	return opState{}
}

// pass is the highest pass that any fact of the slot speaks of.
func (s *slot) pass() int {
	n := 0
	for _, op := range s.Ops {
		n = max(n, op.Pass)
	}
	return n
}

// moment is where and for whom a fact was stored.
type moment struct {
	pass     int // the larger of the body's and the header's
	revision int
	by       *event.Request
	at       time.Time
}

func (o *opState) begin(m moment) {
	if m.pass > o.Pass {
		o.Pass, o.Begun, o.Revision, o.By = m.pass, m.at, m.revision, m.by
	}
}

func (o *opState) complete(m moment) {
	o.begin(m)
	if !o.Done {
		o.Done, o.DoneAt = true, m.at
	}
	o.Declared = ""
}

// adopt takes a fact's revision over. Other bytes undo what was done for the
// old ones. It reports false for a superseded revision.
func (s *slot) adopt(w event.Work) bool {
	if w.Revision < s.Revision {
		return false
	}
	if w.Digest != s.Digest {
		for o, op := range s.Ops {
			if o != event.Capture && o != event.SourceChanged {
				op.Done, op.DoneAt = false, time.Time{}
			}
		}
	}
	s.Revision, s.Digest = w.Revision, w.Digest
	return true
}

func (s *slot) captured(w event.Work, m moment) {
	if !s.adopt(w) {
		return
	}
	s.op(event.Capture).complete(m)
	// The bytes of a later pass than the refused ones: they came back, or a
	// revision was accepted.
	if c := s.Ops[event.SourceChanged]; c != nil && m.pass > c.Pass {
		c.complete(m)
	}
}

func (s *slot) completed(o event.Operation, w event.Work, m moment) {
	if s.adopt(w) {
		s.op(o).complete(m)
	}
}

func (s *slot) failed(f event.AttemptFailed, m moment) {
	if f.Operation == event.SourceChanged {
		s.changed(f, m)
		return
	}
	if f.Revision < s.Revision && f.Operation != event.Capture {
		return
	}
	op := s.op(f.Operation)
	op.begin(m)
	if f.Declared != "" {
		op.Declared = f.Declared
	}
}

// changed: other bytes were refused. They wait for a decision whatever was
// captured before, so the order of the log decides, not passes alone.
func (s *slot) changed(f event.AttemptFailed, m moment) {
	op := s.op(event.SourceChanged)
	if m.pass < op.Pass {
		return
	}
	op.begin(m)
	op.Done, op.DoneAt, op.Declared = false, time.Time{}, f.Declared
}

// completeFor reports whether an operation is complete for a revision, and
// since when. Facts of an older revision do not count: the log may be read
// less far than a dead letter knows it. Taking bytes in is another matter: a
// revision that was never captured supersedes nothing.
func (s *slot) completeFor(o event.Operation, revision int) (time.Time, bool) {
	op := s.get(o)
	if o == event.Capture || o == event.SourceChanged {
		return op.DoneAt, op.Done
	}
	return op.DoneAt, op.Done && s.Revision >= revision
}
