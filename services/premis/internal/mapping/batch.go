package mapping

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"strings"
	"unicode/utf8"

	"colophon/shared/event"

	"colophon/services/premis/internal/record"
)

// States of a batch fact.
const (
	opened    = "opened"
	converged = "converged"
)

func (m *mapper) batch(b event.BatchFact) error {
	switch b.State {
	case opened:
		m.ingestionStart(b)
		m.policyAssigned(b)
	case converged:
		return m.ingestionEnd(b)
	default: // a corrected count or a further profile: no event of its type in MAPPING
		r := m.op("op:"+m.idOr(b.MsgID()), b.Agent)
		r.Time = m.or(b.At)
		r.Slot = &record.Slot{Batch: b.Batch.Encode()}
		r.Detail = fmt.Sprintf("Declaration of batch %s %s: %d frames.", shown(b.Batch), or(text(b.State), "changed"), b.Count)
		r.Data.Batch = declared(b)
	}
	return nil
}

func (m *mapper) ingestionStart(b event.BatchFact) {
	s := event.Slot{Batch: b.Batch}
	r := m.event(record.IngestionStart, record.Name(record.IngestionStart, "", "")+record.At(s), b.At, s)
	r.Objects = []record.Object{batch(record.Source)}
	r.Agents = []record.Agent{software(b.Agent, record.Implementer)}
	r.Detail = fmt.Sprintf("Batch %s opened with %d declared frames.", shown(b.Batch), b.Count)
	r.Data.Batch = declared(b)
}

func declared(b event.BatchFact) *record.Batch {
	return &record.Batch{Declared: b.Count, Order: text(b.Order), Profiles: texts(b.Profiles), Devices: texts(b.Devices)}
}

func (m *mapper) policyAssigned(b event.BatchFact) {
	s := event.Slot{Batch: b.Batch}
	r := m.event(record.PolicyAssignment, policyName(s), b.At, s)
	r.Objects = []record.Object{batch(record.Source)}
	authorizer := m.archive(record.Authorizer)
	if b.Operator != "" {
		authorizer = person(b.Operator, record.Authorizer)
	}
	r.Agents = []record.Agent{authorizer, software(b.Agent, record.Implementer)}
	r.Detail = "Retry policy pinned for this batch."
	sum := sha256.Sum256(b.Policy)
	r.Data.Policy = &record.Policy{Document: string(b.Policy), SHA256: event.Digest(hex.EncodeToString(sum[:]))}
}

func policyName(s event.Slot) string {
	return record.Name(record.PolicyAssignment, "", "") + record.At(event.Slot{Batch: s.Batch})
}

func (m *mapper) ingestionEnd(b event.BatchFact) error {
	s := event.Slot{Batch: b.Batch}
	name := record.Name(record.IngestionEnd, "", "") + record.At(s)
	if b.Number > 1 {
		name += record.Pass(b.Number)
	}
	gone, err := m.Discarded(b.Batch)
	if err != nil {
		return err
	}
	r := m.event(record.IngestionEnd, name, b.At, s)
	r.Objects = []record.Object{batch(record.Source)}
	r.Agents = []record.Agent{software(b.Agent, record.Implementer)}
	r.Detail = fmt.Sprintf("Batch %s converged.", shown(b.Batch))
	r.Data.Totals, r.Data.Discarded = b.Totals, gone
	if t := b.Totals; t != nil {
		r.Note = fmt.Sprintf("%d frames declared, %d done, %d discarded.", t.Declared, t.Done, t.Discarded)
	}
	return nil
}

// profile records a pinned recipe: no event about an object, so no PREMIS.
func (m *mapper) profile(p event.ProfilePinned) {
	r := m.op("op:"+m.idOr(p.MsgID()), p.Agent)
	r.Time = m.or(p.At)
	r.Detail = fmt.Sprintf("Profile %s pinned.", text(p.Name))
	r.Data.Digest = &record.Digest{Value: p.Digest.Content()}
	r.Data.Policy = &record.Policy{Document: string(p.Recipe), SHA256: p.Digest.Content()}
}

// operational: what a service says of itself. Of some it is about an object.
func (m *mapper) operational(o event.OpFact) {
	switch o.Kind {
	case event.OpVerified, event.OpReplicated:
		if m.kept(o) {
			return
		}
	case event.OpDeleted:
		if m.removed(o) {
			return
		}
	}
	r := m.op(m.idOr(o.MsgID()), o.Agent)
	r.Time = m.or(o.At)
	r.Detail = strings.TrimSpace(fmt.Sprintf("%s: %s. %s", text(o.Service), text(o.Kind), text(o.Reason)))
	if o.Kind == event.OpCheckpoint {
		r.Data.Checkpoint = checkpoint(o.Detail)
	} else {
		r.Data.Op = bounded(o.Detail)
	}
	if o.Code != "" {
		r.Note = text(o.Code)
	}
}

// checkpoint reads a note and its key, byte for byte; nil where there is none.
func checkpoint(detail map[string]string) *record.Checkpoint {
	note, errNote := base64.RawURLEncoding.DecodeString(detail["note"])
	key, errKey := base64.RawURLEncoding.DecodeString(detail["key"])
	if errNote != nil || errKey != nil || len(note) == 0 || len(note)+len(key) > 8192 || !utf8.Valid(note) || !utf8.Valid(key) {
		return nil
	}
	return &record.Checkpoint{Note: string(note), Key: string(key)}
}

// op begins a record that is no event about an object.
func (m *mapper) op(name string, by event.Agent) *record.Record {
	if !strings.HasPrefix(name, "op:") {
		name = "op:" + name
	}
	r := &record.Record{
		Name: name, Type: record.Operational, Time: m.Stored, Recorded: m.Stored, Sequence: m.Sequence, MsgID: m.MsgID,
		Agents: []record.Agent{software(by, record.Implementer)},
	}
	m.out = append(m.out, r)
	return r
}

// idOr is the fact's own message id: the one it was stored under may carry a
// mark of being sent again.
func (m *mapper) idOr(own string) string { return or(own, m.MsgID) }

// Unreadable is the record of a message of the log that is no fact: evidence
// that it was seen, named by its bytes.
func Unreadable(subject string, data []byte, cause error, meta Meta) *record.Record {
	m := &mapper{Meta: meta}
	m.Stored = m.Stored.UTC()
	sum := sha256.Sum256(data)
	r := m.op("op:unreadable:"+hex.EncodeToString(sum[:]), event.Agent{Name: "premis", Version: "log"})
	r.Detail = "A message of the log could not be read as a fact."
	r.Note = text(cause.Error())
	r.Data.Op = map[string]string{"subject": text(subject), "bytes": fmt.Sprint(len(data))}
	return r
}
