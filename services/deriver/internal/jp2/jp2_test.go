package jp2_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"colophon/services/deriver/internal/fault"
	"colophon/services/deriver/internal/jp2"
	"colophon/services/deriver/internal/raster"
	"colophon/services/deriver/internal/tifftest"
)

// encoded makes a JP2 of several tiles by the encoder.
func encoded(tb testing.TB) []byte { return encodedOf(tb, 300, 200) }

func encodedOf(tb testing.TB, width, height int) []byte {
	tb.Helper()
	dir := tb.TempDir()
	s := tifftest.Spec{Width: width, Height: height, Bits: 8, Samples: 3, Photometric: 2}
	if err := os.WriteFile(filepath.Join(dir, "a.tif"), tifftest.File(s), 0o600); err != nil {
		tb.Fatal(err)
	}
	cmd := exec.CommandContext(tb.Context(), "opj_compress", "-i", "a.tif", "-o", "a.jp2", "-t", "128,128", "-SOP", "-EPH", "-PLT", "-TLM", "-C", "x")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		tb.Fatalf("%v\n%s", err, out)
	}
	raw, err := os.ReadFile(filepath.Join(dir, "a.jp2"))
	if err != nil {
		tb.Fatal(err)
	}
	return raw
}

func read(raw []byte) (*jp2.File, error) { return jp2.Read(bytes.NewReader(raw), int64(len(raw))) }

func TestRead(t *testing.T) {
	t.Parallel()
	f, err := read(encoded(t))
	if err != nil {
		t.Fatal(err)
	}
	want := jp2.Component{Bits: 8, DX: 1, DY: 1}
	if f.Width != 300 || f.Height != 200 || f.Tiles != 6 || !slices.Equal(f.Components, []jp2.Component{want, want, want}) ||
		f.Enumerated != jp2.EnumSRGB || !f.Reversible || !f.MultiComponent || f.Levels != 5 {
		t.Errorf("got %+v", f)
	}
}

// TestEveryCut: a file cut anywhere is refused, as a permanent fault.
func TestEveryCut(t *testing.T) {
	t.Parallel()
	raw := encoded(t)
	for n := range raw {
		_, err := read(raw[:n])
		var f *fault.Fault
		if !errors.As(err, &f) || f.Class != fault.Permanent {
			t.Fatalf("cut at %d of %d bytes: %v", n, len(raw), err)
		}
	}
	if _, err := read(append(slices.Clone(raw), 0)); err == nil {
		t.Error("a byte too many was not noticed")
	}
}

// TestRewrite: profile and resolution are in, the codestream is untouched, and
// doing it again changes nothing.
func TestRewrite(t *testing.T) {
	t.Parallel()
	raw := encoded(t)
	profile := bytes.Repeat([]byte{7}, 500)
	resolution := raster.Resolution{X: 400, Y: 300.5, Unit: raster.Inch}
	rewrite := func(raw []byte) []byte {
		var out bytes.Buffer
		if err := jp2.Rewrite(&out, bytes.NewReader(raw), int64(len(raw)), profile, resolution); err != nil {
			t.Fatal(err)
		}
		return out.Bytes()
	}
	out := rewrite(raw)
	before, err := read(raw)
	if err != nil {
		t.Fatal(err)
	}
	after, err := read(out)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(after.ICC, profile) || math.Abs(after.Resolution.X-400/0.0254) > 1e-6 || math.Abs(after.Resolution.Y-300.5/0.0254) > 1e-6 {
		t.Errorf("profile of %d bytes, resolution %+v", len(after.ICC), after.Resolution)
	}
	if !bytes.Equal(raw[before.Offset:before.Offset+before.Size], out[after.Offset:after.Offset+after.Size]) {
		t.Error("the codestream was changed")
	}
	if again := rewrite(out); !bytes.Equal(again, out) {
		t.Error("a second rewriting changed the file")
	}
	// 400 dpi the way the measurements had it: 4000/254 * 10^3.
	if i := bytes.Index(out, []byte("resc")); binary.BigEndian.Uint16(out[i+8:]) != 4000 || binary.BigEndian.Uint16(out[i+10:]) != 254 || out[i+13] != 3 {
		t.Errorf("the resolution box is % x", out[i:i+14])
	}
}

