package mapping

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"colophon/shared/event"

	"colophon/services/premis/internal/record"
)

// ingested is what a fact says of a digest that may be complete by now.
type ingested struct {
	digest event.Digest
	slot   event.Slot
	enough [][]string // sets of profiles, one of which must be there
	waived []string   // by decision, for the note
	agent  event.Agent
	at     time.Time
}

// Complete gives the event of a digest whose required operations are all done,
// if this fact, whose own records are in state already, can be the last of
// them. Whether they are done is read from the records: a fact is only the
// occasion, and each fact that can complete a set looks at every set it can
// complete. So the event is there if and only if a set is complete, in
// whatever order the facts came, and reading a log again adds none.
func Complete(f event.Fact, meta Meta, state State) ([]*record.Record, error) {
	m := &mapper{Meta: meta, State: state}
	m.Stored = m.Stored.UTC()
	in, err := m.occasion(f)
	if err == nil {
		err = m.ingestion(in)
	}
	if err != nil {
		return nil, fmt.Errorf("mapping of %.200s: %w", meta.MsgID, err)
	}
	return m.out, nil
}

func (m *mapper) occasion(f event.Fact) (in ingested, err error) {
	switch f := f.(type) {
	case event.FrameFixed:
		in = ingested{digest: f.Digest, slot: f.Slot, agent: f.Agent, at: f.Ended}
		err = m.ofSlot(&in, "")
	case event.DerivativeMade:
		in = ingested{digest: f.Digest, slot: f.Slot, agent: f.Agent, at: f.Ended}
		in.enough, err = m.Required(f.Digest)
	case event.CaseFact: // a waived derivative may be the last thing a digest waited for
		profile, derived := f.Operation.Profile()
		if derived && f.State == event.CaseDiscarded && f.Digest.Valid() {
			in = ingested{digest: f.Digest, slot: f.Slot, agent: f.Agent, at: f.At}
			err = m.ofSlot(&in, profile)
		}
	}
	return in, err
}

// ofSlot takes what one slot that holds the content wants of it.
func (m *mapper) ofSlot(in *ingested, waived string) error {
	f, err := m.Frame(in.slot)
	if err != nil {
		return err
	}
	c := f.Of(in.digest)
	if !c.Held {
		return nil
	}
	if waived != "" {
		c.Waived = union(slices.Clone(c.Waived), []string{waived})
	}
	in.enough, in.waived = [][]string{c.Wanted()}, c.Waived
	return nil
}

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
