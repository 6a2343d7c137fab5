package e2e

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

func sum(data []byte) string {
	s := sha256.Sum256(data)
	return hex.EncodeToString(s[:])
}

func sumFile(t testing.TB, path string) string {
	t.Helper()
	f, err := os.Open(path)
	ok(t, err)
	defer f.Close() //nolint:errcheck // only read
	h := sha256.New()
	_, err = io.Copy(h, f)
	ok(t, err)
	return hex.EncodeToString(h.Sum(nil))
}

func (a *archive) path(parts ...string) string {
	return filepath.Join(append([]string{a.dir}, parts...)...)
}

func (a *archive) masterPath(digest string) string {
	return a.path("masters", "sha256", digest[:2], digest[2:4], digest)
}

func (a *archive) derivativePath(digest string) string {
	return a.path("derivatives", "jp2", digest[:2], digest[2:4], digest+".jp2")
}

// files gives the regular files below some areas, by path below the archive.
func (a *archive) files(areas ...string) map[string]fs.FileInfo {
	a.t.Helper()
	out := map[string]fs.FileInfo{}
	for _, area := range areas {
		err := filepath.WalkDir(a.path(area), func(path string, d fs.DirEntry, err error) error {
			if os.IsNotExist(err) {
				return nil
			}
			if err != nil || d.IsDir() {
				return err
			}
			info, err := d.Info()
			rel, _ := filepath.Rel(a.dir, path)
			out[rel] = info
			return err
		})
		ok(a.t, err)
	}
	return out
}

// stored is everything that an ingest may write for good.
var stored = []string{"masters", "derivatives", "batches", "bags", "staging"}

// stamps tells of each stored file whatever a rewrite would change.
func (a *archive) stamps(areas ...string) map[string]string {
	a.t.Helper()
	out := map[string]string{}
	for name, info := range a.files(areas...) {
		st := info.Sys().(*syscall.Stat_t)
		out[name] = fmt.Sprintf("inode %d, %d bytes, mode %v, mtime %d.%d, ctime %d.%d", st.Ino, st.Size, info.Mode(), st.Mtim.Sec, st.Mtim.Nsec, st.Ctim.Sec, st.Ctim.Nsec)
	}
	return out
}

// digests gives the digest of each file below some areas.
func (a *archive) digests(areas ...string) map[string]string {
	a.t.Helper()
	out := map[string]string{}
	for name := range a.files(areas...) {
		out[name] = sumFile(a.t, a.path(name))
	}
	return out
}

// same compares two maps and tells each difference.
func same(t testing.TB, what string, got, want map[string]string) {
	t.Helper()
	for _, k := range slices.Sorted(maps.Keys(want)) {
		if v, there := got[k]; !there {
			t.Errorf("%s: %s is gone", what, k)
		} else if v != want[k] {
			t.Errorf("%s: %s\n  is  %s\n  was %s", what, k, v, want[k])
		}
	}
	for _, k := range slices.Sorted(maps.Keys(got)) {
		if _, there := want[k]; !there {
			t.Errorf("%s: %s is new", what, k)
		}
	}
}

// noStrays demands that nothing temporary is left: no staging of finished
// slots, no temporary name, no scratch.
func (a *archive) noStrays() {
	a.t.Helper()
	for name := range a.files("staging") {
		a.t.Errorf("left in staging: %s", name)
	}
	err := filepath.WalkDir(a.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(a.dir, path)
		if strings.HasPrefix(rel, "bags/") || strings.HasPrefix(rel, "jetstream/") {
			return nil // names of masters; the broker's own
		}
		base := filepath.Base(rel)
		if strings.HasPrefix(base, ".") && rel != "." || strings.Contains(base, ".tmp") || strings.HasSuffix(base, ".part") {
			a.t.Errorf("a stray temporary file: %s", rel)
		}
		if dir := filepath.Dir(rel); (dir == "state/deriver/scratch" || strings.HasPrefix(base, "bag-") && dir == "state/capture") && rel != "state/deriver/scratch" {
			a.t.Errorf("left of scratch: %s", rel)
		}
		return nil
	})
	ok(a.t, err)
}

// master demands that a master is stored whole, for good, under its digest.
func (a *archive) master(data []byte) string {
	a.t.Helper()
	digest := sum(data)
	path := a.masterPath(digest)
	info, err := os.Stat(path)
	if err != nil {
		a.t.Errorf("master %s is not stored: %v", digest, err)
		return digest
	}
	if info.Mode() != 0o444 {
		a.t.Errorf("master %s has mode %v", digest, info.Mode())
	}
	return digest
}

// sha256sum has the masters' names checked by coreutils.
func (a *archive) sha256sum() int {
	a.t.Helper()
	var list strings.Builder
	n := 0
	for name := range a.files("masters") {
		fmt.Fprintf(&list, "%s  %s\n", filepath.Base(name), a.path(name))
		n++
	}
	tool(a.t, a.dir, list.String(), "sha256sum", "--check", "--strict", "--quiet", "-")
	return n
}

// tool runs a judge that is not ours.
func tool(t testing.TB, dir, stdin, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// decodes demands that the reference decoder reads a derivative.
func (a *archive) decodes(digest string) {
	a.t.Helper()
	out := filepath.Join(a.t.TempDir(), "out.pnm")
	path := a.derivativePath(digest)
	if _, err := os.Stat(path); err != nil {
		a.t.Errorf("there is no derivative of %s", digest)
		return
	}
	cmd := exec.Command("opj_decompress", "-i", path, "-o", out)
	if text, err := cmd.CombinedOutput(); err != nil {
		a.t.Errorf("opj_decompress of %s: %v\n%s", digest, err, text)
		return
	}
	if info, err := os.Stat(out); err != nil || info.Size() == 0 {
		a.t.Errorf("opj_decompress of %s wrote nothing: %v", digest, err)
	}
}
