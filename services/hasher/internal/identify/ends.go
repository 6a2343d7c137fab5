package identify

import (
	"bytes"
	"errors"
	"fmt"
	"io"
)

// endBytes is how much of each end of a file is looked at.
const endBytes = 64 << 10

// ends is the head and the tail of a file, one behind the other, in the form
// that the library reads without buffers of its own and without scratch files.
type ends struct {
	*bytes.Reader // the library wants a reader, and reads by slices instead

	data   []byte
	extent string
}

// readEnds reads the ends of the size bytes of r. A file with fewer bytes is
// io.ErrUnexpectedEOF.
func readEnds(r io.ReaderAt, size int64) (*ends, error) {
	if size < 0 {
		return nil, fmt.Errorf("a size of %d bytes", size)
	}
	e := &ends{extent: fmt.Sprintf("all %d bytes", size)}
	if size <= 2*endBytes {
		e.data = make([]byte, size)
		return e, e.fill(r, e.data, 0)
	}
	e.extent = fmt.Sprintf("first %d and last %d of %d bytes", endBytes, endBytes, size)
	e.data = make([]byte, 2*endBytes)
	if err := e.fill(r, e.data[:endBytes], 0); err != nil {
		return nil, err
	}
	return e, e.fill(r, e.data[endBytes:], size-endBytes)
}

func (e *ends) fill(r io.ReaderAt, p []byte, offset int64) error {
	n, err := r.ReadAt(p, offset)
	if n == len(p) {
		e.Reader = bytes.NewReader(e.data)
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return err
}

// IsSlicer tells the library to use Slice and EofSlice.
func (e *ends) IsSlicer() bool { return true }

// Size is the number of bytes to look at.
func (e *ends) Size() int64 { return int64(len(e.data)) }

// Slice gives up to n bytes from off on; fewer come with io.EOF.
func (e *ends) Slice(off int64, n int) ([]byte, error) {
	size := int64(len(e.data))
	switch {
	case off < 0 || n < 0 || off >= size:
		return nil, io.EOF
	case off+int64(n) > size:
		return e.data[off:], io.EOF
	}
	return e.data[off : off+int64(n)], nil
}

// EofSlice gives up to n bytes that end off bytes before the end; fewer come
// with io.EOF.
func (e *ends) EofSlice(off int64, n int) ([]byte, error) {
	end := int64(len(e.data)) - off
	switch {
	case off < 0 || n < 0 || end <= 0:
		return nil, io.EOF
	case int64(n) > end:
		return e.data[:end], io.EOF
	}
	return e.data[end-int64(n) : end], nil
}
