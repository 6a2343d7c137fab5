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
	dry      bool // in holds the last bytes that there are
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
	r.dry, r.ended, r.marked = false, false, false
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

// fill loads more compressed bytes behind those that are left; false at their
// end.
func (r *lzwChunk) fill() bool {
	left := copy(r.in[:cap(r.in)], r.in[r.ip:])
	n, _ := io.ReadFull(r.buf, r.in[left:cap(r.in)])
	r.in, r.ip = r.in[:left+n], 0
	return n > 0
}

// decode produces output until want bytes wait to be taken, or the end. It is
// the reader's hottest loop, so what it changes with each code is kept in
// variables of its own.
func (r *lzwChunk) decode(want int) error {
	for len(r.out)-r.taken < want && !r.ended {
		if len(r.in)-r.ip < 8 && !r.dry {
			r.dry = !r.fill()
		}
		if err := r.run(r.taken + want); err != nil {
			return err
		}
	}
	return nil
}

// run decodes codes until out is as long as until, a clear code, the end, or
// until it needs more input.
func (r *lzwChunk) run(until int) error {
	in, out, ip, bits, n := r.in, r.out, r.ip, r.bits, r.n
	next, width, prev, prevSize := r.next, r.width, r.prev, r.prevSize
	defer func() {
		r.out, r.ip, r.bits, r.n = out, ip, bits, n
		r.next, r.width, r.prev, r.prevSize = next, width, prev, prevSize
	}()
	for len(out) < until {
		for n < width {
			switch {
			case ip+4 <= len(in):
				bits |= uint64(binary.BigEndian.Uint32(in[ip:])) << (32 - n)
				ip += 4
				n += 32
			case ip < len(in):
				bits |= uint64(in[ip]) << (56 - n)
				ip++
				n += 8
			default:
				r.ended = r.dry
				return nil
			}
		}
		c := int(bits >> (64 - width))
		bits <<= width
		n -= width
		at := len(out)
		var size int
		switch {
		case c < lzwClear:
			size = 1
			out = grown(out, 1)
			out[at] = byte(c)
		case c == lzwClear:
			if r.taken > cap(out)/2 {
				out = out[:copy(out, out[r.taken:])]
				until -= r.taken
				r.taken = 0
			}
			next, width, prev = lzwFirst, 9, -1
			continue
		case c == lzwEnd:
			r.ended, r.marked = true, true
			return nil
		case c < next:
			size = int(r.length[c])
			out = grown(out, size)
			copy8(out, at, int(r.place[c]), size)
		case c > next || prev < 0 || next >= lzwMax:
			return errNoCode
		default: // the code that is being defined: the previous string and its own first byte
			size = prevSize + 1
			out = grown(out, size)
			copy8(out, at, prev, prevSize)
			out[at+prevSize] = out[prev]
		}
		// The next code is the previous string and the first byte of this one,
		// which lie side by side in out.
		if prev >= 0 {
			if next >= lzwMax {
				return errNoCode
			}
			r.place[next], r.length[next] = uint32(prev), uint16(prevSize+1)
			next++
			// The width grows one code early; after 4,095 only a clear may follow.
			if next == 1<<width-1 && width < 12 {
				width++
			}
		}
		prev, prevSize = at, size
	}
	return nil
}

// grown makes b longer by n bytes, with room for the overrun of copy8 behind.
func grown(b []byte, n int) []byte {
	if cap(b)-len(b) < n+8 {
		bigger := make([]byte, len(b), 2*cap(b)+n+8)
		copy(bigger, b)
		b = bigger
	}
	return b[:len(b)+n]
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
