package storage

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestKindOf(t *testing.T) {
	t.Parallel()
	for errno, want := range map[unix.Errno]error{
		unix.ENOSPC: ErrFull, unix.EDQUOT: ErrFull, unix.EROFS: ErrReadOnly, unix.EACCES: ErrReadOnly, unix.EIO: ErrUnavailable,
		unix.ESTALE: ErrUnavailable, unix.ENOENT: ErrNotExist, unix.EINVAL: nil, unix.EMFILE: nil,
	} {
		err := failure("write", "k", fmt.Errorf("wrapped: %w", &fs.PathError{Op: "open", Path: "p", Err: errno}))
		for _, kind := range []error{ErrFull, ErrReadOnly, ErrUnavailable, ErrNotExist} {
			if errors.Is(err, kind) != (kind == want) {
				t.Errorf("%v: is %v: %v", errno, kind, errors.Is(err, kind))
			}
		}
		if !errors.Is(err, errno) {
			t.Errorf("%v: the cause is lost: %v", errno, err)
		}
	}
}

func TestLowWater(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	if got := s.LowWater(); got != 1<<30 {
		t.Errorf("small masters: %d", got)
	}
	s.Expect(3 << 30)
	s.Expect(1)
	if got := s.LowWater(); got != 6<<30 {
		t.Errorf("a master of 3 GiB: %d", got)
	}
	free, err := s.Free()
	if err != nil || free == 0 {
		t.Fatal(free, err)
	}
	if err := newStore(t, WithLowWater(1)).CheckSpace(); err != nil {
		t.Error(err)
	}
	if err := newStore(t, WithLowWater(1<<62)).CheckSpace(); !errors.Is(err, ErrFull) {
		t.Errorf("below the mark: %v", err)
	}
	gone := newStore(t, WithLowWater(1))
	if err := os.Rename(gone.Path(), gone.Path()+" away"); err != nil {
		t.Fatal(err)
	}
	if err := gone.CheckSpace(); !errors.Is(err, ErrUnavailable) {
		t.Errorf("an archive that is gone: %v", err)
	}
	if err := os.Rename(gone.Path()+" away", gone.Path()); err != nil {
		t.Fatal(err)
	}
	if err := gone.CheckSpace(); err != nil {
		t.Error(err)
	}
}

// TestFullDisk fills a real file system of 1 MiB. It must name the fault, leave
// nothing behind, keep what was stored, and work again when there is space.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Logf("NOT TESTED HERE: a full disk and a read-only one need root and mount(2): %v", err)
		return
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	s, err := Open(dir + "/archive")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close() //nolint:errcheck // a test's end
	put(t, s, "staging/b/small", "small")
	if _, err := s.ReplaceFile(t.Context(), "batches/b.json", []byte("old")); err != nil {
		t.Fatal(err)
	}
	big := func() io.Reader { return io.LimitReader(zeros{}, 2<<20) }
	_, write := s.Write(t.Context(), "staging/b/big", big(), Options{})
	_, replace := s.Replace(t.Context(), "batches/b.json", big(), Options{})
	_, _, folder := s.WriteDir(t.Context(), "derivatives/jp2/aa/bb/x", []Part{{Name: "1", Open: func() (io.ReadCloser, error) { return io.NopCloser(big()), nil }}}, Options{})
	for name, err := range map[string]error{"write": write, "replace": replace, "folder": folder} {
		if !errors.Is(err, ErrFull) || is[*SourceError](err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	noTemporaries(t, s.Path())
	if content(t, s, "staging/b/small") != "small" || content(t, s, "batches/b.json") != "old" {
		t.Error("what was stored is not what is there")
	}
	put(t, s, "staging/b/next", "there is space again")

	if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, "size=1m"); err != nil {
		t.Fatal(err)
	}
	_, write = s.Write(t.Context(), "staging/b/more", strings.NewReader("x"), Options{})
	_, promote := s.Promote(t.Context(), "staging/b/small", MasterKey(digestOf("small")), digestOf("small"))
	for name, err := range map[string]error{"write": write, "promote": promote, "check": s.Check(), "remove": s.Remove("staging/b/small")} {
		if !errors.Is(err, ErrReadOnly) {
			t.Errorf("read-only: %s: %v", name, err)
		}
	}
	if content(t, s, "staging/b/small") != "small" {
		t.Error("cannot read a read-only archive")
	}
}

// TestOpenRefusesAFile: an archive is a folder.
func TestOpenRefusesAFile(t *testing.T) {
	t.Parallel()
	path := t.TempDir() + "/file"
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, root := range []string{path, path + "/below"} {
		if s, err := Open(root); err == nil {
			t.Errorf("%s: opened %v", root, s)
		}
	}
}

// TestLinkAcrossDevices: where no hard link can be made, a tree holds a copy,
// checked against its digest.
func TestLinkAcrossDevices(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	put(t, s, "masters/sha256/aa/bb/m", "master")
	bags := s.Path() + "/bags"
	if err := unix.Mount("tmpfs", bags, "tmpfs", 0, "size=1m"); err != nil {
		t.Logf("NOT TESTED HERE: a copy across devices needs root and mount(2): %v", err)
		return
	}
	t.Cleanup(func() {
		if err := unix.Unmount(bags, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	for range 2 {
		tree, err := s.NewTree("bags/b")
		if err != nil {
			t.Fatal(err)
		}
		defer tree.Abort()
		if _, err := tree.Link(t.Context(), "masters/sha256/aa/bb/m", "bad", digestOf("other")); !is[*DigestError](err) {
			t.Errorf("a damaged object was copied: %v", err)
		}
		tree.Abort()
		if tree, err = s.NewTree("bags/b"); err != nil {
			t.Fatal(err)
		}
		defer tree.Abort()
		if linked, err := tree.Link(t.Context(), "masters/sha256/aa/bb/m", "data/m", digestOf("master")); err != nil || linked {
			t.Errorf("linked %v, %v", linked, err)
		}
		if err := tree.Replace(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if content(t, s, "bags/b/data/m") != "master" {
		t.Error("not the master's bytes")
	}
	noTemporaries(t, s.Path())
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}
