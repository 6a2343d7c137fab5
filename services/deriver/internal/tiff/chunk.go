package tiff

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/zlib"

	"colophon/services/deriver/internal/ccitt"
	"colophon/services/deriver/internal/fault"
	"colophon/services/deriver/internal/raster"
)

// chunkReader decodes one strip or tile after another of a plane. Between
// start and end it delivers packed rows.
type chunkReader interface {
	start(ctx context.Context, c span, rows int) error
	row(dst []byte) error
	// end checks that the chunk holds nothing more.
	end() error
	close()
}

// newChunkReader picks the decompressor.
func (p *page) newChunkReader() chunkReader {
	base := stream{p: p, buf: bufio.NewReaderSize(nil, 256<<10)}
	switch p.compression {
	case compLZW:
		return &lzwChunk{stream: base}
	case compDeflate, compOldDeflate:
		return &deflateChunk{stream: base}
	case compZSTD:
		return &zstdChunk{stream: base}
	case compPackBits:
		return &packBitsChunk{stream: base}
	case compG3, compG4:
		return &faxChunk{stream: base}
	case compJPEG:
		return &jpegChunk{p: p}
	}
	return &rawChunk{stream: base}
}

// stream is a chunk's compressed bytes.
type stream struct {
	p   *page
	buf *bufio.Reader
	at  span
}

func (s *stream) open(c span) {
	s.at = c
	s.buf.Reset(s.p.file.src.Section(c.off, c.size))
}

func (s *stream) close() {}

// short is the fault of a chunk that ends too early.
func (s *stream) short(err error) error {
	if err := s.p.file.src.Err(); err != nil {
		return err
	}
	f := fault.Refuse(fault.StripShort, "The strip or tile at offset %d ends before its rows are complete", s.at.off)
	f.Err = err
	return f
}

// corrupt is the fault of a chunk whose compressed data cannot be.
func (s *stream) corrupt(err error) error {
	if err := s.p.file.src.Err(); err != nil {
		return err
	}
	f := fault.Refuse(fault.DataCorrupt, "The compressed data of the strip or tile at offset %d is damaged", s.at.off)
	f.Err = err
	return f
}

func (s *stream) surplus() error {
	return fault.Refuse(fault.StripSurplus, "The strip or tile at offset %d holds more data than its rows need", s.at.off)
}

// rawChunk reads uncompressed rows; checkSizes has compared the sizes.
type rawChunk struct{ stream }

func (r *rawChunk) start(_ context.Context, c span, _ int) error {
	r.open(c)
	return nil
}

func (r *rawChunk) row(dst []byte) error {
	if _, err := io.ReadFull(r.buf, dst); err != nil {
		return r.short(err)
	}
	return nil
}

func (r *rawChunk) end() error { return nil }

// deflateChunk reads zlib data to its end, where the checksum is.
type deflateChunk struct {
	stream
	z io.ReadCloser
}

func (r *deflateChunk) start(_ context.Context, c span, _ int) (err error) {
	r.open(c)
	if r.z == nil {
		r.z, err = zlib.NewReader(r.buf)
	} else {
		err = r.z.(zlib.Resetter).Reset(r.buf, nil)
	}
	if err != nil {
		return r.classify(err)
	}
	return nil
}

func (r *deflateChunk) row(dst []byte) error {
	if _, err := io.ReadFull(r.z, dst); err != nil {
		return r.classify(err)
	}
	return nil
}

func (r *deflateChunk) classify(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return r.short(err)
	}
	return r.corrupt(err)
}

func (r *deflateChunk) end() error {
	var one [1]byte
	n, err := io.ReadFull(r.z, one[:])
	switch {
	case n > 0:
		return r.surplus()
	case errors.Is(err, io.EOF):
	default:
		return r.classify(err)
	}
	if n, _ := io.CopyN(io.Discard, r.buf, 1); n > 0 {
		r.p.file.out.Warn("data-after-end", "Bytes follow the end of a strip's compressed data")
	}
	return nil
}

// packBitsChunk reads Apple's run-length code.
type packBitsChunk struct {
	stream
	run    int // bytes left of the current run
	repeat bool
	value  byte
}

