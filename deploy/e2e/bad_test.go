package e2e

import (
	"encoding/binary"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// good are the pages that stand beside every bad file: they must be done.
var good = []frame{{"a.tif", tiffPage(1)}, {"z.png", pngPage(2)}}

// TestBadFiles takes folders in that hold one thing that cannot be taken: it
// has a named error, everything else is done, and once it is repaired the batch
// converges.
func TestBadFiles(t *testing.T) {
	t.Parallel()
	page := tiffPage(7)
	damage := func(data []byte) func(t *testing.T, path string) {
		return func(t *testing.T, path string) { put(t, filepath.Dir(path), filepath.Base(path), data) }
	}
	for _, c := range []struct {
		name, operation, code string
		make                  func(t *testing.T, path string)
	}{
		{"dangling link", "capture", "source-missing", func(t *testing.T, path string) { ok(t, os.Symlink("nowhere.tif", path)) }},
		{"link out of the root", "capture", "path-refused", func(t *testing.T, path string) {
			ok(t, os.Symlink(put(t, tempDir(t), "outside.tif", page), path))
		}},
		{"relative link out of the root", "capture", "path-refused", func(t *testing.T, path string) {
			out := put(t, filepath.Join(filepath.Dir(path), "..", "beside"), "outside.tif", page)
			rel, err := filepath.Rel(filepath.Dir(path), out)
			ok(t, err)
			ok(t, os.Symlink(rel, path))
		}},
		{"link to itself", "capture", "source-unreadable", func(t *testing.T, path string) { ok(t, os.Symlink("p.tif", path)) }},
		{"folder", "capture", "source-not-a-file", func(t *testing.T, path string) { ok(t, os.Mkdir(path, 0o755)) }},
		{"named pipe", "capture", "source-not-a-file", func(t *testing.T, path string) { ok(t, syscall.Mkfifo(path, 0o644)) }},
		{"socket", "capture", "source-not-a-file", func(t *testing.T, path string) {
			ok(t, syscall.Mknod(path, syscall.S_IFSOCK|0o644, 0))
		}},
		{"zero bytes", "capture", "empty", damage(nil)},
		{"text", "derivative:jp2", "format-mismatch", damage([]byte("this is no image, though its name says so\n"))},
		{"JPEG called tif", "derivative:jp2", "format-mismatch", damage(jpegPage(7))},
		{"cut off", "derivative:jp2", "truncated", damage(page[:len(page)*6/10])},
		{"one byte", "derivative:jp2", "", damage([]byte("I"))},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			a := newArchive(t)
			dir := filepath.Join(tempDir(t), "vol")
			putAll(t, dir, good)
			path := filepath.Join(dir, "p.tif")
			c.make(t, path)
			o := a.ingest(dir).status(3).counts(3, 2, 0, 1)
			got := o.cases()
			if code, there := got["p.tif "+c.operation]; len(got) != 1 || !there || code == "" || c.code != "" && code != c.code {
				t.Errorf("the cases are %v, want %s of %s", got, c.code, c.operation)
			}
			checkLines(t, o)
			for _, f := range good {
				a.decodes(a.master(f.data))
			}
			if st := a.manifest("vol"); st.State != "settled" || st.Totals.Done != 2 || st.Totals.Failed != 1 {
				t.Errorf("the manifest says %s, %+v", st.State, st.Totals)
			}
			ok(t, os.RemoveAll(path))
			put(t, dir, "p.tif", page)
			a.ingest(dir).converged(3).counts(1, 1, 2, 0)
			a.bag("vol")
			a.noStrays()
			a.verify(0)
		})
	}
}

// TestBadFolders: what is wrong before anything begins is said, and nothing is
// created.
func TestBadFolders(t *testing.T) {
	t.Parallel()
	a := newArchive(t)
	base := tempDir(t)
	ok(t, os.Mkdir(filepath.Join(base, "empty"), 0o755))
	put(t, base, "sidecars/notes.txt", []byte("no master"))
	put(t, base, "a file.tif", tiffPage(1))
	for _, c := range []struct {
		dir  string
		code int
		says string
	}{
		{"missing", 2, "is not there"}, {"a file.tif", 2, "is not a folder"}, {"empty", 1, "holds no masters"}, {"sidecars", 1, "holds no masters"},
	} {
		o := a.run("--json", "ingest", filepath.Join(base, c.dir)).status(c.code)
		if !strings.Contains(o.text+o.stdout, c.says) {
			t.Errorf("%s: nothing says %q:\n%s", c.dir, c.says, o.text)
		}
		if _, err := os.Stat(a.dir); err == nil {
			t.Errorf("%s: an archive was created", c.dir)
		}
	}
}

