// Package jp2 knows the outside of JPEG 2000: the boxes of a JP2 file and the
// marker segments of a codestream, after ISO/IEC 15444-1 annexes A and I. It
// decodes no pixels. Its faults speak of a file as a master; whoever checks an
// encoder's output classes them otherwise.
package jp2

import (
	"encoding/binary"
	"io"

	"colophon/services/deriver/internal/fault"
)

// Markers of a codestream.
const (
	markSOC = 0xFF4F
	markSIZ = 0xFF51
	markCOD = 0xFF52
	markSOT = 0xFF90
	markSOD = 0xFF93
	markEOC = 0xFFD9
)

// maxHeader bounds the bytes of one header, far above anything real.
const maxHeader = 64 << 20

// Component describes the samples of one component.
type Component struct {
	Bits   int
	Signed bool
	DX, DY int // subsampling
}

// Codestream is what the headers of a codestream say.
type Codestream struct {
	Width, Height  int
	Components     []Component
	Tiles          int
	Levels         int  // halvings, from the main header
	Reversible     bool // the 5-3 wavelet
	TileParts      int
	MultiComponent bool // the colour transform
}

// walker reads a codestream of size bytes at off.
type walker struct {
	r         io.ReaderAt
	off, size int64
	cs        Codestream
	seen      []bool // tiles
	coded     bool   // COD was there
}

// Walk follows a codestream from its first marker to its last by the lengths
// that it declares. All must agree: the parts of tiles fill it exactly, each
// tile is there, the end marker is its last two bytes.
func Walk(r io.ReaderAt, off, size int64) (Codestream, error) {
	w := &walker{r: r, off: off, size: size}
	at, err := w.mainHeader()
	if err != nil {
		return w.cs, err
	}
	for {
		mark, err := w.u16(at)
		if err != nil {
			return w.cs, err
		}
		if mark == markEOC {
			return w.cs, w.end(at)
		}
		if mark != markSOT {
			return w.cs, fault.Refuse(fault.BadStructure, "The codestream has no tile-part at offset %d", at)
		}
		if at, err = w.tilePart(at); err != nil {
			return w.cs, err
		}
	}
}

func (w *walker) end(at int64) error {
	if at+2 != w.size {
		return fault.Refuse(fault.BadStructure, "%d bytes follow the end of the codestream", w.size-at-2)
	}
	for i, seen := range w.seen {
		if !seen {
			return fault.Refuse(fault.BadStructure, "Tile %d of the codestream is missing", i)
		}
	}
	return nil
}

// read gives n bytes at at, counted from the codestream's start.
func (w *walker) read(at int64, n int) ([]byte, error) {
	if at+int64(n) > w.size {
		return nil, fault.Refuse(fault.Truncated, "The codestream ends at %d bytes, inside a marker at offset %d", w.size, at)
	}
	p := make([]byte, n)
	if got, err := w.r.ReadAt(p, w.off+at); got < n {
		f := fault.Refuse(fault.Truncated, "The codestream ends inside a marker at offset %d", at)
		f.Err = err
		return nil, f
	}
	return p, nil
}

func (w *walker) u16(at int64) (int, error) {
	p, err := w.read(at, 2)
	if err != nil {
		return 0, err
	}
	return int(binary.BigEndian.Uint16(p)), nil
}

// segment reads a marker's parameters and the offset after them.
func (w *walker) segment(at int64) ([]byte, int64, error) {
	size, err := w.u16(at + 2)
	if err != nil {
		return nil, 0, err
	}
	if size < 2 {
		return nil, 0, fault.Refuse(fault.BadStructure, "A marker segment at offset %d has a length of %d", at, size)
	}
	p, err := w.read(at+4, size-2)
	return p, at + 2 + int64(size), err
}

// mainHeader reads as far as the first tile-part and gives its offset.
func (w *walker) mainHeader() (int64, error) {
	mark, err := w.u16(0)
	if err != nil {
		return 0, err
	}
	if mark != markSOC {
		return 0, fault.Refuse(fault.BadStructure, "The codestream has no start marker")
	}
	for at := int64(2); ; {
		mark, err := w.u16(at)
		if err != nil {
			return 0, err
		}
		if mark == markSOT {
			if w.seen == nil || !w.coded {
				return 0, fault.Refuse(fault.BadStructure, "The codestream's main header is incomplete")
			}
			return at, nil
		}
		if mark < 0xFF01 || mark == markSOD || mark == markEOC || at > maxHeader {
			return 0, fault.Refuse(fault.BadStructure, "The codestream's main header has a wrong marker %#04x", mark)
		}
		if (mark == markSIZ) != (at == 2) {
			return 0, fault.Refuse(fault.BadStructure, "The codestream's size segment is not the first")
		}
		p, next, err := w.segment(at)
		if err != nil {
			return 0, err
		}
		switch mark {
		case markSIZ:
			err = w.siz(p)
		case markCOD:
			err = w.cod(p)
		}
		if err != nil {
			return 0, err
		}
		at = next
	}
}

