package bag

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"colophon/shared/storage"
)

func newStore(t testing.TB) *storage.Store {
	t.Helper()
	s, err := storage.Open(filepath.Join(t.TempDir(), "archive"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// stored puts data where a master is and gives its file.
func stored(t testing.TB, s *storage.Store, data string) File {
	t.Helper()
	d, n, err := storage.Sum(t.Context(), strings.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Write(t.Context(), storage.MasterKey(d), strings.NewReader(data), storage.Options{}); err != nil {
		t.Fatal(err)
	}
	return File{Key: storage.MasterKey(d), Digest: d, Size: n}
}

// entry is a frame with a master and a derivative.
func entry(t testing.TB, s *storage.Store, frame string) Entry {
	t.Helper()
	master, access := stored(t, s, "master of "+frame), stored(t, s, "access of "+frame)
	access.Profile = "jp2"
	return Entry{Frame: frame, Files: []File{master, access}}
}

func each[T any](list ...T) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for _, v := range list {
			if !yield(v, nil) {
				return
			}
		}
	}
}

func metadata() iter.Seq2[TagFile, error] {
	text := func(name, s string) TagFile {
		return TagFile{Name: name, Write: func(w io.Writer) error { _, err := io.WriteString(w, s); return err }}
	}
	return each(text("premis/batch.xml", "<premis/>"), text("manifest.json", "{}"))
}

var info = Info{Date: time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC), Organization: "The Library", Convergence: 2}

func request(s *storage.Store, batch string, entries ...Entry) Request {
	return Request{Store: s, Batch: batch, Info: info, Frames: each(entries...), Metadata: metadata()}
}

func write(t testing.TB, r Request) (Result, string) {
	t.Helper()
	result, err := Write(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := r.Store.FilePath(result.Key)
	if err != nil {
		t.Fatal(err)
	}
	return result, dir
}

// sha256sum runs the real one.
func sha256sum(t testing.TB, dir string) {
	t.Helper()
	for _, m := range []string{"manifest-sha256.txt", "tagmanifest-sha256.txt"} {
		cmd := exec.CommandContext(t.Context(), "sha256sum", "--strict", "--quiet", "-c", m)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("sha256sum -c %s: %v\n%s", m, err, out)
		}
	}
}

func TestOrdinary(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	entries := []Entry{entry(t, s, "p 001.tif"), entry(t, s, "vol 1/p 002.tif"), entry(t, s, "Vol. 142 (Smith)/é.tif"), entry(t, s, "-rf.tif"), entry(t, s, ".tmp-x")}
	pages := stored(t, s, "page one")
	pages.Profile, pages.Page = "jp2", "0001.jp2"
	second := stored(t, s, "page two")
	second.Profile, second.Page = "jp2", "0002.jp2"
	lossless := stored(t, s, "lossless")
	lossless.Profile = "jp2-lossless"
	entries = append(entries, Entry{Frame: "many.tif", Files: []File{stored(t, s, "many"), pages, second, lossless}})

	result, dir := write(t, request(s, "b 1", entries...))
	sha256sum(t, dir)
	check(t, dir)
	if result.Key != "bags/b%201" || result.Files != 14 || result.Copied != 0 || len(result.Names) != 0 {
		t.Errorf("%+v", result)
	}
	for _, path := range []string{
		"data/masters/vol 1/p 002.tif", "data/access/vol 1/p 002.tif.jp2", "data/access/many.tif.jp2/0002.jp2", "data/jp2-lossless/many.tif.jp2",
		"data/masters/.tmp-x", "metadata/premis/batch.xml", "metadata/manifest.json",
	} {
		if _, err := os.Lstat(filepath.Join(dir, path)); err != nil {
			t.Error(err)
		}
	}
	want := fmt.Sprintf("Source-Organization: The Library\nBagging-Date: 2026-03-04\nExternal-Identifier: b 1\nPayload-Oxum: %d.14\nColophon-Convergence: 2\n", result.Bytes)
	if got, err := os.ReadFile(filepath.Join(dir, "bag-info.txt")); err != nil || string(got) != want {
		t.Errorf("bag-info.txt: %q, %v", got, err)
	}
	mine, err := s.Stat(entries[0].Files[0].Key)
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := os.Stat(filepath.Join(dir, "data/masters/p 001.tif"))
	if err != nil || !os.SameFile(mine, theirs) {
		t.Errorf("no hard link: %v", err)
	}
}

// TestOddNames: whatever the name, the bag is complete and the payload has the
// right bytes under the name, or under the one that the result tells.
func TestOddNames(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("n", 251) + ".tif"
	for _, c := range []struct {
		name, frame    string
		master, access string // "" for the frame's name as it is; "~" for one with a digest
	}{
		{"newline", "a\nb.tif", "", ""},
		{"carriage return", "a\rb\r\n.tif", "", ""},
		{"percent", "100%.tif", "", ""},
		{"encoded look", "a%0Ab.tif", "", ""},
		{"leading dash", "--help", "", ""},
		{"spaces", "  a  b  ", "", ""},
		{"control characters", "\x01\t\x1b[31m\x7f.tif", "", ""},
		{"backslash", "a\\b\\n.tif", "", ""},
		{"star", "*.tif", "", ""},
		{"dots", "...", "", ""},
		{"hidden", "./../.hidden/a.tif"[5:], "", ""},
		{"255 bytes", long, "", "~"},
		{"255 bytes of é", strings.Repeat("é", 125) + "x.tif", "", "~"},
		{"256 bytes", "n" + long, "~", "~"},
		{"not UTF-8", "vol/caf\xe9.tif", "data/masters/vol/caf%E9%2Etif", "data/access/vol/caf%E9%2Etif.jp2"},
		{"long and not UTF-8", strings.Repeat("\xff", 200), "~", "~"},
		{"parent", "a/../b.tif", "data/masters/a/%2E%2E/b.tif", "data/access/a/%2E%2E/b.tif.jp2"},
		{"out", "../../../etc/passwd", "data/masters/%2E%2E/%2E%2E/%2E%2E/etc/passwd", "data/access/%2E%2E/%2E%2E/%2E%2E/etc/passwd.jp2"},
		{"here", "./a", "data/masters/%2E/a", "data/access/%2E/a.jp2"},
		{"absolute", "/etc/passwd", "~", "~"},
		{"empty component", "a//b", "~", "~"},
		{"trailing slash", "a/", "~", "~"},
		{"empty", "", "~", "~"},
		{"zero byte", "a\x00b.tif", "~", "~"},
		{"long path", strings.Repeat("d/", 2000) + "p.tif", "~", "~"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newStore(t)
			result, dir := write(t, request(s, "b", entry(t, s, c.frame)))
			check(t, dir)
			told := map[string]string{"": "data/masters/" + c.frame, "jp2": "data/access/" + c.frame + ".jp2"}
			for profile, want := range map[string]string{"": c.master, "jp2": c.access} {
				i := slices.IndexFunc(result.Names, func(n Name) bool { return n.Profile == profile && n.Frame == c.frame })
				if (i >= 0) != (want != "") {
					t.Errorf("profile %q: names %q", profile, result.Names)
				}
				if i < 0 {
					continue
				}
				told[profile] = result.Names[i].Path
				if want == "~" && !strings.Contains(told[profile], "~") || want != "~" && told[profile] != want {
					t.Errorf("profile %q: path %q, want %q", profile, told[profile], want)
				}
			}
			for profile, word := range map[string]string{"": "master of ", "jp2": "access of "} {
				if data, err := os.ReadFile(filepath.Join(dir, told[profile])); err != nil || string(data) != word+c.frame {
					t.Errorf("profile %q: %q, %v", profile, data, err)
				}
			}
			_, err := os.Lstat(filepath.Join(dir, "metadata", namesFile))
			if (err == nil) != (len(result.Names) > 0) {
				t.Errorf("%d names, names.tsv: %v", len(result.Names), err)
			}
		})
	}
}

