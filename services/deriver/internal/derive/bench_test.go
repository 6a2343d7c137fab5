package derive_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"colophon/services/deriver/internal/derive"
	"colophon/services/deriver/internal/raster"
	"colophon/services/deriver/internal/tiff"
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

// kindsOfPages are what the speed is promised for, and by how much of the bare
// encoder's throughput.
var kindsOfPages = []struct {
	name  string
	spec  tifftest.Spec
	least float64
}{
	{"rgb8-raw", scan(8, 3, 1, 1), 0.90},
	{"rgb8-lzw", scan(8, 3, 5, 2), 0.85},
	{"rgb8-deflate", scan(8, 3, 8, 2), 0.85},
	{"gray8-raw", scan(8, 1, 1, 1), 0.90},
	{"rgb16-raw", scan(16, 3, 1, 1), 0.90},
}

// BenchmarkDerive compares whole derivations (hash, check, decoding, encoding,
// verification, boxes) of pages of 35 megapixels, as many at once as there are
// cores, with what somebody would run instead: the bare encoder under parallel
// or xargs, on the same pages made plain beforehand. They take turns, so that
// what else the machine does meets both.
func BenchmarkDerive(b *testing.B) {
	rounds := 2
	for _, k := range kindsOfPages {
		b.Run(k.name, func(b *testing.B) {
			w := newWorkshop(b, k.spec)
			var bare, ours stint
			for b.Loop() {
				for range rounds {
					bare.add(w.measure(w.bare))
					ours.add(w.measure(w.ours))
				}
			}
			pages := float64(b.N * rounds * w.pages)
			ratio := bare.wall.Seconds() / ours.wall.Seconds()
			b.ReportMetric(ratio, "of-bare-throughput")
			b.ReportMetric(bare.children.Seconds()/pages, "bare-cpu-s/page")
			b.ReportMetric(ours.children.Seconds()/pages, "helpers-cpu-s/page")
			b.ReportMetric(ours.own.Seconds()/pages, "own-cpu-s/page")
			b.ReportMetric(ours.wall.Seconds()/pages, "wall-s/page")
			b.ReportMetric(0, "ns/op")
			b.Logf("%s: %.3f of the bare encoder's throughput; a page costs %.2f s of this process, %.2f s of helpers; bare %.2f s", k.name, ratio,
				ours.own.Seconds()/pages, ours.children.Seconds()/pages, bare.children.Seconds()/pages)
			if ratio < k.least {
				b.Errorf("%.3f of the bare encoder's throughput; %.2f is promised", ratio, k.least)
			}
		})
	}
}

// workshop has one page to work on, many times over.
type workshop struct {
	b                     *testing.B
	master, digest, plain string
	recipe                profile.Recipe
	scratch               string
	cores, pages          int
}

func newWorkshop(b *testing.B, s tifftest.Spec) *workshop {
	b.Helper()
	dir := b.TempDir()
	w := &workshop{b: b, master: filepath.Join(dir, "m.tif"), scratch: dir, cores: runtime.GOMAXPROCS(0)}
	w.pages = 2 * w.cores
	w.recipe, _ = profile.Named("jp2")
	file := tifftest.File(s)
	sum := sha256.Sum256(file)
	w.digest = hex.EncodeToString(sum[:])
	if err := os.WriteFile(w.master, file, 0o600); err != nil {
		b.Fatal(err)
	}
	src := raster.NewSource(bytes.NewReader(file), int64(len(file)))
	img, err := tiff.Read(src, tiff.Options{Bounds: raster.Bounds{MaxSide: 1 << 16, MaxPixels: 1 << 30, MaxSamples: 5, MaxImages: 9, MaxExpansion: 4096}})
	if err != nil {
		b.Fatal(err)
	}
	plain, err := raster.WritePlain(b.Context(), img.Pages[0], filepath.Join(dir, "plain.tif"))
	if err != nil {
		b.Fatal(err)
	}
	w.plain = plain.Path
	return w
}

// stint is what a piece of work took.
type stint struct{ wall, own, children time.Duration }

func (s *stint) add(o stint) {
	s.wall, s.own, s.children = s.wall+o.wall, s.own+o.own, s.children+o.children
}

func (w *workshop) measure(work func()) stint {
	runtime.GC()
	own, children, start := cpu(syscall.RUSAGE_SELF), cpu(syscall.RUSAGE_CHILDREN), time.Now()
	work()
	return stint{time.Since(start), cpu(syscall.RUSAGE_SELF) - own, cpu(syscall.RUSAGE_CHILDREN) - children}
}

// ours derives the pages.
func (w *workshop) ours() {
	var g errgroup.Group
	g.SetLimit(w.cores)
	for range w.pages {
		g.Go(func() error {
			result, err := derive.Derive(w.b.Context(), derive.Request{Path: w.master, Digest: w.digest, Name: "m.tif", Recipe: w.recipe, Scratch: w.scratch})
			if err != nil {
				return err
			}
			return result.Close()
		})
	}
	if err := g.Wait(); err != nil {
		w.b.Fatal(err)
	}
}

// bare runs the encoder on the plain page.
func (w *workshop) bare() {
	args := slices.Concat([]string{"-i", w.plain, "-o", filepath.Join(w.scratch, "{}.jp2")}, w.recipe.Args, []string{"-threads", "1"})
	cmd := exec.CommandContext(w.b.Context(), "xargs", append([]string{"-P", strconv.Itoa(w.cores), "-I", "{}", "opj_compress"}, args...)...)
	if _, err := exec.LookPath("parallel"); err == nil {
		cmd = exec.CommandContext(w.b.Context(), "parallel", append([]string{"-q", "-j", strconv.Itoa(w.cores), "opj_compress"}, args...)...)
	}
	var numbers strings.Builder
	for n := range w.pages {
		fmt.Fprintln(&numbers, n)
	}
	cmd.Stdin = strings.NewReader(numbers.String())
	if out, err := cmd.CombinedOutput(); err != nil {
		w.b.Fatalf("%v\n%s", err, out)
	}
	for n := range w.pages {
		if err := os.Remove(filepath.Join(w.scratch, strconv.Itoa(n)+".jp2")); err != nil {
			w.b.Fatal(err)
		}
	}
}

func cpu(who int) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(who, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
