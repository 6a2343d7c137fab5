// Package mapping turns facts into the records of MAPPING section 3. It is a
// pure function of the fact, of what the broker says of it, and of the records
// already there; it reads them through [State] and writes nothing.
package mapping

import (
	"fmt"
	"slices"
	"time"

	"colophon/shared/event"

	"colophon/services/premis/internal/record"
)

// State is what the ledger already holds. A name that is absent is nil and no
// error.
type State interface {
	// Has reports whether a record of that name exists.
	Has(name string) (bool, error)
	// Record reads a record by name.
	Record(name string) (*record.Record, error)
	// Chain lists the recorded attempts at an operation on a slot, in ledger
	// order, late outcomes left out.
	Chain(op event.Operation, s event.Slot) ([]Tried, error)
	// Frame tells what is held of a slot.
	Frame(s event.Slot) (*Frame, error)
	// Warned reports whether a warning of this mark is recorded: one content
	// gives one warning, whichever of its frames it is seen in.
	Warned(mark string) (bool, error)
	// Required lists what is enough for a content to be ingested: for each
	// frame that holds it, the profiles its batch wants less those waived;
	// equal sets once.
	Required(d event.Digest) ([][]string, error)
	// Discarded lists the discards of a batch, by frame and operation.
	Discarded(b event.Name) ([]record.Discarded, error)
}

// Tried is one recorded attempt.
type Tried struct {
	Pass, Number int
	Event        string // identifier of its retry event
}

// Frame is what the ledger holds of a slot: a function of its records.
type Frame struct {
	Sequence int          `json:"sequence,omitempty"`
	Revision int          `json:"revision,omitempty"` // highest accessioned; 0: none
	Digest   event.Digest `json:"digest,omitempty"`   // of that revision
	Contents []Content    `json:"contents,omitempty"` // of all revisions
}

// Content is what a slot wants of one content it holds or held.
type Content struct {
	Digest   event.Digest `json:"digest"`
	Held     bool         `json:"held,omitempty"` // accessioned
	Profiles []string     `json:"profiles,omitempty"`
	Waived   []string     `json:"waived,omitempty"` // profiles discarded by decision
}

// Of finds a content; the zero one where the slot never held it. A nil frame
// holds none.
func (f *Frame) Of(d event.Digest) Content {
	if f != nil {
		for _, c := range f.Contents {
			if c.Digest == d {
				return c
			}
		}
	}
	return Content{Digest: d}
}

// Wanted are the profiles that are left to be made, sorted, each once.
func (c Content) Wanted() []string {
	out := []string{}
	for _, p := range c.Profiles {
		if !slices.Contains(c.Waived, p) {
			out = append(out, p)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Meta is what the broker knows of a fact, and the installation's origin.
type Meta struct {
	Origin   string
	Space    record.Namespace
	Sequence uint64
	Stored   time.Time
	MsgID    string
}

type mapper struct {
	Meta
	State
	out []*record.Record
}

// Map gives the records of one fact, in the order they are appended; behind
// them come those of [Complete]. Facts that are no event for the ledger give
// none.
func Map(f event.Fact, meta Meta, state State) ([]*record.Record, error) {
	m := &mapper{Meta: meta, State: state}
	m.Stored = m.Stored.UTC()
	var err error
	switch f := f.(type) {
	case event.BatchFact:
		err = m.batch(f)
	case event.ProfilePinned:
		m.profile(f)
	case event.FrameCaptured:
		err = m.captured(f)
	case event.FrameFixed:
		err = m.fixed(f)
	case event.DerivativeMade:
		err = m.derivative(f)
	case event.AttemptFailed:
		err = m.failed(f)
	case event.CaseFact:
		err = m.caseChanged(f)
	case event.OpFact:
		m.operational(f)
	default:
		err = fmt.Errorf("no mapping for a %T", f)
	}
	if err != nil {
		return nil, fmt.Errorf("mapping of %.200s: %w", meta.MsgID, err)
	}
	return m.out, nil
}

// event begins a PREMIS event's record.
func (m *mapper) event(t record.Type, name string, at time.Time, s event.Slot) *record.Record {
	r := &record.Record{
		Name: name, Type: t.Label, URI: t.URI(), Time: m.or(at), Recorded: m.Stored, Outcome: record.Success,
		Sequence: m.Sequence, MsgID: m.MsgID,
	}
	if s.Batch != "" {
		r.Slot = &record.Slot{Batch: s.Batch.Encode(), Frame: s.Frame.Encode()}
	}
	m.out = append(m.out, r)
	return r
}

// work begins the record of an event in the work on a slot.
func (m *mapper) work(t record.Type, name string, w event.Work) *record.Record {
	r := m.event(t, name, w.Ended, w.Slot)
	r.Digest = w.Digest.Content()
	if r.Slot != nil {
		r.Slot.Sequence, r.Slot.Revision = w.Sequence, w.Revision
	}
	return r
}

func (m *mapper) or(t time.Time) time.Time {
	if t.IsZero() {
		return m.Stored
	}
	return t.UTC()
}

// digestName is the name of the calculation of a digest: its record exists if
// and only if the file is known.
func digestName(d event.Digest) string { return record.Name(record.MessageDigest, "", d) }

func migrationName(profile string, d event.Digest) string {
	return record.Name(record.Migration, string(event.Derivative(profile)), d)
}

func file(d event.Digest, role string) record.Object {
	return record.Object{Kind: record.KindFile, Digest: d, Role: role}
}

func frame(role string) record.Object { return record.Object{Kind: record.KindFrame, Role: role} }

func batch(role string) record.Object { return record.Object{Kind: record.KindBatch, Role: role} }
