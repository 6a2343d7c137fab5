package record

import "strings"

// Bounds a record is brought to when it is too long.
const (
	fewOutputs  = 100
	fewFindings = 40
	fewObjects  = 400
	shortText   = 1024 // bytes
)

// shorten is one step of making a record shorter; false when none is left.
// Every slice is replaced, never changed: other records may share it.
func (r *Record) shorten(step int) bool {
	switch step {
	case 0: // an output's size and format stand in its own digest's record
		if d := r.Data.Derivation; d != nil && len(d.Outputs) > fewOutputs {
			c := *d
			c.Outputs = d.Outputs[:fewOutputs:fewOutputs]
			r.Data.Derivation = &c
		}
	case 1:
		if len(r.Data.Findings) > fewFindings {
			r.Data.Findings = r.Data.Findings[:fewFindings:fewFindings]
		}
		if len(r.Data.Discarded) > fewFindings {
			r.Data.Discarded = r.Data.Discarded[:fewFindings:fewFindings]
		}
	case 2:
		r.Detail, r.Note = cut(r.Detail), cut(r.Note)
		r.Data.Op = nil
		if a := r.Data.Accession; a != nil {
			c := *a
			c.Acquisition, c.Source, c.Profiles = nil, cut(a.Source), nil
			r.Data.Accession = &c
		}
	case 3: // its SHA-256 stays, and the fact in the log holds the document
		if p := r.Data.Policy; p != nil {
			c := *p
			c.Document = ""
			r.Data.Policy = &c
		}
		if len(r.Objects) > fewObjects {
			r.Objects = r.Objects[:fewObjects:fewObjects]
		}
	case 4:
		if d := r.Data.Derivation; d != nil {
			c := *d
			c.Arguments, c.Outputs = nil, nil
			r.Data.Derivation = &c
		}
		r.Data.Findings, r.Data.Technical = nil, nil
	default:
		return false
	}
	return true
}

func cut(s string) string {
	if len(s) <= shortText {
		return s
	}
	return strings.ToValidUTF8(s[:shortText-3], "") + "..."
}
