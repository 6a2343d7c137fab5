package event

import (
	"slices"
	"strings"
	"time"
)

// Order is the last message that orders an operation of a slot.
type Order struct {
	Operation Operation
	Sequence  uint64 // of CAPTURE for capture, else of the log
}

// order notes the message that orders an operation. The last one read counts:
// a stream that was rolled back numbers its messages anew.
func (p *Progress) order(o Operation, pass int, seq uint64) {
	op := p.op(o)
	op.Order, op.Ordered = seq, max(op.Ordered, pass)
	if op.Dead > 0 && !op.Done && o != Capture { // facts alone tell, so that two streams read in any mixture tell the same
		op.Ordered = max(op.Ordered, op.Dead+1)
	}
}

// Waits names the operations that a pending slot waits for: the first of the
// line whose last order has no answer, or each derivative that is not made.
func (p *Progress) Waits(profiles []string) (out []Operation) {
	if p.State(profiles) != StatePending {
		return nil
	}
	pass := p.Pass()
	for i, o := range line(profiles) {
		op := p.get(o)
		moves := !op.Done && !op.Waived && (op.Dead == 0 || op.Dead < pass)
		if i < 2 && (moves || op.Ordered > max(op.Told, op.Dead)) {
			return []Operation{o}
		}
		if moves {
			out = append(out, o)
		}
	}
	return out
}

// Orders lists, along the line up to an operation, the sequences of the
// messages that may still move it: its own order, and those of what it waits
// for. One that nothing ever ordered has 0.
func (p *Progress) Orders(o Operation) []Order {
	out := []Order{{Capture, p.get(Capture).Order}, {Fixity, p.get(Fixity).Order}, {o, p.get(o).Order}}
	switch o {
	case Capture:
		return out[:1]
	case Fixity:
		return out[:2]
	}
	return out
}

// answersKept is how many answers a slot remembers, the newest.
const answersKept = 64

// answer notes which dispatch a message says it answers. Anybody can say so:
// only what can be the id of one of this slot is noted.
func (p *Progress) answer(id string) {
	device, number, ok := strings.Cut(id, ":"+p.Slot.String()+"#")
	if !ok || !strings.HasPrefix(id, "dispatch:") || len(device) > len("dispatch:")+3*MaxDeviceLen || len(number) > 64 || slices.Contains(p.Answers, id) {
		return
	}
	p.Answers = append(p.Answers, id)
	if n := len(p.Answers) - answersKept; n > 0 {
		p.Answers = slices.Clone(p.Answers[n:])
	}
}

// Rescan is a decision to have a slot scanned again. One that a later decision
// on its case took over from has no pass.
type Rescan struct {
	Decision string    `json:"decision,omitempty"` // message id of the fact
	Number   int       `json:"number"`             // of the case's change
	Pass     int       `json:"pass,omitempty"`     // that the answer runs under, at least
	Reason   string    `json:"reason,omitempty"`
	Actor    string    `json:"actor,omitempty"`
	Note     string    `json:"note,omitempty"`
	At       time.Time `json:"at,omitzero"`
}

// rescan notes a decision to scan again; the case's next change ends it.
func (p *Progress) rescan(f CaseFact) {
	now := p.Rescans[f.Operation]
	if f.State != CaseRescan && now == nil || now != nil && f.Number < now.Number {
		return
	}
	if p.Rescans == nil {
		p.Rescans = map[Operation]*Rescan{}
	}
	p.Rescans[f.Operation] = &Rescan{Number: f.Number}
	if f.State == CaseRescan {
		p.Rescans[f.Operation] = &Rescan{f.MsgID(), f.Number, max(f.NextPass, f.Pass+1), f.Reason, f.Actor, f.Note, f.At}
	}
}
