package jpeg

import (
	"bufio"
	"errors"
	"io"

	"colophon/services/deriver/internal/fault"
)

// libjpeg decodes damaged codes without a word as long as the right number of
// blocks comes out, more or less. So the codes of baseline images are also read
// here, without making pixels of them: every code must exist, every block must
// end at its 64th coefficient at the latest, no coefficient may be larger than
// an image of 8 bits can have, and each interval must end in the last byte
// before its marker. Even so most single changed bytes leave other codes that
// are just as valid (measured: two in three); only a digest sees those.

// component is one colour of the frame.
type component struct {
	id      byte
	h, v    int // sampling factors
	quant   byte
	dc, ac  *huffman // of the current scan
	pred    int
	inScan  bool
	blocksW int // blocks in a row of the component alone
	blocksH int
}

// huffman is a code table, indexed by the next 16 bits in two steps.
type huffman struct {
	fast  [256]uint16 // size<<8 | value, by the next 8 bits; 0 if longer
	limit [18]int     // one more than the last code of each size, at 16 bits
	first [17]int     // code of the first value of each size
	index [17]int     // of that value
	value []byte
}

// newHuffman builds a table from the numbers of codes of each size.
func newHuffman(counts [16]byte, value []byte) (*huffman, bool) {
	h := &huffman{value: value}
	code, at := 0, 0
	for size := 1; size <= 16; size++ {
		n := int(counts[size-1])
		h.first[size], h.index[size] = code, at
		for range n {
			if size <= 8 && code < 1<<size {
				for k := range 1 << (8 - size) {
					h.fast[code<<(8-size)|k] = uint16(size)<<8 | uint16(value[at])
				}
			}
			code++
			at++
		}
		if code > 1<<size {
			return nil, false
		}
		h.limit[size] = code << (16 - size)
		code <<= 1
	}
	h.limit[17] = 1 << 30
	return h, true
}

// readTables takes a DHT segment.
func (f *file) readTables(p []byte) error {
	for len(p) > 0 {
		var counts [16]byte
		if len(p) < 17 {
			return fault.Refuse(fault.BadStructure, "A code table is cut short")
		}
		kind, total := p[0], 0
		copy(counts[:], p[1:])
		for _, n := range counts {
			total += int(n)
		}
		if len(p) < 17+total || total > 256 || kind&0x0F > 3 || kind>>4 > 1 {
			return fault.Refuse(fault.BadStructure, "A code table is wrong")
		}
		h, ok := newHuffman(counts, p[17:17+total])
		if !ok {
			return fault.Refuse(fault.BadStructure, "A code table has more codes than there are")
		}
		f.huffman[kind>>4][kind&3] = h
		p = p[17+total:]
	}
	return nil
}

// readQuant takes a DQT segment.
func (f *file) readQuant(p []byte) error {
	for len(p) > 0 {
		size := 1 + int(p[0]>>4)
		if p[0]&0x0F > 3 || size > 2 || len(p) < 1+64*size {
			return fault.Refuse(fault.BadStructure, "A quantisation table is wrong")
		}
		q := &f.quant[p[0]&3]
		for i := range q {
			if q[i] = int(p[1+i*size]); size == 2 {
				q[i] = q[i]<<8 | int(p[2+i*size])
			}
			if q[i] == 0 {
				return fault.Refuse(fault.BadStructure, "A quantisation table has a zero")
			}
		}
		f.quantSeen[p[0]&3] = true
		p = p[1+64*size:]
	}
	return nil
}

// readComponents takes the components of the frame's header.
func (f *file) readComponents(p []byte) error {
	maxH, maxV := 1, 1
	for i := 0; i+2 < len(p); i += 3 {
		c := component{id: p[i], h: int(p[i+1] >> 4), v: int(p[i+1] & 15), quant: p[i+2]}
		if c.h < 1 || c.h > 4 || c.v < 1 || c.v > 4 || c.quant > 3 {
			return fault.Refuse(fault.BadStructure, "The frame's header has a wrong component")
		}
		maxH, maxV = max(maxH, c.h), max(maxV, c.v)
		f.parts = append(f.parts, c)
	}
	for i := range f.parts {
		c := &f.parts[i]
		c.blocksW = ((f.width*c.h+maxH-1)/maxH + 7) / 8
		c.blocksH = ((f.height*c.v+maxV-1)/maxV + 7) / 8
	}
	f.mcusW = (f.width + 8*maxH - 1) / (8 * maxH)
	f.mcusH = (f.height + 8*maxV - 1) / (8 * maxV)
	return nil
}

// scanHeader takes the components of a scan and their tables.
func (f *file) scanHeader(p []byte) error {
	wrong := fault.Refuse(fault.BadStructure, "A scan's header is wrong")
	n := int(p[0])
	f.inScan = f.inScan[:0]
	for i := range n {
		id, tables := p[1+2*i], p[2+2*i]
		var c *component
		for k := range f.parts {
			if f.parts[k].id == id && !f.parts[k].inScan {
				c = &f.parts[k]
			}
		}
		if c == nil || tables>>4 > 3 || tables&15 > 3 {
			return wrong
		}
		c.inScan = true
		c.dc, c.ac, c.pred = f.huffman[0][tables>>4], f.huffman[1][tables&15], 0
		f.inScan = append(f.inScan, c)
	}
	for i := range f.parts {
		f.parts[i].inScan = false
	}
	if f.progressive {
		return nil
	}
	for _, c := range f.inScan {
		if c.dc == nil || c.ac == nil || !f.quantSeen[c.quant] {
			return fault.Refuse(fault.BadStructure, "A scan uses a table that was not defined")
		}
	}
	if p[1+2*n] != 0 || p[2+2*n] != 63 || p[3+2*n] != 0 {
		return wrong
	}
	return nil
}

