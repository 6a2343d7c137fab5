package tiff_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"
	"testing"

	"colophon/services/deriver/internal/fault"
	"colophon/services/deriver/internal/tifftest"
)

// encodings are the good files that are damaged.
func encodings() map[string]tifftest.Spec {
	rgb := tifftest.Spec{Width: 200, Height: 150, Bits: 8, Samples: 3, Photometric: 2, RowsPerStrip: 32}
	with := func(change func(*tifftest.Spec)) tifftest.Spec {
		s := rgb
		change(&s)
		return s
	}
	fax := func(s *tifftest.Spec) { s.Bits, s.Samples, s.Photometric, s.RowsPerStrip = 1, 1, 0, 0 }
	return map[string]tifftest.Spec{
		"raw":                    rgb,
		"lzw":                    with(func(s *tifftest.Spec) { s.Compression = 5 }),
		"lzw one strip":          with(func(s *tifftest.Spec) { s.Compression, s.RowsPerStrip = 5, 0 }),
		"deflate predictor":      with(func(s *tifftest.Spec) { s.Compression, s.Predictor = 8, 2 }),
		"packbits":               with(func(s *tifftest.Spec) { s.Compression = 32773 }),
		"g4":                     with(func(s *tifftest.Spec) { fax(s); s.Compression = 4 }),
		"raw tiles":              with(func(s *tifftest.Spec) { s.TileWidth, s.TileHt = 64, 64 }),
		"deflate tiles 16 bit":   with(func(s *tifftest.Spec) { s.TileWidth, s.TileHt, s.Compression, s.Bits = 64, 64, 8, 16 }),
		"raw big-endian bigtiff": with(func(s *tifftest.Spec) { s.Big, s.BigEndian = true, true }),
	}
}

