package premisxml

import (
	"strconv"
	"strings"

	"colophon/shared/event"
)

func (s *session) file(f *File) {
	s.begin("premis:object", attr{"xsi:type", "premis:file"})
	s.identifier("objectIdentifier", "UUID", s.space.File(f.Digest))
	s.identifier("objectIdentifier", "SHA-256", string(f.Digest))
	s.characteristics(f)
	s.text("premis:originalName", f.OriginalName)
	for _, key := range f.Keys {
		s.begin("premis:storage")
		s.begin("premis:contentLocation")
		s.text("premis:contentLocationType", "store key")
		s.text("premis:contentLocationValue", key)
		s.end()
		s.end()
	}
	for _, r := range f.Relations {
		s.relation(r)
	}
	s.end()
}

func (s *session) characteristics(f *File) {
	s.begin("premis:objectCharacteristics")
	s.text("premis:compositionLevel", "0")
	s.begin("premis:fixity")
	s.text("premis:messageDigestAlgorithm", sha256Term.Label, sha256Term.attrs()...)
	s.text("premis:messageDigest", string(f.Digest))
	s.text("premis:messageDigestOriginator", f.Originator)
	s.end()
	if f.Size >= 0 {
		s.text("premis:size", strconv.FormatInt(f.Size, 10))
	}
	s.format(f.Format)
	if a := f.Application; a != nil && a.Name != "" {
		s.begin("premis:creatingApplication")
		s.text("premis:creatingApplicationName", a.Name)
		s.text("premis:creatingApplicationVersion", a.Version)
		s.text("premis:dateCreatedByApplication", a.Date)
		s.end()
	}
	s.end()
}

// format: the schema demands one; what nothing matched is called unknown and
// has no registry.
func (s *session) format(f event.Format) {
	known := f.PUID != "" && !strings.EqualFold(f.PUID, "UNKNOWN")
	name := f.Name
	if !known || name == "" {
		name = "unknown"
	}
	s.begin("premis:format")
	s.begin("premis:formatDesignation")
	s.text("premis:formatName", name)
	if known {
		s.text("premis:formatVersion", f.Version)
	}
	s.end()
	if known {
		s.begin("premis:formatRegistry")
		s.text("premis:formatRegistryName", "PRONOM")
		s.text("premis:formatRegistryKey", f.PUID)
		s.text("premis:formatRegistryRole", specification.Label, specification.attrs()...)
		s.end()
	}
	s.end()
}

func (s *session) relation(r Relation) {
	kind, sub := derivation, isSourceOf
	switch r.Kind {
	case IsSourceOf:
	case HasSource:
		sub = hasSource
	case Represents:
		kind, sub = structural, represents
	}
	s.relationship(kind, sub, r.Object, 0, r.Event)
}

func (s *session) relationship(kind, sub Term, object string, sequence int, event string) {
	s.begin("premis:relationship")
	s.text("premis:relationshipType", kind.Label, kind.attrs()...)
	s.text("premis:relationshipSubType", sub.Label, sub.attrs()...)
	s.begin("premis:relatedObjectIdentifier")
	s.text("premis:relatedObjectIdentifierType", "UUID")
	s.text("premis:relatedObjectIdentifierValue", object)
	if sequence > 0 {
		s.text("premis:relatedObjectSequence", strconv.Itoa(sequence))
	}
	s.end()
	if event != "" {
		s.identifier("relatedEventIdentifier", "UUID", event)
	}
	s.end()
}

func (s *session) frame(f Frame) {
	s.begin("premis:object", attr{"xsi:type", "premis:intellectualEntity"})
	s.identifier("objectIdentifier", "UUID", s.space.Frame(f.Slot))
	s.identifier("objectIdentifier", "frame", f.Slot.String())
	s.text("premis:originalName", Readable(f.Slot.Frame))
	s.relationship(structural, isPartOf, s.space.Batch(f.Slot.Batch), f.Sequence, "")
	if f.File != "" {
		s.relationship(structural, isRepresentedBy, s.space.File(f.File), 0, "")
	}
	s.end()
}

func (s *session) batch(b event.Name) {
	s.begin("premis:object", attr{"xsi:type", "premis:intellectualEntity"})
	s.identifier("objectIdentifier", "UUID", s.space.Batch(b))
	s.identifier("objectIdentifier", "batch", b.Encode())
	s.text("premis:originalName", Readable(b))
	s.end()
}
