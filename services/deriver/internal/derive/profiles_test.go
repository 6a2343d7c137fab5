package derive_test

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"image"
	"image/jpeg"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"colophon/services/deriver/internal/derive"
	"colophon/services/deriver/internal/fault"
	"colophon/services/deriver/internal/raster"
	"colophon/services/deriver/internal/tiff"
	"colophon/services/deriver/internal/tifftest"

	"colophon/shared/profile"
)

// judged is what jpylyzer, a judge that shares no code with this project, says
// of a file.
type judged struct {
	Name   string   `xml:"fileInfo>fileName"`
	Valid  string   `xml:"isValid"`
	ICC    string   `xml:"properties>jp2HeaderBox>colourSpecificationBox>icc>description"`
	Meth   string   `xml:"properties>jp2HeaderBox>colourSpecificationBox>meth"`
	Enum   string   `xml:"properties>jp2HeaderBox>colourSpecificationBox>enumCS"`
	ResX   float64  `xml:"properties>jp2HeaderBox>resolutionBox>captureResolutionBox>hRescInPixelsPerInch"`
	ResY   float64  `xml:"properties>jp2HeaderBox>resolutionBox>captureResolutionBox>vRescInPixelsPerInch"`
	Depth  []int    `xml:"properties>contiguousCodestreamBox>siz>ssizDepth"`
	Tile   int      `xml:"properties>contiguousCodestreamBox>siz>xTsiz"`
	Order  string   `xml:"properties>contiguousCodestreamBox>cod>order"`
	Layers int      `xml:"properties>contiguousCodestreamBox>cod>layers"`
	Levels int      `xml:"properties>contiguousCodestreamBox>cod>levels"`
	Wave   string   `xml:"properties>contiguousCodestreamBox>cod>transformation"`
	SOP    string   `xml:"properties>contiguousCodestreamBox>cod>sop"`
	EPH    string   `xml:"properties>contiguousCodestreamBox>cod>eph"`
	Seg    string   `xml:"properties>contiguousCodestreamBox>cod>segmentationSymbols"`
	Bypass string   `xml:"properties>contiguousCodestreamBox>cod>codingBypass"`
	PrecX  []int    `xml:"properties>contiguousCodestreamBox>cod>precinctSizeX"`
	Prec   string   `xml:"properties>contiguousCodestreamBox>cod>precincts"`
	Notes  []string `xml:"properties>contiguousCodestreamBox>com>comment"`
	Ratio  float64  `xml:"properties>compressionRatio"`
}

// jpylyze judges files, whose names in the answer are their base names.
func jpylyze(t *testing.T, paths []string) map[string]judged {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "jpylyzer", paths...).Output()
	if err != nil {
		t.Fatalf("jpylyzer: %v", err)
	}
	var all struct {
		Files []judged `xml:"file"`
	}
	if err := xml.Unmarshal(out, &all); err != nil {
		t.Fatal(err)
	}
	if len(all.Files) != len(paths) {
		t.Fatalf("jpylyzer judged %d of %d files", len(all.Files), len(paths))
	}
	by := map[string]judged{}
	for _, f := range all.Files {
		by[f.Name] = f
		if f.Valid != "True" {
			t.Errorf("jpylyzer finds %s invalid", f.Name)
		}
	}
	return by
}

// full is a page large enough to be encoded with loss, with a profile and a
// resolution of 400 by 300 dots an inch.
func full(bits, samples int) tifftest.Spec {
	s := tifftest.Spec{Width: 1250, Height: 810, Bits: bits, Samples: samples, Photometric: 1, Sample: scanSample(bits), RowsPerStrip: 100}
	s.Extra = map[uint16]tifftest.Value{282: rational(400, 1), 283: rational(3000, 10), 296: {Type: 3, Numbers: []uint64{2}}}
	if samples == 3 {
		s.Photometric = 2
		s.Extra[34675] = tifftest.Value{Type: 7, Raw: icc("RGB ", "rXYZ", "gXYZ", "bXYZ", "rTRC", "gTRC", "bTRC")}
	}
	return s
}

