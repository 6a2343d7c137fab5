package event

import (
	"cmp"
	"slices"
	"time"
)

// State of a slot in a batch.
type State string

// The states; a slot's is the first that holds, in this order.
const (
	StateDiscarded State = "discarded" // by a recorded decision
	StateFailed    State = "failed"    // also: done, but other bytes wait for a decision
	StateDone      State = "done"      // every wanted operation complete by the slot's own facts, or waived
	StateMissing   State = "missing"   // never asked for: all that is known of it are faults of its device
	StatePending   State = "pending"   // some wanted operation can still move
)

// OpProgress is how far one operation of a slot is.
type OpProgress struct {
	Pass      int       `json:"pass,omitempty"`    // highest pass its facts speak of
	Done      bool      `json:"done,omitempty"`    // complete for the slot's current revision
	Dead      int       `json:"dead,omitempty"`    // highest pass that ended in a dead letter
	Waived    bool      `json:"waived,omitempty"`  // a derivative discarded by decision
	Service   string    `json:"service,omitempty"` // that failed last
	Class     string    `json:"class,omitempty"`
	Code      string    `json:"code,omitempty"` // of the last failure, until done
	Reason    string    `json:"reason,omitempty"`
	Attempt   int       `json:"attempt,omitempty"`
	NotBefore time.Time `json:"not_before,omitzero"` // of the next attempt
	Order     uint64    `json:"order,omitempty"`     // sequence of the last message that orders it: of CAPTURE for capture, else of the log
	Ordered   int       `json:"ordered,omitempty"`   // highest pass that was ordered
	Told      int       `json:"told,omitempty"`      // highest pass that the current revision was told complete under
}

// Progress is all that a batch view knows of one slot. It is derived from the
// slot's facts by [Progress.Apply] and from nothing else, so that any number
// of copies that follow the log agree.
type Progress struct {
	Slot
	Sequence  int                       `json:"sequence,omitempty"`
	Revision  int                       `json:"revision,omitempty"`
	Digest    Digest                    `json:"digest,omitempty"`    // of the current revision
	Pinned    Digest                    `json:"pinned,omitempty"`    // of the last revision that was fixed
	Requested int                       `json:"requested,omitempty"` // highest pass that was asked for, or that an order sent again will run under
	Placed    int                       `json:"placed,omitempty"`    // pass of the request that gave the place
	Ended     int                       `json:"ended,omitempty"`     // highest pass whose capture came to an end: bytes taken, or a dead letter
	Discarded bool                      `json:"discarded,omitempty"`
	Changed   int                       `json:"changed,omitempty"` // pass of an open source-changed, 0 when none
	Decided   int                       `json:"decided,omitempty"` // highest pass whose source-changed was decided: the same fact again opens nothing
	Effect    uint64                    `json:"effect,omitempty"`  // log sequence of the last completion that was no hit
	Ops       map[Operation]*OpProgress `json:"ops,omitempty"`
	Captured  *Captured                 `json:"captured,omitempty"`
	Fixed     *Fixed                    `json:"fixed,omitempty"`
	Derived   map[string]*Derived       `json:"derived,omitempty"` // by profile
	Rescans   map[Operation]*Rescan     `json:"rescans,omitempty"` // by the operation of the case
	Answers   []string                  `json:"answers,omitempty"` // dispatches that frame messages say they answer, the newest
}

func (p *Progress) op(o Operation) *OpProgress {
	if p.Ops == nil {
		p.Ops = map[Operation]*OpProgress{}
	}
	if p.Ops[o] == nil {
		p.Ops[o] = &OpProgress{}
	}
	return p.Ops[o]
}

// Pass is the highest pass of the slot: asked for, or seen in any fact.
func (p *Progress) Pass() int {
	pass := p.Requested
	for _, o := range p.Ops {
		pass = max(pass, o.Pass, o.Dead)
	}
	return pass
}

// Request notes that a pass over the slot was asked for. Requests and facts
// are read from two streams, in no order with each other: the slot's place is
// what the request of the highest pass says, until a fact speaks of its bytes.
// seq is the message's in CAPTURE.
func (p *Progress) Request(m FrameMessage, pass int, seq uint64) {
	p.Slot = m.Slot
	p.order(Capture, pass, seq)
	p.answer(m.Answers)
	if pass > p.Placed {
		p.Placed = pass
		if p.Captured == nil && p.Fixed == nil {
			p.Sequence = m.Sequence
		}
	}
	p.Requested = max(p.Requested, pass)
}

