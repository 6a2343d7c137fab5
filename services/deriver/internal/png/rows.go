package png

import (
	"bufio"
	"context"
	"errors"
	"io"

	"github.com/klauspost/compress/zlib"

	"colophon/services/deriver/internal/fault"
	"colophon/services/deriver/internal/raster"
)

// maxInterlaced bounds the memory for an interlaced image, which is put
// together before its first row can be delivered, in bytes.
const maxInterlaced = 512 << 20

// rows delivers the image. It undoes the filters of one row after another.
type rows struct {
	f         *file
	ctx       context.Context
	in        *bufio.Reader
	z         io.ReadCloser
	cur, prev []byte // stored rows
	whole     []byte // an interlaced image, put together
	y         int
}

func (f *file) open(ctx context.Context) (raster.Rows, error) {
	var parts []io.Reader
	for _, s := range f.data {
		parts = append(parts, f.src.Section(s.off, s.size))
	}
	in := bufio.NewReaderSize(io.MultiReader(parts...), 256<<10)
	z, err := zlib.NewReader(in)
	if err != nil {
		return nil, f.corrupt(err)
	}
	r := &rows{f: f, ctx: ctx, in: in, z: z}
	if f.interlaced {
		return r, r.deinterlace()
	}
	r.cur, r.prev = make([]byte, f.rowBytes()), make([]byte, f.rowBytes())
	return r, nil
}

// Next implements raster.Rows.
func (r *rows) Next(dst []byte) error {
	if r.whole != nil {
		n := r.f.rowBytes()
		r.f.samplesOf(dst, r.whole[r.y*n:(r.y+1)*n])
		r.y++
		return r.badIndex(dst)
	}
	r.cur, r.prev = r.prev, r.cur
	if err := r.stored(r.cur, r.prev); err != nil {
		return err
	}
	r.f.samplesOf(dst, r.cur)
	return r.badIndex(r.cur)
}

// badIndex refuses a row with an index outside the palette: what it shows is
// not defined.
func (r *rows) badIndex(row []byte) error {
	f := r.f
	if f.colour != palette || len(f.palette) == 3<<f.bits {
		return nil
	}
	if f.interlaced {
		n := f.rowBytes()
		row = r.whole[(r.y-1)*n : r.y*n]
	}
	for x := range f.width {
		if f.index(row, x) >= len(f.palette)/3 {
			return fault.Refuse(fault.BadStructure, "A pixel's colour is not in the palette")
		}
	}
	return nil
}

// stored reads one stored row and undoes its filter.
func (r *rows) stored(cur, prev []byte) error {
	var filter [1]byte
	if _, err := io.ReadFull(r.z, filter[:]); err != nil {
		return r.f.corrupt(err)
	}
	if _, err := io.ReadFull(r.z, cur); err != nil {
		return r.f.corrupt(err)
	}
	if !unfilter(filter[0], cur, prev, max(1, r.f.samples()*r.f.bits/8)) {
		return fault.Refuse(fault.DataCorrupt, "A row has the unknown filter %d", filter[0])
	}
	return nil
}

// Finish implements raster.Rows: the compressed data must end here, with the
// right checksum.
func (r *rows) Finish() error {
	var one [1]byte
	n, err := io.ReadFull(r.z, one[:])
	switch {
	case n > 0:
		return fault.Refuse(fault.StripSurplus, "The image data goes on after the last row")
	case !errors.Is(err, io.EOF):
		return r.f.corrupt(err)
	}
	if n, _ := io.CopyN(io.Discard, r.in, 1); n > 0 {
		r.f.img.Warn("data-after-end", "Bytes follow the end of the compressed data")
	}
	return r.f.src.Err()
}

// Close implements raster.Rows.
func (r *rows) Close() error { return r.z.Close() }

