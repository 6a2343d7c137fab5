package jpeg_test

import (
	"bytes"
	"context"
	"errors"
	"image"
	"image/color"
	other "image/jpeg"
	"io"
	"math"
	"os"
	"slices"
	"testing"
	"time"

	"colophon/services/deriver/internal/fault"
	"colophon/services/deriver/internal/helper"
	"colophon/services/deriver/internal/jpeg"
	"colophon/services/deriver/internal/raster"
	"colophon/services/deriver/internal/tifftest"
)

var bounds = raster.Bounds{MaxSide: 65535, MaxPixels: 1 << 24, MaxSamples: 5, MaxImages: 10, MaxExpansion: 4096}

// picture makes a baseline JPEG of a smooth picture with some detail.
func picture(tb testing.TB, w, h int, gray bool) []byte {
	tb.Helper()
	s := tifftest.Spec{Width: w, Height: h, Bits: 8, Samples: 3, Photometric: 2}
	var img image.Image
	rgb, grey := image.NewRGBA(image.Rect(0, 0, w, h)), image.NewGray(image.Rect(0, 0, w, h))
	for y := range h {
		for x := range w {
			rgb.Set(x, y, color.RGBA{byte(s.At(x, y, 0)), byte(s.At(x, y, 1)), byte(s.At(x, y, 2)), 255})
			grey.Set(x, y, color.Gray{byte(s.At(x, y, 0))})
		}
	}
	if img = rgb; gray {
		img = grey
	}
	var b bytes.Buffer
	if err := other.Encode(&b, img, &other.Options{Quality: 90}); err != nil {
		tb.Fatal(err)
	}
	return b.Bytes()
}

func open(dir string) func(context.Context, io.Reader, raster.Info) (raster.Rows, error) {
	return func(ctx context.Context, stream io.Reader, want raster.Info) (raster.Rows, error) {
		return jpeg.Decode(ctx, stream, want, dir, helper.Limits{Memory: 1 << 30, CPU: time.Minute, Wall: time.Minute})
	}
}

func read(t *testing.T, file []byte) (*raster.Image, []byte, error) {
	t.Helper()
	img, err := jpeg.Read(raster.NewSource(bytes.NewReader(file), int64(len(file))), bounds, open(os.TempDir()))
	if err != nil {
		return nil, nil, err
	}
	rows, err := img.Pages[0].Open(t.Context())
	if err != nil {
		return nil, nil, err
	}
	defer rows.Close()
	var all []byte
	row := make([]byte, img.Pages[0].RowBytes())
	for range img.Pages[0].Height {
		if err := rows.Next(row); err != nil {
			return nil, nil, err
		}
		all = append(all, row...)
	}
	return img, all, rows.Finish()
}

// TestAgainstStandardLibrary: the picture is the one another decoder sees, but
// for rounding and the interpolation of colour.
func TestAgainstStandardLibrary(t *testing.T) {
	t.Parallel()
	for _, gray := range []bool{false, true} {
		file := picture(t, 123, 77, gray)
		_, got, err := read(t, file)
		if err != nil {
			t.Fatal(err)
		}
		img, err := other.Decode(bytes.NewReader(file))
		if err != nil {
			t.Fatal(err)
		}
		var square float64
		for i := range 123 * 77 {
			r, g, b, _ := img.At(i%123, i/123).RGBA()
			for c, v := range []uint32{r, g, b} {
				d := float64(v >> 8)
				if gray {
					d -= float64(got[i])
				} else {
					d -= float64(got[3*i+c])
				}
				square += d * d
			}
		}
		// The other decoder repeats the halved colours where libjpeg interpolates.
		floor := map[bool]float64{true: 45, false: 28}[gray]
		if psnr := 10 * math.Log10(255*255/(square/(3*123*77))); psnr < floor {
			t.Errorf("gray %v: %.1f dB", gray, psnr)
		}
	}
}