// Apply moves the slot by one fact. A replayed message's pass is in its
// header; 0 when it had none. It reports false for facts that do not speak of
// a slot.
func (p *Progress) Apply(f Fact, seq uint64, headerPass int) bool {
	switch f := f.(type) {
	case FrameCaptured:
		p.captured(f, headerPass, seq)
		p.effect(f.Work, seq)
	case FrameFixed:
		if f.Revision < p.Revision {
			return true
		}
		p.Slot, p.Sequence = f.Slot, f.Sequence
		p.complete(Fixity, f.Work, headerPass)
		p.Pinned, p.Fixed = f.Digest, &f.Fixed
		for o := range p.Ops {
			if _, derivative := o.Profile(); derivative {
				p.again(o)
			}
		}
		for _, profile := range f.Profiles {
			p.order(Derivative(profile), max(f.Pass, headerPass), seq)
		}
		p.effect(f.Work, seq)
	case DerivativeMade:
		if f.Revision < p.Revision {
			return true
		}
		p.Slot = f.Slot
		p.complete(Derivative(f.Derived.Profile), f.Work, headerPass)
		if p.Derived == nil {
			p.Derived = map[string]*Derived{}
		}
		p.Derived[f.Derived.Profile] = &f.Derived
		p.effect(f.Work, seq)
	case AttemptFailed:
		if f.Frame == "" {
			return false
		}
		p.failed(f)
	case CaseFact:
		if f.Frame == "" {
			return false
		}
		p.decided(f)
	default:
		return false
	}
	return true
}

func (p *Progress) effect(w Work, seq uint64) {
	if !w.Hit {
		p.Effect = max(p.Effect, seq)
	}
}

func (p *Progress) captured(f FrameCaptured, headerPass int, seq uint64) {
	p.Ended = max(p.Ended, f.Pass, headerPass)
	if f.Revision < p.Revision {
		return
	}
	if f.Digest != p.Digest { // other bytes: what was done for the old ones no longer counts
		for o, op := range p.Ops {
			if o != Capture {
				op.Done, op.Waived, op.Told, op.Ordered, op.Order = false, false, 0, 0, 0
			}
		}
		p.Fixed, p.Derived = nil, nil
	}
	p.Slot, p.Sequence, p.Revision, p.Digest, p.Captured = f.Slot, f.Sequence, f.Revision, f.Digest, &f.Captured
	p.complete(Capture, f.Work, headerPass)
	p.again(Fixity)
	p.order(Fixity, max(f.Pass, headerPass), seq)
	if p.Changed > 0 && max(f.Pass, headerPass) > p.Changed {
		p.unchange()
	}
}

// again notes that a fact asks an operation to move: what died runs under
// one more than its highest dead pass, whatever pass the fact speaks of (an
// operator sent it again as it was, or it carries other bytes).
func (p *Progress) again(o Operation) {
	if op := p.get(o); op.Dead > 0 && !op.Done {
		p.Requested = max(p.Requested, op.Dead+1)
	}
}

func (p *Progress) complete(o Operation, w Work, headerPass int) {
	op := p.op(o)
	op.Done, op.Pass, op.Told = true, max(op.Pass, w.Pass, headerPass), max(op.Told, w.Pass, headerPass)
	op.Service, op.Class, op.Code, op.Reason, op.Attempt, op.NotBefore = "", "", "", "", 0, time.Time{}
}

func (p *Progress) failed(f AttemptFailed) {
	p.Slot = f.Slot
	p.Sequence = cmp.Or(p.Sequence, f.Sequence)
	if f.Decision == DecisionDeadLetter && (f.Operation == Capture || f.Operation == SourceChanged) {
		p.Ended = max(p.Ended, f.Pass)
	}
	if f.Operation == SourceChanged {
		if f.Decision == DecisionDeadLetter && f.Pass > p.Decided {
			p.Changed = max(p.Changed, f.Pass)
			p.describe(p.op(SourceChanged), f)
			c := p.op(Capture) // the message that brought the other bytes is finished
			c.Dead = max(c.Dead, f.Pass)
		}
		return
	}
	op := p.op(f.Operation)
	if f.Pass < op.Pass || f.Revision < p.Revision && f.Operation != Capture {
		return
	}
	op.Pass = f.Pass
	if f.Decision == DecisionDeadLetter {
		op.Dead = max(op.Dead, f.Pass)
	}
	if !op.Done {
		p.describe(op, f)
	}
}