// unfilter undoes the filter of a row in place; size is a pixel's in bytes.
func unfilter(filter byte, cur, prev []byte, size int) bool {
	switch filter {
	case 0:
	case 1:
		for i := size; i < len(cur); i++ {
			cur[i] += cur[i-size]
		}
	case 2:
		for i, v := range prev {
			cur[i] += v
		}
	case 3:
		for i := range cur {
			left := 0
			if i >= size {
				left = int(cur[i-size])
			}
			cur[i] += byte((left + int(prev[i])) / 2)
		}
	case 4:
		for i := range cur {
			left, corner := 0, 0
			if i >= size {
				left, corner = int(cur[i-size]), int(prev[i-size])
			}
			cur[i] += paeth(left, int(prev[i]), corner)
		}
	default:
		return false
	}
	return true
}

// paeth picks the neighbour nearest to left + up - corner.
func paeth(left, up, corner int) byte {
	pl, pu := up-corner, left-corner
	pc := pl + pu
	if pl < 0 {
		pl = -pl
	}
	if pu < 0 {
		pu = -pu
	}
	if pc < 0 {
		pc = -pc
	}
	switch {
	case pl <= pu && pl <= pc:
		return byte(left)
	case pu <= pc:
		return byte(up)
	}
	return byte(corner)
}

// index is the value of pixel x of a row of fewer than 9 bits a pixel.
func (f *file) index(row []byte, x int) int {
	per := 8 / f.bits
	shift := 8 - f.bits*(x%per+1)
	return int(row[x/per] >> shift & byte(1<<f.bits-1))
}

// samplesOf turns a stored row into gray or RGB samples, without transparency.
func (f *file) samplesOf(dst, row []byte) {
	switch {
	case f.colour == palette:
		for x := range f.width {
			if i := 3 * f.index(row, x); i < len(f.palette) {
				copy(dst[3*x:3*x+3], f.palette[i:i+3])
			}
		}
	case f.bits < 8:
		scale := 255 / (1<<f.bits - 1)
		for x := range f.width {
			dst[x] = byte(f.index(row, x) * scale)
		}
	default:
		f.wide(dst, row)
	}
}

// wide copies samples of 8 and 16 bits.
func (f *file) wide(dst, row []byte) {
	size := f.bits / 8
	in, out := f.samples()*size, f.page.Channels*size
	for x := range f.width {
		px := row[x*in : x*in+out]
		copy(dst[x*out:], px)
	}
	if size == 2 {
		for i := 0; i+1 < len(dst); i += 2 {
			dst[i], dst[i+1] = dst[i+1], dst[i]
		}
	}
}

// passes are the seven pictures of an interlaced image: first pixel and step.
var passes = [7]struct{ x, y, dx, dy int }{
	{0, 0, 8, 8}, {4, 0, 8, 8}, {0, 4, 4, 8}, {2, 0, 4, 4}, {0, 2, 2, 4}, {1, 0, 2, 2}, {0, 1, 1, 2},
}

// deinterlace reads all passes and puts them together as stored rows.
func (r *rows) deinterlace() error {
	f := r.f
	bits := f.samples() * f.bits
	r.whole = make([]byte, f.rowBytes()*f.height)
	for _, p := range passes {
		w, h := (f.width-p.x+p.dx-1)/p.dx, (f.height-p.y+p.dy-1)/p.dy
		if w <= 0 || h <= 0 {
			continue
		}
		cur, prev := make([]byte, packed(w, bits)), make([]byte, packed(w, bits))
		for y := range h {
			if err := r.ctx.Err(); err != nil {
				return err
			}
			cur, prev = prev, cur
			if err := r.stored(cur, prev); err != nil {
				return err
			}
			row := r.whole[(p.y+y*p.dy)*f.rowBytes():]
			for x := range w {
				place(row, p.x+x*p.dx, cur, x, bits)
			}
		}
	}
	return nil
}

// place copies pixel x of src to pixel at of dst; both are of bits bits.
func place(dst []byte, at int, src []byte, x, bits int) {
	if bits >= 8 {
		n := bits / 8
		copy(dst[at*n:(at+1)*n], src[x*n:])
		return
	}
	per := 8 / bits
	v := src[x/per] >> (8 - bits*(x%per+1)) & byte(1<<bits-1)
	dst[at/per] |= v << (8 - bits*(at%per+1))
}