// odd are names that a folder may hold and that nothing may stumble over.
func odd() []frame {
	names := []string{
		"with spaces  and more.tif", "new\nline.tif", "carriage\rreturn.tif", "tab\t.tif", "-leading dash.tif", "--json.tif", "%41.tif", "per%0Acent.tif",
		"quote\"'`$(x).tif", "star*?[a].tif", "A.tif", "a.tif", "caf\u00e9.tif", "cafe\u0301.tif", "latin1 \xe9.tif", "\xff\xfe.tif", "~tilde.tif", "back\\slash.tif",
		"sub dir \xe9/-x.tif", "Ω/日本語/頁.tif", "a:b|c<d>.tif", "#1;&.tif", "=1+1.tif", "con.tif", strings.Repeat("n", 251) + ".tif",
		strings.Repeat("d", 255) + "/" + strings.Repeat("é", 125) + "x.tif", "x.tif.tif", "1.jpg.tif", "data/masters/../n.tif", "trailing .tif", " leading.tif", "dots....tif",
	}
	var out []frame
	for i, n := range names {
		out = append(out, frame{filepath.Clean(n), tiffPage(uint64(300 + i))})
	}
	return out
}

func TestOddNames(t *testing.T) {
	t.Parallel()
	for _, folder := range []string{"Vol. 142 (Smith)", "-batch", "b\xe9\n%.*>", strings.Repeat("v", 255)} {
		t.Run(event(folder), func(t *testing.T) {
			t.Parallel()
			a := newArchive(t)
			dir := filepath.Join(tempDir(t), folder)
			frames := odd()
			if folder != "Vol. 142 (Smith)" {
				frames = frames[:3]
			}
			putAll(t, dir, frames)
			a.ingest(dir).converged(len(frames)).counts(len(frames), len(frames), 0, 0)
			a.judge(folder, frames)
			a.ingest(dir).converged(len(frames)).counts(0, 0, len(frames), 0)
			var st struct{ Converged bool }
			a.run("--json", "status", "--", folder).status(0).last(&st)
			if !st.Converged {
				t.Error("status does not say converged")
			}
			seen := map[string]bool{}
			for _, f := range a.manifest(folder).Frames {
				seen[frameName(t, f.Frame)] = true
			}
			for _, f := range frames {
				if !seen[f.name] {
					t.Errorf("the manifest lacks %q", f.name)
				}
			}
		})
	}
}

// event makes a test's name of any bytes.
func event(folder string) string { return encode(folder)[:min(40, len(encode(folder)))] }

// TestOddNamesFail: a failed frame with an odd name is found, shown and decided
// by its name.
func TestOddNamesFail(t *testing.T) {
	t.Parallel()
	a := newArchive(t)
	dir := filepath.Join(tempDir(t), "vol")
	putAll(t, dir, good)
	for _, n := range []string{"new\nline.tif", "latin1 \xe9.tif", strings.Repeat("n", 251) + ".tif"} {
		put(t, dir, n, nil)
	}
	o := a.ingest(dir).status(3).counts(5, 2, 0, 3)
	for _, n := range []string{"new\nline.tif", "latin1 \xe9.tif", strings.Repeat("n", 251) + ".tif"} {
		if o.cases()[n+" capture"] != "empty" {
			t.Errorf("%q: %v", n, o.cases())
		}
	}
	var list struct {
		Cases []struct {
			ID string `json:"id"`
		} `json:"cases"`
	}
	a.run("--json", "case", "list").status(0).last(&list)
	if len(list.Cases) != 3 {
		t.Fatalf("%d cases", len(list.Cases))
	}
	for _, c := range list.Cases {
		a.run("--json", "case", "show", "--", c.ID).status(0)
		a.run("--json", "case", "discard", "--note", "not wanted", "--", c.ID).status(0)
	}
	a.ingest(dir).status(0)
	a.bag("vol")
	a.verify(0)
}

// TestRemovedWhileRunning: a file that is gone when its turn comes.
func TestRemovedWhileRunning(t *testing.T) {
	t.Parallel()
	a := newArchive(t)
	dir := filepath.Join(tempDir(t), "vol")
	putAll(t, dir, good)
	path := put(t, dir, "p.tif", tiffPage(7))
	// A file touched a moment ago is waited for: time to take it away.
	ok(t, os.Chtimes(path, time.Now(), time.Now()))
	p := a.startIngest(dir)
	if !p.waitFor(message("idempotent_recorded", "capture", "frame_id", "z.png")) {
		t.Fatal(p.wait().stdout)
	}
	ok(t, os.Remove(path))
	o := p.wait().parsed().status(3).counts(3, 2, 0, 1)
	if o.cases()["p.tif capture"] != "source-missing" {
		t.Errorf("the cases are %v", o.cases())
	}
	// Run again without it: it is not forgotten.
	if o = a.ingest(dir).status(3); len(o.cases()) != 1 {
		t.Errorf("the missing page is forgotten: %s", o.stdout)
	}
	put(t, dir, "p.tif", tiffPage(7))
	a.ingest(dir).converged(3).counts(1, 1, 2, 0)
	a.verify(0)
}