func (w *walker) siz(p []byte) error {
	broken := fault.Refuse(fault.BadStructure, "The codestream's size segment is wrong")
	if len(p) < 36 {
		return broken
	}
	u := func(i int) int64 { return int64(binary.BigEndian.Uint32(p[i:])) }
	x1, y1, x0, y0 := u(2), u(6), u(10), u(14)
	tw, th, tx, ty := u(18), u(22), u(26), u(30)
	n := int(binary.BigEndian.Uint16(p[34:]))
	if n == 0 || len(p) != 36+3*n || tw == 0 || th == 0 || tx > x0 || ty > y0 || tx+tw <= x0 || ty+th <= y0 {
		return broken
	}
	if x1 <= x0 || y1 <= y0 {
		return fault.Refuse(fault.BadDimensions, "The codestream's image is %d by %d pixels", x1-x0, y1-y0)
	}
	tiles := ((x1 - tx + tw - 1) / tw) * ((y1 - ty + th - 1) / th)
	if tiles > 65535 {
		return fault.Refuse(fault.BadStructure, "The codestream claims %d tiles", tiles)
	}
	w.cs.Width, w.cs.Height, w.cs.Tiles = int(x1-x0), int(y1-y0), int(tiles)
	w.seen = make([]bool, tiles)
	for i := range n {
		c := p[36+3*i:]
		w.cs.Components = append(w.cs.Components, Component{
			Bits: int(c[0]&0x7F) + 1, Signed: c[0]&0x80 != 0, DX: int(c[1]), DY: int(c[2]),
		})
		if c[1] == 0 || c[2] == 0 || w.cs.Components[i].Bits > 38 {
			return broken
		}
	}
	return nil
}

func (w *walker) cod(p []byte) error {
	if len(p) < 10 || p[5] > 32 || p[9] > 1 {
		return fault.Refuse(fault.BadStructure, "The codestream's coding style is wrong")
	}
	w.coded = true
	w.cs.MultiComponent, w.cs.Levels, w.cs.Reversible = p[4] != 0, int(p[5]), p[9] == 1
	return nil
}

// tilePart checks one tile-part and gives the offset after it.
func (w *walker) tilePart(at int64) (int64, error) {
	p, next, err := w.segment(at)
	if err != nil {
		return 0, err
	}
	if len(p) != 8 {
		return 0, fault.Refuse(fault.BadStructure, "The tile-part at offset %d has a wrong header", at)
	}
	tile, size := int(binary.BigEndian.Uint16(p)), int64(binary.BigEndian.Uint32(p[2:]))
	if tile >= len(w.seen) {
		return 0, fault.Refuse(fault.BadStructure, "The tile-part at offset %d belongs to tile %d of %d", at, tile, len(w.seen))
	}
	w.seen[tile] = true
	w.cs.TileParts++
	if size == 0 { // as far as the end marker; only the last may say so
		size = w.size - 2 - at
	}
	end := at + size
	if end > w.size {
		return 0, fault.Refuse(fault.Truncated, "The codestream ends %d bytes before its tile-part at offset %d does", end-w.size, at)
	}
	for {
		mark, err := w.u16(next)
		if err != nil {
			return 0, err
		}
		if mark == markSOD {
			break
		}
		if mark < 0xFF01 || mark == markEOC || next-at > maxHeader {
			return 0, fault.Refuse(fault.BadStructure, "The tile-part at offset %d has a wrong marker %#04x", at, mark)
		}
		if _, next, err = w.segment(next); err != nil {
			return 0, err
		}
	}
	if next+2 > end {
		return 0, fault.Refuse(fault.BadStructure, "The tile-part at offset %d is shorter than its header", at)
	}
	if end+2 > w.size {
		return 0, fault.Refuse(fault.Truncated, "The codestream has no end marker")
	}
	return end, nil
}