// TestDamage: a JPEG cut anywhere is refused, with a permanent fault; of those
// with flipped bytes, which carry no checksum, only what no decoder can see
// passes.
func TestDamage(t *testing.T) {
	t.Parallel()
	file := picture(t, 64, 48, false)
	for n := 0; n < len(file); n += max(1, len(file)/60) {
		_, _, err := read(t, file[:n])
		wantPermanent(t, err)
	}
	_, _, err := read(t, file[:len(file)-1])
	wantPermanent(t, err)
	// Cut inside the data, with an end marker put after it.
	for _, percent := range []int{30, 60, 90} {
		_, _, err := read(t, append(slices.Clone(file[:len(file)*percent/100]), 0xFF, 0xD9))
		wantPermanent(t, err)
	}
	data := bytes.Index(file, []byte{0xFF, 0xDA}) + 14
	passed, total := 0, 0
	_, good, err := read(t, file)
	if err != nil {
		t.Fatal(err)
	}
	for at := data; at < len(file)-2; at += (len(file) - data) / 40 {
		bad := slices.Clone(file)
		bad[at] ^= 0xFF
		total++
		_, got, err := read(t, bad)
		if err == nil && !bytes.Equal(got, good) {
			passed++
		} else if err != nil {
			wantPermanent(t, err)
		}
	}
	// A flipped byte often leaves codes that are just as valid: JPEG has no
	// checksum, and only the master's digest sees it.
	t.Logf("of %d files with a flipped byte in the data %d are silently wrong", total, passed)
	if passed > total*2/3 {
		t.Errorf("%d of %d are too many", passed, total)
	}
	large := picture(t, 400, 300, false)
	for _, percent := range []int{10, 30} {
		bad := slices.Clone(large)
		clear(bad[len(large)/2 : len(large)/2+len(large)*percent/100])
		_, _, err := read(t, bad)
		wantPermanent(t, err)
	}
}

func wantPermanent(t *testing.T, err error) {
	t.Helper()
	var f *fault.Fault
	if !errors.As(err, &f) || f.Class != fault.Permanent {
		t.Errorf("got %v, want a permanent fault", err)
	}
}

// TestRefused: kinds that are not read are said to be so before any decoding.
func TestRefused(t *testing.T) {
	t.Parallel()
	file := picture(t, 64, 48, false)
	sof := bytes.Index(file, []byte{0xFF, 0xC0})
	change := func(at int, v byte) []byte {
		bad := slices.Clone(file)
		bad[at] = v
		return bad
	}
	for name, tt := range map[string]struct {
		file []byte
		code string
	}{
		"lossless":   {change(sof+1, 0xC3), fault.NoCompression},
		"arithmetic": {change(sof+1, 0xC9), fault.NoCompression},
		"12 bits":    {change(sof+4, 12), fault.NoDepth},
		"no height":  {change(sof+5, 0)[:], ""},
	} {
		_, _, err := read(t, tt.file)
		var f *fault.Fault
		if tt.code != "" && (!errors.As(err, &f) || f.Code != tt.code) {
			t.Errorf("%s: got %v, want %s", name, err, tt.code)
		}
	}
}

// TestExif: orientation and origin come from Exif data.
func TestExif(t *testing.T) {
	t.Parallel()
	exif := tifftest.File(tifftest.Spec{Width: 1, Height: 1, Bits: 8, Samples: 1, Photometric: 1, Extra: map[uint16]tifftest.Value{
		271: {Type: 2, Raw: []byte("A Maker\x00")}, 274: {Type: 3, Numbers: []uint64{6}},
		282: {Type: 5, Raw: []byte{44, 1, 0, 0, 1, 0, 0, 0}}, 283: {Type: 5, Raw: []byte{44, 1, 0, 0, 1, 0, 0, 0}},
	}})
	file := picture(t, 20, 10, false)
	segment := append([]byte("Exif\x00\x00"), exif...)
	file = slices.Concat(file[:2], []byte{0xFF, 0xE1, byte((len(segment) + 2) >> 8), byte(len(segment) + 2)}, segment, file[2:])
	img, _, err := read(t, file)
	if err != nil {
		t.Fatal(err)
	}
	p := img.Pages[0]
	if p.Orientation != 6 || img.Technical.Make != "A Maker" || p.Resolution != (raster.Resolution{X: 300, Y: 300, Unit: raster.Inch}) {
		t.Errorf("got %+v, %+v", p, img.Technical)
	}
}

func FuzzRead(f *testing.F) {
	f.Add(picture(f, 16, 16, false))
	f.Add(picture(f, 8, 8, true))
	f.Fuzz(func(t *testing.T, file []byte) {
		_, err := jpeg.Read(raster.NewSource(bytes.NewReader(file), int64(len(file))), bounds, open(t.TempDir()))
		var known *fault.Fault
		if err != nil && !errors.As(err, &known) {
			t.Fatalf("refused with %v", err)
		}
	})
}
