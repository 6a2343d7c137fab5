package mapping

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"colophon/shared/event"

	"colophon/services/premis/internal/record"
)

var errNoDigest = errors.New("the fact names no digest")

// captured: the capture event waits for the digest to be fixed; only an
// attempt that was not the first is recorded now.
func (m *mapper) captured(f event.FrameCaptured) error {
	return m.retried(event.Capture, f.Work, false)
}

// fixed: digest pinned, master promoted, slot counted.
func (m *mapper) fixed(f event.FrameFixed) error {
	if !f.Digest.Valid() {
		return errNoDigest
	}
	held, err := m.Has(record.Name(record.Capture, "", f.Digest))
	if err != nil {
		return err
	}
	was, err := m.Frame(f.Slot)
	if err != nil {
		return err
	}
	if err := m.retried(event.Fixity, f.Work, true); err != nil {
		return err
	}
	m.capture(f)
	m.digest(f)
	m.declaredDigest(f)
	if err := m.identified(f); err != nil {
		return err
	}
	m.accession(f, !held)
	m.deaccession(f, was)
	return nil
}

func (m *mapper) capture(f event.FrameFixed) {
	r := m.work(record.Capture, record.Name(record.Capture, "", f.Digest), f.Work)
	for _, at := range []time.Time{f.Started, f.Captured.TakenAt, f.Captured.ScannedAt} { // the last that is known
		if !at.IsZero() {
			r.Time = m.or(at)
		}
	}
	r.Objects = []record.Object{file(f.Digest, record.Outcome), frame(record.Outcome)}
	r.Agents = capturers(f)
	r.Detail = "Page image taken over into the archive."
	if f.Captured.Device != "" {
		r.Detail = fmt.Sprintf("Page scanned on device %s and taken over into the archive.", text(f.Captured.Device))
	}
	r.Data.Accession = m.inventory(f, true)
	r.Data.Digest = &record.Digest{Value: f.Digest}
}

func (m *mapper) digest(f event.FrameFixed) {
	r := m.work(record.MessageDigest, digestName(f.Digest), f.Work)
	r.Objects = []record.Object{file(f.Digest, record.Source)}
	r.Agents = []record.Agent{software(f.Agent, record.Implementer)}
	r.Detail = "Digest calculated over the complete file."
	r.Data.Digest = &record.Digest{Value: f.Digest}
	r.Data.File = &record.File{
		Size: f.Fixed.Size, Key: f.Fixed.Master, Format: format(f.Fixed.Format), Originator: r.Agents[0].ID,
	}
}

// declaredDigest: the comparison with what a gateway declared. A success has
// the content's own name; a mismatch carries its slot and pass.
func (m *mapper) declaredDigest(f event.FrameFixed) {
	declared := f.Captured.Declared.Content()
	if declared == "" {
		return
	}
	name := record.Name(record.FixityCheck, "", f.Digest)
	if declared != f.Digest {
		name += record.At(f.Slot) + record.Pass(f.Pass)
	}
	r := m.work(record.FixityCheck, name, f.Work)
	r.Objects = []record.Object{file(f.Digest, record.Source)}
	r.Agents = []record.Agent{software(f.Agent, record.Implementer)}
	compared(r, f.Digest, declared, or(text(f.Captured.DeclaredBy), "gateway"))
}

func compared(r *record.Record, value, declared event.Digest, by string) {
	r.Detail = "Calculated digest compared with the digest declared by " + by + "."
	r.Note = "Digests are equal."
	if value != declared {
		r.Outcome, r.Note = record.Fail, "Digests differ."
	}
	r.Data.Digest = &record.Digest{Value: value, Expected: declared, ExpectedFrom: by}
}

