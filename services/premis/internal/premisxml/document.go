// Package premisxml writes and judges PREMIS 3.0 documents (MAPPING section
// 8). Writing streams: a document's objects and the numbers of its events are
// known before, the events themselves are read one at a time.
package premisxml

import (
	_ "embed"
	"encoding/hex"
	"fmt"
	"io"
	"iter"

	"colophon/shared/event"

	"colophon/services/premis/internal/record"
)

// Namespaces of a document. Ours is fixed for good.
const (
	Namespace       = "http://www.loc.gov/premis/v3"
	DetailNamespace = "urn:uuid:e49a2130-cc1d-4156-b080-63025d11397e"
	xsiNamespace    = "http://www.w3.org/2001/XMLSchema-instance"
)

// DetailSchema is the schema of our extension content.
//
//go:embed detail-1.xsd
var DetailSchema []byte

// Event is a record with its place in the ledger.
type Event struct {
	*record.Record
	Number   int64
	LeafHash [32]byte
}

// Document is what one document holds. Every object that an event links to is
// among its objects.
type Document struct {
	Origin  string
	Files   []*File
	Frames  []Frame
	Batches []event.Name
	// Known are the identifiers of the document's events: a reference to
	// another event is written only if it can be followed.
	Known map[string]bool
	// Events in ledger order.
	Events iter.Seq2[Event, error]
}

// File is a file object.
type File struct {
	Digest       event.Digest
	Size         int64 // bytes; -1: not known
	Format       event.Format
	Keys         []string // where it is stored
	Originator   string
	OriginalName string
	Application  *record.Application
	Relations    []Relation
}

// Relation is one relationship of a file.
type Relation struct {
	Kind   RelationKind
	Object string // identifier
	Event  string // identifier; empty: none
}

// RelationKind says how a file is related.
type RelationKind int

// The relationships of MAPPING section 1.
const (
	IsSourceOf RelationKind = iota
	HasSource
	Represents
)

// Frame is a frame's intellectual entity.
type Frame struct {
	Slot     event.Slot
	Sequence int          // place in the batch; 0: not known
	File     event.Digest // that represents it, if it is in the document
}

// Write writes a document.
func Write(out io.Writer, d Document) error {
	w := newWriter(out)
	s := &session{writer: w, Document: d, space: record.NamespaceOf(d.Origin), agents: map[string]*agent{}}
	w.raw(`<?xml version="1.0" encoding="UTF-8"?>`)
	w.begin("premis:premis",
		attr{"xmlns:premis", Namespace}, attr{"xmlns:d", DetailNamespace}, attr{"xmlns:xsi", xsiNamespace}, attr{"version", "3.0"})
	for _, f := range d.Files {
		s.file(f)
	}
	for _, f := range d.Frames {
		s.frame(f)
	}
	for _, b := range d.Batches {
		s.batch(b)
	}
	for e, err := range d.Events {
		if err != nil {
			return err
		}
		s.event(e)
	}
	s.writeAgents()
	w.end()
	if err := w.flush(); err != nil {
		return fmt.Errorf("premisxml: %w", err)
	}
	return nil
}

// session is one document under way.
type session struct {
	*writer
	Document
	space  record.Namespace
	agents map[string]*agent
	order  []*agent
}

func (s *session) identifier(element, kind, value string) {
	s.begin("premis:" + element)
	s.text("premis:"+element+"Type", kind)
	s.text("premis:"+element+"Value", value)
	s.end()
}

func (e Event) leaf() string { return hex.EncodeToString(e.LeafHash[:]) }