// TestNamesApart: frames whose names are nearly the same, or get in each
// other's way, all have their own file.
func TestNamesApart(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	frames := []string{
		"A.tif", "a.tif", "\u00e9.tif", "e\u0301.tif", "caf\xe9", "caf%E9", // the last two want one path
		"x", "x/y", "z/y", "z", // a file and a folder of one name, in both orders
		strings.Repeat("n", 300) + "1", strings.Repeat("n", 300) + "2", "a//b", "a/b", "%2E%2E", "..",
	}
	var entries []Entry
	for _, f := range frames {
		entries = append(entries, entry(t, s, f))
	}
	result, dir := write(t, request(s, "b", entries...))
	check(t, dir)
	if int(result.Files) != 2*len(frames) {
		t.Errorf("%d files", result.Files)
	}
	told := map[string]bool{}
	for _, n := range result.Names {
		if told[n.Path] {
			t.Errorf("%q twice", n.Path)
		}
		told[n.Path] = true
		word := map[string]string{"": "master of ", "jp2": "access of "}[n.Profile]
		if data, err := os.ReadFile(filepath.Join(dir, n.Path)); err != nil || string(data) != word+n.Frame {
			t.Errorf("%+v: %q, %v", n, data, err)
		}
	}
}

// TestManifestEncoding: LF, CR and % are encoded in the manifest, and only
// those.
func TestManifestEncoding(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	f := stored(t, s, "x")
	_, dir := write(t, request(s, "b", Entry{Frame: "a\n\r%\t\\ é.tif", Files: []File{f}}))
	got, err := os.ReadFile(filepath.Join(dir, "manifest-sha256.txt"))
	if want := string(f.Digest) + "  data/masters/a%0A%0D%25\t\\ é.tif\n"; err != nil || string(got) != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestReplace: the next bag takes the place of the one before, the same request
// gives the same bytes, and nothing else stays.
func TestReplace(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	one, two := entry(t, s, "one.tif"), entry(t, s, "two.tif")
	_, dir := write(t, request(s, "b", one))
	first := snapshot(t, dir)
	write(t, request(s, "b", one, two))
	if got := snapshot(t, dir); len(got) != len(first)+2 {
		t.Errorf("%d files", len(got))
	}
	write(t, request(s, "b", one))
	for path, data := range snapshot(t, dir) {
		if first[path] != data {
			t.Errorf("%s differs", path)
		}
	}
	check(t, dir)
	if got, err := os.ReadDir(filepath.Dir(dir)); err != nil || len(got) != 1 {
		t.Errorf("beside the bag: %v, %v", got, err)
	}
}

func snapshot(t testing.TB, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		all[path] = string(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestRefused: what cannot be written leaves the bag before it as it was, and
// nothing else.
func TestRefused(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	cancelled, cancel := context.WithCancelCause(t.Context())
	cancel(broken)
	for _, c := range []struct {
		name   string
		ctx    context.Context
		change func(r *Request, e Entry)
		want   error
	}{
		{"no frames", t.Context(), func(r *Request, _ Entry) { r.Frames = each[Entry]() }, ErrRequest},
		{"no files", t.Context(), func(r *Request, _ Entry) { r.Frames = each(Entry{Frame: "x"}) }, ErrRequest},
		{"the same frame twice", t.Context(), func(r *Request, e Entry) { r.Frames = each(e, e) }, ErrDuplicate},
		{"an odd frame twice", t.Context(), func(r *Request, e Entry) { e.Frame = "a//b"; r.Frames = each(e, e) }, ErrDuplicate},
		{"a shortened frame twice", t.Context(), func(r *Request, e Entry) { e.Frame = strings.Repeat("n", 300); r.Frames = each(e, e) }, ErrDuplicate},
		{"no master", t.Context(), func(r *Request, e Entry) { e.Files = e.Files[1:]; r.Frames = each(e) }, ErrRequest},
		{"a profile twice", t.Context(), func(r *Request, e Entry) { e.Files = append(e.Files, e.Files[1]); r.Frames = each(e) }, ErrDuplicate},
		{"frames fail", t.Context(), func(r *Request, e Entry) {
			r.Frames = func(yield func(Entry, error) bool) { _ = yield(e, nil) && yield(Entry{}, broken) }
		}, broken},
		{"metadata fail", t.Context(), func(r *Request, _ Entry) {
			r.Metadata = each(TagFile{Name: "x", Write: func(io.Writer) error { return broken }})
		}, broken},
		{"metadata twice", t.Context(), func(r *Request, _ Entry) {
			r.Metadata = each(TagFile{Name: "x", Write: nothing}, TagFile{Name: "x", Write: nothing})
		}, ErrDuplicate},
		{"metadata outside", t.Context(), func(r *Request, _ Entry) { r.Metadata = each(TagFile{Name: "../data/x", Write: nothing}) }, storage.ErrKey},
		{"metadata's name", t.Context(), func(r *Request, _ Entry) { r.Metadata = each(TagFile{Name: namesFile, Write: nothing}) }, ErrRequest},
		{"no date", t.Context(), func(r *Request, _ Entry) { r.Info.Date = time.Time{} }, ErrRequest},
		{"two lines", t.Context(), func(r *Request, _ Entry) { r.Info.Organization = "a\nPayload-Oxum: 0.0" }, ErrRequest},
		{"object missing", t.Context(), func(r *Request, e Entry) {
			e.Files[0].Key = storage.MasterKey(storage.Digest(strings.Repeat("0", 64)))
			r.Frames = each(e)
		}, storage.ErrNotExist},
		{"profile masters", t.Context(), func(r *Request, e Entry) { e.Files[1].Profile = "masters"; r.Frames = each(e) }, ErrRequest},
		{"page outside", t.Context(), func(r *Request, e Entry) { e.Files[1].Page = ".."; r.Frames = each(e) }, ErrRequest},
		{"no digest", t.Context(), func(r *Request, e Entry) { e.Files[1].Digest = "x"; r.Frames = each(e) }, ErrRequest},
		{"no batch", t.Context(), func(r *Request, _ Entry) { r.Batch = "" }, storage.ErrKey},
		{"cancelled", cancelled, func(*Request, Entry) {}, broken},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newStore(t)
			e := entry(t, s, "one.tif")
			_, dir := write(t, request(s, "b", e))
			before := snapshot(t, filepath.Dir(dir))
			r := request(s, "b", e)
			c.change(&r, Entry{Frame: e.Frame, Files: slices.Clone(e.Files)})
			if _, err := Write(c.ctx, r); !errors.Is(err, c.want) {
				t.Errorf("error %v, want %v", err, c.want)
			}
			after := snapshot(t, filepath.Dir(dir))
			for path, data := range after {
				if before[path] != data {
					t.Errorf("changed: %s", path)
				}
			}
			if len(after) != len(before) {
				t.Errorf("%d files before, %d after", len(before), len(after))
			}
		})
	}
}

func nothing(io.Writer) error { return nil }

// TestWrongSize: an object that is not as long as listed is not bagged.
func TestWrongSize(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	f := stored(t, s, "x")
	f.Size++
	if _, err := Write(t.Context(), request(s, "b", Entry{Frame: "f", Files: []File{f}})); err == nil {
		t.Error("bagged")
	}
}

func TestBatchIdentifier(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	_, dir := write(t, request(s, "a\nPayload-Oxum: 0.0\xff", entry(t, s, "f")))
	check(t, dir)
	got, err := os.ReadFile(filepath.Join(dir, "bag-info.txt"))
	if err != nil || !bytes.Contains(got, []byte("External-Identifier: a%0APayload-Oxum%3A%200%2E0%FF\nColophon-External-Identifier-Encoding: percent-encoded\n")) {
		t.Errorf("%q, %v", got, err)
	}
}

// TestMemory: a bag of many frames takes no more memory than one of few.
func TestMemory(t *testing.T) { // not parallel: it measures the process
	s := newStore(t)
	f := stored(t, s, "blank page")
	var first, grown uint64
	frames := func(yield func(Entry, error) bool) {
		for i := range 4000 {
			if i%500 == 100 {
				var m runtime.MemStats
				runtime.GC()
				runtime.ReadMemStats(&m)
				if first == 0 {
					first = m.HeapAlloc
				}
				grown = max(grown, m.HeapAlloc-min(m.HeapAlloc, first))
			}
			if !yield(Entry{Frame: fmt.Sprintf("vol %d/%d.tif", i/100, i), Files: []File{f}}, nil) {
				return
			}
		}
	}
	begun := time.Now()
	r := request(s, "b")
	r.Frames = frames
	result, dir := write(t, r)
	t.Logf("4,000 links in %v, heap grew by %d bytes", time.Since(begun), grown)
	if result.Files != 4000 || grown > 1<<20 {
		t.Errorf("%d files, heap grew by %d bytes", result.Files, grown)
	}
	sha256sum(t, dir)
}
