package derive_test

import (
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"

	"colophon/services/deriver/internal/derive"
	"colophon/services/deriver/internal/tifftest"

	"colophon/shared/profile"
)

// scan is a page of 35 megapixels with paper, lines of strokes, a photograph
// and the scanner's noise.
func scan(bits, samples, compression, predictor int) tifftest.Spec {
	photometric := 1
	if samples == 3 {
		photometric = 2
	}
	return tifftest.Spec{
		Width: 5000, Height: 7000, Bits: bits, Samples: samples, Photometric: photometric, Compression: compression,
		Predictor: predictor, RowsPerStrip: 16, Sample: scanSample(bits),
	}
}

func scanSample(bits int) func(x, y, c int) int {
	return func(x, y, c int) int {
		v := 225 - 6*c + x/700
		switch {
		case y > 3000 && y < 5500 && x > 800 && x < 4200: // the photograph
			v = 40 + (x*(c+2)/29+y*3/41+(x/37*y/53)%60)%180
		case y/60%2 == 0 && (x*7/5+y/9*x/31)%23 < 8: // strokes
			v = 40 + 5*c
		}
		n := uint32(x*73856093 ^ y*19349663 ^ c*83492791)
		n ^= n >> 13
		n *= 0x5bd1e995
		v += int(n>>28) % 5
		if bits == 16 {
			return v<<8 | int(n>>16&255)
		}
		return v
	}
}

// BenchmarkDerive measures whole derivations of pages of 35 megapixels, and
// prints this process's own share of the processor time.
func BenchmarkDerive(b *testing.B) {
	for name, s := range map[string]tifftest.Spec{
		"rgb8-raw": scan(8, 3, 1, 1), "rgb8-lzw": scan(8, 3, 5, 2), "rgb8-deflate": scan(8, 3, 8, 2),
		"gray8-raw": scan(8, 1, 1, 1), "rgb16-raw": scan(16, 3, 1, 1),
	} {
		b.Run(name, func(b *testing.B) {
			path := b.TempDir() + "/m.tif"
			if err := os.WriteFile(path, tifftest.File(s), 0o600); err != nil {
				b.Fatal(err)
			}
			recipe, _ := profile.Named("jp2")
			scratch := b.TempDir()
			own, children := cpu(syscall.RUSAGE_SELF), cpu(syscall.RUSAGE_CHILDREN)
			var last derive.Output
			for b.Loop() {
				result, err := derive.Derive(b.Context(), derive.Request{Path: path, Name: "m.tif", Recipe: recipe, Scratch: scratch})
				if err != nil {
					b.Fatal(err)
				}
				last = result.Outputs[0]
				if err := result.Close(); err != nil {
					b.Fatal(err)
				}
			}
			n := float64(b.N)
			b.ReportMetric((cpu(syscall.RUSAGE_SELF)-own).Seconds()/n, "own-cpu-s/op")
			b.ReportMetric((cpu(syscall.RUSAGE_CHILDREN)-children).Seconds()/n, "child-cpu-s/op")
			b.Log(fmt.Sprintf("%.1f dB, %d bytes, exact %v", last.PSNR, last.Size, last.Exact))
		})
	}
}

func cpu(who int) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(who, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
