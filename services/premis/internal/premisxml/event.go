package premisxml

import (
	"colophon/services/premis/internal/record"
)

func (s *session) event(e Event) {
	s.begin("premis:event")
	s.identifier("eventIdentifier", "UUID", s.space.Event(e.Name))
	s.controlled("premis:eventType", listEventType, e.Type)
	s.text("premis:eventDateTime", instant(e.Time))
	s.begin("premis:eventDetailInformation")
	s.text("premis:eventDetail", e.Detail)
	s.begin("premis:eventDetailExtension")
	s.detail(e)
	s.end()
	s.end()
	s.outcome(e)
	for _, a := range e.Agents {
		s.meet(a)
		s.begin("premis:linkingAgentIdentifier")
		s.text("premis:linkingAgentIdentifierType", "local")
		s.text("premis:linkingAgentIdentifierValue", a.ID)
		s.controlled("premis:linkingAgentRole", listAgentRole, a.Role)
		s.end()
	}
	s.objects(e)
	s.end()
}

func (s *session) outcome(e Event) {
	s.begin("premis:eventOutcomeInformation")
	s.controlled("premis:eventOutcome", listOutcome, e.Outcome)
	extended := hasOutcomeExtension(e.Record)
	if e.Note != "" || extended {
		s.begin("premis:eventOutcomeDetail")
		s.text("premis:eventOutcomeDetailNote", e.Note)
		if extended {
			s.begin("premis:eventOutcomeDetailExtension")
			s.result(e.Record)
			s.end()
		}
		s.end()
	}
	s.end()
}

// objects links an event to its objects; one object may have two roles, but
// has one link.
func (s *session) objects(e Event) {
	type link struct {
		id    string
		roles []string
	}
	var links []*link
	byID := map[string]*link{}
	for _, o := range e.Objects {
		id := s.object(e.Record, o)
		if id == "" {
			continue
		}
		if byID[id] == nil {
			byID[id] = &link{id: id}
			links = append(links, byID[id])
		}
		byID[id].roles = append(byID[id].roles, o.Role)
	}
	for _, l := range links {
		s.begin("premis:linkingObjectIdentifier")
		s.text("premis:linkingObjectIdentifierType", "UUID")
		s.text("premis:linkingObjectIdentifierValue", l.id)
		for _, role := range l.roles {
			s.controlled("premis:linkingObjectRole", listObjectRole, role)
		}
		s.end()
	}
}

func (s *session) object(r *record.Record, o record.Object) string {
	if o.Kind == record.KindFile {
		return s.space.File(o.Digest)
	}
	if r.Slot == nil {
		return ""
	}
	slot, err := r.Slot.Event()
	if err != nil {
		s.err = err
		return ""
	}
	if o.Kind == record.KindBatch {
		return s.space.Batch(slot.Batch)
	}
	return s.space.Frame(slot)
}
