package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestServeGoesOn: frames that a killed ingest left are finished by a line that
// is started without a word about their folder. One that is told to read
// elsewhere stays there, and says what it will refuse.
func TestServeGoesOn(t *testing.T) {
	t.Parallel()
	for _, told := range []bool{false, true} {
		t.Run(map[bool]string{false: "known", true: "told"}[told], func(t *testing.T) {
			t.Parallel()
			a := newArchive(t)
			dir := filepath.Join(tempDir(t), "vol \xe9") // a name that is no UTF-8
			putAll(t, dir, good)
			ok(t, os.Chtimes(put(t, dir, "m.tif", tiffPage(3)), time.Now(), time.Now().Add(4*time.Second))) // waited for
			p := a.startIngest(dir, "--batch", "vol")
			if !p.waitFor(message("idempotent_recorded", "capture", "frame_id", "z.png")) {
				t.Fatal(p.wait().stdout)
			}
			p.kill()
			args := []string{}
			if told {
				args = []string{"--root", tempDir(t)}
			}
			p = a.serve(args...)
			want, warned := 0, 0
			if told {
				want, warned = 3, 1
			}
			if code := a.settledIs("vol"); code != want {
				t.Errorf("exit status %d", code)
			}
			if n := len(p.linesOf("root_not_given")); n != warned {
				t.Errorf("%d warnings of what will be refused", n)
			}
			p.signal(syscall.SIGTERM)
			p.wait().status(0)
			a.ingest(dir, "--batch", "vol").converged(3)
			a.verify(0)
		})
	}
}

// TestExportWhole: an export that fails leaves nothing; one that does not is
// there whole, and replaces an earlier one.
func TestExportWhole(t *testing.T) {
	t.Parallel()
	a := newArchive(t)
	dir := filepath.Join(tempDir(t), "vol")
	putAll(t, dir, good)
	put(t, dir, "cut.tif", tiffPage(7)[:900])
	a.ingest(dir).status(3)
	out := tempDir(t)
	empty := func(what string) {
		t.Helper()
		if left, _ := os.ReadDir(out); len(left) != 0 {
			t.Errorf("%s left %v", what, left)
		}
	}
	a.run("export", "--out", out, "bag", "vol").status(1) // it has none
	empty("an export of no bag")
	a.run("export", "--out", out, "tsv", sum(tiffPage(1))).status(2)
	a.run("export", "--out", out, "premis", "nosuch").status(2)
	empty("wrong usage")
	ok(t, os.Mkdir(filepath.Join(out, "events.tsv"), 0o755)) // in the way of the first file
	ok(t, os.WriteFile(filepath.Join(out, "events.tsv", "x"), nil, 0o600))
	a.run("export", "--out", out, "tsv", "vol").status(1)
	if left, _ := os.ReadDir(out); len(left) != 1 {
		t.Errorf("a failed export left %v", left)
	}
	ok(t, os.RemoveAll(filepath.Join(out, "events.tsv")))
	for range 2 {
		a.run("export", "--out", out, "tsv", "vol").status(0)
		if names, _ := filepath.Glob(filepath.Join(out, "*")); len(names) != 2 {
			t.Errorf("the export is %v", names)
		}
	}
	put(t, dir, "cut.tif", tiffPage(7))
	a.ingest(dir).converged(3)
	a.run("export", "--out", out, "bag", "vol").status(0)
	if text := readFile(t, filepath.Join(out, "vol", "bagit.txt")); !strings.HasPrefix(text, "BagIt-Version") {
		t.Errorf("the bag's declaration is %q", text)
	}
	a.run("export", "--out", out, "bag", "vol").status(1) // it is there
	hidden, _ := filepath.Glob(filepath.Join(out, ".*"))
	if len(hidden) != 0 {
		t.Errorf("left: %v", hidden)
	}
}
