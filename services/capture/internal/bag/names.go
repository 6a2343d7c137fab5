package bag

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"unicode/utf8"

	"colophon/shared/storage"
)

const (
	maxComponent = 255  // bytes of a file name on Linux
	maxPath      = 1000 // bytes of a payload path below its folder, well within PATH_MAX
	namesFile    = "names.tsv"
)

func (f File) check() error {
	switch {
	case !f.Digest.Valid():
		return fmt.Errorf("%w: digest %q", ErrRequest, f.Digest)
	case f.Profile == "" && (f.Page != "" || f.Ext != ""):
		return fmt.Errorf("%w: a master has neither pages nor an extension of its own", ErrRequest)
	case len(f.Ext) > 20 || strings.ContainsAny(f.Ext, "/\x00") || !utf8.ValidString(f.Ext):
		return fmt.Errorf("%w: extension %q", ErrRequest, f.Ext)
	case f.Profile == "masters" || f.Profile == "access":
		return fmt.Errorf("%w: a profile called %q", ErrRequest, f.Profile)
	case f.Page == "." || f.Page == ".." || len(f.Page) > maxComponent || strings.ContainsAny(f.Page, "/\x00") || !utf8.ValidString(f.Page):
		return fmt.Errorf("%w: page %q", ErrRequest, f.Page)
	}
	return nil
}

// path is the file's place in the bag, by one way to make a path of a frame's
// name and the extension that follows it.
func (f File) path(frame string, name func(frame, ext string) string) string {
	ext := f.Ext
	if ext == "" {
		ext = ".jp2"
	}
	folder := storage.Component(f.Profile)
	switch f.Profile {
	case "":
		folder, ext = "masters", ""
	case "jp2":
		folder = "access"
	}
	p := "data/" + folder + "/" + name(frame, ext)
	if f.Page != "" {
		p += "/" + f.Page
	}
	return p
}

// plainName is the frame's own name.
func plainName(frame, ext string) string { return frame + ext }

// safeName is the frame's own name where a file system and a bag can hold it.
// A component that is not UTF-8 or is . or .. is percent-encoded; one that is
// too long is shortened; a name that is no relative path, or too long as one,
// becomes a single component.
func safeName(frame, ext string) string {
	if strings.ContainsRune(frame, 0) || len(frame) > maxPath {
		return digestName(frame, ext)
	}
	components := strings.Split(frame, "/")
	for i, c := range components {
		if c == "" {
			return digestName(frame, ext)
		}
		last := ""
		if i == len(components)-1 {
			last = ext
		}
		components[i] = safeComponent(c, last)
	}
	return strings.Join(components, "/") + ext
}

func safeComponent(c, ext string) string {
	if !utf8.ValidString(c) || c == "." || c == ".." {
		c = escape(c)
	}
	if len(c)+len(ext) > maxComponent {
		return shorten(c)
	}
	return c
}

// digestName is one component that no other frame has: the start of the name,
// a digest of all of it, and its extension.
func digestName(frame, ext string) string {
	sum := sha256.Sum256([]byte(frame))
	start := escape(frame)
	return start[:min(160, len(start))] + "~" + hex.EncodeToString(sum[:16]) + extension(frame) + ext
}

// shorten keeps the first 160 bytes of a component, puts 32 hex digits of its
// SHA-256 behind them, and its extension last: the rule of storage.Component.
func shorten(c string) string {
	sum := sha256.Sum256([]byte(c))
	keep := c[:min(160, len(c))]
	for len(keep) > 0 && utf8.ValidString(c) && !utf8.ValidString(keep) {
		keep = keep[:len(keep)-1] // never half a character
	}
	return keep + "~" + hex.EncodeToString(sum[:16]) + extension(c)
}

// extension is what follows the last dot, with it, if it is short enough to be
// one and made of letters and digits.
func extension(c string) string {
	dot := strings.LastIndexByte(c, '.')
	if dot < 0 || len(c)-dot > 20 || escape(c[dot+1:]) != c[dot+1:] {
		return ""
	}
	return c[dot:]
}

// escape percent-encodes all bytes but A-Z a-z 0-9 _ -, as ids are everywhere.
func escape(s string) string {
	var b strings.Builder
	for len(s) > 0 { // in pieces that storage.Component does not shorten
		n := min(len(s), 60)
		b.WriteString(storage.Component(s[:n]))
		s = s[n:]
	}
	return b.String()
}