// TestDoneAndGone: a page that is done and whose file is gone, or is no file
// any more, stays done; nothing hangs on it.
func TestDoneAndGone(t *testing.T) {
	t.Parallel()
	a := newArchive(t)
	dir := filepath.Join(tempDir(t), "vol")
	putAll(t, dir, good)
	path := put(t, dir, "p.tif", tiffPage(7))
	a.ingest(dir).converged(3)
	before := a.digests("masters", "derivatives")
	ok(t, os.Remove(path))
	a.ingest(dir).status(0).counts(0, 0, 2, 0)
	ok(t, syscall.Mkfifo(path, 0o644))
	o := a.startIngest(dir).waitWithin(30 * time.Second).parsed().converged(3)
	if told := o.logged("dead_letter"); len(told) != 1 || told[0].str("code") != "source-not-a-file" {
		t.Errorf("a pipe in the place of a done page is not told: %v", told)
	}
	if len(o.json.Unread) != 1 || frameName(t, o.json.Unread[0].Frame) != "p.tif" || o.json.Unread[0].Code != "source-not-a-file" || len(o.logged("done_source_unread")) != 1 {
		t.Errorf("the result does not name the page that cannot be read again: %s", o.stdout)
	}
	if text := a.run("ingest", dir).status(0).stdout; !strings.Contains(text, "p.tif  is done and stays as it is") {
		t.Errorf("nobody is told that a page cannot be read again: %s", text)
	}
	ok(t, os.Remove(path))
	put(t, dir, "p.tif", tiffPage(7))
	if o = a.ingest(dir).converged(3); len(o.json.Unread) != 0 {
		t.Errorf("a page that is there again is told of: %s", o.stdout)
	}
	same(t, "bytes", a.digests("masters", "derivatives"), before)
	a.verify(0)
}

// TestUnprivileged: a reader that may not read a file. As root the test runs
// the program as another user; it never changes what root may read.
func TestUnprivileged(t *testing.T) {
	t.Parallel()
	base := tempDir(t)
	dir := filepath.Join(base, "vol")
	putAll(t, dir, good)
	path := put(t, dir, "p.tif", tiffPage(7))
	ok(t, os.Chmod(path, 0o000)) // its owner is not the program's user below
	a := newArchive(t)
	ok(t, os.Mkdir(a.dir, 0o755))
	if os.Getuid() == 0 {
		ok(t, os.Chown(a.dir, 65534, 65534))
		a.attr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}, Pdeathsig: syscall.SIGKILL}
	}
	o := a.ingest(dir).status(3).counts(3, 2, 0, 1)
	if o.cases()["p.tif capture"] != "source-unreadable" {
		t.Errorf("the cases are %v", o.cases())
	}
	ok(t, os.Chmod(path, 0o644))
	a.ingest(dir).converged(3).counts(1, 1, 2, 0)
}

// TestSourceGrows: a file that is still being written is waited for.
func TestSourceGrows(t *testing.T) {
	t.Parallel()
	a := newArchive(t)
	dir := filepath.Join(tempDir(t), "vol")
	putAll(t, dir, good)
	whole := tiffPage(7)
	path := put(t, dir, "p.tif", whole[:500])
	ok(t, os.Chtimes(path, time.Now(), time.Now()))
	p := a.startIngest(dir)
	if !p.waitFor(message("idempotent_recorded", "capture", "frame_id", "z.png")) {
		t.Fatal(p.wait().stdout)
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	ok(t, err)
	_, err = f.Write(whole[500:])
	ok(t, err)
	ok(t, f.Close())
	p.wait().parsed().converged(3)
	a.master(whole)
	a.verify(0)
}

// TestLyingHeaders: sizes that a header only claims cost nothing.
func TestLyingHeaders(t *testing.T) {
	t.Parallel()
	a := newArchive(t)
	dir := filepath.Join(tempDir(t), "vol")
	putAll(t, dir, good)
	put(t, dir, "huge.tif", tiffHead(1<<31-1, 1<<31-1, 1<<30, make([]byte, 64)))
	put(t, dir, "wide.tif", bareTIFF(1<<20, 1<<20, make([]byte, 64)))
	ihdr := pngPage(3)
	binary.BigEndian.PutUint32(ihdr[16:], 1<<30)
	put(t, dir, "huge.png", ihdr)
	o := a.ingest(dir).status(3).counts(5, 2, 0, 3)
	if len(o.cases()) != 3 {
		t.Errorf("the cases are %v", o.cases())
	}
	t.Log(o.cases())
}

// TestJSONName: names in JSON are told apart from their encoding.
func TestJSONName(t *testing.T) {
	t.Parallel()
	a := newArchive(t)
	dir := filepath.Join(tempDir(t), "vol")
	put(t, dir, "latin1 \xe9.tif", nil)
	put(t, dir, "latin1 %E9.tif", nil)
	o := a.ingest(dir).status(3)
	var raw struct {
		Cases []struct{ Frame json.RawMessage }
	}
	o.last(&raw)
	got := map[string]bool{}
	for _, c := range raw.Cases {
		got[string(c.Frame)] = true
	}
	for _, want := range []string{`"latin1 %E9.tif"`, `{"percent_encoded":"latin1%20%E9%2Etif"}`} {
		if !got[want] {
			t.Errorf("%s is not among %v", want, got)
		}
	}
}
