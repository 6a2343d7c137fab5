// Package tifftest makes TIFF files for tests: any combination of byte order,
// layout, depth and compression, with samples that are known. It is imported
// by tests only.
package tifftest

import (
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"sort"

	"github.com/klauspost/compress/zstd"
)

// Spec says what a page is like. Zero values mean the plainest: little-endian,
// one strip, uncompressed.
type Spec struct {
	Big, BigEndian    bool
	Width, Height     int
	Bits              int // 1, 2, 4, 8, 10, 12, 14, 16
	Samples           int // of a pixel
	Photometric       int
	Compression       int // 1, 3 (1-D), 4, 5, 7, 8, 32773, 50000
	Predictor         int // 2 for differencing
	RowsPerStrip      int // 0: all
	TileWidth, TileHt int // 0: strips
	Planar            bool
	LSBFirst          bool // fill order of fax data
	Extra             map[uint16]Value
	// Sample gives the stored sample c at x, y; nil for a pattern.
	Sample func(x, y, c int) int
}

// Value is a tag's value: its type and its bytes in the file's order are made
// from whole numbers, or Raw is taken as it is.
type Value struct {
	Type    uint16
	Numbers []uint64
	Raw     []byte
}

// At gives the stored sample c at x, y.
func (s Spec) At(x, y, c int) int {
	top := 1<<s.Bits - 1
	if s.Sample != nil {
		return s.Sample(x, y, c) & top
	}
	if s.Bits == 1 {
		return b2i((x/7+y/5)%3 == 0 || x*y%11 == 3)
	}
	// Slopes in three directions, and a little noise: compressible, and
	// different everywhere.
	return (x*(c+3)*top/(s.Width+1)/3 + y*(5-c)*top/(s.Height+1)/5 + (x*x*7+y*13+c*5)%3) & top
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// File makes a file of these pages, one after another.
func File(pages ...Spec) []byte {
	var w writer
	w.big, w.order = pages[0].Big, binary.ByteOrder(binary.LittleEndian)
	if pages[0].BigEndian {
		w.order = binary.BigEndian
	}
	w.header()
	for i, p := range pages {
		w.page(p, i == len(pages)-1)
	}
	return w.out
}

type writer struct {
	big   bool
	order binary.ByteOrder
	out   []byte
	link  int // where the offset of the next directory belongs
}

func (w *writer) u16(v int) { w.out = append(w.out, w.bytes(3, uint64(v))...) }

// offset appends a number of the size of an offset.
func (w *writer) offset(v uint64) { w.out = append(w.out, w.bytes(w.offsetType(), v)...) }

func (w *writer) offsetType() uint16 {
	if w.big {
		return 16
	}
	return 4
}

func (w *writer) bytes(typ uint16, v uint64) []byte {
	b := make([]byte, 8)
	switch typ {
	case 1, 2, 7:
		return []byte{byte(v)}
	case 3:
		w.order.PutUint16(b, uint16(v))
		return b[:2]
	case 4, 13:
		w.order.PutUint32(b, uint32(v))
		return b[:4]
	}
	w.order.PutUint64(b, v)
	return b
}

func (w *writer) header() {
	mark := "II"
	if w.order == binary.ByteOrder(binary.BigEndian) {
		mark = "MM"
	}
	w.out = append(w.out, mark...)
	if w.big {
		w.u16(43)
		w.u16(8)
		w.u16(0)
	} else {
		w.u16(42)
	}
	w.link = len(w.out)
	w.offset(0)
}

// page appends the data of a page and then its directory.
func (w *writer) page(s Spec, last bool) {
	var offsets, sizes []uint64
	for _, c := range s.chunks(w.order) {
		if len(w.out)%2 == 1 {
			w.out = append(w.out, 0)
		}
		offsets, sizes = append(offsets, uint64(len(w.out))), append(sizes, uint64(len(c)))
		w.out = append(w.out, c...)
	}
	tags := s.tags(w.offsetType(), offsets, sizes)
	w.directory(tags)
}

func (s Spec) tags(offsetType uint16, offsets, sizes []uint64) map[uint16]Value {
	n := func(typ uint16, v ...uint64) Value { return Value{Type: typ, Numbers: v} }
	bits := make([]uint64, s.Samples)
	for i := range bits {
		bits[i] = uint64(s.Bits)
	}
	tags := map[uint16]Value{
		256: n(4, uint64(s.Width)), 257: n(4, uint64(s.Height)), 258: n(3, bits...), 259: n(3, uint64(max(1, s.Compression))),
		262: n(3, uint64(s.Photometric)), 277: n(3, uint64(s.Samples)), 284: n(3, uint64(1+b2i(s.Planar))),
	}
	if s.TileWidth > 0 {
		tags[322], tags[323] = n(4, uint64(s.TileWidth)), n(4, uint64(s.TileHt))
		tags[324], tags[325] = n(offsetType, offsets...), n(offsetType, sizes...)
	} else {
		tags[278] = n(4, uint64(s.chunkRows()))
		tags[273], tags[279] = n(offsetType, offsets...), n(offsetType, sizes...)
	}
	if s.Predictor > 1 {
		tags[317] = n(3, uint64(s.Predictor))
	}
	if s.LSBFirst {
		tags[266] = n(3, 2)
	}
	if extra := s.Samples - s.colours(); extra > 0 {
		tags[338] = n(3, make([]uint64, extra)...)
	}
	for tag, v := range s.Extra {
		if v.Type == 0 {
			delete(tags, tag)
			continue
		}
		tags[tag] = v
	}
	return tags
}

func (s Spec) colours() int {
	if s.Photometric == 2 || s.Photometric == 6 {
		return 3
	}
	return 1
}

// directory appends a directory and links it to the one before.
func (w *writer) directory(tags map[uint16]Value) {
	var keys []int
	for tag := range tags {
		keys = append(keys, int(tag))
	}
	sort.Ints(keys)
	inline := 4 + 4*b2i(w.big)
	// Outlying values come before the directory.
	fields := map[int][]byte{}
	counts := map[int]uint64{}
	for _, tag := range keys {
		v := tags[uint16(tag)]
		raw := v.Raw
		for _, number := range v.Numbers {
			raw = append(raw, w.bytes(v.Type, number)...)
		}
		size := map[uint16]int{1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 7: 1, 13: 4, 16: 8}[v.Type]
		counts[tag] = uint64(len(raw) / size)
		if len(raw) > inline {
			if len(w.out)%2 == 1 {
				w.out = append(w.out, 0)
			}
			at := uint64(len(w.out))
			w.out = append(w.out, raw...)
			raw = w.bytes(w.offsetType(), at)
		}
		fields[tag] = append(raw, make([]byte, inline-len(raw))...)
	}
	if len(w.out)%2 == 1 {
		w.out = append(w.out, 0)
	}
	copy(w.out[w.link:], w.bytes(w.offsetType(), uint64(len(w.out))))
	if w.big {
		w.offset(uint64(len(keys)))
	} else {
		w.u16(len(keys))
	}
	for _, tag := range keys {
		w.u16(tag)
		w.u16(int(tags[uint16(tag)].Type))
		w.offset(counts[tag])
		w.out = append(w.out, fields[tag]...)
	}
	w.link = len(w.out)
	w.offset(0)
}

func (s Spec) chunkRows() int {
	if s.RowsPerStrip == 0 {
		return s.Height
	}
	return s.RowsPerStrip
}

// chunks makes the data of all strips or tiles.
func (s Spec) chunks(order binary.ByteOrder) [][]byte {
	var out [][]byte
	planes := 1
	if s.Planar {
		planes = s.Samples
	}
	w, h, rows := s.Width, s.chunkRows(), 0
	if s.TileWidth > 0 {
		w, h = s.TileWidth, s.TileHt
	}
	for p := range planes {
		for y := 0; y < s.Height; y += h {
			for x := 0; x < s.Width; x += w {
				if rows = h; s.TileWidth == 0 {
					rows = min(h, s.Height-y)
				}
				out = append(out, s.compress(s.pack(order, p, x, y, w, rows), w, rows))
			}
		}
	}
	return out
}

// pack makes the uncompressed rows of a chunk, the predictor applied.
func (s Spec) pack(order binary.ByteOrder, plane, x0, y0, w, h int) []byte {
	from, to := 0, s.Samples
	if s.Planar {
		from, to = plane, plane+1
	}
	var out []byte
	for y := y0; y < y0+h; y++ {
		var row []int
		for x := x0; x < x0+w; x++ {
			for c := from; c < to; c++ {
				v := 0
				if x < s.Width && y < s.Height {
					v = s.At(x, y, c)
				}
				row = append(row, v)
			}
		}
		if s.Predictor == 2 {
			for i := len(row) - 1; i >= to-from; i-- {
				row[i] = (row[i] - row[i-(to-from)]) & (1<<s.Bits - 1)
			}
		}
		out = append(out, packRow(row, s.Bits, order)...)
	}
	return out
}

func packRow(row []int, bits int, order binary.ByteOrder) []byte {
	var out []byte
	if bits == 16 {
		b := make([]byte, 2)
		for _, v := range row {
			order.PutUint16(b, uint16(v))
			out = append(out, b...)
		}
		return out
	}
	acc, n := uint64(0), 0
	for _, v := range row {
		acc = acc<<bits | uint64(v)
		for n += bits; n >= 8; n -= 8 {
			out = append(out, byte(acc>>(n-8)))
		}
	}
	if n > 0 {
		out = append(out, byte(acc<<(8-n)))
	}
	return out
}

func (s Spec) compress(raw []byte, w, h int) []byte {
	switch s.Compression {
	case 4, 3:
		return s.fax(raw, w, h)
	case 5:
		return LZW(raw)
	case 7:
		return s.jpeg(raw, w, h)
	case 8, 32946:
		var b bytes.Buffer
		z := zlib.NewWriter(&b)
		_, _ = z.Write(raw) // to memory
		_ = z.Close()
		return b.Bytes()
	case 50000:
		z, err := zstd.NewWriter(nil, zstd.WithEncoderCRC(true))
		if err != nil {
			panic(err) // the options are fixed
		}
		return z.EncodeAll(raw, nil)
	case 32773:
		return packBits(raw)
	}
	return raw
}

// packBits codes runs and literals.
func packBits(raw []byte) []byte {
	var out []byte
	for i := 0; i < len(raw); {
		n := 1
		for i+n < len(raw) && n < 128 && raw[i+n] == raw[i] {
			n++
		}
		if n > 1 {
			out = append(out, byte(1-n), raw[i])
			i += n
			continue
		}
		for i+n < len(raw) && n < 128 && (i+n+1 >= len(raw) || raw[i+n] != raw[i+n+1]) {
			n++
		}
		out = append(append(out, byte(n-1)), raw[i:i+n]...)
		i += n
	}
	return out
}