// errCode is data that cannot have been written by an encoder.
var errCode = errors.New("jpeg: damaged codes")

// bits reads entropy-coded data.
type bits struct {
	in   *bufio.Reader
	used int64 // bytes read
	acc  uint64
	n    int
	mark byte // the marker that ended the data, or 0
}

// fill takes bytes until there are at least 48 bits or a marker has come.
func (b *bits) fill() error {
	for b.n <= 48 && b.mark == 0 {
		c, err := b.in.ReadByte()
		if err != nil {
			return err
		}
		b.used++
		if c == 0xFF {
			next := byte(0xFF)
			for next == 0xFF {
				if next, err = b.in.ReadByte(); err != nil {
					return err
				}
				b.used++
			}
			if next != 0 {
				b.mark = next
				return nil
			}
		}
		b.acc |= uint64(c) << (56 - b.n)
		b.n += 8
	}
	return nil
}

// code reads one Huffman code and then as many bits as its low half says.
func (b *bits) code(h *huffman) (run, value int, err error) {
	if b.n < 32 && b.mark == 0 {
		if err := b.fill(); err != nil {
			return 0, 0, err
		}
	}
	size, symbol := 0, 0
	if e := h.fast[b.acc>>56]; e != 0 {
		size, symbol = int(e>>8), int(e&0xFF)
	} else {
		top := int(b.acc >> 48)
		size = 9
		for size <= 16 && top >= h.limit[size] {
			size++
		}
		if size > 16 {
			return 0, 0, errCode
		}
		symbol = int(h.value[h.index[size]+top>>(16-size)-h.first[size]])
	}
	extra := symbol & 15
	if b.n < size+extra {
		return 0, 0, errCode
	}
	b.acc <<= size
	if extra > 0 {
		value = int(b.acc >> (64 - extra))
		if value < 1<<(extra-1) {
			value -= 1<<extra - 1
		}
		b.acc <<= extra
	}
	b.n -= size + extra
	return symbol >> 4, value, nil
}

// Bounds on a coefficient of an 8-bit image, doubled for encoders that
// overshoot on purpose.
const (
	maxDC = 2 * 1024
	maxAC = 2 * 1024
)

// block reads one block of a component.
func (b *bits) block(c *component, quant *[64]int) error {
	run, diff, err := b.code(c.dc)
	if err != nil {
		return err
	}
	c.pred += diff
	if v := c.pred * quant[0]; run != 0 || v > maxDC+quant[0] || v < -maxDC-quant[0] {
		return errCode
	}
	for k := 1; k < 64; k++ {
		run, v, err := b.code(c.ac)
		if err != nil {
			return err
		}
		if v == 0 {
			if run == 0 {
				return nil
			}
			if run != 15 {
				return errCode
			}
		}
		if k += run; k > 63 {
			return errCode
		}
		if v *= quant[k]; v > maxAC+quant[k] || v < -maxAC-quant[k] {
			return errCode
		}
	}
	return nil
}

// endInterval checks that the data ends here: only padding is left, of less
// than a byte, and then the marker.
func (b *bits) endInterval() error {
	if err := b.fill(); err != nil {
		return err
	}
	if b.n >= 8 {
		return errCode
	}
	// The padding should be ones; encoders differ, and decoders do not look.
	b.acc, b.n = 0, 0
	return nil
}

// codes reads the codes of one baseline scan and gives the marker after it.
func (f *file) codes() (byte, error) {
	b := &bits{in: f.in}
	f.scans++
	err := f.mcus(b)
	f.at += b.used
	switch {
	case errors.Is(err, io.EOF):
		return 0, err
	case err != nil:
		e := fault.Refuse(fault.DataCorrupt, "The JPEG data is damaged near offset %d", f.at)
		e.Err = err
		return 0, e
	}
	return b.mark, nil
}

func (f *file) mcus(b *bits) error {
	total := f.mcusW * f.mcusH
	if len(f.inScan) == 1 {
		total = f.inScan[0].blocksW * f.inScan[0].blocksH
	}
	for i := range total {
		if f.restart > 0 && i > 0 && i%f.restart == 0 {
			if err := b.endInterval(); err != nil {
				return err
			}
			if want := byte(0xD0 + (i/f.restart-1)%8); b.mark != want {
				return errCode
			}
			b.mark = 0
			for _, c := range f.inScan {
				c.pred = 0
			}
		}
		if err := f.mcu(b); err != nil {
			return err
		}
	}
	if err := b.endInterval(); err != nil {
		return err
	}
	if b.mark >= 0xD0 && b.mark <= 0xD7 {
		return errCode
	}
	return nil
}

func (f *file) mcu(b *bits) error {
	if len(f.inScan) == 1 {
		c := f.inScan[0]
		return b.block(c, &f.quant[c.quant])
	}
	for _, c := range f.inScan {
		for range c.h * c.v {
			if err := b.block(c, &f.quant[c.quant]); err != nil {
				return err
			}
		}
	}
	return nil
}