// damage makes damaged copies of a file by rule. The names of those that no
// check of structure or codes can see begin with "~".
func damage(good []byte, s tifftest.Spec) map[string][]byte {
	out := map[string][]byte{}
	put := func(name string, change func(f []byte) []byte) { out[name] = change(slices.Clone(good)) }
	n := len(good)
	for _, percent := range []int{10, 50, 90, 99} {
		put(fmt.Sprintf("cut at %d percent", percent), func(f []byte) []byte { return f[:n*percent/100] })
	}
	put("cut by one byte", func(f []byte) []byte { return f[:n-1] })
	put("header only", func(f []byte) []byte { return f[:8] })
	put("empty", func([]byte) []byte { return nil })
	put("version", func(f []byte) []byte { f[2], f[3] = 0, 0; return f })
	put("byte order", func(f []byte) []byte { f[0], f[1] = f[0]^4, f[1]^4; return f })

	t := locate(good)
	poke := func(tag uint16, change func(v uint64) uint64) func(f []byte) []byte {
		return func(f []byte) []byte {
			t.set(f, tag, 0, change(t.get(f, tag, 0)))
			return f
		}
	}
	to := func(v uint64) func(uint64) uint64 { return func(uint64) uint64 { return v } }
	plus := func(d int) func(uint64) uint64 { return func(v uint64) uint64 { return v + uint64(d) } }
	put("directory loop", func(f []byte) []byte { t.setNext(f, uint64(t.at)); return f })
	put("directory offset", func(f []byte) []byte { t.setFirst(f, uint64(n+100)); return f })
	put("directory inside data", func(f []byte) []byte { t.setFirst(f, uint64(t.at-300)); return f })
	put("directory count", func(f []byte) []byte { f[t.at] ^= 0x21; f[t.at+1] ^= 0x21; return f })
	put("width zero", poke(256, to(0)))
	put("width less", poke(256, plus(-1)))
	put("width more", poke(256, plus(1)))
	put("width huge", poke(256, to(60000)))
	put("height zero", poke(257, to(0)))
	put("height less", poke(257, plus(-1)))
	put("height more", poke(257, plus(1)))
	put("height huge", poke(257, to(60000)))
	put("bits", poke(258, func(v uint64) uint64 { return 24 - v }))
	put("samples", poke(277, func(v uint64) uint64 { return 4 - v }))
	put("photometric", poke(262, func(v uint64) uint64 { return map[uint64]uint64{0: 1, 1: 0, 2: 1}[v] }))
	for _, c := range []uint64{1, 5, 8, 32773} {
		if int(c) != max(1, s.Compression) {
			put(fmt.Sprintf("compression %d", c), poke(259, to(c)))
		}
	}
	offsets, sizes := uint16(273), uint16(279)
	if s.TileWidth > 0 {
		offsets, sizes = 324, 325
		put("tile width", poke(322, plus(16)))
	} else {
		put("rows per strip", poke(278, plus(-1)))
	}
	put("offset past the end", poke(offsets, to(uint64(n+5))))
	put("offset zero", poke(offsets, to(0)))
	put("offset shifted", poke(offsets, plus(2)))
	put("size zero", poke(sizes, to(0)))
	put("size less", poke(sizes, plus(-3)))
	put("size more", poke(sizes, plus(3)))
	put("size huge", poke(sizes, to(1<<30)))
	if t.count(offsets) > 1 {
		put("offset doubled", func(f []byte) []byte { t.set(f, offsets, 1, t.get(f, offsets, 0)); return f })
		// Two offsets exchanged: each points to good data of the right size.
		if t.get(good, sizes, 0) == t.get(good, sizes, 1) {
			put("~offsets exchanged", func(f []byte) []byte {
				a, b := t.get(f, offsets, 0), t.get(f, offsets, 1)
				t.set(f, offsets, 0, b)
				t.set(f, offsets, 1, a)
				return f
			})
		}
	}
	// Damage in the middle of the first strip's data.
	mid := int(t.get(good, offsets, 0)) + int(t.get(good, sizes, 0))/2
	flip := func(count int) func(f []byte) []byte {
		return func(f []byte) []byte {
			for i := range count {
				f[mid+i] ^= 0xFF
			}
			return f
		}
	}
	zero := func(count int) func(f []byte) []byte {
		return func(f []byte) []byte {
			clear(f[mid:min(mid+count, int(t.get(good, offsets, 0)+t.get(good, sizes, 0)))])
			return f
		}
	}
	put("~1 byte flipped", flip(1))
	put("~64 bytes flipped", flip(64))
	put("~4096 bytes zeroed", zero(4096))
	put("~10 percent zeroed", zero(n/10))
	return out
}

// TestDamage reads every damaged file: it is refused, or it gives the same
// pixels. What is silently wrong is counted and named.
func TestDamage(t *testing.T) {
	t.Parallel()
	var refused, same int
	var wrong []string
	codes := map[string]int{}
	for name, s := range encodings() {
		good := tifftest.File(s)
		_, want, err := readAll(t.Context(), good)
		if err != nil {
			t.Fatalf("%s: the good file is refused: %v", name, err)
		}
		for what, file := range damage(good, s) {
			_, got, err := readAll(context.Background(), file)
			var f *fault.Fault
			switch {
			case errors.As(err, &f) && f.Class == fault.Permanent:
				refused++
				codes[f.Code]++
			case err != nil:
				t.Errorf("%s, %s: %v is no permanent fault", name, what, err)
			case len(got) == 1 && sameRows(got[0], want[0]):
				same++
			default:
				wrong = append(wrong, name+": "+what)
			}
		}
	}
	sort.Strings(wrong)
	t.Logf("refused %d %v, same pixels %d, silently wrong %d:\n\t%s", refused, codes, same, len(wrong), strings.Join(wrong, "\n\t"))
	for _, w := range wrong {
		if !strings.Contains(w, "~") && !undetectable[w] {
			t.Errorf("%s: silently wrong, though a check could see it", w)
		}
	}
	if len(wrong) > maxWrong {
		t.Errorf("%d damaged files are silently wrong; %d are the most", len(wrong), maxWrong)
	}
}

