package premisxml

import (
	"slices"

	"colophon/services/premis/internal/record"
)

// agent is one agent of a document; its notes are those of all its events.
type agent struct {
	record.Agent
	notes []string
}

// meet keeps an agent for the end of the document.
func (s *session) meet(a record.Agent) {
	known := s.agents[a.ID]
	if known == nil {
		known = &agent{Agent: a}
		s.agents[a.ID] = known
		s.order = append(s.order, known)
	}
	if known.Device == nil {
		known.Device = a.Device
	}
	if a.Note != "" && !slices.Contains(known.notes, a.Note) {
		known.notes = append(known.notes, a.Note)
	}
}

func (s *session) writeAgents() {
	for _, a := range s.order {
		s.begin("premis:agent")
		s.identifier("agentIdentifier", "local", a.ID)
		s.text("premis:agentName", a.Name)
		s.controlled("premis:agentType", listAgentType, a.Type)
		s.text("premis:agentVersion", a.Version)
		for _, n := range a.notes {
			s.text("premis:agentNote", n)
		}
		if d := a.Device; d != nil {
			s.begin("premis:agentExtension")
			s.only("d:device", attr{"manufacturer", d.Manufacturer}, attr{"model", d.Model}, attr{"serialNumber", d.Serial}, attr{"calibrated", d.Calibrated})
			s.end()
		}
		s.end()
	}
}
