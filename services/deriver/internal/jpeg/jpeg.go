// Package jpeg checks the structure of JPEG files, and the codes of baseline
// ones to the last bit, and has their pixels decoded by libjpeg-turbo's djpeg
// in its strict mode, in which every warning about damaged data is an error.
package jpeg

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"colophon/services/deriver/internal/fault"
	"colophon/services/deriver/internal/raster"
	"colophon/services/deriver/internal/tiff"
)

// Markers.
const (
	soi  = 0xD8
	eoi  = 0xD9
	sos  = 0xDA
	app0 = 0xE0
	app1 = 0xE1
	app2 = 0xE2
)

// file is a JPEG after its structural check.
type file struct {
	src           *raster.Source
	in            *bufio.Reader
	at            int64
	width, height int
	components    int
	progressive   bool
	scans         int
	parts         []component // of the frame
	inScan        []*component
	mcusW, mcusH  int
	restart       int // units between restart markers, or 0
	quant         [4][64]int
	quantSeen     [4]bool
	huffman       [2][4]*huffman
	tables        bool // Huffman tables were defined
	icc           map[byte][]byte
	iccCount      byte
	density       raster.Resolution
	exif          tiff.Tags
	img           *raster.Image
}

// Read checks a JPEG from its first marker to its end marker.
func Read(src *raster.Source, bounds raster.Bounds, open tiff.JPEGOpener) (*raster.Image, error) {
	f := &file{src: src, in: bufio.NewReaderSize(src.Section(0, src.Size()), 256<<10), icc: map[byte][]byte{}, img: &raster.Image{}}
	if err := f.walk(bounds); err != nil {
		if serr := src.Err(); serr != nil {
			return nil, serr
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil, fault.Refuse(fault.Truncated, "The file ends before its end marker")
		}
		return nil, err
	}
	f.describe(open)
	return f.img, nil
}

func (f *file) byte() (byte, error) {
	b, err := f.in.ReadByte()
	if err == nil {
		f.at++
	}
	return b, err
}

// marker reads the next marker, which must be here.
func (f *file) marker() (byte, error) {
	b, err := f.byte()
	if err != nil {
		return 0, err
	}
	if b != 0xFF {
		return 0, fault.Refuse(fault.BadStructure, "There is no marker at offset %d, where one belongs", f.at-1)
	}
	for b == 0xFF { // fill bytes are allowed
		if b, err = f.byte(); err != nil {
			return 0, err
		}
	}
	return b, nil
}

// walk follows the markers.
func (f *file) walk(bounds raster.Bounds) error {
	m, err := f.marker()
	if err != nil {
		return err
	}
	if m != soi {
		return fault.Refuse(fault.BadStructure, "The file does not begin with a start marker")
	}
	if m, err = f.marker(); err != nil {
		return err
	}
	for {
		if m == eoi {
			return f.end()
		}
		if m == 0 || m == 1 || m >= 0xD0 && m <= soi {
			return fault.Refuse(fault.BadStructure, "The marker %#02x is out of place", m)
		}
		body, err := f.segment()
		if err != nil {
			return err
		}
		if err := f.take(m, body, bounds); err != nil {
			return err
		}
		if m == sos && f.progressive {
			m, err = f.scan()
		} else if m == sos {
			m, err = f.codes()
		} else {
			m, err = f.marker()
		}
		if err != nil {
			return err
		}
	}
}

func (f *file) segment() ([]byte, error) {
	var size [2]byte
	if _, err := io.ReadFull(f.in, size[:]); err != nil {
		return nil, err
	}
	n := int(binary.BigEndian.Uint16(size[:]))
	if n < 2 {
		return nil, fault.Refuse(fault.BadStructure, "The marker segment at offset %d has a length of %d", f.at, n)
	}
	body := make([]byte, n-2)
	_, err := io.ReadFull(f.in, body)
	f.at += int64(n)
	return body, err
}

// take looks into one marker segment.
func (f *file) take(m byte, body []byte, bounds raster.Bounds) error {
	switch {
	case m == 0xC4:
		f.tables = true
		return f.readTables(body)
	case m == 0xDB:
		return f.readQuant(body)
	case m == 0xDD:
		if len(body) != 2 {
			return fault.Refuse(fault.BadStructure, "The restart interval is wrong")
		}
		f.restart = int(binary.BigEndian.Uint16(body))
	case m == 0xCC:
		return fault.Refuse(fault.NoCompression, "Arithmetic coding is not read")
	case m >= 0xC0 && m <= 0xCF && m != 0xC8:
		return f.frame(m, body, bounds)
	case m == sos:
		if f.components == 0 {
			return fault.Refuse(fault.BadStructure, "A scan comes before the frame's header")
		}
		if len(body) < 6 || int(body[0]) > f.components || len(body) != 4+2*int(body[0]) {
			return fault.Refuse(fault.BadStructure, "A scan's header is wrong")
		}
		if !f.tables {
			return fault.Refuse(fault.BadStructure, "A scan comes before the code tables")
		}
		return f.scanHeader(body)
	case m == 0xDC:
		return fault.Refuse(fault.NoLayout, "The number of rows is given after the data, which is not read")
	case m == app0, m == app1, m == app2:
		f.application(m, body)
	}
	return nil
}

