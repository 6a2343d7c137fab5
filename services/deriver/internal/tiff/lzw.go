package tiff

import (
	"context"
	"encoding/binary"
	"errors"
	"io"

	"colophon/services/deriver/internal/fault"
)

const (
	lzwClear = 256
	lzwEnd   = 257
	lzwFirst = 258
	lzwMax   = 4096
)

// lzwChunk decodes TIFF's LZW: high bits first, the code width growing one
// code early. It is written for speed: every string in the table is a piece of
// the output since the last clear code, so that a table entry is just a place
// and a length there, and a string is copied rather than followed byte by byte
// along a chain.
type lzwChunk struct {
	stream
	in       []byte // compressed bytes read ahead
	ip       int
	bits     uint64 // the high n bits are the next ones
	n        uint
	ended    bool // the end code, or the end of the data without one
	marked   bool // the end code was there
	out      []byte
	taken    int // out[:taken] has been delivered
	place    [lzwMax]uint32
	length   [lzwMax]uint16
	next     int // the code to be defined by the next string
	width    uint
	prev     int // where the previous string begins in out; -1 after a clear
	prevSize int
}

// errNoCode is a code that the table does not have.
var errNoCode = errors.New("lzw: a code that is not in the table")

func (r *lzwChunk) start(_ context.Context, c span, _ int) error {
	r.open(c)
	if head, err := r.buf.Peek(2); err == nil && head[0] == 0 && head[1]&1 == 1 {
		return fault.Refuse(fault.NoCompression, "The LZW data has the bit order of writers before TIFF 6.0, which is not read")
	}
	if r.in == nil {
		r.in = make([]byte, 0, 64<<10)
		r.out = make([]byte, 0, 256<<10)
	}
	r.in, r.ip, r.bits, r.n = r.in[:0], 0, 0, 0
	r.ended, r.marked = false, false
	r.out, r.taken = r.out[:0], 0
	r.clear()
	return nil
}

func (r *lzwChunk) clear() {
	r.next, r.width, r.prev = lzwFirst, 9, -1
}

func (r *lzwChunk) row(dst []byte) error {
	for len(dst) > 0 {
		if r.taken == len(r.out) {
			if r.ended {
				return r.short(io.ErrUnexpectedEOF)
			}
			if err := r.decode(len(dst)); err != nil {
				return r.corrupt(err)
			}
			continue
		}
		n := copy(dst, r.out[r.taken:])
		r.taken += n
		dst = dst[n:]
	}
	return nil
}

// fill loads the next compressed bytes; false at their end.
func (r *lzwChunk) fill() bool {
	n, _ := io.ReadFull(r.buf, r.in[:cap(r.in)])
	r.in, r.ip = r.in[:n], 0
	return n > 0
}

// code reads the next code of the current width; false at the end of data.
func (r *lzwChunk) code() (int, bool) {
	if r.n < r.width {
		if r.ip+4 <= len(r.in) {
			r.bits |= uint64(binary.BigEndian.Uint32(r.in[r.ip:])) << (32 - r.n)
			r.ip += 4
			r.n += 32
		} else {
			for r.n < r.width {
				if r.ip == len(r.in) && !r.fill() {
					return 0, false
				}
				r.bits |= uint64(r.in[r.ip]) << (56 - r.n)
				r.ip++
				r.n += 8
			}
		}
	}
	c := int(r.bits >> (64 - r.width))
	r.bits <<= r.width
	r.n -= r.width
	return c, true
}

// decode produces output until want bytes wait to be taken, or a clear code,
// or the end.
func (r *lzwChunk) decode(want int) error {
	for len(r.out)-r.taken < want {
		c, ok := r.code()
		switch {
		case !ok || c == lzwEnd:
			r.ended, r.marked = true, ok
			return nil
		case c == lzwClear:
			r.clear()
			if r.taken == len(r.out) {
				r.out, r.taken = r.out[:0], 0
			} else if r.taken > cap(r.out)/2 {
				r.out = r.out[:copy(r.out, r.out[r.taken:])]
				r.taken = 0
			}
			continue
		}
		if err := r.emit(c); err != nil {
			return err
		}
	}
	return nil
}

// emit appends the string of code c and defines the next code: the previous
// string and the first byte of this one, which lie side by side in out.
func (r *lzwChunk) emit(c int) error {
	at := len(r.out)
	var size int
	switch {
	case c < 256:
		r.grow(1)
		r.out = append(r.out, byte(c))
		size = 1
	case r.prev < 0 || c > r.next || (c == r.next && r.next >= lzwMax):
		return errNoCode
	case c == r.next:
		size = r.prevSize + 1
		r.grow(size)
		r.out = r.out[:at+size]
		copy8(r.out, at, r.prev, r.prevSize)
		r.out[at+r.prevSize] = r.out[r.prev]
	default:
		size = int(r.length[c])
		r.grow(size)
		r.out = r.out[:at+size]
		copy8(r.out, at, int(r.place[c]), size)
	}
	if r.prev >= 0 {
		if r.next >= lzwMax {
			return errNoCode
		}
		r.place[r.next], r.length[r.next] = uint32(r.prev), uint16(r.prevSize+1)
		r.next++
		// The width grows one code early; after 4,095 only a clear may follow.
		if r.next == 1<<r.width-1 && r.width < 12 {
			r.width++
		}
	}
	r.prev, r.prevSize = at, size
	return nil
}

// grow makes room for n bytes and the overrun of copy8.
func (r *lzwChunk) grow(n int) {
	if cap(r.out)-len(r.out) < n+8 {
		bigger := make([]byte, len(r.out), 2*cap(r.out)+n)
		copy(bigger, r.out)
		r.out = bigger
	}
}

// copy8 copies n bytes within b from src to dst, which begins at or after the
// source's end, eight at a time; it may write up to seven bytes too many,
// still inside b's capacity.
func copy8(b []byte, dst, src, n int) {
	if n > 64 {
		copy(b[dst:dst+n], b[src:src+n])
		return
	}
	b = b[:cap(b)]
	for i := 0; i < n; i += 8 {
		binary.LittleEndian.PutUint64(b[dst+i:], binary.LittleEndian.Uint64(b[src+i:]))
	}
}

// end tolerates a missing end code, which real writers leave out, and bytes
// after it. Output after the last row is a fault: a width, a height or a code
// was changed, as the row's own length would then not tell.
func (r *lzwChunk) end() error {
	if !r.ended {
		if err := r.decode(len(r.out) - r.taken + 1); err != nil {
			return r.corrupt(err)
		}
	}
	if err := r.p.file.src.Err(); err != nil {
		return err
	}
	if len(r.out) > r.taken {
		return r.surplus()
	}
	if !r.marked {
		r.p.file.out.Warn("lzw-end-missing", "LZW data lacks its end code")
	}
	return nil
}
