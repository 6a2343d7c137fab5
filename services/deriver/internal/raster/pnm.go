package raster

import (
	"bufio"
	"errors"
	"fmt"
	"io"
)

// PNM reads the rows of a binary PGM or PPM stream.
type PNM struct {
	Info
	in *bufio.Reader
}

// ErrPNM is a stream that is no binary PGM or PPM, or ends too early.
var ErrPNM = errors.New("not a whole PGM or PPM")

// NewPNM reads the header. Samples are of as many bits as its maximum value
// needs, which has to be one less than a power of two.
func NewPNM(r io.Reader) (*PNM, error) {
	p := &PNM{in: bufio.NewReaderSize(r, 1<<20)}
	magic, err := p.token()
	if err != nil {
		return nil, err
	}
	switch magic {
	case "P5":
		p.Channels = 1
	case "P6":
		p.Channels = 3
	default:
		return nil, fmt.Errorf("%w: it begins with %q", ErrPNM, magic)
	}
	var maxval int
	for _, v := range []*int{&p.Width, &p.Height, &maxval} {
		t, err := p.token()
		if err != nil {
			return nil, err
		}
		if _, err := fmt.Sscanf(t, "%d", v); err != nil || *v <= 0 || *v > 1<<24 {
			return nil, fmt.Errorf("%w: %q stands in its header", ErrPNM, t)
		}
	}
	for p.Bits = 1; p.Bits < 16 && maxval > 1<<p.Bits-1; p.Bits++ {
	}
	if maxval != p.Max() {
		return nil, fmt.Errorf("%w: its maximum value is %d", ErrPNM, maxval)
	}
	return p, nil
}

// token reads one word of the header and the one space after it.
func (p *PNM) token() (string, error) {
	var word []byte
	for len(word) < 32 {
		c, err := p.in.ReadByte()
		if err != nil {
			return "", fmt.Errorf("%w: %w", ErrPNM, err)
		}
		switch {
		case c == '#':
			if _, err := p.in.ReadString('\n'); err != nil {
				return "", fmt.Errorf("%w: %w", ErrPNM, err)
			}
		case c != ' ' && c != '\n' && c != '\t' && c != '\r':
			word = append(word, c)
		case len(word) > 0:
			return string(word), nil
		}
	}
	return "", fmt.Errorf("%w: a word of its header is too long", ErrPNM)
}

// Next implements Rows.
func (p *PNM) Next(dst []byte) error {
	if _, err := io.ReadFull(p.in, dst); err != nil {
		return fmt.Errorf("%w: %w", ErrPNM, err)
	}
	if p.SampleBytes() == 2 {
		for i := 0; i+1 < len(dst); i += 2 {
			dst[i], dst[i+1] = dst[i+1], dst[i]
		}
	}
	return nil
}

// Finish implements Rows: nothing may follow the last row.
func (p *PNM) Finish() error {
	if _, err := p.in.ReadByte(); err == nil {
		return fmt.Errorf("%w: data follows its last row", ErrPNM)
	}
	return nil
}
