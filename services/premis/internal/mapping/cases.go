package mapping

import (
	"fmt"
	"strconv"

	"colophon/shared/event"

	"colophon/services/premis/internal/record"
)

// caseChanged: quarantine's decisions on a case.
func (m *mapper) caseChanged(c event.CaseFact) error {
	if c.Slot == (event.Slot{}) {
		m.caseOp(c)
		return nil
	}
	switch c.State {
	case event.CaseOpened:
		return m.quarantined(c)
	case event.CaseReplayed:
		return m.closed(c, record.Unquarantine, record.DecisionReplay)
	case event.CaseDiscarded:
		return m.closed(c, record.Appraisal, record.DecisionDiscard)
	case event.CaseRescan:
		return m.closed(c, record.Appraisal, record.DecisionRescan)
	}
	m.caseOp(c) // resolved: its completion is the event
	return nil
}

// caseOp records a change of a case that is no event about an object.
func (m *mapper) caseOp(c event.CaseFact) {
	r := m.op("op:"+m.idOr(c.MsgID()), c.Agent)
	r.Time = m.or(c.At)
	r.Detail = fmt.Sprintf("Case of %s: %s.", text(string(c.Operation)), text(c.State))
	r.Note = text(c.Reason)
	r.Data.Case = m.caseData(c)
	if c.Batch != "" {
		r.Slot = &record.Slot{Batch: c.Batch.Encode(), Frame: c.Frame.Encode(), Sequence: c.Sequence, Revision: c.Revision}
	}
}

func (m *mapper) caseData(c event.CaseFact) *record.Case {
	return &record.Case{
		ID: m.Space.Event(quarantineName(c)), Operation: c.Operation, Pass: max(c.Pass, 1), Code: or(text(c.Code), "unclassified"),
		Reason: text(c.Reason), Attempts: c.Attempts,
	}
}

// caseName names what a decision was made of. A rescan leaves the case open for
// another decision in the same pass, another rescan too: it is numbered.
func caseName(t record.Type, c event.CaseFact) string {
	name := record.Name(t, string(c.Operation), c.Digest.Content()) + record.At(c.Slot) + record.Pass(max(c.Pass, 1))
	if t == record.Appraisal && c.State == event.CaseRescan {
		name += record.Run(strconv.Itoa(c.Number))
	}
	return name
}

func quarantineName(c event.CaseFact) string { return caseName(record.Quarantine, c) }

func (m *mapper) caseEvent(t record.Type, c event.CaseFact) (*record.Record, error) {
	objects, err := m.subjects(c.Slot, c.Digest.Content(), false)
	if err != nil {
		return nil, err
	}
	r := m.event(t, caseName(t, c), c.At, c.Slot)
	r.Digest, r.Objects = c.Digest.Content(), objects
	r.Slot.Sequence, r.Slot.Revision = c.Sequence, c.Revision
	return r, nil
}

func (m *mapper) quarantined(c event.CaseFact) error {
	chain, err := m.Chain(c.Operation, c.Slot)
	if err != nil {
		return err
	}
	r, err := m.caseEvent(record.Quarantine, c)
	if err != nil {
		return err
	}
	r.Agents = []record.Agent{software(c.Agent, record.Implementer)}
	r.Detail = fmt.Sprintf("Case opened for %s of %s.", text(string(c.Operation)), about(c.Slot))
	r.Note = text(c.Code) + ": " + sentence(text(c.Reason))
	r.Data.Case = m.caseData(c)
	r.Data.Case.Cause = cause(chain, c.Pass)
	return nil
}

func about(s event.Slot) string {
	if s.Frame == "" {
		return "batch " + shown(s.Batch)
	}
	return "frame " + shown(s.Frame) + " of batch " + shown(s.Batch)
}

// cause is the last attempt of the pass that failed.
func cause(chain []Tried, pass int) string {
	var best Tried
	for _, t := range chain {
		if t.Pass == pass && t.Number >= best.Number {
			best = t
		}
	}
	return best.Event
}

func (m *mapper) closed(c event.CaseFact, t record.Type, decision string) error {
	r, err := m.caseEvent(t, c)
	if err != nil {
		return err
	}
	if c.Actor != "" {
		r.Agents = append(r.Agents, person(c.Actor, record.Authorizer))
	}
	r.Agents = append(r.Agents, software(c.Agent, record.Implementer))
	r.Detail = fmt.Sprintf("Case of %s of %s closed: %s.", text(string(c.Operation)), about(c.Slot), decision)
	if c.NextPass > 0 {
		r.Detail = fmt.Sprintf("Case of %s of %s closed: %s in pass %d.", text(string(c.Operation)), about(c.Slot), decision, c.NextPass)
	}
	r.Note = text(c.Note)
	r.Data.Closing = &record.Closing{
		ID: m.Space.Event(quarantineName(c)), Decision: decision, Operation: c.Operation, Pass: max(c.Pass, 1), NextPass: c.NextPass,
		Actor: text(c.Actor), Note: text(c.Note), Quarantine: m.Space.Event(quarantineName(c)),
	}
	return nil
}
