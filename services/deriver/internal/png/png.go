// Package png reads PNG files strictly and row by row: every chunk's checksum,
// the compressed data's checksum, and the end chunk must be right.
package png

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"

	"github.com/klauspost/compress/zlib"

	"colophon/services/deriver/internal/fault"
	"colophon/services/deriver/internal/raster"
)

const signature = "\x89PNG\r\n\x1a\n"

// Colour types.
const (
	gray      = 0
	rgb       = 2
	palette   = 3
	grayAlpha = 4
	rgbAlpha  = 6
)

// maxProfile bounds an embedded profile in bytes.
const maxProfile = 32 << 20

// file is a PNG after the check of its chunks.
type file struct {
	src           *raster.Source
	width, height int
	bits, colour  int
	interlaced    bool
	palette       []byte
	data          []span // of the IDAT chunks
	size          int64  // their sum
	img           *raster.Image
	page          raster.Page
	software      string
}

type span struct{ off, size int64 }

// Read checks a PNG from its signature to its end chunk.
func Read(src *raster.Source, bounds raster.Bounds) (*raster.Image, error) {
	f := &file{src: src, img: &raster.Image{}}
	if err := f.chunks(); err != nil {
		if serr := src.Err(); serr != nil {
			return nil, serr
		}
		return nil, err
	}
	if err := bounds.Check(int64(f.width), int64(f.height)); err != nil {
		return nil, err
	}
	if err := bounds.CheckExpansion(int64(f.stride())*int64(f.height), f.size); err != nil {
		return nil, err
	}
	if f.interlaced && int64(f.rowBytes())*int64(f.height) > maxInterlaced {
		return nil, fault.Refuse(fault.NoLayout, "An interlaced PNG of %d by %d pixels needs too much memory", f.width, f.height)
	}
	f.describe()
	return f.img, nil
}

// chunks walks the file.
func (f *file) chunks() error {
	head := make([]byte, 8)
	at := int64(len(signature))
	for number, done := 0, false; !done; number++ {
		if n, _ := f.src.ReadAt(head, at); n < 8 {
			return fault.Refuse(fault.Truncated, "The file ends before its end chunk")
		}
		size, kind := int64(binary.BigEndian.Uint32(head)), string(head[4:])
		if at+12+size > f.src.Size() {
			return fault.Refuse(fault.Truncated, "The file ends inside its chunk %q", kind)
		}
		if size > 1<<31-1 {
			return fault.Refuse(fault.BadStructure, "The chunk %q has a length of %d", kind, size)
		}
		if err := f.checksum(at+4, size+4); err != nil {
			return err
		}
		if (number == 0) != (kind == "IHDR") {
			return fault.Refuse(fault.BadStructure, "The file's header is not its first chunk")
		}
		if err := f.chunk(kind, span{at + 8, size}); err != nil {
			return err
		}
		at += 12 + size
		done = kind == "IEND"
	}
	if at != f.src.Size() {
		f.img.Warn("data-after-end", "%d bytes follow the end of the image", f.src.Size()-at)
	}
	switch {
	case f.data == nil:
		return fault.Refuse(fault.BadStructure, "The file has no image data")
	case f.colour == palette && f.palette == nil:
		return fault.Refuse(fault.BadStructure, "The file has no palette")
	}
	return nil
}

// checksum compares the CRC of a chunk's type and data with the one after it.
func (f *file) checksum(off, size int64) error {
	sum := crc32.NewIEEE()
	if _, err := io.Copy(sum, f.src.Section(off, size)); err != nil {
		return f.corrupt(err)
	}
	var want [4]byte
	if n, _ := f.src.ReadAt(want[:], off+size); n < 4 {
		return fault.Refuse(fault.Truncated, "The file ends inside a checksum")
	}
	if sum.Sum32() != binary.BigEndian.Uint32(want[:]) {
		return fault.Refuse(fault.DataCorrupt, "The checksum of the chunk at offset %d is wrong", off-4)
	}
	return nil
}

func (f *file) corrupt(cause error) error {
	if err := f.src.Err(); err != nil {
		return err
	}
	e := fault.Refuse(fault.DataCorrupt, "The compressed image data is damaged")
	if errors.Is(cause, io.EOF) || errors.Is(cause, io.ErrUnexpectedEOF) {
		e = fault.Refuse(fault.StripShort, "The image data ends before the last row")
	}
	e.Err = cause
	return e
}

// small reads the data of a chunk that is not image data.
func (f *file) small(s span) ([]byte, error) {
	if s.size > maxProfile {
		return nil, fault.Refuse(fault.BadStructure, "A chunk has %d bytes", s.size)
	}
	p := make([]byte, s.size)
	if n, _ := f.src.ReadAt(p, s.off); int64(n) < s.size {
		return nil, fault.Refuse(fault.Truncated, "The file ends inside a chunk")
	}
	return p, nil
}

func (f *file) chunk(kind string, s span) error {
	if kind == "IDAT" {
		if n := len(f.data); n > 0 && f.data[n-1].off+f.data[n-1].size+12 != s.off {
			return fault.Refuse(fault.BadStructure, "The chunks of image data are not side by side")
		}
		f.data, f.size = append(f.data, s), f.size+s.size
		return nil
	}
	read, known := readers[kind]
	if !known {
		if kind[0]&0x20 == 0 && kind != "IEND" {
			return fault.Refuse(fault.NoLayout, "The file has a critical chunk %q, which is not read", kind)
		}
		return nil
	}
	p, err := f.small(s)
	if err != nil {
		return err
	}
	return read(f, p)
}

