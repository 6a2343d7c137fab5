package identify

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/iotest"

	"github.com/richardlehane/siegfried/pkg/static"
)

func newIdentifier(t testing.TB) *Identifier {
	t.Helper()
	id, err := New()
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// sample is a self-made start of a file.
type sample struct {
	name, puid, version string
	data                string
	trailer             string // what PRONOM's signature wants besides
}

func samples() []sample {
	tiff := func(version byte) string { // big-endian, one directory with DNGVersion 1.version
		return "MM\x00\x2a\x00\x00\x00\x08\x00\x01\xc6\x12\x00\x01\x00\x00\x00\x04\x01" + string(version) + "\x00\x00" + "\x00\x00\x00\x00"
	}
	jp2 := func(brand string) string {
		return "\x00\x00\x00\x0cjP  \r\n\x87\n\x00\x00\x00\x14ftyp" + brand + "\x00\x00\x00\x00" + brand
	}
	exif := func(version string) string { // little-endian
		return "\xff\xd8\xff\xe1\x00\x30Exif\x00\x00II\x2a\x00\x08\x00\x00\x00\x01\x00\x00\x90\x07\x00\x04\x00\x00\x00" + version
	}
	jfif := func(minor byte) string {
		return "\xff\xd8\xff\xe0\x00\x10JFIF\x00\x01" + string(minor) + "\x01\x00\x01\x00\x01\x00\x00"
	}
	const eoi = "\xff\xd9"
	list := []sample{
		{"le.tif", "fmt/353", "", "II\x2a\x00\x08\x00\x00\x00", ""},
		{"be.tiff", "fmt/353", "", "MM\x00\x2a\x00\x00\x00\x08", ""},
		{"le.tif", "fmt/1917", "", "II\x2b\x00\x08\x00\x00\x00", ""},
		{"be.tif", "fmt/1917", "", "MM\x00\x2b\x00\x08\x00\x00", ""},
		{"a.jp2", "x-fmt/392", "", jp2("jp2 "), ""},
		{"a.jpx", "fmt/151", "", jp2("jpx "), ""},
		{"a.jpm", "fmt/463", "", jp2("jpm "), ""},
		{"a.jph", "fmt/1964", "", jp2("jph "), ""},
		{"a.mj2", "fmt/337", "", jp2("mjp2"), ""},
		{"a.j2k", "fmt/1794", "", "\xff\x4f\xff\x51\x00\x2f\x00\x00", eoi},
		{"a.jpg", "fmt/41", "", "\xff\xd8\xff\xdb\x00\x43\x00", eoi},
		{"a.png", "fmt/11", "1.0", "\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00", "\x00\x00\x00\x00IEND\xaeB`\x82"},
	}
	for i, puid := range []string{"fmt/42", "fmt/43", "fmt/44"} {
		list = append(list, sample{"a.jpg", puid, fmt.Sprintf("1.0%d", i), jfif(byte(i)), eoi})
	}
	for i, puid := range []string{"fmt/436", "fmt/152", "fmt/437", "fmt/438", "fmt/730", "fmt/1841", "fmt/1842", "fmt/1943"} {
		list = append(list, sample{"a.dng", puid, fmt.Sprintf("1.%d", i), tiff(byte(i)), ""})
	}
	for _, v := range [][3]string{
		{"0200", "x-fmt/398", "2.0"},
		{"0210", "x-fmt/390", "2.1"},
		{"0220", "x-fmt/391", "2.2"},
		{"0221", "fmt/645", "2.21"},
		{"0230", "fmt/1507", "2.3.x"},
		{"0231", "fmt/1507", "2.3.x"},
		{"0232", "fmt/1507", "2.3.x"},
	} {
		list = append(list, sample{"a.jpg", v[1], v[2], exif(v[0]), eoi})
	}
	return list
}

// TestSamples: each format by its head alone, and padded so that it is looked
// at by its ends.
func TestSamples(t *testing.T) {
	t.Parallel()
	id := newIdentifier(t)
	for _, s := range samples() {
		for _, padding := range []int{0, 1000, 200_000} {
			data := []byte(s.data + strings.Repeat("\x55", padding))
			f, err := id.Identify(t.Context(), bytes.NewReader(data), int64(len(data)), s.name)
			if err != nil || f.PUID != s.puid || f.Version != s.version || f.Warning != "" || f.Basis == "" || f.Name == "" {
				t.Errorf("%s %s, %d bytes: %+v, %v", s.name, s.puid, len(data), f, err)
			}
		}
	}
}

// TestAgainstPRONOM compares with PRONOM's own signatures, as the library
// ships them, on the samples completed by their trailers.
func TestAgainstPRONOM(t *testing.T) {
	t.Parallel()
	id, pronom := newIdentifier(t), static.New()
	for _, s := range samples() {
		data := []byte(s.data + strings.Repeat("\x55", 64) + s.trailer)
		found, err := pronom.Identify(bytes.NewReader(data), s.name, "")
		if err != nil || len(found) != 1 {
			t.Fatalf("%s: %v, %v", s.name, found, err)
		}
		f, err := id.Identify(t.Context(), bytes.NewReader(data), int64(len(data)), s.name)
		if err != nil {
			t.Fatal(err)
		}
		if v := found[0].Values(); f.PUID != v[1] || f.Name != v[2] || f.Version != v[3] {
			t.Errorf("%s: we say %s %q %q, PRONOM %q", s.name, f.PUID, f.Name, f.Version, v)
		}
	}
}

func TestUnknown(t *testing.T) {
	t.Parallel()
	id := newIdentifier(t)
	for name, data := range map[string]string{
		"text.tif": "just text\n", "empty.tif": "", "a.tif": "I", "none": "\x00", "half.jp2": "\x00\x00\x00\x0cjP  \r\n", "\xff\n/..": "GIF89a",
	} {
		f, err := id.Identify(t.Context(), strings.NewReader(data), int64(len(data)), name)
		if err != nil || f.PUID != Unknown || f.Name != "unknown" || f.Warning == "" || f.Signatures == "" || f.Extent == "" {
			t.Errorf("%q: %+v, %v", name, f, err)
		}
	}
}

func TestMismatch(t *testing.T) {
	t.Parallel()
	data := "\xff\xd8\xff\xe0\x00\x10JFIF\x00\x01\x01\x01"
	f, err := newIdentifier(t).Identify(t.Context(), strings.NewReader(data), int64(len(data)), "vol 1/page.tif")
	if err != nil || f.PUID != "fmt/43" || f.Warning != "extension mismatch" {
		t.Errorf("%+v, %v", f, err)
	}
}

// TestExtent: of a large file only the ends are read, and the directory of a
// DNG is found in its tail too.
func TestExtent(t *testing.T) {
	t.Parallel()
	const size = 3_000_000_000
	tail := "\x12\xc6\x01\x00\x04\x00\x00\x00\x01\x01\x00\x00"
	r := &sparse{size: size, head: "II\x2a\x00\xf0\xff\xff\x7f", tail: tail}
	f, err := newIdentifier(t).Identify(t.Context(), r, size, "a.dng")
	if err != nil || f.PUID != "fmt/152" {
		t.Errorf("%+v, %v", f, err)
	}
	if want := "first 65536 and last 65536 of 3000000000 bytes"; f.Extent != want || r.read != 2*endBytes {
		t.Errorf("extent %q, %d bytes read", f.Extent, r.read)
	}
}

// sparse is a file of zeros but for its ends.
type sparse struct {
	size       int64
	head, tail string
	read       int
}

func (s *sparse) ReadAt(p []byte, off int64) (int, error) {
	clear(p)
	if off == 0 {
		copy(p, s.head)
	}
	if off+int64(len(p)) == s.size {
		copy(p[len(p)-len(s.tail):], s.tail)
	}
	s.read += len(p)
	return len(p), nil
}

func TestErrors(t *testing.T) {
	t.Parallel()
	id := newIdentifier(t)
	if _, err := id.Identify(t.Context(), strings.NewReader("short"), 10, "a.tif"); !errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, ErrFailed) {
		t.Errorf("a file that shrank: %v", err)
	}
	if _, err := id.Identify(t.Context(), strings.NewReader(""), -1, "a.tif"); err == nil {
		t.Error("a negative size")
	}
	broken := brokenAt{}
	if _, err := id.Identify(t.Context(), broken, 10, "a.tif"); !errors.Is(err, iotest.ErrTimeout) || errors.Is(err, ErrFailed) {
		t.Errorf("a reader that fails: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := id.Identify(ctx, strings.NewReader("x"), 1, "a.tif"); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

type brokenAt struct{}

func (brokenAt) ReadAt([]byte, int64) (int, error) { return 0, iotest.ErrTimeout }

// TestPanicContained: a panic under Identify is ErrFailed, and the identifier
// works on.
func TestPanicContained(t *testing.T) {
	t.Parallel()
	id := newIdentifier(t)
	id.broken = func() { panic("index out of range") }
	_, err := id.Identify(t.Context(), strings.NewReader("II\x2a\x00"), 4, "a.tif")
	if !errors.Is(err, ErrFailed) || !strings.Contains(err.Error(), "index out of range") {
		t.Errorf("%v", err)
	}
	id.broken = nil
	if f, err := id.Identify(t.Context(), strings.NewReader("II\x2a\x00"), 4, "a.tif"); err != nil || f.PUID != "fmt/353" {
		t.Errorf("%+v, %v", f, err)
	}
}

// TestTogether: answers do not depend on who else asks.
func TestTogether(t *testing.T) {
	t.Parallel()
	id := newIdentifier(t)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for _, s := range samples() {
				f, err := id.Identify(t.Context(), strings.NewReader(s.data), int64(len(s.data)), s.name)
				if err != nil || f.PUID != s.puid {
					t.Errorf("%s: %+v, %v", s.puid, f, err)
				}
			}
		})
	}
	wg.Wait()
}