// format cleans what an identification says; it is written as it is read.
func format(f event.Format) event.Format {
	clean := event.Format{
		PUID: or(text(f.PUID), "UNKNOWN"), Name: or(text(f.Name), "unknown"), Version: text(f.Version), MIME: text(f.MIME),
		Basis: text(f.Basis), Signatures: text(f.Signatures), Extent: text(f.Extent), Warning: text(f.Warning),
	}
	if strings.EqualFold(clean.PUID, "UNKNOWN") {
		clean.PUID, clean.Name = "UNKNOWN", "unknown"
	}
	return clean
}

func (m *mapper) identified(f event.FrameFixed) error {
	id := format(f.Fixed.Format)
	name := record.Name(record.FormatIdentification, "", f.Digest)
	unknown := id.PUID == "UNKNOWN"
	if unknown {
		seen, err := m.Warned(Mark(record.FormatIdentification, "", f.Digest))
		if err != nil || seen {
			return err
		}
		name += record.At(f.Slot) + record.Pass(f.Pass)
	}
	r := m.work(record.FormatIdentification, name, f.Work)
	r.Objects = []record.Object{file(f.Digest, record.Source)}
	r.Agents = worker(f.Work)
	r.Detail, r.Note = "Format identified by signature.", id.PUID
	if unknown {
		r.Outcome, r.Detail, r.Note = record.Warning, "Format looked for by signature.", "No signature matched."
	}
	if id.Warning != "" {
		r.Note += " (" + id.Warning + ")"
	}
	r.Data.Identification = &id
	return nil
}

// Mark names a warning about content, whichever of its frames it is met in.
func Mark(t record.Type, op string, d event.Digest) string { return record.Name(t, op, d) }

func (m *mapper) accession(f event.FrameFixed, isNew bool) {
	name := record.Name(record.Accession, "", f.Digest) + record.At(f.Slot)
	if f.Revision > 1 {
		name += revision(f.Revision)
	}
	r := m.work(record.Accession, name, f.Work)
	r.Objects = []record.Object{frame(record.Source), file(f.Digest, record.Source)}
	r.Agents = []record.Agent{software(f.Agent, record.Implementer)}
	r.Detail = fmt.Sprintf("Frame %s of batch %s entered in the inventory.", shown(f.Frame), shown(f.Batch))
	r.Note = "New content."
	if !isNew {
		r.Note = "Content already held."
	}
	r.Data.Accession = m.inventory(f, isNew)
}

func revision(n int) string { return record.Run(fmt.Sprintf("r%d", n)) }

func (m *mapper) inventory(f event.FrameFixed, isNew bool) *record.Inventory {
	c := f.Captured
	a := &record.Inventory{
		New: isNew, Size: f.Fixed.Size, Device: text(c.Device), Operator: text(c.Operator), Gateway: text(c.Gateway),
		Source: source(c.Source), Profiles: texts(f.Profiles), Acquisition: bounded(c.Acquisition),
	}
	if !c.ScannedAt.IsZero() {
		a.ScannedAt = c.ScannedAt.UTC()
	}
	return a
}

// deaccession: a later revision took the place of content this slot held.
func (m *mapper) deaccession(f event.FrameFixed, was *Frame) {
	if was == nil || !was.Digest.Valid() || was.Digest == f.Digest || was.Revision >= f.Revision {
		return
	}
	r := m.work(record.Deaccession, record.Name(record.Deaccession, "", was.Digest)+record.At(f.Slot)+revision(f.Revision), f.Work)
	r.Digest = was.Digest
	r.Objects = []record.Object{frame(record.Source), file(was.Digest, record.Source)}
	r.Agents = []record.Agent{software(f.Agent, record.Implementer)}
	if f.Requested != nil && f.Requested.Actor != "" {
		r.Agents = append(r.Agents, person(f.Requested.Actor, record.Authorizer))
	}
	r.Detail = fmt.Sprintf("Frame %s of batch %s was captured again with other bytes, accepted as revision %d.", shown(f.Frame), shown(f.Batch), f.Revision)
	r.Note = "Replaced by " + string(f.Digest) + "."
	r.Data.Replaced = &record.Replaced{By: f.Digest, Revision: f.Revision}
}