// TestPublishedProfiles: jpylyzer finds every output valid, its coding what
// the profile's institution demands, depth, colour and resolution what the
// master said.
func TestPublishedProfiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var paths []string
	add := func(as, name string, s tifftest.Spec) {
		result, err := run(t, "a.tif", tifftest.File(s), func(r *derive.Request) { r.Recipe = recipe(t, name) })
		if err != nil {
			t.Fatalf("%s: %v", as, err)
		}
		path := filepath.Join(dir, as)
		if err := os.Link(result.Outputs[0].Path, path); err != nil {
			t.Fatal(err)
		}
		paths = append(paths, path)
	}
	depth := map[string]int{}
	for name, specs := range map[string][]tifftest.Spec{
		"jp2": {full(8, 3), full(8, 1), full(16, 1), full(12, 1)}, "jp2-lossless": {full(8, 3), full(12, 1)}, "kb-access-2014": {full(8, 3), full(8, 1)},
	} {
		for _, s := range specs {
			as := name + strconv.Itoa(s.Samples) + "-" + strconv.Itoa(s.Bits) + ".jp2"
			depth[as] = s.Bits
			add(as, name, s)
			s.Width, s.Height = 70, 30
			depth["small-"+as] = s.Bits
			add("small-"+as, name, s)
		}
	}
	add("ndnp.jp2", "ndnp", full(8, 1))
	small := full(8, 1)
	small.Width, small.Height = 31, 3
	add("small-ndnp.jp2", "ndnp", small)
	by := jpylyze(t, paths)
	for name, f := range by {
		if math.Abs(f.ResX-400) > 0.1 || math.Abs(f.ResY-300) > 0.1 {
			t.Errorf("%s: %v by %v dots an inch", name, f.ResX, f.ResY)
		}
		if rgb := len(f.Depth) == 3; rgb && f.Meth != "Restricted ICC" || !rgb && f.Enum != "greyscale" {
			t.Errorf("%s: colours %q %q", name, f.Meth, f.Enum)
		}
		if want := max(depth[name], 8); f.Depth[0] != want {
			t.Errorf("%s: %d bits, want %d", name, f.Depth[0], want)
		}
		lossy := !strings.HasPrefix(name, "small-") && !strings.HasPrefix(name, "jp2-lossless")
		if lossy != strings.HasPrefix(f.Wave, "9-7") {
			t.Errorf("%s: %s", name, f.Wave)
		}
	}
	for _, name := range []string{"kb-access-20143-8.jp2", "kb-access-20141-8.jp2"} {
		f := by[name]
		if f.Tile != 1024 || f.Order != "RPCL" || f.Layers != 8 || f.Levels != 5 || f.SOP != "yes" || f.EPH != "yes" || f.Seg != "yes" || f.Ratio < 15 || f.Ratio > 25 ||
			len(f.PrecX) != 6 || f.PrecX[0] != 128 || f.PrecX[3] != 128 || f.PrecX[4] != 256 || strings.Join(f.Notes, "") != "KB_ACCESS_LOSSY_01/01/2015" {
			t.Errorf("%s is not what KB demands: %+v", name, f)
		}
	}
	if f := by["ndnp.jp2"]; f.Tile != 1024 || f.Order != "RLCP" || f.Layers != 25 || f.Levels != 6 || f.Bypass != "yes" || f.Prec != "default" || math.Abs(f.Ratio-8) > 0.1 {
		t.Errorf("ndnp is not what the program demands: %+v", f)
	}
}

// TestProfileUnfit: what a profile is not for is refused by name.
func TestProfileUnfit(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]tifftest.Spec{"colour": full(8, 3), "16 bits": full(16, 1)} {
		_, err := run(t, "a.tif", tifftest.File(s), func(r *derive.Request) { r.Recipe = recipe(t, "ndnp") })
		if f := wantFault(t, err, fault.Permanent, fault.ProfileUnfit); f.Message == "" {
			t.Error(name)
		}
	}
}

