package derive_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"colophon/services/deriver/internal/derive"
	"colophon/services/deriver/internal/fault"
	"colophon/services/deriver/internal/jp2"
	"colophon/services/deriver/internal/raster"
	"colophon/services/deriver/internal/tifftest"

	"colophon/shared/profile"
)

// write puts a master into a folder of its own.
func write(t *testing.T, name string, content []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func recipe(t *testing.T, name string) profile.Recipe {
	t.Helper()
	r, ok := profile.Named(name)
	if !ok {
		t.Fatalf("no recipe %s", name)
	}
	return r
}

// run derives content and checks that nothing but the result stays in scratch.
func run(t *testing.T, name string, content []byte, change func(*derive.Request)) (*derive.Result, error) {
	t.Helper()
	sum := sha256.Sum256(content)
	scratch := t.TempDir()
	req := derive.Request{
		Path: write(t, "master", content), Digest: hex.EncodeToString(sum[:]), Name: name,
		Recipe: recipe(t, "jp2"), Scratch: scratch,
	}
	if change != nil {
		change(&req)
	}
	result, err := derive.Derive(t.Context(), req)
	var left []string
	_ = filepath.WalkDir(scratch, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			left = append(left, path)
		}
		return nil
	})
	if err != nil {
		if entries, _ := os.ReadDir(scratch); len(entries) > 0 {
			t.Errorf("a failed derivation left %v", entries)
		}
		return nil, err
	}
	if len(left) != len(result.Outputs) {
		t.Errorf("beside %d outputs scratch holds %v", len(result.Outputs), left)
	}
	t.Cleanup(func() {
		if err := result.Close(); err != nil {
			t.Error(err)
		}
		if entries, _ := os.ReadDir(scratch); len(entries) > 0 {
			t.Errorf("a closed result left %v", entries)
		}
	})
	return result, nil
}

func wantFault(t *testing.T, err error, class fault.Class, code string) *derive.Fault {
	t.Helper()
	var f *derive.Fault
	if !errors.As(err, &f) || f.Code != code || f.Class != class {
		t.Fatalf("got %v, want %s (%s)", err, code, class)
	}
	return f
}

// decoded gives the rows of a JP2 by opj_decompress from its bare codestream.
func decoded(t *testing.T, path string) (raster.Info, [][]byte) {
	t.Helper()
	dir := t.TempDir()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	j, err := jp2.Read(f, st.Size())
	if err != nil {
		t.Fatal(err)
	}
	if err := j.Extract(f, filepath.Join(dir, "a.j2k")); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "opj_decompress", "-i", "a.j2k", "-o", "a.ppm")
	if len(j.Components) == 1 {
		cmd.Args[4] = "a.pgm"
	}
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	o, err := os.Open(filepath.Join(dir, cmd.Args[4]))
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	p, err := raster.NewPNM(o)
	if err != nil {
		t.Fatal(err)
	}
	var rows [][]byte
	for range p.Height {
		row := make([]byte, p.RowBytes())
		if err := p.Next(row); err != nil {
			t.Fatal(err)
		}
		rows = append(rows, row)
	}
	return p.Info, rows
}

func same(a, b [][]byte) bool { return bytes.Equal(bytes.Join(a, nil), bytes.Join(b, nil)) }

// TestSmallAndNarrow: small pages of the lossy profile are exact, whatever
// their shape.
func TestSmallAndNarrow(t *testing.T) {
	t.Parallel()
	for _, size := range [][2]int{{1, 1}, {1, 50}, {3, 40}, {2, 2}, {31, 31}, {33, 5}, {100, 1}, {1025, 7}} {
		for _, bits := range []int{8, 16, 12} {
			for samples, photometric := range map[int]int{1: 1, 3: 2} {
				s := tifftest.Spec{Width: size[0], Height: size[1], Bits: bits, Samples: samples, Photometric: photometric}
				t.Run(fmt.Sprintf("%dx%dx%d %d bits", size[0], size[1], samples, bits), func(t *testing.T) {
					t.Parallel()
					result, err := run(t, "a.tif", tifftest.File(s), nil)
					if err != nil {
						t.Fatal(err)
					}
					info, rows := decoded(t, result.Outputs[0].Path)
					if want := (raster.Info{Width: s.Width, Height: s.Height, Channels: samples, Bits: bits}); info != want {
						t.Errorf("decoded %+v, want %+v", info, want)
					}
					if !result.Outputs[0].Exact || !same(rows, s.Want(nil)) {
						t.Error("the samples are not the master's")
					}
				})
			}
		}
	}
}