// frame reads the frame header: dimensions, depth, components.
func (f *file) frame(m byte, p []byte, bounds raster.Bounds) error {
	if f.components != 0 {
		return fault.Refuse(fault.NoLayout, "The file has more than one frame")
	}
	if len(p) < 6 || len(p) != 6+3*int(p[5]) || p[5] == 0 {
		return fault.Refuse(fault.BadStructure, "The frame's header is wrong")
	}
	if m > 0xC2 {
		return fault.Refuse(fault.NoCompression, "The JPEG process of marker %#02x is not read", m)
	}
	if p[0] != 8 {
		return fault.Refuse(fault.NoDepth, "JPEG samples of %d bits are not read", p[0])
	}
	f.height, f.width = int(binary.BigEndian.Uint16(p[1:])), int(binary.BigEndian.Uint16(p[3:]))
	f.progressive = m == 0xC2
	if err := bounds.Check(int64(f.width), int64(f.height)); err != nil {
		return err
	}
	switch p[5] {
	case 1, 3:
		f.components = int(p[5])
		return f.readComponents(p[6:])
	case 4:
		return fault.Refuse(fault.NoPhotometric, "CMYK and other JPEGs of four components are not read")
	}
	return fault.Refuse(fault.NoPhotometric, "JPEGs of %d components are not read", p[5])
}

// scan passes over entropy-coded data and gives the next marker that is no
// restart.
func (f *file) scan() (byte, error) {
	f.scans++
	for {
		chunk, err := f.in.ReadSlice(0xFF)
		f.at += int64(len(chunk))
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if err != nil {
			return 0, err
		}
		b := byte(0xFF)
		for b == 0xFF { // fill bytes are allowed
			if b, err = f.byte(); err != nil {
				return 0, err
			}
		}
		if b != 0 && (b < 0xD0 || b > 0xD7) {
			return b, nil
		}
	}
}

func (f *file) end() error {
	if f.scans == 0 {
		return fault.Refuse(fault.BadStructure, "The file has no scan")
	}
	if f.at != f.src.Size() {
		f.img.Warn("data-after-end", "%d bytes follow the end of the image", f.src.Size()-f.at)
	}
	return nil
}

// application reads what application markers say about resolution, profile and
// origin.
func (f *file) application(m byte, p []byte) {
	switch {
	case m == app0 && len(p) >= 12 && bytes.HasPrefix(p, []byte("JFIF\x00")):
		f.density = raster.Resolution{X: float64(binary.BigEndian.Uint16(p[8:])), Y: float64(binary.BigEndian.Uint16(p[10:]))}
		f.density.Unit = map[byte]raster.Unit{1: raster.Inch, 2: raster.Centimetre}[p[7]]
	case m == app1 && bytes.HasPrefix(p, []byte("Exif\x00\x00")):
		tags, err := tiff.ReadTags(p[6:])
		if err != nil {
			f.img.Warn("exif-broken", "The Exif data is damaged and was left out")
			return
		}
		f.exif = tags
	case m == app2 && len(p) >= 14 && bytes.HasPrefix(p, []byte("ICC_PROFILE\x00")):
		f.icc[p[12]], f.iccCount = p[14:], p[13]
	}
}

// profile joins the parts of an ICC profile.
func (f *file) profile() []byte {
	if len(f.icc) == 0 {
		return nil
	}
	var all []byte
	for i := 1; i <= int(f.iccCount); i++ {
		all = append(all, f.icc[byte(i)]...)
	}
	if len(f.icc) != int(f.iccCount) || f.icc[0] != nil {
		f.img.Warn("icc-broken", "The embedded colour profile is incomplete and was left out")
		return nil
	}
	return all
}

func (f *file) describe(open tiff.JPEGOpener) {
	page := raster.Page{
		Info: raster.Info{Width: f.width, Height: f.height, Channels: f.components, Bits: 8},
		ICC:  f.profile(), Resolution: f.density, Orientation: max(1, f.exif.Orientation),
	}
	if !page.Resolution.Known() {
		page.Resolution = f.exif.Resolution
	}
	page.Open = func(ctx context.Context) (raster.Rows, error) {
		rows, err := open(ctx, f.src.Section(0, f.src.Size()), page.Info)
		if err != nil {
			return nil, fmt.Errorf("jpeg: %w", err)
		}
		return rows, nil
	}
	f.img.Pages = []raster.Page{page}
	t := raster.Technical{
		Format: "JPEG", Width: f.width, Height: f.height, BitsPerSample: 8, Samples: f.components,
		ColourSpace: "gray", Compression: "jpeg", Pages: 1, Orientation: page.Orientation,
		XResolution: page.Resolution.X, YResolution: page.Resolution.Y, Unit: page.Resolution.Unit,
		Make: f.exif.Make, Model: f.exif.Model, Software: f.exif.Software, DateTime: f.exif.DateTime,
	}
	if f.components == 3 {
		t.ColourSpace = "rgb"
	}
	if f.progressive {
		t.Compression = "jpeg-progressive"
	}
	f.img.Technical = t
}
