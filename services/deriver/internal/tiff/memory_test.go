package tiff_test

import (
	"bytes"
	"runtime"
	"syscall"
	"testing"

	"colophon/services/deriver/internal/raster"
	"colophon/services/deriver/internal/tiff"
	"colophon/services/deriver/internal/tifftest"
)

// TestMemory: a page sixteen times as high takes no more memory. It runs beside
// no other test: all that the process allocates is counted.
func TestMemory(t *testing.T) {
	for name, s := range map[string]tifftest.Spec{
		"raw": {RowsPerStrip: 400}, "one raw strip": {}, "one lzw strip": {Compression: 5}, "lzw": {Compression: 5, RowsPerStrip: 400},
		"deflate": {Compression: 8, Predictor: 2, RowsPerStrip: 400}, "packbits": {Compression: 32773, RowsPerStrip: 400},
		"zstd": {Compression: 50000, RowsPerStrip: 400}, "deflate tiles": {Compression: 8, TileWidth: 64, TileHt: 512}, "12 bits": {Bits: 12}, "g4": {Bits: 1, Compression: 4}, "palette": {Photometric: 3},
	} {
		s.Width, s.Bits, s.Samples, s.Photometric = 120, max(s.Bits, 8*b2i(s.Bits == 0)), 1, max(1, s.Photometric)
		if s.Photometric == 3 {
			s.Extra = map[uint16]tifftest.Value{320: {Type: 3, Numbers: make([]uint64, 3*256)}}
		}
		low, high := s, s
		low.Height, high.Height = 500, 8000
		few, many := allocated(t, low), allocated(t, high)
		// Where the strips and tiles are is known beforehand, 40 bytes each.
		if more := int64(many) - int64(few); more > 150<<10 {
			t.Errorf("%s: %d bytes for %d rows, %d more for %d", name, few, low.Height, more, high.Height)
		}
	}
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// allocated gives the bytes allocated, live or not, while a page is read.
func allocated(t *testing.T, s tifftest.Spec) uint64 {
	t.Helper()
	file := tifftest.File(s)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	img, err := tiff.Read(raster.NewSource(bytes.NewReader(file), int64(len(file))), tiff.Options{Bounds: bounds})
	if err == nil {
		err = drain(t, img.Pages[0])
	}
	runtime.ReadMemStats(&after)
	if err != nil {
		t.Fatal(err)
	}
	return after.TotalAlloc - before.TotalAlloc
}

// BenchmarkDecode measures the decompressors, in bytes of samples a second of the
// processor, which other work on the machine disturbs least.
func BenchmarkDecode(b *testing.B) {
	for name, s := range map[string]tifftest.Spec{
		"lzw": {Compression: 5, Predictor: 2}, "deflate": {Compression: 8, Predictor: 2}, "raw": {}, "packbits": {Compression: 32773}, "12 bits": {Bits: 12}, "16 bits": {Bits: 16},
	} {
		b.Run(name, func(b *testing.B) {
			s.Width, s.Height, s.Bits, s.Samples, s.Photometric, s.RowsPerStrip = 1500, 1000, max(s.Bits, 8), 3, 2, 16
			noise := uint32(1)
			s.Sample = func(x, y, c int) int {
				noise = noise*1664525 + 1013904223
				return 200 + x/100 + y/90 - 9*c + int(noise>>30)
			}
			file := tifftest.File(s)
			b.SetBytes(int64(s.Width * s.Height * 3 * s.Bits / 8))
			var used, now syscall.Rusage
			_ = syscall.Getrusage(syscall.RUSAGE_SELF, &used) // cannot fail on ourselves
			for b.Loop() {
				img, err := tiff.Read(raster.NewSource(bytes.NewReader(file), int64(len(file))), tiff.Options{Bounds: bounds})
				if err != nil {
					b.Fatal(err)
				}
				if err := drain(b, img.Pages[0]); err != nil {
					b.Fatal(err)
				}
			}
			_ = syscall.Getrusage(syscall.RUSAGE_SELF, &now)
			spent := float64(now.Utime.Nano()-used.Utime.Nano()) / 1e9
			b.ReportMetric(float64(b.N)*float64(s.Width*s.Height*3*s.Bits/8)/1e6/spent, "MB/cpu-s")
		})
	}
}