// TestRecipes pins the recipes: another one needs another name.
func TestRecipes(t *testing.T) {
	t.Parallel()
	want := map[string]string{
		"jp2":          "b307f5434039c69789c30ddba2299c6831a2649ee397b686eff0987fa651def1",
		"jp2-lossless": "115ac9ce5f910f6ae53c7d6d82c6188fda5a69ea9e20a25624a02702db37cfa3",

		"kb-access-2014": "7e3e386e62bbf2ecc80ba9195607548894b9f0e4b3cf6a44eb95081744e0fcba",
		"ndnp":           "53f39a0e9072ae40b4957c29e88459d7ef09b1ca602bf2c141c58248b02345cd",
		"thumb":          "554117bc5c862a14513b0a3a00e0c3e6484f146805caac28219558f3ac2115ad",
	}
	for _, name := range profile.Names() {
		r := recipe(t, name)
		digest, err := r.Digest()
		if err != nil {
			t.Fatal(err)
		}
		if digest != want[name] {
			c, _ := r.Canonical()
			t.Errorf("%s has the digest %s\n%s", name, digest, c)
		}
		canonical, err := r.Canonical()
		if err != nil {
			t.Fatal(err)
		}
		var back profile.Recipe
		if err := json.Unmarshal(canonical, &back); err != nil {
			t.Fatal(err)
		}
		if again, _ := back.Digest(); again != digest {
			t.Errorf("%s does not survive its own canonical form", name)
		}
	}
	if _, ok := profile.Named("none"); ok {
		t.Error("an unknown profile was found")
	}
}

// golden are the digests of one page's derivatives. Those of the JPEG 2000
// encoder hold for one build of it and one kind of processor, since its lossy
// wavelet counts in floating point; that of the thumbnail for one Go.
var golden = map[string]string{
	"jp2":            "990406bde03e10ff438b28096ccdfa7842777248b6d68f54443a29146c939c9e",
	"jp2-lossless":   "d18097462b44c958c7b7ad39e95babc0d8aa19a249b06e8dca6e094779b633fa",
	"kb-access-2014": "db572e04b9d343be127e283f0c88f936479fbf744a7911149f99d74db3501bb8",
	"ndnp":           "964c78af41c5cd94c52960b21622dde6a8231aafe07448a3c09884910d34b04f",
	"thumb":          "8ab131c1dc9f541d8fc7f07090fc92e5e197e3f32970b6fa50c8987fcc5b37e8",
}

const goldenEncoder, goldenArch, goldenGo = "2.5.0", "amd64", "go1.26"

// TestGolden: the same master gives the same bytes, in this process, in every
// other, and with any number of threads.
func TestGolden(t *testing.T) {
	t.Parallel()
	all, err := derive.Versions(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	known := runtime.GOARCH == goldenArch && all[0].Name == "opj_compress" && all[0].Version == goldenEncoder
	for _, name := range profile.Names() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := full(8, 3)
			if name == "ndnp" {
				s = full(8, 1)
			}
			master := tifftest.File(s)
			known := known
			if name == "thumb" {
				known = strings.HasPrefix(runtime.Version(), goldenGo)
			}
			got := map[string]bool{}
			for range 2 {
				result, err := run(t, "a.tif", master, func(r *derive.Request) { r.Recipe = recipe(t, name) })
				if err != nil {
					t.Fatal(err)
				}
				got[result.Outputs[0].SHA256] = true
				if result.Outputs[0].SHA256 != golden[name] && known {
					t.Errorf("%q: %q,", name, result.Outputs[0].SHA256)
				}
			}
			if len(got) != 1 {
				t.Errorf("two runs gave %v", got)
			}
		})
	}
}

// TestThreads: the encoder gives the same bytes with 1, 2 and 4 threads.
func TestThreads(t *testing.T) {
	t.Parallel()
	master := tifftest.File(full(8, 3))
	img, err := tiff.Read(raster.NewSource(bytes.NewReader(master), int64(len(master))), tiff.Options{Bounds: raster.Bounds{MaxSide: 1 << 16, MaxPixels: 1 << 30, MaxSamples: 5, MaxImages: 9, MaxExpansion: 4096}})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if _, err := raster.WritePlain(t.Context(), img.Pages[0], filepath.Join(dir, "page.tif")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"jp2", "jp2-lossless"} {
		var first []byte
		for _, threads := range []string{"1", "2", "4"} {
			args := append([]string{"-i", "page.tif", "-o", threads + ".jp2", "-threads", threads}, recipe(t, name).Args...)
			cmd := exec.CommandContext(t.Context(), "opj_compress", args...)
			cmd.Dir = dir
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			raw, err := os.ReadFile(filepath.Join(dir, threads+".jp2"))
			if err != nil {
				t.Fatal(err)
			}
			if first == nil {
				first = raw
			}
			if !bytes.Equal(raw, first) {
				t.Errorf("%s: other bytes with %s threads", name, threads)
			}
		}
	}
}

