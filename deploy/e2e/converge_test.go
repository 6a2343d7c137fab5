package e2e

import (
	"encoding/csv"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/image/tiff"
)

var hasVerify = sync.OnceValue(func() bool {
	out, _ := exec.Command(program("colophon"), "--help").CombinedOutput()
	return strings.Contains(string(out), "\n  verify")
})

// mixed is one master of each kind that must be read by now, at several depths,
// and two equal pages.
func mixed() []frame {
	return []frame{
		{"a/01 gray.tif", tiffPage(1)},
		{"a/02 gray deflate.TIF", tiffOf(grayPage(2), tiff.Deflate)},
		{"a/03 gray16.tiff", tiffOf(gray16Page(3), tiff.Uncompressed)},
		{"a/04 colour.tif", tiffOf(colourPage(4), tiff.Uncompressed)},
		{"b/c/d/05.png", pngPage(5)},
		{"b/c/d/06.PNG", pngOf(colourPage(6))},
		{"b/07.jpg", jpegPage(7)},
		{"b/08.JPEG", jpegPage(8)},
		{"blank 10.tif", tiffPage(9)},
		{"blank 9.tif", tiffPage(9)},
	}
}

func putAll(t testing.TB, dir string, frames []frame) {
	t.Helper()
	for _, f := range frames {
		put(t, dir, f.name, f.data)
	}
}

func TestConverged(t *testing.T) {
	t.Parallel()
	a := newArchive(t)
	dir := filepath.Join(tempDir(t), "mixed")
	frames := mixed()
	putAll(t, dir, frames)
	for _, ignored := range []string{".hidden.tif", "x.tif.part", "y.tmp", "notes.txt", "a/Thumbs.db", ".git/z.tif"} {
		put(t, dir, ignored, []byte("not a master"))
	}
	o := a.ingest(dir).converged(len(frames)).counts(len(frames), len(frames), 0, 0)
	if o.json.Ignored != 6 { // .git is one
		t.Errorf("%d ignored", o.json.Ignored)
	}
	a.judge("mixed", frames)
	order := []string{}
	for _, f := range a.manifest("mixed").Frames {
		order = append(order, frameName(t, f.Frame))
	}
	if want := "a/01 gray.tif|a/02 gray deflate.TIF|a/03 gray16.tiff|a/04 colour.tif|b/07.jpg|b/08.JPEG|b/c/d/05.png|b/c/d/06.PNG|blank 9.tif|blank 10.tif"; strings.Join(order, "|") != want {
		t.Errorf("the frames stand as\n%s, want\n%s", strings.Join(order, "|"), want)
	}
	checkLines(t, o)
}

// TestCorpus takes real masters in: what cannot be read for sure is never
// done, what is sound is never called damaged.
func TestCorpus(t *testing.T) {
	t.Parallel()
	corpus, err := filepath.Abs("../../../shared/corpus/masters")
	ok(t, err)
	index, err := os.Open(filepath.Join(corpus, "index.tsv"))
	if err != nil {
		t.Logf("NOT TESTED: the corpus of masters is not at %s", corpus)
		return
	}
	defer index.Close() //nolint:errcheck // only read
	r := csv.NewReader(index)
	r.Comma, r.LazyQuotes = '\t', true
	rows, err := r.ReadAll()
	ok(t, err)
	expected := map[string]string{}
	for _, row := range rows[1:] {
		if strings.HasSuffix(row[0], ".dng") {
			continue // no master by its name
		}
		expected[row[0]] = row[6]
	}
	a := newArchive(t)
	o := a.ingest(corpus).status(3)
	if o.json.Frames != len(expected) {
		t.Fatalf("%d frames, the index has %d", o.json.Frames, len(expected))
	}
	codes := map[string]string{}
	for key, code := range o.cases() {
		name, _, _ := strings.Cut(key, " ")
		codes[name] = code
	}
	done := map[string]bool{}
	for _, f := range a.manifest("masters").Frames {
		done[frameName(t, f.Frame)] = f.State == "done"
	}
	good := 0
	for name, want := range expected {
		code, failed := codes[name]
		if failed == done[name] {
			t.Errorf("%s: done %v, case %q", name, done[name], code)
		}
		switch {
		case want == "ok" && failed && !strings.HasPrefix(code, "unsupported"):
			t.Errorf("%s is sound and was called %s", name, code)
		case want == "ok" && !failed:
			good++
			data, err := os.ReadFile(filepath.Join(corpus, name))
			ok(t, err)
			a.decodesAny(a.master(data))
		case want != "ok" && !failed:
			t.Errorf("%s is %s and was done", name, want)
		case strings.HasPrefix(want, "permanent-fault") && strings.HasPrefix(code, "unsupported"):
			t.Logf("%s is %s and was called %s", name, want, code)
		}
	}
	t.Logf("%d of %d files done; cases: %v", good, len(expected), codes)
	a.sha256sum()
	checkLines(t, o)
	a.verify(0)
}

// decodesAny is decodes, for a derivative of many pages as well.
func (a *archive) decodesAny(digest string) {
	a.t.Helper()
	folder := strings.TrimSuffix(a.derivativePath(digest), ".jp2")
	pages, err := filepath.Glob(filepath.Join(folder, "*.jp2"))
	ok(a.t, err)
	if len(pages) == 0 {
		a.decodes(digest)
		return
	}
	for _, p := range pages {
		tool(a.t, a.dir, "", "opj_decompress", "-i", p, "-o", filepath.Join(a.t.TempDir(), "page.pnm"))
	}
}
