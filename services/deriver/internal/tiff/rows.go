package tiff

import (
	"context"

	"colophon/services/deriver/internal/raster"
)

// plane delivers the samples of one plane, unpacked, row by row.
type plane interface {
	next(dst []byte) error
	finish() error
	close()
}

// rows delivers a page: it joins the planes and turns stored samples into
// gray or RGB.
type rows struct {
	p      *page
	planes []plane
	buf    [][]byte // a row of each plane
}

func (p *page) open(ctx context.Context) (*rows, error) {
	r := &rows{p: p}
	for i := range p.planes {
		r.buf = append(r.buf, make([]byte, p.width*p.planeSamples()*p.sampleBytes()))
		if p.tiled {
			r.planes = append(r.planes, p.newTilePlane(ctx, i))
		} else {
			r.planes = append(r.planes, p.newStripPlane(ctx, i))
		}
	}
	return r, nil
}

// Next implements raster.Rows.
func (r *rows) Next(dst []byte) error {
	p := r.p
	if p.planes == 1 && p.photometric != palette && p.samples == p.channels() {
		if err := r.planes[0].next(dst); err != nil {
			return err
		}
		p.polarise(dst)
		return nil
	}
	for i, pl := range r.planes {
		if err := pl.next(r.buf[i]); err != nil {
			return err
		}
	}
	switch {
	case p.photometric == palette:
		for i, v := range r.buf[0] {
			copy(dst[3*i:3*i+3], p.colours[3*int(v):3*int(v)+3])
		}
		return nil
	case p.planes > 1:
		p.interleave(dst, r.buf)
	default:
		p.dropExtras(dst, r.buf[0])
	}
	p.polarise(dst)
	return nil
}

// channels is the number of colours of a pixel as stored.
func (p *page) channels() int {
	if p.photometric == rgb || p.photometric == yCbCr {
		return 3
	}
	return 1
}

// interleave joins the first planes, which hold the colours.
func (p *page) interleave(dst []byte, planes [][]byte) {
	n := p.channels()
	for c := range n {
		src := planes[c]
		if p.sampleBytes() == 1 {
			for i, v := range src {
				dst[i*n+c] = v
			}
			continue
		}
		for i := 0; i < len(src); i += 2 {
			dst[i*n+2*c], dst[i*n+2*c+1] = src[i], src[i+1]
		}
	}
}

// dropExtras keeps the first samples of each pixel, which are the colours.
func (p *page) dropExtras(dst, src []byte) {
	in, out := p.samples*p.sampleBytes(), p.channels()*p.sampleBytes()
	for i := range p.width {
		copy(dst[i*out:(i+1)*out], src[i*in:])
	}
}

// polarise turns white-is-zero samples.
func (p *page) polarise(row []byte) {
	if p.photometric != whiteIsZero {
		return
	}
	top := byte(0xFF) // of a sample's high byte
	if p.bits > 8 {
		top = byte(1<<(p.bits-8) - 1)
	}
	for i := range row {
		if p.bits > 8 && i&1 == 1 {
			row[i] ^= top
		} else {
			row[i] ^= 0xFF
		}
	}
}

// Finish implements raster.Rows.
func (r *rows) Finish() error {
	for _, pl := range r.planes {
		if err := pl.finish(); err != nil {
			return err
		}
	}
	return r.p.file.src.Err()
}

// Close implements raster.Rows.
func (r *rows) Close() error {
	for _, pl := range r.planes {
		pl.close()
	}
	return nil
}

var _ raster.Rows = (*rows)(nil)

// stripPlane reads one strip after another, a row at a time.
type stripPlane struct {
	p      *page
	ctx    context.Context
	index  int
	dec    chunkReader
	packed []byte
	strip  int // the next one to open
	left   int // rows left of the open one
}

func (p *page) newStripPlane(ctx context.Context, index int) *stripPlane {
	s := &stripPlane{p: p, ctx: ctx, index: index, dec: p.newChunkReader()}
	if p.bits != 8 && p.bits != 16 {
		s.packed = make([]byte, p.packedRow())
	}
	return s
}

func (s *stripPlane) next(dst []byte) error {
	if s.left == 0 {
		if err := s.advance(); err != nil {
			return err
		}
	}
	s.left--
	if s.packed == nil {
		if err := s.dec.row(dst); err != nil {
			return err
		}
		s.p.unpack(dst, dst)
		return nil
	}
	if err := s.dec.row(s.packed); err != nil {
		return err
	}
	s.p.unpack(dst, s.packed)
	return nil
}

// advance ends the open strip and starts the next.
func (s *stripPlane) advance() error {
	if err := s.ctx.Err(); err != nil {
		return err
	}
	if s.strip > 0 {
		if err := s.dec.end(); err != nil {
			return err
		}
	}
	s.left = s.p.rows(s.strip)
	err := s.dec.start(s.ctx, s.p.chunk(s.index, s.strip, 0), s.left)
	s.strip++
	return err
}

func (s *stripPlane) finish() error { return s.dec.end() }

func (s *stripPlane) close() { s.dec.close() }

// tilePlane decodes a row of tiles at once into a band of the page.
type tilePlane struct {
	p      *page
	ctx    context.Context
	index  int
	dec    chunkReader
	packed []byte
	row    []byte // of one tile, unpacked
	band   []byte
	stride int
	tiles  int // the next row of tiles
	at     int // the next row of the band; chunkH when it is used up
}

func (p *page) newTilePlane(ctx context.Context, index int) *tilePlane {
	size := p.planeSamples() * p.sampleBytes()
	t := &tilePlane{p: p, ctx: ctx, index: index, dec: p.newChunkReader(), at: p.chunkH}
	t.packed = make([]byte, p.packedRow())
	t.row = make([]byte, p.chunkW*size)
	t.stride = p.width * size
	t.band = make([]byte, t.stride*min(p.chunkH, p.height))
	return t
}

func (t *tilePlane) next(dst []byte) error {
	if t.at == t.p.chunkH {
		if err := t.advance(); err != nil {
			return err
		}
		t.at = 0
	}
	copy(dst, t.band[t.at*t.stride:])
	t.at++
	return nil
}

func (t *tilePlane) advance() error {
	for x := range t.p.across {
		if err := t.ctx.Err(); err != nil {
			return err
		}
		if err := t.tile(x); err != nil {
			return err
		}
	}
	t.tiles++
	return nil
}

// tile decodes one tile wholly, the part outside the page included, and keeps
// the part inside.
func (t *tilePlane) tile(x int) error {
	p := t.p
	if err := t.dec.start(t.ctx, p.chunk(t.index, t.tiles, x), p.chunkH); err != nil {
		return err
	}
	from := x * len(t.row)
	for y := range p.chunkH {
		if err := t.dec.row(t.packed); err != nil {
			return err
		}
		if t.tiles*p.chunkH+y >= p.height {
			continue
		}
		p.unpack(t.row, t.packed)
		copy(t.band[y*t.stride+from:(y+1)*t.stride], t.row)
	}
	return t.dec.end()
}

func (t *tilePlane) finish() error { return nil }

func (t *tilePlane) close() { t.dec.close() }
