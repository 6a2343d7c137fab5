package mapping

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	"colophon/shared/event"
	"colophon/shared/fault"

	"colophon/services/premis/internal/record"
)

// derivative: a derivative passed its gate.
func (m *mapper) derivative(d event.DerivativeMade) error {
	if !d.Digest.Valid() {
		return errNoDigest
	}
	op := event.Derivative(d.Derived.Profile)
	if err := m.retried(op, d.Work, true); err != nil {
		return err
	}
	if err := m.validated(d); err != nil {
		return err
	}
	m.migrated(d)
	m.outputs(d)
	return nil
}

// validated: the image check's findings. Clean content has one validation of
// a profile for good; a warning is qualified, and told once per content.
func (m *mapper) validated(d event.DerivativeMade) error {
	profile := d.Derived.Profile
	name := record.Name(record.Validation, profile, d.Digest)
	if len(d.Derived.Findings) > 0 {
		seen, err := m.Warned(Mark(record.Validation, profile, d.Digest))
		if err != nil || seen {
			return err
		}
		name += record.At(d.Slot) + record.Pass(d.Pass)
	}
	r := m.work(record.Validation, name, d.Work)
	r.Objects, r.Agents = []record.Object{file(d.Digest, record.Source)}, worker(d.Work)
	r.Detail = fmt.Sprintf("Image structure and samples of the master checked for profile %s.", text(profile))
	r.Note = "No fault found."
	for _, f := range d.Derived.Findings {
		r.Outcome = record.Warning
		r.Data.Findings = append(r.Data.Findings, event.Finding{Code: text(f.Code), Message: text(f.Message)})
	}
	if n := len(d.Derived.Findings); n > 0 {
		first := r.Data.Findings[0]
		r.Note = fmt.Sprintf("%d findings; the first is %s: %s", n, first.Code, sentence(first.Message))
	}
	if t := technical(d.Derived.Technical); t != (event.Technical{}) {
		r.Data.Technical = &t
	}
	return nil
}

// technical cleans what the master says of itself.
func technical(t event.Technical) event.Technical {
	for _, s := range []*string{
		&t.Format, &t.ColourSpace, &t.Compression, &t.ICCName, &t.Unit, &t.Make, &t.Model, &t.Software, &t.DateTime,
	} {
		*s = text(*s)
	}
	return t
}

func (m *mapper) migrated(d event.DerivativeMade) {
	v := d.Derived
	r := m.work(record.Migration, migrationName(v.Profile, d.Digest), d.Work)
	r.Objects = []record.Object{file(d.Digest, record.Source)}
	r.Agents = worker(d.Work)
	r.Detail = fmt.Sprintf("Access copy of profile %s made from the master and checked against its samples.", text(v.Profile))
	r.Data.Derivation = &record.Derivation{
		Profile: v.Profile, SHA256: v.RecipeDigest.Content(), Arguments: texts(v.Arguments), Pages: len(v.Outputs), Set: set(v.Outputs),
	}
	for _, o := range v.Outputs {
		if out := file(o.Digest, record.Outcome); !slices.Contains(r.Objects, out) {
			r.Objects = append(r.Objects, out)
		}
		r.Data.Derivation.Outputs = append(r.Data.Derivation.Outputs, record.Output{
			Page: o.Page, Digest: o.Digest, Size: o.Size, Key: o.Key, PSNR: o.PSNR, Exact: o.Exact,
		})
	}
	r.Note = fmt.Sprintf("%d files.", len(v.Outputs))
	if len(v.Outputs) == 1 {
		r.Note = "Output " + string(v.Outputs[0].Digest) + "."
	}
}

func set(outputs []event.Output) event.Digest {
	h := sha256.New()
	for _, o := range outputs {
		fmt.Fprintf(h, "%s\n", o.Digest)
	}
	return event.Digest(hex.EncodeToString(h.Sum(nil)))
}

func (m *mapper) outputs(d event.DerivativeMade) {
	maker := d.Agent
	if len(d.Helpers) > 0 {
		maker = d.Helpers[0]
	}
	by := &record.Application{Name: text(maker.Name), Version: text(maker.Version), Date: m.or(d.Ended).Format(time.DateOnly)}
	seen := map[event.Digest]bool{}
	for _, o := range d.Derived.Outputs {
		if seen[o.Digest] {
			continue
		}
		seen[o.Digest] = true
		r := m.work(record.MessageDigest, digestName(o.Digest), d.Work)
		r.Digest = o.Digest
		r.Objects = []record.Object{file(o.Digest, record.Source)}
		r.Agents = []record.Agent{software(d.Agent, record.Implementer)}
		r.Detail = "Digest calculated over the complete derivative."
		r.Data.Digest = &record.Digest{Value: o.Digest}
		r.Data.File = &record.File{Size: o.Size, Format: format(o.Format), Originator: r.Agents[0].ID, Application: by}
	}
}

func digests(outputs []event.Output) []event.Digest {
	var out []event.Digest
	for _, o := range outputs {
		if !slices.Contains(out, o.Digest) {
			out = append(out, o.Digest)
		}
	}
	return out
}

// notImage are the permanent codes that say nothing about the image itself.
var notImage = []fault.Code{
	fault.Malformed, fault.UnknownSchema, fault.DigestMismatch, fault.SizeMismatch, fault.MasterDamaged, fault.BytesMissing,
	fault.SourceChanged, fault.SourceMissing, fault.SourceUnreadable, fault.SourceNotAFile, fault.PathRefused, fault.SchemeRefused,
	fault.BatchInvalid, fault.PolicyConflict, fault.UnknownProfile, fault.BatchUndeclared, fault.Conflict, fault.Unclassified,
}

// imageFault reports a derivative that failed for good in the image check.
func imageFault(a event.AttemptFailed) bool {
	_, derived := a.Operation.Profile()
	return derived && a.Class == string(fault.Permanent) && a.Digest.Valid() && !slices.Contains(notImage, fault.Code(a.Code))
}

func (m *mapper) invalid(a event.AttemptFailed) error {
	objects, err := m.subjects(a.Slot, a.Digest, false)
	if err != nil {
		return err
	}
	profile, _ := a.Operation.Profile()
	r := m.work(record.Validation, record.Name(record.Validation, profile, a.Digest)+record.At(a.Slot)+record.Pass(a.Pass), a.Work)
	r.Objects, r.Agents, r.Outcome = objects, worker(a.Work), record.Fail
	r.Detail = fmt.Sprintf("Image structure and samples of the master checked for profile %s.", text(profile))
	f := event.Finding{Code: text(a.Code), Message: text(a.Message)}
	r.Note = f.Code + ": " + sentence(f.Message)
	r.Data.Findings = []event.Finding{f}
	return nil
}
