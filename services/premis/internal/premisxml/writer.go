package premisxml

import (
	"bufio"
	"encoding/xml"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"colophon/shared/event"
)

// writer writes elements as they come, indented, and never an empty one: text
// that is empty is left out, and an element that would hold nothing is the
// caller's to leave out. The first error stays.
type writer struct {
	w    *bufio.Writer
	open []string
	err  error
}

func newWriter(w io.Writer) *writer { return &writer{w: bufio.NewWriterSize(w, 64<<10)} }

type attr struct{ name, value string }

func (w *writer) raw(s string) {
	if w.err == nil {
		_, w.err = w.w.WriteString(s)
	}
}

func (w *writer) escaped(s string) {
	if w.err == nil {
		w.err = xml.EscapeText(w.w, []byte(s))
	}
}

func (w *writer) indent() {
	w.raw("\n")
	w.raw(strings.Repeat("  ", len(w.open)))
}

func (w *writer) tag(name string, attrs []attr) {
	w.indent()
	w.raw("<" + name)
	for _, a := range attrs {
		if a.value != "" {
			w.raw(" " + a.name + `="`)
			w.escaped(a.value)
			w.raw(`"`)
		}
	}
}

// begin opens an element that holds others.
func (w *writer) begin(name string, attrs ...attr) {
	w.tag(name, attrs)
	w.raw(">")
	w.open = append(w.open, name)
}

// end closes the innermost element.
func (w *writer) end() {
	name := w.open[len(w.open)-1]
	w.open = w.open[:len(w.open)-1]
	w.indent()
	w.raw("</" + name + ">")
}

// text writes an element with text, or nothing where there is none.
func (w *writer) text(name, value string, attrs ...attr) {
	if value == "" {
		return
	}
	w.tag(name, attrs)
	w.raw(">")
	w.escaped(value)
	w.raw("</" + name + ">")
}

// only writes an element that is its attributes.
func (w *writer) only(name string, attrs ...attr) {
	w.tag(name, attrs)
	w.raw("/>")
}

func (w *writer) flush() error {
	if w.err == nil {
		w.raw("\n")
	}
	if w.err == nil {
		w.err = w.w.Flush()
	}
	return w.err
}

// instant is a time as it stands in a document: RFC 3339, UTC, milliseconds.
func instant(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }

// optional is [instant], or nothing for no time.
func optional(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return instant(t)
}

// Readable gives a name as XML can hold it: itself, or percent-encoded as a
// whole where it is not UTF-8 or holds characters that XML 1.0 has no way to
// write.
func Readable(n event.Name) string {
	s := string(n)
	if !utf8.ValidString(s) || strings.ContainsFunc(s, unwritable) {
		return n.Encode()
	}
	return s
}

func unwritable(r rune) bool {
	return r < ' ' && r != '\t' && r != '\n' && r != '\r' || r == 0xfffe || r == 0xffff
}
