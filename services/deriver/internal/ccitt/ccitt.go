// Package ccitt decodes the fax compressions of ITU-T Recommendations T.4
// (Group 3, one- and two-dimensional) and T.6 (Group 4) row by row. Unlike the
// decoders in common use it says whether the data ended where the last row
// did: a height that was changed in a file's header does not pass unseen.
package ccitt

import (
	"errors"
	"fmt"
	"io"
	"math/bits"
)

// Mode is the variant of the code.
type Mode int

const (
	Group3   Mode = iota // T.4, one-dimensional
	Group32D             // T.4, two-dimensional
	Group4               // T.6
)

const (
	white = 0
	black = 1
)

var (
	// ErrCode is a bit sequence that is no code, or one that leads outside the
	// row.
	ErrCode = errors.New("ccitt: invalid code")
	// ErrUncompressed is the uncompressed mode, which is not decoded.
	ErrUncompressed = errors.New("ccitt: uncompressed mode")
	// ErrSurplus says that more rows follow the last one asked for.
	ErrSurplus = errors.New("ccitt: data follows the last row")
)

// Decoder reads rows from a stream of codes.
type Decoder struct {
	in    io.ByteReader
	mode  Mode
	width int
	lsb   bool // the first bit of a byte is its lowest

	acc uint64 // the next n bits, in the high end
	n   int
	eof bool
	err error // of reading, other than the end

	ref, cur []int // changing elements of the row above and of this one
	rows     int
}

// NewDecoder decodes rows of width pixels from in. lsb says that bytes are
// filled from their lowest bit.
func NewDecoder(in io.ByteReader, mode Mode, width int, lsb bool) *Decoder {
	return &Decoder{in: in, mode: mode, width: width, lsb: lsb}
}

// Row decodes the next row into dst, (width+7)/8 bytes: first pixel in the
// highest bit, black pixels set. The error is io.ErrUnexpectedEOF if the data
// ends, ErrCode or ErrUncompressed.
func (d *Decoder) Row(dst []byte) error {
	d.cur = d.cur[:0]
	flat, err := d.lineStart()
	if err != nil {
		return err
	}
	if flat {
		err = d.flatRow()
	} else {
		err = d.deepRow()
	}
	if err != nil {
		return fmt.Errorf("row %d: %w", d.rows, err)
	}
	d.paint(dst)
	d.ref, d.cur = d.cur, d.ref
	d.rows++
	return nil
}

// lineStart reads the end-of-line code before a row of Group 3 and tells
// whether the row is coded in one dimension.
func (d *Decoder) lineStart() (bool, error) {
	if d.mode == Group4 {
		return false, nil
	}
	found := d.skipEOL()
	if d.mode == Group3 {
		return true, nil
	}
	if !found {
		return false, d.bad()
	}
	return d.take(1) == 1, d.bad0()
}

// skipEOL passes over fill bits and one end-of-line code, if they are next.
func (d *Decoder) skipEOL() bool {
	if d.peek(11) != 0 || d.n < 11 {
		return false
	}
	for d.peek(1) == 0 {
		if d.n == 0 {
			return false
		}
		d.drop(1)
	}
	d.drop(1)
	return true
}

// flatRow decodes alternating runs, white first.
func (d *Decoder) flatRow() error {
	colour := white
	for at := 0; at < d.width; colour ^= 1 {
		n, err := d.run(colour)
		if err != nil {
			return err
		}
		at += n
		if at > d.width {
			return ErrCode
		}
		d.change(at)
	}
	return nil
}

// deepRow decodes a row against the one above it. The names a0, a1, b1 and b2
// are those of the Recommendation.
func (d *Decoder) deepRow() error {
	a0, colour, i := -1, white, 0
	for a0 < d.width {
		for i > 0 && d.above(i-1) > a0 {
			i--
		}
		for d.above(i) <= a0 && d.above(i) < d.width || i&1 != colour {
			i++
		}
		b1, b2 := d.above(i), d.above(i+1)
		mode, err := d.modeCode()
		if err != nil {
			return err
		}
		switch mode {
		case pass:
			a0 = b2
		case horizontal:
			at := max(a0, 0)
			for c := range 2 {
				n, err := d.run(colour ^ c)
				if err != nil {
					return err
				}
				at += n
				if at > d.width {
					return ErrCode
				}
				d.change(at)
			}
			a0 = at
		default: // vertical
			a1 := b1 + mode
			if a1 < max(a0, 0) || a1 > d.width {
				return ErrCode
			}
			d.change(a1)
			a0, colour = a1, colour^1
		}
	}
	return nil
}