// big is a page above the bound for exact encoding, which lossy lowers.
func big(bits, samples, photometric int) tifftest.Spec {
	return tifftest.Spec{Width: 410, Height: 270, Bits: bits, Samples: samples, Photometric: photometric, Compression: 5, RowsPerStrip: 50}
}

// lossy has a page of 100,000 pixels encoded as one of more than a million.
func lossy(r *derive.Request) { r.Recipe.ExactBelow = 100_000 }

func TestLossy(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]tifftest.Spec{"rgb8": big(8, 3, 2), "gray16": big(16, 1, 1), "gray8": big(8, 1, 0), "rgb16": big(16, 3, 2)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			result, err := run(t, "a.tiff", tifftest.File(s), lossy)
			if err != nil {
				t.Fatal(err)
			}
			o := result.Outputs[0]
			raw := int64(s.Width * s.Height * s.Samples * s.Bits / 8)
			t.Logf("%s: %.1f dB, ratio %.1f", name, o.PSNR, float64(raw)/float64(o.Size))
			if o.Exact || o.PSNR < 32 || o.Size > raw/10 {
				t.Errorf("got %+v", o)
			}
		})
	}
}

// TestMillion: the recipe as it is encodes a page of more than a million pixels
// with loss.
func TestMillion(t *testing.T) {
	t.Parallel()
	s := big(8, 1, 1)
	s.Width, s.Height = 1250, 801
	result, err := run(t, "a.tif", tifftest.File(s), nil)
	if err != nil {
		t.Fatal(err)
	}
	if o := result.Outputs[0]; o.Exact || o.Size > 1250*801/14 {
		t.Errorf("got %+v", o)
	}
}

