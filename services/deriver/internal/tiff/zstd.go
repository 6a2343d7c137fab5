package tiff

import (
	"context"
	"errors"
	"io"

	"github.com/klauspost/compress/zstd"

	"colophon/services/deriver/internal/fault"
)

// zstdWindow bounds, in bytes, how far back a strip's data may refer; writers
// use at most 8 MiB.
const zstdWindow = 32 << 20

// zstdChunk reads Zstandard frames to their end.
type zstdChunk struct {
	stream
	z *zstd.Decoder
}

func (r *zstdChunk) start(_ context.Context, c span, _ int) (err error) {
	r.open(c)
	if r.z == nil {
		r.z, err = zstd.NewReader(r.buf, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(zstdWindow))
	} else {
		err = r.z.Reset(r.buf)
	}
	if err != nil {
		return r.classify(err)
	}
	return nil
}

func (r *zstdChunk) row(dst []byte) error {
	if _, err := io.ReadFull(r.z, dst); err != nil {
		return r.classify(err)
	}
	return nil
}

func (r *zstdChunk) classify(err error) error {
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return r.short(err)
	case errors.Is(err, zstd.ErrWindowSizeExceeded), errors.Is(err, zstd.ErrDecoderSizeExceeded):
		return fault.Refuse(fault.NoCompression, "The Zstandard data of the strip or tile at offset %d needs too much memory", r.at.off)
	}
	return r.corrupt(err)
}

// end reads on: the checksum, where there is one, comes after the last row, and
// whatever follows must be Zstandard too.
func (r *zstdChunk) end() error {
	var one [1]byte
	n, err := io.ReadFull(r.z, one[:])
	switch {
	case n > 0:
		return r.surplus()
	case errors.Is(err, io.EOF):
		return r.p.file.src.Err()
	}
	return r.classify(err)
}

func (r *zstdChunk) close() {
	if r.z != nil {
		r.z.Close()
	}
}
