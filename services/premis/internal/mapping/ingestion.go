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
	digest  event.Digest
	slot    event.Slot
	enough  [][]string // sets of profiles, one of which must be there
	waived  []string   // by decision, for the note
	agent   event.Agent
	at      time.Time
	profile string
	made    []event.Digest // this fact's derivatives, of profile
}

// ingestion adds the event of a digest whose required operations are all done.
// Whether they are is read from the records: a fact is only the occasion, and
// each fact that can complete a set looks at every set it can complete. So the
// event is there if and only if a set is complete, in whatever order the facts
// came, and reading a log again adds none.
func (m *mapper) ingestion(in ingested) error {
	name := record.Name(record.Ingestion, "", in.digest)
	if len(in.enough) == 0 {
		return nil
	}
	done, err := m.Has(name)
	if err != nil || done {
		return err
	}
	for _, profiles := range in.enough {
		files, complete, err := m.derivatives(in, profiles)
		if err != nil {
			return err
		}
		if complete {
			m.ingest(name, in, profiles, files)
			return nil
		}
	}
	return nil
}

func (m *mapper) ingest(name string, in ingested, profiles []string, files []event.Digest) {
	r := m.event(record.Ingestion, name, in.at, in.slot)
	r.Digest = in.digest
	r.Objects = []record.Object{file(in.digest, record.Outcome)}
	for _, d := range files {
		if d != in.digest {
			r.Objects = append(r.Objects, file(d, record.Outcome))
		}
	}
	r.Agents = []record.Agent{software(in.agent, record.Implementer)}
	r.Detail = "Master and every required derivative are held."
	if len(profiles) == 0 {
		r.Detail = "Master is held; no derivative is required."
	}
	if len(in.waived) > 0 {
		r.Note = "Waived by decision: " + text(strings.Join(in.waived, ", ")) + "."
	}
}

// derivatives lists the files of the profiles; complete is false while one is
// still to come.
func (m *mapper) derivatives(in ingested, profiles []string) (files []event.Digest, complete bool, err error) {
	for _, p := range profiles {
		if p == in.profile {
			files = union(files, in.made)
			continue
		}
		r, err := m.Record(migrationName(p, in.digest))
		if err != nil || r == nil {
			return nil, false, err
		}
		files = union(files, outcomes(r))
	}
	return files, true, nil
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

func union[T comparable](a, b []T) []T {
	for _, d := range b {
		if !slices.Contains(a, d) {
			a = append(a, d)
		}
	}
	return a
}