func TestResolutions(t *testing.T) {
	t.Parallel()
	raw := encoded(t)
	for _, r := range []raster.Resolution{
		{X: 72, Y: 72, Unit: raster.Inch}, {X: 600, Y: 600, Unit: raster.Inch}, {X: 12800, Y: 9600, Unit: raster.Inch},
		{X: 118.11, Y: 118.11, Unit: raster.Centimetre}, {X: 11811, Y: 11811, Unit: raster.Metre}, {X: 1e6, Y: 0.25, Unit: raster.Metre},
		{X: 299.9994, Y: 1.0 / 3, Unit: raster.Inch},
	} {
		var out bytes.Buffer
		if err := jp2.Rewrite(&out, bytes.NewReader(raw), int64(len(raw)), nil, r); err != nil {
			t.Fatal(err)
		}
		f, err := read(out.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		unit := map[raster.Unit]float64{raster.Inch: 1 / 0.0254, raster.Centimetre: 100, raster.Metre: 1}[r.Unit]
		if x, y := f.Resolution.X/unit/r.X, f.Resolution.Y/unit/r.Y; math.Abs(x-1) > 1e-3 || math.Abs(y-1) > 1e-3 {
			t.Errorf("%+v came back as %+v", r, f.Resolution)
		}
	}
}

// FuzzRead: no input makes the reader panic or hang, and what it accepts can
// be rewritten and read again.
func FuzzRead(f *testing.F) {
	raw := encodedOf(f, 40, 20)
	f.Add(raw)
	f.Add(raw[:200])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, raw []byte) {
		got, err := read(raw)
		if err != nil {
			return
		}
		var out bytes.Buffer
		if err := jp2.Rewrite(&out, bytes.NewReader(raw), int64(len(raw)), []byte("icc"), raster.Resolution{X: 300, Y: 300, Unit: raster.Inch}); err != nil {
			t.Fatal(err)
		}
		again, err := read(out.Bytes())
		if err != nil {
			t.Fatalf("a rewritten file is refused: %v", err)
		}
		if again.Width != got.Width || again.Size != got.Size {
			t.Fatal("rewriting changed the image")
		}
	})
}

// FuzzRewrite: whatever is to be written into the boxes of a good file, the
// result is read again, with profile and resolution as they were given, or
// without a resolution that boxes cannot hold.
func FuzzRewrite(f *testing.F) {
	raw := encodedOf(f, 40, 20)
	before, err := read(raw)
	if err != nil {
		f.Fatal(err)
	}
	units := []raster.Unit{raster.NoUnit, raster.Inch, raster.Centimetre, raster.Metre}
	f.Add([]byte{}, 300.0, 300.0, uint8(1))
	f.Add(bytes.Repeat([]byte("jp2c"), 9), 1e-300, math.Inf(1), uint8(2))
	f.Add([]byte("icc"), -1.0, math.NaN(), uint8(3))
	f.Fuzz(func(t *testing.T, profile []byte, x, y float64, unit uint8) {
		want := raster.Resolution{X: x, Y: y, Unit: units[int(unit)%len(units)]}
		if len(profile) == 0 {
			profile = nil
		}
		var out bytes.Buffer
		if err := jp2.Rewrite(&out, bytes.NewReader(raw), int64(len(raw)), profile, want); err != nil {
			t.Fatal(err)
		}
		after, err := read(out.Bytes())
		if err != nil {
			t.Fatalf("refused: %v", err)
		}
		if !bytes.Equal(after.ICC, profile) || !bytes.Equal(out.Bytes()[after.Offset:after.Offset+after.Size], raw[before.Offset:before.Offset+before.Size]) {
			t.Fatal("other profile or codestream")
		}
		if got := after.Resolution; got.Known() {
			size := map[raster.Unit]float64{raster.Inch: 0.0254, raster.Centimetre: 0.01, raster.Metre: 1}[want.Unit]
			if math.Abs(got.X*size/x-1) > 1e-3 || math.Abs(got.Y*size/y-1) > 1e-3 {
				t.Fatalf("%+v came back as %+v", want, got)
			}
		}
	})
}

// FuzzWalk feeds bare codestreams.
func FuzzWalk(f *testing.F) {
	raw := encodedOf(f, 40, 20)
	got, err := read(raw)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw[got.Offset : got.Offset+got.Size])
	f.Fuzz(func(t *testing.T, raw []byte) {
		if cs, err := jp2.Walk(bytes.NewReader(raw), 0, int64(len(raw))); err == nil && (cs.Width <= 0 || cs.Height <= 0 || len(cs.Components) == 0) {
			t.Fatalf("accepted %+v", cs)
		}
	})
}

// FuzzProfile: no profile makes judging or naming it panic.
func FuzzProfile(f *testing.F) {
	f.Add(make([]byte, 200), 3)
	f.Fuzz(func(t *testing.T, raw []byte, components int) {
		if fit, p := jp2.Judge(raw, components); fit == jp2.Embeddable && len(p) < 132 {
			t.Fatal("embeddable but too short")
		}
		jp2.ProfileName(raw)
	})
}