func (p *Progress) unchange() { p.Decided, p.Changed = max(p.Decided, p.Changed), 0 }

func (p *Progress) describe(op *OpProgress, f AttemptFailed) {
	op.Service, op.Class, op.Code, op.Reason, op.Attempt, op.NotBefore = f.Service, f.Class, f.Code, f.Message, f.Attempt, f.NotBefore
	op.Pass = max(op.Pass, f.Pass)
}

func (p *Progress) decided(f CaseFact) {
	p.Slot = f.Slot
	p.Sequence = cmp.Or(p.Sequence, f.Sequence)
	p.rescan(f)
	switch f.State {
	case CaseDiscarded:
		switch _, derivative := f.Operation.Profile(); {
		case f.Operation == SourceChanged:
			p.unchange()
		case derivative:
			p.op(f.Operation).Waived = true
		case f.Operation == Capture || f.Operation == Fixity:
			p.Discarded = true
		}
	case CaseResolved:
		if f.Operation == SourceChanged && f.Pass >= p.Changed {
			p.unchange()
		}
	}
}

// order of the line: an operation cannot move past one before it.
func line(profiles []string) []Operation {
	out := []Operation{Capture, Fixity}
	for _, p := range profiles {
		out = append(out, Derivative(p))
	}
	return out
}

func (p *Progress) get(o Operation) OpProgress {
	if op := p.Ops[o]; op != nil {
		return *op
	}
	return OpProgress{}
}

// State of the slot under the profiles that its batch wants.
func (p *Progress) State(profiles []string) State {
	if p.Discarded {
		return StateDiscarded
	}
	if p.Changed > 0 {
		return StateFailed
	}
	done, pass := true, p.Pass()
	if pass == 0 && p.Captured == nil && p.get(Capture).Code != "" {
		return StateMissing
	}
	moves := false
	upstream := false // an operation that all others wait for died in this pass
	for i, o := range line(profiles) {
		op := p.get(o)
		dead := op.Dead > 0 && op.Dead >= pass
		if !op.Done && !op.Waived {
			done = false
			if !dead && !upstream {
				moves = true
			}
		}
		if i < 2 && dead {
			upstream = true
		}
	}
	switch {
	case done:
		return StateDone
	case moves:
		return StatePending
	}
	return StateFailed
}

// Trouble is one operation that keeps a slot from being done.
type Trouble struct {
	Operation Operation `json:"operation"`
	OpProgress
}

// Troubles lists the operations that failed, in the order of the line.
func (p *Progress) Troubles(profiles []string) []Trouble {
	var out []Trouble
	for _, o := range slices.Concat([]Operation{SourceChanged}, line(profiles)) {
		if o == SourceChanged && p.Changed == 0 {
			continue
		}
		if op := p.get(o); op.Code != "" && !op.Waived {
			out = append(out, Trouble{o, op})
		}
	}
	return out
}

// Stage names the operation that a pending slot waits at.
func (p *Progress) Stage(profiles []string) Operation {
	for _, o := range line(profiles) {
		if op := p.get(o); !op.Done && !op.Waived {
			return o
		}
	}
	return ""
}

// Count adds n slots of a state.
func (t *Totals) Count(s State, n int) {
	switch s {
	case StateDone:
		t.Done += n
	case StateFailed:
		t.Failed += n
	case StatePending:
		t.Pending += n
	case StateDiscarded:
		t.Discarded += n
	}
}

// Declare sets the declared count and, from it, what is missing or too much.
func (t *Totals) Declare(count int) {
	known := t.Done + t.Failed + t.Pending + t.Discarded
	t.Declared, t.Missing, t.Surplus = count, max(0, count-known), max(0, known-count)
}

// Settled: no frame of the batch is pending.
func (t Totals) Settled() bool { return t.Declared > 0 && t.Pending == 0 }

// Converged: each declared frame is done, or discarded by a recorded decision.
func (t Totals) Converged() bool {
	return t.Declared > 0 && t.Done+t.Discarded == t.Declared && t.Failed+t.Pending+t.Missing+t.Surplus == 0
}