// above gives changing element i of the row above; past the last one there is
// only the row's end.
func (d *Decoder) above(i int) int {
	if i < len(d.ref) {
		return d.ref[i]
	}
	return d.width
}

// change records that the colour changes at pixel x. Two changes at one place
// are none.
func (d *Decoder) change(x int) {
	if n := len(d.cur); n > 0 && d.cur[n-1] == x {
		d.cur = d.cur[:n-1]
		return
	}
	d.cur = append(d.cur, x)
}

// paint sets the bits of the black runs.
func (d *Decoder) paint(dst []byte) {
	clear(dst)
	for i := 0; i < len(d.cur); i += 2 {
		from, to := d.cur[i], d.width
		if i+1 < len(d.cur) {
			to = d.cur[i+1]
		}
		for from < to && from&7 != 0 {
			dst[from>>3] |= 0x80 >> (from & 7)
			from++
		}
		for ; from+8 <= to; from += 8 {
			dst[from>>3] = 0xFF
		}
		for ; from < to; from++ {
			dst[from>>3] |= 0x80 >> (from & 7)
		}
	}
}

// run decodes make-up codes and the terminating code of one run.
func (d *Decoder) run(colour int) (int, error) {
	t := &tables()[colour]
	total := 0
	for {
		r := t[d.peek(maxCode)]
		if r.size == 0 || int(r.size) > d.n {
			return 0, d.bad()
		}
		d.drop(int(r.size))
		total += int(r.length)
		if total > d.width {
			return 0, ErrCode
		}
		if r.length < 64 {
			return total, nil
		}
	}
}

// Modes of two-dimensional coding; the vertical ones are their own offsets.
const (
	pass       = 100
	horizontal = 101
)

func (d *Decoder) modeCode() (int, error) {
	v := d.peek(7)
	mode, size := 0, 0
	switch {
	case v>>6 == 1:
		mode, size = 0, 1
	case v>>4 == 0b011:
		mode, size = 1, 3
	case v>>4 == 0b010:
		mode, size = -1, 3
	case v>>4 == 0b001:
		mode, size = horizontal, 3
	case v>>3 == 0b0001:
		mode, size = pass, 4
	case v>>1 == 0b000011:
		mode, size = 2, 6
	case v>>1 == 0b000010:
		mode, size = -2, 6
	case v == 0b0000011:
		mode, size = 3, 7
	case v == 0b0000010:
		mode, size = -3, 7
	case v == 0b0000001 && d.n >= 7:
		return 0, ErrUncompressed
	default:
		return 0, d.bad()
	}
	if size > d.n {
		return 0, d.bad()
	}
	d.drop(size)
	return mode, nil
}

// End is called after the last row. It tells whether the end-of-block code
// was there; its absence is common. Rows after the last one are ErrSurplus.
func (d *Decoder) End() (marked bool, err error) {
	if d.mode == Group4 {
		if d.peek(24) == 0x001001 && d.n >= 24 {
			d.drop(24)
			return true, d.err
		}
	} else {
		for d.skipEOL() {
			marked = true
			if d.mode == Group32D {
				d.take(1)
			}
		}
	}
	if d.err != nil {
		return false, d.err
	}
	// Without the code only padding may be left: the rest of a byte, or zeros.
	d.peek(8)
	if d.n < 8 {
		return marked, nil
	}
	for d.n > 0 {
		if d.take(1) != 0 {
			return false, ErrSurplus
		}
		d.peek(1)
	}
	return marked, d.err
}

// bad names why no code could be read: the data has ended, or it is damaged.
func (d *Decoder) bad() error {
	switch {
	case d.err != nil:
		return d.err
	case d.eof && d.n < maxCode:
		return io.ErrUnexpectedEOF
	}
	return ErrCode
}

func (d *Decoder) bad0() error { return d.err }

// peek gives the next k bits, at most 24, with zeros after the end.
func (d *Decoder) peek(k int) uint64 {
	for d.n < k && !d.eof {
		b, err := d.in.ReadByte()
		if err != nil {
			d.eof = true
			if !errors.Is(err, io.EOF) {
				d.err = err
			}
			break
		}
		if d.lsb {
			b = bits.Reverse8(b)
		}
		d.acc |= uint64(b) << (56 - d.n)
		d.n += 8
	}
	return d.acc >> (64 - k)
}

func (d *Decoder) drop(k int) {
	k = min(k, d.n)
	d.acc <<= k
	d.n -= k
}

func (d *Decoder) take(k int) uint64 {
	v := d.peek(k)
	d.drop(k)
	return v
}
