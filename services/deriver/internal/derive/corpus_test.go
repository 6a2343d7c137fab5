package derive_test

import (
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"colophon/services/deriver/internal/derive"
	"colophon/services/deriver/internal/fault"
	"colophon/services/deriver/internal/raster"

	"colophon/shared/profile"
)

// corpus is the folder of real masters beside the repository, which a build
// does not need.
const corpus = "../../../../../shared/corpus/masters"

// sample is one row of the corpus' index.
type sample struct{ file, sha256, expected, pixels string }

func readIndex(t *testing.T) []sample {
	t.Helper()
	f, err := os.Open(filepath.Join(corpus, "index.tsv"))
	if errors.Is(err, os.ErrNotExist) {
		t.Logf("!!! THE CORPUS %s IS MISSING: NOTHING OF IT WAS TESTED !!!", corpus)
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r := csv.NewReader(f)
	r.Comma, r.LazyQuotes = '\t', true
	rows, err := r.ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	var all []sample
	for _, row := range rows[1:] {
		all = append(all, sample{row[0], row[5], row[6], row[7]})
	}
	return all
}

// notRead are the good files of the corpus whose kind is not read yet.
var notRead = map[string]string{
	"cmyk8-raw.tif": fault.NoPhotometric,
}

// TestCorpus derives every master of the corpus: what its index calls good is
// right, what it calls faulty or unsupported is refused with a permanent fault.
func TestCorpus(t *testing.T) {
	t.Parallel()
	for _, s := range readIndex(t) {
		t.Run(s.file, func(t *testing.T) {
			t.Parallel()
			recipe, _ := profile.Named("jp2-lossless")
			result, err := derive.Derive(t.Context(), derive.Request{
				Path: filepath.Join(corpus, s.file), Digest: s.sha256, Name: s.file, Recipe: recipe, Scratch: t.TempDir(),
			})
			var f *derive.Fault
			if err != nil && (!errors.As(err, &f) || f.Class != fault.Permanent) {
				t.Fatalf("got %v, want a result or a permanent fault", err)
			}
			expected, code, _ := strings.Cut(s.expected, ":")
			switch {
			case err == nil && expected != "ok":
				t.Fatalf("derived, want %s", s.expected)
			case err != nil && expected == "ok":
				if notRead[s.file] != f.Code {
					t.Fatalf("got %v, want ok", err)
				}
				t.Logf("not read yet: %v", err)
			case err != nil:
				t.Logf("%s: %v", s.expected, err)
				if code != "" && f.Code != code {
					t.Errorf("got the code %s, want %s", f.Code, code)
				}
			default:
				defer result.Close()
				checkPixels(t, result, s)
				for _, name := range []string{"jp2", "kb-access-2014", "thumb"} { // each passes its own gate
					recipe, _ := profile.Named(name)
					other, err := derive.Derive(t.Context(), derive.Request{
						Path: filepath.Join(corpus, s.file), Digest: s.sha256, Name: s.file, Recipe: recipe, Scratch: t.TempDir(),
					})
					if err != nil {
						t.Fatalf("%s: %v", name, err)
					}
					if len(other.Outputs) != len(result.Outputs) {
						t.Errorf("%s: %d pages, want %d", name, len(other.Outputs), len(result.Outputs))
					}
					other.Close()
				}
			}
		})
	}
}

// checkPixels compares the decoded derivative with what libvips says about the
// master: width x height x bands / format / colours / average.
func checkPixels(t *testing.T, result *derive.Result, s sample) {
	t.Helper()
	info, mean := decodeMean(t, result.Outputs[0].Path)
	t.Logf("%+v %+v %v mean %.1f", result.Technical, result.Outputs[0], result.Warnings, mean)
	if s.pixels == "-" {
		return
	}
	var w, h, bands int
	if _, err := fmt.Sscanf(s.pixels, "%dx%dx%d/", &w, &h, &bands); err != nil {
		t.Fatal(err)
	}
	if info.Width != w || info.Height != h {
		t.Errorf("%d by %d pixels, want %s", info.Width, info.Height, s.pixels)
	}
	if wide := strings.Contains(s.pixels, "/ushort/"); wide != (info.Bits == 16) {
		t.Errorf("%d bits, want %s", info.Bits, s.pixels)
	}
	var want float64
	if _, err := fmt.Sscanf(s.pixels[strings.LastIndex(s.pixels, " "):], "%f", &want); err != nil {
		t.Fatal(err)
	}
	// Where transparency was dropped the index averages over one band more.
	if bands == info.Channels && math.Abs(mean-want) > 0.06*float64(info.SampleBytes()) {
		t.Errorf("mean %.2f, want %.2f", mean, want)
	}
}

// decodeMean decodes a JP2 by a program of its own and averages its samples.
func decodeMean(t *testing.T, path string) (raster.Info, float64) {
	t.Helper()
	out := filepath.Join(t.TempDir(), "out.ppm")
	raw, err := exec.CommandContext(context.Background(), "opj_decompress", "-i", path, "-o", out).CombinedOutput()
	if err != nil {
		t.Fatalf("decode: %v\n%s", err, raw)
	}
	f, err := os.Open(out)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	p, err := raster.NewPNM(f)
	if err != nil {
		t.Fatal(err)
	}
	row := make([]byte, p.RowBytes())
	var sum float64
	for range p.Height {
		if err := p.Next(row); err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(row); i += p.SampleBytes() {
			sum += float64(row[i])
			if p.SampleBytes() == 2 {
				sum += 256 * float64(row[i+1])
			}
		}
	}
	if err := p.Finish(); err != nil && !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	return p.Info, sum / float64(p.Width*p.Height*p.Channels)
}
