package storage

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"sync"
)

// Digest is a SHA-256 in 64 lower-case hex digits.
type Digest string

// Valid reports whether d is a SHA-256 in its one spelling.
func (d Digest) Valid() bool {
	if len(d) != 2*sha256.Size {
		return false
	}
	for i := range len(d) {
		if c := d[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// Written is what is stored after a successful write.
type Written struct {
	Key     string
	Digest  Digest
	Size    int64 // in bytes
	Existed bool  // somebody was first, with the same bytes
}

// Sum reads r to its end and gives its digest and its size in bytes, in
// constant memory. It stops when ctx ends. An error of r is returned as it is.
func Sum(ctx context.Context, r io.Reader) (Digest, int64, error) {
	return copyHash(ctx, io.Discard, r, 0)
}

// bufferSize is what one copy holds in memory.
const bufferSize = 256 << 10

var buffers = sync.Pool{New: func() any { return new([bufferSize]byte) }}

// errTooLarge says that copyHash met its limit.
var errTooLarge = errors.New("too large")

// writeError marks the errors of copyHash's writer, to tell them from its
// reader's.
type writeError struct{ error }

func (e writeError) Unwrap() error { return e.error }

// copyHash copies r to w and hashes what it copies. With limit > 0 it gives up
// with errTooLarge at the first byte over it.
func copyHash(ctx context.Context, w io.Writer, r io.Reader, limit int64) (Digest, int64, error) {
	buf := buffers.Get().(*[bufferSize]byte)
	defer buffers.Put(buf)
	var (
		hash  = sha256.New()
		size  int64
		empty int
	)
	for {
		if err := ctx.Err(); err != nil {
			return "", size, context.Cause(ctx)
		}
		n, err := r.Read(buf[:])
		if limit > 0 && size+int64(n) > limit {
			return "", size, errTooLarge
		}
		if n > 0 {
			hash.Write(buf[:n])
			if _, err := w.Write(buf[:n]); err != nil {
				return "", size, writeError{err}
			}
			size += int64(n)
		}
		switch {
		case errors.Is(err, io.EOF):
			return Digest(hex.EncodeToString(hash.Sum(nil))), size, nil
		case err != nil:
			return "", size, err
		case n > 0:
			empty = 0
		default:
			if empty++; empty > 100 {
				return "", size, io.ErrNoProgress
			}
		}
	}
}
