// Package identify tells a file's format from its content, by siegfried with a
// signature set of image formats that is built into the program. Nothing is
// downloaded and nothing is read from disk but the head and the tail of the
// file in question.
//
// It says what a file claims to be, not that the file is sound: a truncated
// TIFF is a TIFF.
package identify

import (
	"bytes"
	"context"
	_ "embed" // images.sig
	"errors"
	"fmt"
	"io"
	"path"
	"strings"

	"github.com/richardlehane/siegfried"
	"github.com/richardlehane/siegfried/pkg/config"
)

//go:generate go run ./gen

// images is the compiled form of images.xml.
//
//go:embed images.sig
var images []byte

// Unknown is the PUID of a file that no signature matches.
const Unknown = "UNKNOWN"

// ErrFailed: the identification itself broke (the library panicked or gave
// nothing), which says nothing about the file. Trying again may help.
var ErrFailed = errors.New("identify-failed")

// Format is what a file was identified as.
type Format struct {
	PUID       string // PRONOM's identifier, or Unknown
	Name       string // "unknown" for Unknown
	Version    string // of the format; may be empty
	MIME       string // may be empty
	Basis      string // what matched where, in the library's words; offsets count within Extent
	Signatures string // the signature set with its version, and the library's
	Extent     string // which bytes were looked at
	Warning    string // "extension mismatch", or why nothing matched; may be empty
}

// Identifier holds the loaded signatures. It may be used from many goroutines.
type Identifier struct {
	sf         *siegfried.Siegfried
	signatures string
	fields     map[string]int // position of each value of an answer
	broken     func()         // nil but in a test: what the library might do
}

// New loads the built-in signatures, which takes about a millisecond. Its
// error means a broken build.
func New() (id *Identifier, err error) {
	defer contain(&err)
	sf, err := siegfried.LoadReader(bytes.NewReader(images))
	if err != nil {
		return nil, fmt.Errorf("identify: load the built-in signatures: %w", err)
	}
	if len(sf.Identifiers()) != 1 {
		return nil, fmt.Errorf("identify: the built-in signatures hold %d sets", len(sf.Identifiers()))
	}
	v := config.Version()
	id = &Identifier{
		sf:         sf,
		signatures: fmt.Sprintf("%s 1 (%.14s); siegfried %d.%d.%d", sf.Identifiers()[0][0], sf.Identifiers()[0][1], v[0], v[1], v[2]),
		fields:     map[string]int{},
	}
	for i, f := range sf.Fields()[0] {
		id.fields[f] = i
	}
	return id, nil
}

// Signatures names the signature set and the library, with their versions.
func (id *Identifier) Signatures() string { return id.signatures }

// Identify tells the format of the size bytes of r. The name only serves to
// warn of an extension that does not fit: the content decides. It reads at
// most 64 KiB from each end. A file that nothing matches is no error: its PUID
// is Unknown. An error of r is returned as it is, wrapped; a fault of the
// library is [ErrFailed]. Safe to repeat: the same bytes give the same answer.
func (id *Identifier) Identify(ctx context.Context, r io.ReaderAt, size int64, name string) (f Format, err error) {
	if err := ctx.Err(); err != nil {
		return Format{}, context.Cause(ctx)
	}
	ends, err := readEnds(r, size)
	if err != nil {
		return Format{}, fmt.Errorf("identify: read: %w", err)
	}
	f = Format{PUID: Unknown, Name: "unknown", Signatures: id.signatures, Extent: ends.extent}
	if size == 0 {
		f.Warning = "no match; the file is empty"
		return f, nil
	}
	if err := id.match(ends, path.Base(name), &f); err != nil {
		return Format{}, err
	}
	return f, nil
}

// match asks the library and takes its answer over into f.
func (id *Identifier) match(ends *ends, name string, f *Format) (err error) {
	defer contain(&err)
	if id.broken != nil {
		id.broken()
	}
	found, err := id.sf.Identify(ends, name, "")
	if err != nil {
		return fmt.Errorf("%w: %w", ErrFailed, err)
	}
	if len(found) == 0 {
		return fmt.Errorf("%w: no answer", ErrFailed)
	}
	f.Warning = id.value(found[0].Values(), "warning")
	switch {
	case !found[0].Known():
	case len(found) > 1: // no rule says which: naming one of them would be a guess
		f.Warning = fmt.Sprintf("no match; several formats fit: %v", found)
	default:
		v := found[0].Values()
		f.PUID, f.Name, f.Version = id.value(v, "id"), id.value(v, "format"), id.value(v, "version")
		f.MIME, f.Basis = id.value(v, "mime"), id.value(v, "basis")
	}
	return nil
}

func (id *Identifier) value(values []string, field string) string {
	if i, ok := id.fields[field]; ok && i < len(values) {
		return strings.TrimSpace(values[i])
	}
	return ""
}

// contain turns a panic of the library into an error. It catches those on our
// own goroutine; the library's matchers run on others, which nobody can catch
// from outside: they get plain bytes from memory, and no matcher but those for
// bytes and names is built into images.sig.
func contain(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("%w: panic: %v", ErrFailed, p)
	}
}