// TestThumb: thumbnails are upright, of the right shape and colours, keep the
// profile, and the strict decoder of another project reads them.
func TestThumb(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		spec tifftest.Spec
		w, h int
	}{
		"colour": {full(8, 3), 512, 332}, "gray": {full(8, 1), 512, 332}, "16 bit": {full(16, 3), 512, 332}, "12 bit": {full(12, 1), 512, 332},
		"small":     {tifftest.Spec{Width: 31, Height: 2, Bits: 8, Samples: 3, Photometric: 2}, 31, 2},
		"bilevel":   {tifftest.Spec{Width: 600, Height: 3000, Bits: 1, Samples: 1, Photometric: 0, Compression: 4}, 102, 512},
		"narrow":    {tifftest.Spec{Width: 5000, Height: 1, Bits: 8, Samples: 1, Photometric: 1}, 512, 1},
		"on a side": {with(full(8, 3), 274, 6), 332, 512},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			result, err := run(t, "a.tif", tifftest.File(c.spec), func(r *derive.Request) { r.Recipe = recipe(t, "thumb") })
			if err != nil {
				t.Fatal(err)
			}
			o := result.Outputs[0]
			if o.Width != c.w || o.Height != c.h || o.PSNR < 24 || len(result.Helpers) != 1 || result.Helpers[0].Version != runtime.Version() {
				t.Errorf("%+v by %v", o, result.Helpers)
			}
			if out, err := exec.CommandContext(t.Context(), "djpeg", "-strict", "-outfile", os.DevNull, o.Path).CombinedOutput(); err != nil {
				t.Errorf("djpeg: %v %s", err, out)
			}
			raw, err := os.ReadFile(o.Path)
			if err != nil {
				t.Fatal(err)
			}
			img, err := jpeg.Decode(bytes.NewReader(raw))
			if err != nil {
				t.Fatal(err)
			}
			if _, gray := img.(*image.Gray); gray != (c.spec.Samples == 1) {
				t.Errorf("decodes to %T", img)
			}
			if v, ok := c.spec.Extra[34675]; ok && !bytes.Contains(raw, append([]byte("ICC_PROFILE\x00\x01\x01"), v.Raw...)) {
				t.Error("the profile is gone")
			}
			if err := brightness(img, c.spec); err != nil {
				t.Error(err)
			}
		})
	}
	// A profile that JP2 does not allow is no hindrance to a JPEG.
	s := full(8, 3)
	s.Extra[34675] = tifftest.Value{Type: 7, Raw: icc("RGB ", "A2B0", "rXYZ", "gXYZ", "bXYZ", "rTRC", "gTRC", "bTRC")}
	if _, err := run(t, "a.tif", tifftest.File(s), func(r *derive.Request) { r.Recipe = recipe(t, "thumb") }); err != nil {
		t.Error(err)
	}
}

func with(s tifftest.Spec, tag uint16, v uint64) tifftest.Spec {
	s.Extra[tag] = tifftest.Value{Type: 3, Numbers: []uint64{v}}
	return s
}

// brightness compares the means of image and page.
func brightness(img image.Image, s tifftest.Spec) error {
	mean := func(n int, at func(i int) float64) float64 {
		sum := 0.0
		for i := range n {
			sum += at(i)
		}
		return sum / float64(n)
	}
	b := img.Bounds()
	got := mean(b.Dx()*b.Dy(), func(i int) float64 {
		r, g, bl, _ := img.At(i%b.Dx(), i/b.Dx()).RGBA()
		return float64(r+g+bl) / 3 / 257
	})
	var all []byte
	for _, row := range s.Want(nil) {
		all = append(all, row...)
	}
	size := 1 + (s.Bits+7)/16
	want := mean(len(all)/size, func(i int) float64 {
		if size == 2 {
			return (float64(all[2*i]) + 256*float64(all[2*i+1])) * 255 / float64(int(1)<<s.Bits-1)
		}
		return float64(all[i])
	})
	if math.Abs(got-want) > 1.5 {
		return errors.New("the mean is " + strconv.FormatFloat(got, 'f', 2, 64) + ", the page's " + strconv.FormatFloat(want, 'f', 2, 64))
	}
	return nil
}