// TestCorpus: real masters get the same answer as from PRONOM's own
// signatures, where those have one.
func TestCorpus(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../../../../shared/corpus/masters/*.*")
	if err != nil {
		t.Fatal(err)
	}
	if len(files) == 0 {
		t.Log("NOT TESTED HERE: there is no corpus of masters; the samples in this file stand in for it")
	}
	id, pronom := newIdentifier(t), static.New()
	for _, path := range files {
		if filepath.Ext(path) == ".tsv" {
			continue
		}
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		f, err := id.Identify(t.Context(), bytes.NewReader(data), int64(len(data)), filepath.Base(path))
		if err != nil {
			t.Error(err)
		}
		found, err := pronom.Identify(bytes.NewReader(data), filepath.Base(path), "")
		if err != nil || len(found) != 1 {
			t.Fatalf("%s: %v, %v", path, found, err)
		}
		if v := found[0].Values(); f.PUID != v[1] || f.Version != v[3] || f.PUID == Unknown {
			t.Errorf("%s: we say %s %q, PRONOM %q", filepath.Base(path), f.PUID, f.Version, v)
		}
	}
}

// TestSignatureIsFresh: images.sig was built from images.xml as it stands.
func TestSignatureIsFresh(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("images.xml")
	if err != nil {
		t.Fatal(err)
	}
	details := newIdentifier(t).sf.Identifiers()[0][1]
	if want := fmt.Sprintf("sha256:%x", sha256.Sum256(text)); details != want {
		t.Errorf("images.sig was built from %s, images.xml is %s: run go generate", details, want)
	}
}

func FuzzIdentify(f *testing.F) {
	for _, s := range samples() {
		f.Add([]byte(s.data), s.name)
		f.Add([]byte(s.data[:len(s.data)/2]), s.name)
	}
	f.Add([]byte{}, "")
	f.Add([]byte("PK\x03\x04RIFF<?xml version"), "a.zip")
	id := newIdentifier(f)
	f.Fuzz(func(t *testing.T, data []byte, name string) {
		got, err := id.Identify(t.Context(), bytes.NewReader(data), int64(len(data)), name)
		if err != nil || got.PUID == "" || got.Name == "" || (got.PUID == Unknown) != (got.Name == "unknown") {
			t.Errorf("%+v, %v", got, err)
		}
	})
}

func BenchmarkNew(b *testing.B) {
	for b.Loop() {
		newIdentifier(b)
	}
}

func BenchmarkIdentify(b *testing.B) {
	id := newIdentifier(b)
	r := &sparse{size: 3_000_000_000, head: "II\x2a\x00\x08\x00\x00\x00"}
	for b.Loop() {
		if _, err := id.Identify(b.Context(), r, r.size, "a.tif"); err != nil {
			b.Fatal(err)
		}
	}
}
