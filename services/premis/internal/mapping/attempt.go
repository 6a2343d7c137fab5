package mapping

import (
	"fmt"
	"time"

	"colophon/shared/event"
	"colophon/shared/fault"

	"colophon/services/premis/internal/record"
)

// try is one attempt whose outcome is known.
type try struct {
	event.Work
	op      event.Operation
	outcome string
	result  record.Resolution
	known   bool   // the master is recorded with the same fact
	device  string // that a gateway reported a fault of: pass 0, before the line's own
}

// retried records a completion that was not a first try in pass 1. A hit is no
// attempt.
func (m *mapper) retried(op event.Operation, w event.Work, known bool) error {
	if w.Hit || w.Attempt == 0 || w.Pass <= 1 && w.Attempt == 1 {
		return nil
	}
	return m.retry(try{Work: w, op: op, outcome: record.Success, result: record.Resolution{Status: record.StatusSuccess}, known: known})
}

// failed: one attempt failed, and what the policy said to that.
func (m *mapper) failed(a event.AttemptFailed) error {
	t := try{Work: a.Work, op: a.Operation, outcome: record.Fail, result: record.Resolution{
		Status: record.StatusQuarantined, Class: or(text(a.Class), string(fault.Permanent)), Code: or(text(a.Code), string(fault.Unclassified)),
		Message: text(a.Message), Late: a.Late,
	}, device: a.Device}
	if a.Decision == event.DecisionRetry {
		t.result.Status = record.StatusPending
		if !a.NotBefore.IsZero() {
			t.result.NotBefore = a.NotBefore.UTC()
		}
	}
	if a.Slot == (event.Slot{}) { // no frame and no batch: nothing PREMIS could link to
		r := m.op("op:"+m.idOr(a.MsgID()), a.Agent)
		r.Detail, r.Note = "Attempt failed on a message that belongs to no batch.", t.note()
		r.Data.Resolution = &t.result
		return nil
	}
	if err := m.retry(t); err != nil {
		return err
	}
	if a.Code == string(fault.DigestMismatch) && a.Class != string(fault.Lost) {
		return m.mismatch(a)
	}
	if imageFault(a) {
		return m.invalid(a)
	}
	return nil
}

// retry is MAPPING section 4.
func (m *mapper) retry(t try) error {
	d := t.Digest.Content()
	name := record.Name(record.Retry, string(t.op), d) + record.At(t.Slot) + record.Try(t.Pass, t.Attempt)
	late, err := m.afterLost(name, t)
	if err != nil {
		return err
	}
	if late {
		name += record.Run("late")
		t.result.Late = true
	}
	previous, err := m.previous(t)
	if err != nil {
		return err
	}
	objects, err := m.subjects(t.Slot, d, t.known)
	if err != nil {
		return err
	}
	typ, label := underlying(t.op)
	r := m.work(record.Retry, name, t.Work)
	r.Objects, r.Agents, r.Outcome = objects, worker(t.Work), t.outcome
	r.Detail = fmt.Sprintf("Attempt %s at %s, pass %d.", t.number(), label, t.Pass)
	if t.device != "" {
		r.Agents = append(r.Agents, device(t.device, nil))
		r.Detail = fmt.Sprintf("Attempt %s at %s by device %s, which its gateway reported, before the line's own passes.", t.number(), label, text(t.device))
	}
	r.Note = t.note()
	r.Data.Attempt = &record.Attempt{
		Operation: t.op, Type: typ.Label, URI: typ.URI(), Pass: t.Pass, Number: t.Attempt, Limit: t.Limit,
		Policy: m.Space.Event(policyName(t.Slot)), Previous: previous,
	}
	if !t.Started.IsZero() {
		r.Data.Attempt.Started = t.Started.UTC()
	}
	if !t.Ended.IsZero() && !t.lost() {
		r.Data.Attempt.Ended = t.Ended.UTC()
	}
	if t.lost() { // found now, and nobody knows when it ended
		r.Time = m.Stored
	}
	r.Data.Resolution = &t.result
	return nil
}

func (t try) lost() bool { return t.result.Class == string(fault.Lost) }

func (t try) number() string {
	if t.Limit > 0 {
		return fmt.Sprintf("%d of %d", t.Attempt, t.Limit)
	}
	return fmt.Sprint(t.Attempt)
}

func (t try) note() string {
	end := " Resolution: " + t.result.Status + "."
	took := "."
	if !t.Started.IsZero() && !t.Ended.IsZero() {
		took = " after " + seconds(t.Ended.Sub(t.Started).Round(time.Millisecond))
	}
	switch {
	case t.outcome == record.Success && took == ".":
		return "Succeeded." + end
	case t.outcome == record.Success:
		return "Succeeded" + took + "." + end
	case t.lost():
		return "The worker ended without a word; found when the message was delivered again." + end
	case took == ".":
		took = ""
	}
	return "Failed" + took + " with " + t.result.Code + ": " + sentence(t.result.Message) + end
}

func sentence(s string) string {
	if s == "" || s[len(s)-1] == '.' {
		return s
	}
	return s + "."
}

// afterLost tells whether this outcome came after its attempt had been
// reported lost: it stands beside that report and is no conflict.
func (m *mapper) afterLost(name string, t try) (bool, error) {
	if t.result.Late {
		return true, nil
	}
	if t.lost() {
		return false, nil
	}
	first, err := m.Record(name)
	if err != nil || first == nil || first.Data.Resolution == nil {
		return false, err
	}
	return first.Data.Resolution.Class == string(fault.Lost), nil
}

// previous is the highest attempt below this one.
func (m *mapper) previous(t try) (string, error) {
	chain, err := m.Chain(t.op, t.Slot)
	if err != nil {
		return "", err
	}
	var best Tried
	for _, c := range chain {
		below := c.Pass < t.Pass || c.Pass == t.Pass && c.Number < t.Attempt
		above := c.Pass > best.Pass || c.Pass == best.Pass && c.Number >= best.Number
		if below && above {
			best = c
		}
	}
	return best.Event, nil
}

// subjects are what an attempt or a case is about: the frame (or the batch)
// and the master as far as it is a file the ledger knows.
func (m *mapper) subjects(s event.Slot, d event.Digest, known bool) ([]record.Object, error) {
	out := []record.Object{frame(record.Source)}
	if s.Frame == "" {
		out = []record.Object{batch(record.Source)}
	}
	if d == "" {
		return out, nil
	}
	if !known {
		has, err := m.Has(digestName(d))
		if err != nil || !has {
			return out, err
		}
	}
	return append(out, file(d, record.Source)), nil
}

// mismatch: a digest was compared and differed. The bytes are read but not
// kept, so the file is an object only where the same content is held.
func (m *mapper) mismatch(a event.AttemptFailed) error {
	d := a.Digest.Content()
	if d == "" {
		return nil
	}
	objects, err := m.subjects(a.Slot, d, false)
	if err != nil {
		return err
	}
	r := m.work(record.FixityCheck, record.Name(record.FixityCheck, "", d)+record.At(a.Slot)+record.Pass(a.Pass), a.Work)
	r.Objects, r.Agents = objects, []record.Agent{software(a.Agent, record.Implementer)}
	declared := a.Declared.Content()
	compared(r, d, declared, or(text(a.DeclaredBy), "gateway"))
	r.Outcome, r.Note = record.Fail, "Digests differ. "+sentence(text(a.Message))
	if declared == d || declared == "" { // the fact does not say what was calculated
		r.Data.Digest = &record.Digest{Expected: d, ExpectedFrom: or(text(a.DeclaredBy), "gateway")}
	}
	return nil
}
