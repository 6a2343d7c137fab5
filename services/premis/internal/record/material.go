package record

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"reflect"

	"colophon/shared/event"
)

// Material are the fields in which two tellings of one event must agree
// (MAPPING section 5). Times, host, elapsed and agent version are not.
type Material struct {
	Outcome  string         `json:"outcome,omitempty"`
	Digest   event.Digest   `json:"digest,omitempty"`
	Size     int64          `json:"size,omitempty"`
	Outputs  []event.Digest `json:"outputs,omitempty"`
	Sizes    []int64        `json:"sizes,omitempty"`
	Declared event.Digest   `json:"declared,omitempty"`
	PUID     string         `json:"puid,omitempty"`
	Decision string         `json:"decision,omitempty"`
}

// Material gives a record's material fields.
func (r *Record) Material() Material {
	m := Material{Outcome: r.Outcome}
	if d := r.Data.Digest; d != nil {
		m.Digest, m.Declared = d.Value, d.Expected
	}
	if f := r.Data.File; f != nil {
		m.Size = f.Size
	}
	if p := r.Data.Policy; p != nil {
		m.Digest = p.SHA256
	}
	if d := r.Data.Derivation; d != nil {
		m.Digest = d.Set
		for _, o := range d.Outputs {
			m.Outputs, m.Sizes = append(m.Outputs, o.Digest), append(m.Sizes, o.Size)
		}
	}
	if i := r.Data.Identification; i != nil {
		m.PUID = i.PUID
	}
	if c := r.Data.Closing; c != nil {
		m.Decision = c.Decision
	}
	if s := r.Data.Resolution; s != nil {
		m.Decision = s.Status
	}
	if p := r.Data.Replaced; p != nil {
		m.Digest = p.By
	}
	return m
}

// Equal reports whether two tellings agree.
func (m Material) Equal(o Material) bool { return reflect.DeepEqual(m, o) }

// Hash gives 16 hex digits that name a telling.
func (m Material) Hash() string {
	data, err := json.Marshal(m)
	if err != nil {
		panic("record: material fields are plain values: " + err.Error())
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:8])
}

// ConflictOf makes the record of a second telling that disagrees with the
// first, which stays.
func ConflictOf(first, other *Record) *Record {
	c := *other
	a, b := first.Material(), other.Material()
	c.Name = "event:" + Conflict.Slug() + ":" + first.Name + Run(b.Hash())
	c.Type, c.URI, c.Outcome = Conflict.Label, Conflict.URI(), Warning
	c.Objects, c.Slot, c.Digest = first.Objects, first.Slot, first.Digest
	c.Detail = "A second report of a recorded " + first.Type + " event disagrees with the first, which stays."
	c.Note = "Recorded: " + a.String() + ". Reported now: " + b.String() + "."
	c.Data = Data{Conflict: &Conflicting{Name: first.Name, First: a, Other: b}}
	if first.Type == Operational {
		c.Type, c.URI, c.Name = Operational, "", "op:conflict:"+first.Name+Run(b.Hash())
	}
	return &c
}

// String tells the fields in words, cut at a length fit for a note.
func (m Material) String() string {
	data, err := json.Marshal(m)
	if err != nil {
		return "unknown"
	}
	if len(data) > 700 {
		data = append(data[:697:697], "..."...)
	}
	return string(data)
}