// maxWrong is the measured number: 15 of flipped, zeroed or exchanged raw data,
// 8 of wrong but consistent sides of tiles, 1 of polarity, 1 of PackBits.
const maxWrong = 25

// undetectable is damage that leaves another file just as good.
var undetectable = map[string]bool{
	// A tile is whole whatever part of it lies inside the page.
	"raw tiles: width less": true, "raw tiles: width more": true, "raw tiles: height less": true, "raw tiles: height more": true,
	"deflate tiles 16 bit: width less": true, "deflate tiles 16 bit: width more": true,
	"deflate tiles 16 bit: height less": true, "deflate tiles 16 bit: height more": true,
	"g4: photometric": true, // black and white exchanged
}

// tags finds the fields of a file's first directory.
type tags struct {
	order binary.ByteOrder
	big   bool
	at    int // of the directory
	n     int // its entries
	file  []byte
}

func locate(file []byte) tags {
	t := tags{order: binary.LittleEndian}
	if file[0] == 'M' {
		t.order = binary.BigEndian
	}
	t.big = t.order.Uint16(file[2:]) == 43
	if t.big {
		t.at = int(t.order.Uint64(file[8:]))
		t.n = int(t.order.Uint64(file[t.at:]))
	} else {
		t.at = int(t.order.Uint32(file[4:]))
		t.n = int(t.order.Uint16(file[t.at:]))
	}
	t.file = file
	return t
}

// entry gives where tag's entry, its value and the value's type are.
func (t tags) entry(tag uint16) (value, typ, count int) {
	head, size := 2, 12
	if t.big {
		head, size = 8, 20
	}
	for i := range t.n {
		e := t.at + head + i*size
		if t.order.Uint16(t.file[e:]) != tag {
			continue
		}
		typ = int(t.order.Uint16(t.file[e+2:]))
		inline := 4
		if t.big {
			count, value, inline = int(t.order.Uint64(t.file[e+4:])), e+12, 8
		} else {
			count, value = int(t.order.Uint32(t.file[e+4:])), e+8
		}
		if count*width(typ) > inline {
			if t.big {
				value = int(t.order.Uint64(t.file[value:]))
			} else {
				value = int(t.order.Uint32(t.file[value:]))
			}
		}
		return value, typ, count
	}
	return 0, 0, 0
}

func width(typ int) int { return map[int]int{3: 2, 4: 4, 16: 8}[typ] }

func (t tags) count(tag uint16) int {
	_, _, n := t.entry(tag)
	return n
}

func (t tags) get(file []byte, tag uint16, i int) uint64 {
	at, typ, _ := t.entry(tag)
	switch typ {
	case 3:
		return uint64(t.order.Uint16(file[at+2*i:]))
	case 4:
		return uint64(t.order.Uint32(file[at+4*i:]))
	}
	return t.order.Uint64(file[at+8*i:])
}

func (t tags) set(file []byte, tag uint16, i int, v uint64) {
	at, typ, _ := t.entry(tag)
	switch typ {
	case 3:
		t.order.PutUint16(file[at+2*i:], uint16(v))
	case 4:
		t.order.PutUint32(file[at+4*i:], uint32(v))
	default:
		t.order.PutUint64(file[at+8*i:], v)
	}
}

// setFirst and setNext set the links to and from the directory.
func (t tags) setFirst(file []byte, v uint64) {
	if t.big {
		t.order.PutUint64(file[8:], v)
		return
	}
	t.order.PutUint32(file[4:], uint32(v))
}

func (t tags) setNext(file []byte, v uint64) {
	if t.big {
		t.order.PutUint64(file[t.at+8+20*t.n:], v)
		return
	}
	t.order.PutUint32(file[t.at+2+12*t.n:], uint32(v))
}