// TestUnlikeIsExact: a page that falls short of the recipe's likeness is kept
// exactly.
func TestUnlikeIsExact(t *testing.T) {
	t.Parallel()
	s := big(8, 3, 2)
	result, err := run(t, "a.tif", tifftest.File(s), func(r *derive.Request) {
		lossy(r)
		r.Recipe.MinPSNR = 90
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, rows := decoded(t, result.Outputs[0].Path); !result.Outputs[0].Exact || !same(rows, s.Want(nil)) {
		t.Error("the samples are not the master's")
	}
}

// TestDeterminism: the same bytes again, and the digest is the file's.
func TestDeterminism(t *testing.T) {
	t.Parallel()
	master := tifftest.File(big(8, 3, 2))
	var first string
	for range 3 {
		result, err := run(t, "a.tif", master, lossy)
		if err != nil {
			t.Fatal(err)
		}
		raw, err := os.ReadFile(result.Outputs[0].Path)
		if err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(raw)
		if got := hex.EncodeToString(sum[:]); got != result.Outputs[0].SHA256 {
			t.Errorf("the file has the digest %s, the result says %s", got, result.Outputs[0].SHA256)
		}
		if first == "" {
			first = result.Outputs[0].SHA256
		}
		if result.Outputs[0].SHA256 != first {
			t.Error("another run gave other bytes")
		}
	}
}

// TestOrientation: each orientation comes out upright, with its resolution.
func TestOrientation(t *testing.T) {
	t.Parallel()
	s := tifftest.Spec{Width: 40, Height: 25, Bits: 8, Samples: 3, Photometric: 2}
	upright := s.Want(nil)
	for o := 1; o <= 8; o++ {
		stored := s
		if o >= 5 {
			stored.Width, stored.Height = s.Height, s.Width
		}
		w, h := stored.Width, stored.Height
		// at says where the stored pixel belongs in the upright picture.
		at := func(x, y int) (int, int) {
			switch o {
			case 2:
				return w - 1 - x, y
			case 3:
				return w - 1 - x, h - 1 - y
			case 4:
				return x, h - 1 - y
			case 5:
				return y, x
			case 6:
				return h - 1 - y, x
			case 7:
				return h - 1 - y, w - 1 - x
			case 8:
				return y, w - 1 - x
			}
			return x, y
		}
		stored.Sample = func(x, y, c int) int {
			ux, uy := at(x, y)
			return s.At(ux, uy, c)
		}
		stored.Extra = map[uint16]tifftest.Value{
			274: {Type: 3, Numbers: []uint64{uint64(o)}}, 282: rational(300, 1), 283: rational(200, 1),
		}
		result, err := run(t, "a.tif", tifftest.File(stored), nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, rows := decoded(t, result.Outputs[0].Path); !same(rows, upright) {
			t.Errorf("orientation %d is not upright", o)
		}
		wantX := 300 / 0.0254
		if o >= 5 {
			wantX = 200 / 0.0254
		}
		if f := boxes(t, result.Outputs[0].Path); f.Resolution.X < wantX-1 || f.Resolution.X > wantX+1 {
			t.Errorf("orientation %d: resolution %+v", o, f.Resolution)
		}
	}
}

func rational(num, den uint64) tifftest.Value {
	return tifftest.Value{Type: 5, Raw: []byte{
		byte(num), byte(num >> 8), byte(num >> 16), byte(num >> 24), byte(den), byte(den >> 8), byte(den >> 16), byte(den >> 24),
	}}
}

func boxes(t *testing.T, path string) *jp2.File {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	f, err := jp2.Read(bytes.NewReader(raw), int64(len(raw)))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestPagesAllOrNone(t *testing.T) {
	t.Parallel()
	one := tifftest.Spec{Width: 20, Height: 30, Bits: 8, Samples: 1, Photometric: 1}
	two := tifftest.Spec{Width: 40, Height: 10, Bits: 8, Samples: 3, Photometric: 2, Compression: 8}
	result, err := run(t, "a.tif", tifftest.File(one, two), nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, s := range []tifftest.Spec{one, two} {
		if _, rows := decoded(t, result.Outputs[i].Path); !same(rows, s.Want(nil)) || result.Outputs[i].Page != i+1 {
			t.Errorf("page %d is wrong", i+1)
		}
	}
	file := tifftest.File(one, two)
	// Damage in the second page's compressed data.
	at := bytes.LastIndex(file, []byte{0x78, 0x9c})
	file[at+20] ^= 0xFF
	_, err = run(t, "a.tif", file, nil)
	var f *derive.Fault
	if !errors.As(err, &f) || f.Class != fault.Permanent {
		t.Errorf("got %v, want a permanent fault", err)
	}
}

func TestRequestFaults(t *testing.T) {
	t.Parallel()
	good := tifftest.File(tifftest.Spec{Width: 20, Height: 30, Bits: 8, Samples: 1, Photometric: 1})
	for name, tt := range map[string]struct {
		name    string
		content []byte
		change  func(*derive.Request)
		class   fault.Class
		code    string
	}{
		"empty":        {"a.tif", nil, nil, fault.Permanent, fault.Empty},
		"four bytes":   {"a.tif", good[:4], nil, fault.Permanent, fault.Truncated},
		"text":         {"a.tif", []byte("this is no image at all, only text"), nil, fault.Permanent, fault.FormatMismatch},
		"pdf":          {"a.pdf", []byte("%PDF-1.4 this is no image at all"), nil, fault.Permanent, fault.NoFormat},
		"misnamed":     {"a.PNG", good, nil, fault.Permanent, fault.FormatMismatch},
		"other digest": {"a.tif", good, func(r *derive.Request) { r.Digest = strings.Repeat("0", 64) }, fault.Permanent, fault.MasterDamaged},
		"no master":    {"a.tif", good, func(r *derive.Request) { r.Path += "x" }, fault.Transient, fault.ReadFailed},
		"directory":    {"a.tif", good, func(r *derive.Request) { r.Path = filepath.Dir(r.Path) }, fault.Transient, fault.ReadFailed},
		"no scratch":   {"a.tif", good, func(r *derive.Request) { r.Scratch += "/none" }, fault.Environment, fault.StoreUnwritable},
		"too large": {"a.tif", good, func(r *derive.Request) {
			r.Limits = derive.DefaultLimits()
			r.Limits.MaxPixels = 599
		}, fault.Permanent, fault.ImageTooLarge},
		"memory": {"a.tif", good, func(r *derive.Request) {
			r.Limits = derive.DefaultLimits()
			r.Limits.Memory = 1 << 20
		}, fault.Transient, fault.MemoryShort},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := run(t, tt.name, tt.content, tt.change)
			wantFault(t, err, tt.class, tt.code)
		})
	}
}

func TestCancelled(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	reserved := false
	_, err := derive.Derive(ctx, derive.Request{
		Path: write(t, "m", tifftest.File(big(8, 3, 2))), Recipe: recipe(t, "jp2"), Scratch: t.TempDir(),
		Reserve: func(context.Context, int64) (func(), error) {
			cancel() // just before the encoder starts
			reserved = true
			return func() { reserved = false }, nil
		},
	})
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
	if reserved {
		t.Error("the memory was not released")
	}
}

func TestVersions(t *testing.T) {
	t.Parallel()
	if err := derive.Probe(recipe(t, "jp2")); err != nil {
		t.Fatal(err)
	}
	all, err := derive.Versions(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range all {
		if v.Version == "unknown" {
			t.Errorf("the version of %s is unknown", v.Name)
		}
	}
	t.Log(all)
}

func TestSweep(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "derive-123", "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "other"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := derive.Sweep(dir); err != nil {
		t.Fatal(err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 1 || left[0].Name() != "other" {
		t.Errorf("left %v", left)
	}
}
