package jp2

import (
	"bytes"
	"encoding/binary"
	"strings"
	"unicode/utf16"
)

// Fit says what a profile is to an image.
type Fit int

const (
	// Embeddable profiles are those that JP2 allows: gray with a tone curve, or
	// three components with a matrix, of the input or display class.
	Embeddable Fit = iota
	// Foreign profiles are of another number of components than the image:
	// they cannot be meant for it.
	Foreign
	// Broken profiles contradict the format of profiles.
	Broken
	// Forbidden profiles are good but of a kind JP2 does not allow, such as
	// those with lookup tables.
	Forbidden
)

// profile is a parsed ICC profile: its tags by signature.
type profile struct {
	raw  []byte
	tags map[string][]byte
}

// maxProfile bounds a profile's size in bytes.
const maxProfile = 32 << 20

func parseProfile(raw []byte) (*profile, bool) {
	if len(raw) < 132 || len(raw) > maxProfile || string(raw[36:40]) != "acsp" {
		return nil, false
	}
	size := int64(binary.BigEndian.Uint32(raw))
	if size < 132 || size > int64(len(raw)) {
		return nil, false
	}
	raw = raw[:size]
	n := binary.BigEndian.Uint32(raw[128:])
	if n > 1000 || int64(132+12*n) > size {
		return nil, false
	}
	p := &profile{raw: raw, tags: map[string][]byte{}}
	for i := range n {
		e := raw[132+12*i:]
		off, length := int64(binary.BigEndian.Uint32(e[4:])), int64(binary.BigEndian.Uint32(e[8:]))
		if off+length > size {
			return nil, false
		}
		p.tags[string(e[:4])] = raw[off : off+length]
	}
	return p, true
}

// Judge tells whether raw may be embedded into a JP2 of so many colour
// components, and gives the profile without anything that follows it; also one
// that JP2 forbids, if it is of these components.
func Judge(raw []byte, components int) (Fit, []byte) {
	p, ok := parseProfile(raw)
	if !ok {
		return Broken, nil
	}
	var needs []string
	switch space := string(p.raw[16:20]); {
	case components == 1 && space == "GRAY":
		needs = []string{"kTRC"}
	case components == 3 && space == "RGB ":
		needs = []string{"rXYZ", "gXYZ", "bXYZ", "rTRC", "gTRC", "bTRC"}
	case space == "GRAY" || space == "RGB " || space == "CMYK":
		return Foreign, nil
	default:
		return Forbidden, nil
	}
	class := string(p.raw[12:16])
	if class != "scnr" && class != "mntr" || string(p.raw[20:24]) != "XYZ " {
		return Forbidden, p.raw
	}
	for tag := range p.tags {
		if strings.HasPrefix(tag, "A2B") || strings.HasPrefix(tag, "D2B") {
			return Forbidden, p.raw
		}
	}
	for _, tag := range needs {
		if _, ok := p.tags[tag]; !ok {
			return Forbidden, p.raw
		}
	}
	return Embeddable, p.raw
}

// ProfileName is the description that a profile gives of itself, or "".
func ProfileName(raw []byte) string {
	p, ok := parseProfile(raw)
	if !ok {
		return ""
	}
	d := p.tags["desc"]
	switch {
	case len(d) > 12 && string(d[:4]) == "desc":
		text := d[12:]
		if n := binary.BigEndian.Uint32(d[8:]); int64(n) < int64(len(text)) {
			text = text[:n]
		}
		return clean(string(bytes.TrimRight(text, "\x00")))
	case len(d) >= 28 && string(d[:4]) == "mluc":
		size, off := int64(binary.BigEndian.Uint32(d[20:])), int64(binary.BigEndian.Uint32(d[24:]))
		if off+size > int64(len(d)) {
			return ""
		}
		units := make([]uint16, size/2)
		for i := range units {
			units[i] = binary.BigEndian.Uint16(d[off+2*int64(i):])
		}
		return clean(string(utf16.Decode(units)))
	}
	return ""
}

// clean keeps a name to one printable line.
func clean(s string) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7F {
			return -1
		}
		return r
	}, s)
	if len(s) > 200 {
		s = strings.ToValidUTF8(s[:200], "")
	}
	return strings.TrimSpace(s)
}
