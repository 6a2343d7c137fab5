package mapping

import (
	"strings"
	"time"

	"colophon/shared/event"

	"colophon/services/premis/internal/record"
)

// software is a service or a helper; a new version is a new agent.
func software(a event.Agent, role string) record.Agent {
	name, version := or(text(a.Name), "unknown"), text(a.Version)
	return record.Agent{
		ID: strings.ToLower(name) + "/" + or(version, "unknown"), Name: name, Type: record.Software,
		Version: version, Note: text(a.Note), Role: role,
	}
}

// worker is the service that did the work and the helpers it used.
func worker(w event.Work) []record.Agent {
	out := []record.Agent{software(w.Agent, record.Implementer)}
	for _, h := range w.Helpers {
		out = append(out, software(h, record.Executing))
	}
	return distinct(out)
}

// device is a scanner. What a gateway tells of it beside the settings of a scan
// stands in the acquisition: manufacturer, model, serial-number, calibrated.
func device(id string, acquisition map[string]string) record.Agent {
	a := record.Agent{ID: "device/" + event.Encode(id), Name: text(id), Type: record.Hardware, Role: record.Implementer}
	known := bounded(acquisition)
	d := record.Device{Manufacturer: known["manufacturer"], Model: known["model"], Serial: known["serial-number"]}
	if day, err := time.Parse(time.DateOnly, known["calibrated"]); err == nil {
		d.Calibrated = day.Format(time.DateOnly)
	}
	if d != (record.Device{}) {
		a.Device = &d
	}
	return a
}

func person(pseudonym, role string) record.Agent {
	return record.Agent{
		ID: "operator/" + event.Encode(pseudonym), Name: "operator " + text(pseudonym), Type: record.Person,
		Note: "pseudonym; the register of persons is kept outside the ledger", Role: role,
	}
}

func (m *mapper) archive(role string) record.Agent {
	return record.Agent{ID: "organization/" + m.Origin, Name: m.Origin, Type: record.Organization, Role: role}
}

// capturers are who and what took a page: device and operator as far as they
// are known, and the service that took the bytes over.
func capturers(f event.FrameFixed) []record.Agent {
	var out []record.Agent
	if f.Captured.Device != "" {
		out = append(out, device(f.Captured.Device, f.Captured.Acquisition))
	}
	if f.Captured.Operator != "" {
		out = append(out, person(f.Captured.Operator, record.Implementer))
	}
	by := f.Capturer
	if by.Name == "" {
		by = f.Agent
	}
	if len(out) == 0 {
		return []record.Agent{software(by, record.Implementer)}
	}
	return append(out, software(by, record.Executing))
}

// distinct keeps the first of each agent in each role.
func distinct(in []record.Agent) []record.Agent {
	var out []record.Agent
	for _, a := range in {
		known := false
		for _, b := range out {
			known = known || a.ID == b.ID && a.Role == b.Role
		}
		if !known {
			out = append(out, a)
		}
	}
	return out
}

func or(s, other string) string {
	if s == "" {
		return other
	}
	return s
}
