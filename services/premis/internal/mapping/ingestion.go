package mapping

import (
	"slices"
	"strings"
	"time"

	"colophon/shared/event"

	"colophon/services/premis/internal/record"
)

// ingested is what a fact says of a digest that may be complete by now.
type ingested struct {
	digest   event.Digest
	slot     event.Slot
	profiles []string // required
	waived   []string // of them, by decision
	agent    event.Agent
	at       time.Time
	fixed    bool // this fact fixes the digest
	profile  string
	made     []event.Digest // this fact's derivatives, of profile
}

// ingestion adds the event of a digest whose required operations are all done.
// Whether they are is read from the records: the fact is only the occasion.
func (m *mapper) ingestion(in ingested) error {
	name := record.Name(record.Ingestion, "", in.digest)
	done, err := m.Has(name)
	if err != nil || done {
		return err
	}
	if !in.fixed {
		held, err := m.Has(digestName(in.digest))
		if err != nil || !held {
			return err
		}
	}
	files, waived, complete, err := m.derivatives(in)
	if err != nil || !complete {
		return err
	}
	r := m.event(record.Ingestion, name, in.at, in.slot)
	r.Digest = in.digest
	r.Objects = []record.Object{file(in.digest, record.Outcome)}
	for _, d := range files {
		r.Objects = append(r.Objects, file(d, record.Outcome))
	}
	r.Agents = []record.Agent{software(in.agent, record.Implementer)}
	r.Detail = "Master and every required derivative are held."
	if len(in.profiles) == 0 {
		r.Detail = "Master is held; no derivative is required."
	}
	if len(waived) > 0 {
		r.Note = "Waived by decision: " + text(strings.Join(waived, ", ")) + "."
	}
	return nil
}

// derivatives lists the files of the required profiles, and which of them
// were waived; complete is false while one is still to come.
func (m *mapper) derivatives(in ingested) (files []event.Digest, waived []string, complete bool, err error) {
	for _, p := range in.profiles {
		if p == in.profile {
			files = union(files, in.made)
			continue
		}
		r, err := m.Record(migrationName(p, in.digest))
		if err != nil {
			return nil, nil, false, err
		}
		switch {
		case r != nil:
			files = union(files, outcomes(r))
		case slices.Contains(in.waived, p):
			waived = append(waived, p)
		default:
			return nil, nil, false, nil
		}
	}
	files = slices.DeleteFunc(files, func(d event.Digest) bool { return d == in.digest })
	return files, waived, true, nil
}

func outcomes(r *record.Record) []event.Digest {
	var out []event.Digest
	for _, o := range r.Objects {
		if o.Kind == record.KindFile && o.Role == record.Outcome {
			out = append(out, o.Digest)
		}
	}
	return out
}

func union(a, b []event.Digest) []event.Digest {
	for _, d := range b {
		if !slices.Contains(a, d) {
			a = append(a, d)
		}
	}
	return a
}