func (r *packBitsChunk) start(_ context.Context, c span, _ int) error {
	r.open(c)
	r.run = 0
	return nil
}

func (r *packBitsChunk) row(dst []byte) error {
	for len(dst) > 0 {
		if r.run == 0 {
			if err := r.header(); err != nil {
				return r.short(err)
			}
			continue
		}
		n := min(r.run, len(dst))
		if r.repeat {
			for i := range dst[:n] {
				dst[i] = r.value
			}
		} else if _, err := io.ReadFull(r.buf, dst[:n]); err != nil {
			return r.short(err)
		}
		r.run -= n
		dst = dst[n:]
	}
	return nil
}

func (r *packBitsChunk) header() error {
	b, err := r.buf.ReadByte()
	if err != nil {
		return err
	}
	switch n := int(int8(b)); {
	case n >= 0:
		r.run, r.repeat = n+1, false
	case n > -128:
		r.run, r.repeat = 1-n, true
		r.value, err = r.buf.ReadByte()
	}
	return err
}

// end tolerates one byte of padding; more would be rows that are not shown.
func (r *packBitsChunk) end() error {
	if r.run > 0 {
		return r.surplus()
	}
	n, _ := io.CopyN(io.Discard, r.buf, 2)
	if n == 1 {
		r.p.file.out.Warn("data-after-end", "Bytes follow the end of a strip's compressed data")
	}
	if n > 1 {
		return r.surplus()
	}
	return r.p.file.src.Err()
}

// faxChunk reads CCITT Group 3 and Group 4 codes.
type faxChunk struct {
	stream
	d    *ccitt.Decoder
	rows int
}

func (r *faxChunk) start(_ context.Context, c span, rows int) error {
	r.open(c)
	mode := ccitt.Group4
	if r.p.compression == compG3 {
		mode = ccitt.Group3
		if r.p.t4&1 != 0 {
			mode = ccitt.Group32D
		}
	}
	r.d, r.rows = ccitt.NewDecoder(r.buf, mode, r.p.chunkW, r.p.lsbFirst), rows
	return nil
}

// row delivers set bits for the code's black runs, whatever the photometric
// interpretation, which is applied to the bits afterwards as to any others:
// so do libtiff and all that rest on it.
func (r *faxChunk) row(dst []byte) error {
	if err := r.d.Row(dst); err != nil {
		return r.fail(err)
	}
	return nil
}

func (r *faxChunk) fail(err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return r.short(err)
	}
	if errors.Is(err, ccitt.ErrUncompressed) {
		return fault.Refuse(fault.NoCompression, "The uncompressed mode of fax compression is not read")
	}
	return r.corrupt(err)
}

func (r *faxChunk) end() error {
	marked, err := r.d.End()
	if errors.Is(err, ccitt.ErrSurplus) {
		return r.surplus()
	}
	if err != nil {
		return r.fail(err)
	}
	if !marked && r.p.compression == compG4 {
		r.p.file.out.Warn("fax-end-missing", "A strip of fax data lacks its end-of-block code")
	}
	return r.p.file.src.Err()
}

// jpegChunk hands each chunk to a decoder of whole JPEG streams.
type jpegChunk struct {
	p    *page
	rows raster.Rows
}

func (r *jpegChunk) start(ctx context.Context, c span, rows int) error {
	r.close()
	joined, err := r.p.jpegStream(c)
	if err != nil {
		return err
	}
	want := raster.Info{Width: r.p.chunkW, Height: rows, Channels: r.p.samples, Bits: 8}
	if r.rows, err = r.p.opt.JPEG(ctx, joined, want); err != nil {
		return fmt.Errorf("jpeg data at offset %d: %w", c.off, err)
	}
	return nil
}

func (r *jpegChunk) row(dst []byte) error { return r.rows.Next(dst) }

func (r *jpegChunk) end() error { return r.rows.Finish() }

func (r *jpegChunk) close() {
	if r.rows != nil {
		_ = r.rows.Close() // only releases
		r.rows = nil
	}
}