var readers = map[string]func(*file, []byte) error{
	"IHDR": (*file).header,
	"PLTE": (*file).readPalette,
	"tRNS": func(f *file, _ []byte) error {
		f.img.Warn("alpha-dropped", "Transparency was left out")
		return nil
	},
	"acTL": func(*file, []byte) error {
		return fault.Refuse(fault.NoLayout, "The file is an animation")
	},
	"iCCP": (*file).profile,
	"pHYs": (*file).resolution,
	"tEXt": (*file).text,
}

func (f *file) header(p []byte) error {
	if len(p) != 13 {
		return fault.Refuse(fault.BadStructure, "The header has %d bytes", len(p))
	}
	w, h := binary.BigEndian.Uint32(p), binary.BigEndian.Uint32(p[4:])
	if w == 0 || h == 0 || w > 1<<31-1 || h > 1<<31-1 {
		return fault.Refuse(fault.BadDimensions, "The image says it is %d by %d pixels", w, h)
	}
	f.width, f.height, f.bits, f.colour = int(w), int(h), int(p[8]), int(p[9])
	depths := map[int]string{gray: "\x01\x02\x04\x08\x10", rgb: "\x08\x10", palette: "\x01\x02\x04\x08", grayAlpha: "\x08\x10", rgbAlpha: "\x08\x10"}
	if !bytes.Contains([]byte(depths[f.colour]), p[8:9]) || p[10] != 0 || p[11] != 0 || p[12] > 1 {
		return fault.Refuse(fault.BadStructure, "The header says bit depth %d, colour type %d, methods %d, %d, %d", p[8], p[9], p[10], p[11], p[12])
	}
	f.interlaced = p[12] == 1
	return nil
}

func (f *file) readPalette(p []byte) error {
	if len(p) == 0 || len(p)%3 != 0 || len(p) > 768 || f.data != nil {
		return fault.Refuse(fault.BadStructure, "The palette has %d bytes or is out of place", len(p))
	}
	if f.colour == palette {
		f.palette = p
	}
	return nil
}

// profile reads an ICC profile; one that cannot be read is left out.
func (f *file) profile(p []byte) error {
	_, packed, ok := bytes.Cut(p, []byte{0})
	if ok && len(packed) > 1 && packed[0] == 0 {
		z, err := zlib.NewReader(bytes.NewReader(packed[1:]))
		if err == nil {
			if raw, err := io.ReadAll(io.LimitReader(z, maxProfile)); err == nil {
				f.page.ICC = raw
				return nil
			}
		}
	}
	f.img.Warn("icc-broken", "The embedded colour profile is damaged and was left out")
	return nil
}

func (f *file) resolution(p []byte) error {
	if len(p) != 9 {
		return fault.Refuse(fault.BadStructure, "The resolution has %d bytes", len(p))
	}
	f.page.Resolution = raster.Resolution{X: float64(binary.BigEndian.Uint32(p)), Y: float64(binary.BigEndian.Uint32(p[4:]))}
	if p[8] == 1 {
		f.page.Resolution.Unit = raster.Metre
	}
	return nil
}

func (f *file) text(p []byte) error {
	if key, value, ok := bytes.Cut(p, []byte{0}); ok && string(key) == "Software" && len(value) < 256 {
		f.software = string(bytes.ToValidUTF8(value, []byte("\uFFFD")))
	}
	return nil
}

func (f *file) describe() {
	f.page.Info = raster.Info{Width: f.width, Height: f.height, Channels: 1, Bits: max(8, f.bits)}
	if f.colour&2 != 0 {
		f.page.Channels = 3
	}
	if f.colour&4 != 0 {
		f.img.Warn("alpha-dropped", "Transparency was left out")
	}
	f.page.Orientation = 1
	f.page.Open = func(ctx context.Context) (raster.Rows, error) { return f.open(ctx) }
	names := map[int]string{gray: "gray", rgb: "rgb", palette: "palette", grayAlpha: "gray", rgbAlpha: "rgb"}
	f.img.Pages = []raster.Page{f.page}
	f.img.Technical = raster.Technical{
		Format: "PNG", Width: f.width, Height: f.height, BitsPerSample: f.bits, Samples: f.samples(),
		ColourSpace: names[f.colour], Compression: "deflate", Pages: 1, Orientation: 1,
		XResolution: f.page.Resolution.X, YResolution: f.page.Resolution.Y, Unit: f.page.Resolution.Unit,
		Software: f.software,
	}
}

// samples of a stored pixel.
func (f *file) samples() int {
	return map[int]int{gray: 1, rgb: 3, palette: 1, grayAlpha: 2, rgbAlpha: 4}[f.colour]
}

// rowBytes is the size of a stored row of the whole width.
func (f *file) rowBytes() int { return packed(f.width, f.samples()*f.bits) }

// stride is rowBytes and the filter byte before it.
func (f *file) stride() int { return f.rowBytes() + 1 }

func packed(width, pixelBits int) int { return (width*pixelBits + 7) / 8 }
