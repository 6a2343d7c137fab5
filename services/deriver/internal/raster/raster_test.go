package raster_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"

	"colophon/services/deriver/internal/fault"
	"colophon/services/deriver/internal/raster"
)

// memory is a page in memory.
type memory struct {
	info raster.Info
	at   func(x, y, c int) int
	y    int
}

func (m *memory) Next(dst []byte) error {
	for x := range m.info.Width {
		for c := range m.info.Channels {
			v, i := m.at(x, m.y, c), (x*m.info.Channels+c)*m.info.SampleBytes()
			dst[i] = byte(v)
			if m.info.SampleBytes() == 2 {
				dst[i+1] = byte(v >> 8)
			}
		}
	}
	m.y++
	return nil
}
func (m *memory) Finish() error { return nil }
func (m *memory) Close() error  { return nil }

func page(info raster.Info, at func(x, y, c int) int) raster.Page {
	return raster.Page{Info: info, Orientation: 1, Open: func(context.Context) (raster.Rows, error) {
		return &memory{info: info, at: at}, nil
	}}
}

// TestPlain: what is written is read again, at every depth; a changed file is
// noticed.
func TestPlain(t *testing.T) {
	t.Parallel()
	for _, bits := range []int{8, 10, 12, 14, 16} {
		info := raster.Info{Width: 37, Height: 150, Channels: 3, Bits: bits}
		at := func(x, y, c int) int { return (x*977 + y*131 + c*7) & info.Max() }
		plain, err := raster.WritePlain(t.Context(), page(info, at), filepath.Join(t.TempDir(), "p.tif"))
		if err != nil {
			t.Fatal(err)
		}
		if err := again(plain, &memory{info: info, at: at}); err != nil {
			t.Errorf("%d bits: %v", bits, err)
		}
		raw, err := os.ReadFile(plain.Path)
		if err != nil {
			t.Fatal(err)
		}
		raw[len(raw)-5] ^= 1
		if err := os.WriteFile(plain.Path, raw, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := again(plain, &memory{info: info, at: at}); err == nil {
			t.Errorf("%d bits: a changed file was not noticed", bits)
		}
	}
}

func again(plain *raster.Plain, want *memory) error {
	rows, err := plain.Rows()
	if err != nil {
		return err
	}
	defer rows.Close()
	differs, err := raster.Equal(plain.Info, rows, want)
	if err == nil && differs >= 0 {
		return fmt.Errorf("row %d differs", differs)
	}
	return err
}

// TestQuarterPSNR: a page is like itself reduced, and unlike its inverse, its
// mirror image and itself a few rows off.
func TestQuarterPSNR(t *testing.T) {
	t.Parallel()
	for _, bits := range []int{8, 16} {
		info := raster.Info{Width: 402, Height: 301, Channels: 3, Bits: bits}
		wave := func(x, y, c int) int {
			return int(float64(info.Max()) * (0.5 + 0.4*math.Sin(float64(x)/19+float64(c))*math.Cos(float64(y)/11)))
		}
		small := raster.Quarter(info)
		for name, tt := range map[string]struct {
			at       func(x, y, c int) int
			min, max float64
		}{
			"itself":   {func(x, y, c int) int { return wave(4*x, 4*y, c) }, 36, math.Inf(1)},
			"inverse":  {func(x, y, c int) int { return info.Max() - wave(4*x, 4*y, c) }, 0, 15},
			"mirrored": {func(x, y, c int) int { return wave(info.Width-4*x, 4*y, c) }, 0, 20},
			"shifted":  {func(x, y, c int) int { return wave(4*x, 4*y+8, c) }, 0, 20},
		} {
			got, err := raster.QuarterPSNR(info, &memory{info: info, at: wave}, &memory{info: small, at: tt.at})
			if err != nil {
				t.Fatal(err)
			}
			if got < tt.min || got > tt.max {
				t.Errorf("%d bits, %s: %.1f dB, want %.0f to %.0f", bits, name, got, tt.min, tt.max)
			}
		}
	}
}

func TestPNM(t *testing.T) {
	t.Parallel()
	good := "P5\n# a remark\n3 2\n255\nabcdef"
	p, err := raster.NewPNM(bytes.NewReader([]byte(good)))
	if err != nil || p.Info != (raster.Info{Width: 3, Height: 2, Channels: 1, Bits: 8}) {
		t.Fatalf("got %+v, %v", p, err)
	}
	for _, bad := range []string{"", "P4\n3 2\nab", "P5 3 0 255\n", "P5 3 2 254\nabcdef", "P5 x 2 255\nabcdef", "P5 3"} {
		if _, err := raster.NewPNM(bytes.NewReader([]byte(bad))); !errors.Is(err, raster.ErrPNM) {
			t.Errorf("%q: got %v", bad, err)
		}
	}
}

// failing is a disk that fails.
type failing struct{}

func (failing) ReadAt([]byte, int64) (int, error) { return 0, errors.New("input/output error") }

// TestSource: a disk's error is remembered and is no fault of the master.
func TestSource(t *testing.T) {
	t.Parallel()
	s := raster.NewSource(failing{}, 100)
	if _, err := s.ReadAt(make([]byte, 10), 0); err == nil {
		t.Fatal("read from a failing disk")
	}
	var f *fault.Fault
	if err := s.Err(); !errors.As(err, &f) || f.Class != fault.Transient {
		t.Errorf("got %v", err)
	}
	whole := raster.NewSource(bytes.NewReader(make([]byte, 100)), 100)
	if n, err := whole.ReadAt(make([]byte, 10), 95); n != 5 || err == nil {
		t.Errorf("at the end: %d, %v", n, err)
	}
	if whole.Err() != nil {
		t.Error("the end of the file was taken for an error")
	}
	shrunk := raster.NewSource(bytes.NewReader(make([]byte, 50)), 100)
	if _, err := shrunk.ReadAt(make([]byte, 10), 45); err == nil || shrunk.Err() == nil {
		t.Error("a file that shrank was not noticed")
	}
}
