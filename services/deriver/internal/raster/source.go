package raster

import (
	"errors"
	"io"
	"sync"

	"colophon/services/deriver/internal/fault"
)

// Source is a master's bytes. It remembers whether reading ever failed, so
// that a disk error deep inside a decoder is not taken for a damaged master.
type Source struct {
	r    io.ReaderAt
	size int64

	mu  sync.Mutex
	err error
}

// NewSource reads size bytes from r.
func NewSource(r io.ReaderAt, size int64) *Source { return &Source{r: r, size: size} }

// Size is the number of bytes.
func (s *Source) Size() int64 { return s.size }

// ReadAt reads as io.ReaderAt says and never past Size.
func (s *Source) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 || off >= s.size {
		return 0, io.EOF
	}
	short := int64(len(p)) > s.size-off
	if short {
		p = p[:s.size-off]
	}
	n, err := s.r.ReadAt(p, off)
	if n == len(p) {
		err = nil
		if short {
			err = io.EOF
		}
		return n, err
	}
	// The file was Size bytes long when it was opened: less is a fault of the
	// disk, or somebody is changing it.
	if err == nil || errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = err
	}
	return n, err
}

// Section reads size bytes at off.
func (s *Source) Section(off, size int64) *io.SectionReader {
	return io.NewSectionReader(s, off, size)
}

// Err gives the transient fault of reading, or nil if reading always worked.
func (s *Source) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		return nil
	}
	return fault.Later(fault.ReadFailed, s.err, "The master could not be read")
}
