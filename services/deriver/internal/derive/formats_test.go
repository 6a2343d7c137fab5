package derive_test

import (
	"bytes"
	"image"
	"image/color"
	"image/jpeg"
	"image/png"
	"math"
	"os"
	"testing"

	"colophon/services/deriver/internal/derive"
	"colophon/services/deriver/internal/fault"
	"colophon/services/deriver/internal/tifftest"
)

// smooth is a picture that JPEG keeps well.
func smooth(x, y, c int) int {
	return int(128 + 90*math.Sin(float64(x)/17+float64(c))*math.Cos(float64(y)/23))
}

// near compares rows sample by sample.
func near(t *testing.T, got, want [][]byte, most float64) {
	t.Helper()
	var sum, n float64
	for y := range want {
		if len(got) <= y || len(got[y]) != len(want[y]) {
			t.Fatalf("row %d has another size", y)
		}
		for i := range want[y] {
			sum += math.Abs(float64(got[y][i]) - float64(want[y][i]))
			n++
		}
	}
	if sum/n > most {
		t.Errorf("the mean difference is %.2f, want at most %.2f", sum/n, most)
	}
}

// TestJPEGInTIFF: gray and YCbCr, in strips and in tiles; and data that is
// damaged or of another size than the directory says.
func TestJPEGInTIFF(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]tifftest.Spec{
		"ycbcr strips": {Samples: 3, Photometric: 6, RowsPerStrip: 16},
		"ycbcr strip":  {Samples: 3, Photometric: 6},
		"ycbcr tiles":  {Samples: 3, Photometric: 6, TileWidth: 32, TileHt: 32},
		"gray strips":  {Samples: 1, Photometric: 1, RowsPerStrip: 24},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s.Width, s.Height, s.Bits, s.Compression, s.Sample = 90, 70, 8, 7, smooth
			file := tifftest.File(s)
			result, err := run(t, "a.tif", file, nil)
			if err != nil {
				t.Fatal(err)
			}
			_, rows := decoded(t, result.Outputs[0].Path)
			near(t, rows, s.Want(nil), 3)

			bad := bytes.Clone(file)
			at := bytes.Index(bad, []byte{0xFF, 0xC0}) // the first frame's height
			bad[at+6]++
			_, err = run(t, "a.tif", bad, nil)
			wantFault(t, err, fault.Permanent, fault.BadStructure)
		})
	}
}

// TestPNGAndJPEG: whole derivations of the other formats.
func TestPNGAndJPEG(t *testing.T) {
	t.Parallel()
	s := tifftest.Spec{Width: 90, Height: 70, Bits: 8, Samples: 3, Photometric: 2, Sample: smooth}
	img := image.NewRGBA(image.Rect(0, 0, s.Width, s.Height))
	for i := range s.Width * s.Height {
		x, y := i%s.Width, i/s.Width
		img.Set(x, y, color.RGBA{byte(smooth(x, y, 0)), byte(smooth(x, y, 1)), byte(smooth(x, y, 2)), 255})
	}
	var p, j bytes.Buffer
	if err := png.Encode(&p, img); err != nil {
		t.Fatal(err)
	}
	if err := jpeg.Encode(&j, img, &jpeg.Options{Quality: 95}); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{"a.PNG": p.Bytes(), "a.jpeg": j.Bytes(), "": j.Bytes()} {
		result, err := run(t, name, content, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, rows := decoded(t, result.Outputs[0].Path)
		near(t, rows, s.Want(nil), map[string]float64{"a.PNG": 0, "a.jpeg": 2, "": 2}[name])
	}
}

// TestJP2Master: a derivative is itself a master that gives the same samples.
func TestJP2Master(t *testing.T) {
	t.Parallel()
	for _, bits := range []int{8, 16, 12} {
		for samples, photometric := range map[int]int{1: 1, 3: 2} {
			s := tifftest.Spec{Width: 90, Height: 70, Bits: bits, Samples: samples, Photometric: photometric}
			first, err := run(t, "a.tif", tifftest.File(s), nil)
			if err != nil {
				t.Fatal(err)
			}
			raw, err := os.ReadFile(first.Outputs[0].Path)
			if err != nil {
				t.Fatal(err)
			}
			again, err := run(t, "a.jp2", raw, nil)
			if err != nil {
				t.Fatal(err)
			}
			if _, rows := decoded(t, again.Outputs[0].Path); !same(rows, s.Want(nil)) {
				t.Errorf("%d bits, %d samples: other samples", bits, samples)
			}
			for _, n := range []int{len(raw) / 10, len(raw) / 2, len(raw) - 1} {
				_, err := run(t, "a.jp2", raw[:n], nil)
				wantFault(t, err, fault.Permanent, fault.Truncated)
			}
		}
	}
}

// TestHelperMissing: without djpeg a JPEG waits; it is not refused.
func TestHelperMissing(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"opj_compress", "opj_decompress", "sh"} {
		for _, from := range []string{"/usr/bin/", "/bin/", "/usr/local/bin/"} {
			if _, err := os.Stat(from + name); err == nil {
				if err := os.Symlink(from+name, dir+"/"+name); err != nil && !os.IsExist(err) {
					t.Fatal(err)
				}
			}
		}
	}
	t.Setenv("PATH", dir)
	var j bytes.Buffer
	if err := jpeg.Encode(&j, image.NewGray(image.Rect(0, 0, 20, 20)), nil); err != nil {
		t.Fatal(err)
	}
	_, err := run(t, "a.jpg", j.Bytes(), nil)
	wantFault(t, err, fault.Environment, fault.DecoderMissing)
	if _, err := run(t, "a.tif", tifftest.File(tifftest.Spec{Width: 9, Height: 9, Bits: 8, Samples: 1, Photometric: 1}), nil); err != nil {
		t.Errorf("a TIFF needs no djpeg, but: %v", err)
	}
	all, err := derive.Versions(t.Context())
	if err != nil || len(all) != 2 {
		t.Errorf("versions %v, %v", all, err)
	}
}
