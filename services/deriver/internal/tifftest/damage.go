package tifftest

import (
	"fmt"
	"slices"
)

// Damaged is a file that a rule has damaged.
type Damaged struct {
	Encoding, Fault string
	Good, File      []byte
	// Hidden damage leaves another file that is just as good: no check can see
	// it but a checksum that came with the file.
	Hidden bool
}

// Name is for people.
func (d Damaged) Name() string { return d.Encoding + ": " + d.Fault }

// Encodings are the good files that are damaged, by name.
func Encodings() map[string]Spec {
	rgb := Spec{Width: 200, Height: 150, Bits: 8, Samples: 3, Photometric: 2, RowsPerStrip: 32}
	with := func(change func(*Spec)) Spec {
		s := rgb
		change(&s)
		return s
	}
	return map[string]Spec{
		"raw":               rgb,
		"lzw":               with(func(s *Spec) { s.Compression = 5 }),
		"deflate predictor": with(func(s *Spec) { s.Compression, s.Predictor = 8, 2 }),
		"packbits":          with(func(s *Spec) { s.Compression = 32773 }),
		"jpeg rgb":          with(func(s *Spec) { s.Compression = 7 }),
		"jpeg ycbcr":        with(func(s *Spec) { s.Compression, s.Photometric = 7, 6 }),
		"g4":                with(func(s *Spec) { s.Bits, s.Samples, s.Photometric, s.RowsPerStrip, s.Compression = 1, 1, 0, 0, 4 }),
		"raw tiles":         with(func(s *Spec) { s.TileWidth, s.TileHt = 64, 64 }),
	}
}

// All295 damages the eight encodings by 37 rules each; the one strip of a fax
// cannot take another's place.
func All295() (all []Damaged) {
	specs := Encodings()
	var names []string
	for name := range specs {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		all = append(all, Damage(name, specs[name])...)
	}
	return all
}

// Damage makes the damaged copies of one file.
func Damage(name string, s Spec) []Damaged {
	d := &damager{name: name, spec: s, good: File(s)}
	d.tags = locate(d.good)
	d.cuts()
	d.directory()
	d.fields()
	d.spans()
	d.data()
	return d.out
}

type damager struct {
	name string
	spec Spec
	good []byte
	tags tags
	out  []Damaged
}

func (d *damager) put(fault string, change func(f []byte) []byte) {
	d.out = append(d.out, Damaged{d.name, fault, d.good, change(slices.Clone(d.good)), false})
}

// hide marks the last damage.
func (d *damager) hide(when bool) { d.out[len(d.out)-1].Hidden = when }

func (d *damager) poke(fault string, tag uint16, change func(v uint64) uint64) {
	d.put(fault, func(f []byte) []byte {
		d.tags.set(f, tag, 0, change(d.tags.get(f, tag, 0)))
		return f
	})
}

func to(v uint64) func(uint64) uint64 { return func(uint64) uint64 { return v } }

func plus(d int) func(uint64) uint64 { return func(v uint64) uint64 { return v + uint64(d) } }

func (d *damager) cuts() {
	n := len(d.good)
	for _, percent := range []int{10, 50, 90, 99} {
		d.put(fmt.Sprintf("cut at %d percent", percent), func(f []byte) []byte { return f[:n*percent/100] })
	}
	d.put("cut by one byte", func(f []byte) []byte { return f[:n-1] })
}

func (d *damager) directory() {
	t, n := d.tags, uint64(len(d.good))
	d.put("byte order", func(f []byte) []byte { f[0], f[1] = f[0]^4, f[1]^4; return f })
	d.put("version", func(f []byte) []byte { f[2], f[3] = 0, 0; return f })
	d.put("directory past the end", func(f []byte) []byte { t.setFirst(f, n+100); return f })
	d.put("directory nowhere", func(f []byte) []byte { t.setFirst(f, 0); return f })
	d.put("directory inside data", func(f []byte) []byte { t.setFirst(f, uint64(t.at-300)); return f })
	d.put("directory of one entry more", func(f []byte) []byte { f[t.at+t.low()]++; return f })
	d.put("directory of many entries", func(f []byte) []byte { f[t.at+t.low()] ^= 0xFF; f[t.at+1] ^= 0x7F; return f })
	d.put("directory loop", func(f []byte) []byte { t.setNext(f, uint64(t.at)); return f })
}

func (d *damager) fields() {
	tiles, fax := d.spec.TileWidth > 0, d.spec.Compression == 4
	for tag, side := range []string{256: "width", 257: "height"} {
		if side == "" {
			continue
		}
		tag := uint16(tag) //nolint:gosec // 256 or 257
		d.poke(side+" zero", tag, to(0))
		d.poke(side+" less", tag, plus(-1))
		d.hide(tiles || fax && side == "height")
		d.poke(side+" more", tag, plus(1))
		d.hide(tiles)
		d.poke(side+" huge", tag, to(60000))
	}
	d.poke("bits", 258, func(v uint64) uint64 { return 24 - v })
	d.poke("samples", 277, func(v uint64) uint64 { return 4 - v })
	other := map[uint64]uint64{0: 1, 1: 0, 2: 1, 6: 2}
	if d.spec.Compression == 7 {
		other[2] = 6
	}
	d.poke("photometric", 262, func(v uint64) uint64 { return other[v] })
	d.hide(fax)
	d.poke("compression another", 259, func(v uint64) uint64 {
		if v == 1 {
			return 5
		}
		return 1
	})
	d.poke("compression unknown", 259, to(65000))
}

// places are the tags of the strips' or tiles' offsets and sizes.
func (d *damager) places() (offsets, sizes uint16) {
	if d.spec.TileWidth > 0 {
		return 324, 325
	}
	return 273, 279
}

func (d *damager) spans() {
	t, n := d.tags, len(d.good)
	offsets, sizes := d.places()
	d.poke("offset past the end", offsets, to(uint64(n+5)))
	d.poke("offset zero", offsets, to(0))
	d.poke("offset shifted", offsets, plus(2))
	d.poke("size zero", sizes, to(0))
	d.poke("size less", sizes, plus(-3))
	d.poke("size past the end", sizes, to(1<<30))
	if t.count(offsets) > 1 {
		d.put("offset doubled", func(f []byte) []byte { t.set(f, offsets, 1, t.get(f, offsets, 0)); return f })
	}
}

// data damages the middle of the first strip's or tile's data.
func (d *damager) data() {
	offsets, sizes := d.places()
	from, size := int(d.tags.get(d.good, offsets, 0)), int(d.tags.get(d.good, sizes, 0))
	piece := func(f []byte, n int) []byte { return f[from+size/2 : min(from+size/2+n, from+size)] }
	flip := func(n int) func(f []byte) []byte {
		return func(f []byte) []byte {
			for i := range piece(f, n) {
				piece(f, n)[i] ^= 0xFF
			}
			return f
		}
	}
	zero := func(n int) func(f []byte) []byte {
		return func(f []byte) []byte { clear(piece(f, n)); return f }
	}
	raw := d.spec.Compression == 0
	d.put("1 byte flipped", flip(1))
	d.hide(raw || d.spec.Compression == 7 || d.spec.Compression == 32773) // a literal of PackBits is as good as raw
	d.put("64 bytes flipped", flip(64))
	d.hide(raw)
	d.put("4096 bytes zeroed", zero(4096))
	d.hide(raw)
	d.put("10 percent zeroed", zero(len(d.good)/10))
	d.hide(raw)
}
