package storage

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

func parts(pairs ...string) []Part {
	var list []Part
	for i := 0; i < len(pairs); i += 2 {
		list = append(list, Part{Name: pairs[i], Open: func() (io.ReadCloser, error) {
			return io.NopCloser(strings.NewReader(pairs[i+1])), nil
		}})
	}
	return list
}

func TestWriteDir(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	key := DerivativeKey("jp2", digestOf("m"), "")
	pages := parts("0001.jp2", "one", "0002.jp2", "two")
	w, existed, err := s.WriteDir(t.Context(), key, pages, Options{})
	if err != nil || existed || len(w) != 2 || w[1].Digest != digestOf("two") || w[1].Key != key+"/0002.jp2" {
		t.Fatalf("%+v %v %v", w, existed, err)
	}
	if w, existed, err = s.WriteDir(t.Context(), key, pages, Options{}); err != nil || !existed || len(w) != 2 {
		t.Errorf("again: %+v %v %v", w, existed, err)
	}
	for name, other := range map[string][]Part{
		"other bytes": parts("0001.jp2", "one", "0002.jp2", "TWO"),
		"a page less": parts("0001.jp2", "one"),
		"a page more": parts("0001.jp2", "one", "0002.jp2", "two", "0003.jp2", "three"),
	} {
		if _, _, err := s.WriteDir(t.Context(), key, other, Options{}); !is[*ConflictError](err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, bad := range map[string][]Part{
		"none": nil, "a path": parts("a/b", ""), "parent": parts("..", ""), "twice": parts("a", "", "a", ""), "temporary": parts(".tmp-a", ""),
	} {
		if _, _, err := s.WriteDir(t.Context(), DerivativeKey("jp2", digestOf(name), ""), bad, Options{}); err == nil {
			t.Errorf("%s: stored", name)
		}
	}
	if got := files(t, s.Path()); len(got) != 2 {
		t.Errorf("files %q", got)
	}
}

func TestWriteDirRacers(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	key := DerivativeKey("jp2", digestOf("m"), "")
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		first int
	)
	for range 32 {
		wg.Go(func() {
			_, existed, err := s.WriteDir(t.Context(), key, parts("1", "one", "2", "two"), Options{})
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Error(err)
			} else if !existed {
				first++
			}
		})
	}
	wg.Wait()
	if got := files(t, s.Path()); first != 1 || len(got) != 2 {
		t.Errorf("%d first, files %q", first, got)
	}
}

// build makes a tree with a linked file, a written one and a streamed one.
func build(t testing.TB, s *Store, key, mark string) *Tree {
	t.Helper()
	master := "masters/sha256/aa/bb/m"
	put(t, s, master, "master")
	tree, err := s.NewTree(key)
	if err != nil {
		t.Fatal(err)
	}
	if linked, err := tree.Link(t.Context(), master, "data/masters/vol 1/..x\n", digestOf("master")); err != nil || !linked {
		t.Fatal(linked, err)
	}
	if _, err := tree.Write(t.Context(), "mark", strings.NewReader(mark), Options{}); err != nil {
		t.Fatal(err)
	}
	f, err := tree.Create("data/.tmp-stream")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(f, "stream"); err != nil {
		t.Fatal(err)
	}
	if w, err := f.Close(); err != nil || w.Digest != digestOf("stream") || w.Size != 6 {
		t.Fatal(w, err)
	}
	return tree
}

func TestTreeReplace(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	var old *os.File
	for _, mark := range []string{"one", "two", "three"} {
		tree := build(t, s, "bags/b", mark)
		if err := tree.Replace(t.Context()); err != nil {
			t.Fatal(err)
		}
		tree.Abort() // does nothing any more
		if got := content(t, s, "bags/b/mark"); got != mark {
			t.Errorf("mark %q, want %q", got, mark)
		}
		if old == nil {
			f, err := s.Open("bags/b/mark")
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close() //nolint:errcheck // only read from
			old = f
		}
	}
	if data, err := io.ReadAll(old); err != nil || string(data) != "one" {
		t.Errorf("a reader of the first tree has %q, %v", data, err)
	}
	want := 5 // the payload called .tmp-stream is counted once: it is no folder
	if got := files(t, s.Path()); len(got) != want-1 {
		t.Errorf("files %q", got)
	}
	// A payload file may be called like a temporary one: no sweep touches it.
	if n, err := s.SweepTemp(t.Context()); n != 0 || err != nil {
		t.Errorf("swept %d, %v", n, err)
	}
	if got := len(listed(t, s, "bags")); got != 3 {
		t.Errorf("listed %d", got)
	}
	mine, err := s.Stat("masters/sha256/aa/bb/m")
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := os.Stat(filepath.Join(s.Path(), "bags", "b", "data", "masters", "vol 1", "..x\n"))
	if err != nil || !os.SameFile(mine, theirs) {
		t.Errorf("not a hard link: %v", err)
	}
}

func TestTreeAbort(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	tree := build(t, s, "bags/b", "x")
	if n, err := s.SweepTemp(t.Context()); n != 0 || err != nil {
		t.Errorf("a live tree was swept: %d, %v", n, err)
	}
	tree.Abort()
	if got := files(t, s.Path()); len(got) != 1 {
		t.Errorf("files %q", got)
	}
}

func TestTreeRefuses(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	tree := build(t, s, "bags/b", "x")
	defer tree.Abort()
	for _, name := range []string{"", "/a", "../a", "a/../b", "a//b", "a\x00", strings.Repeat("x", 256)} {
		if _, err := tree.Write(t.Context(), name, strings.NewReader(""), Options{}); !errors.Is(err, ErrKey) {
			t.Errorf("%q: %v", name, err)
		}
	}
	if _, err := tree.Write(t.Context(), "mark", strings.NewReader(""), Options{}); !errors.Is(err, ErrExist) {
		t.Errorf("a name twice: %v", err)
	}
	if _, err := tree.Create("mark/below"); !errors.Is(err, ErrExist) {
		t.Errorf("a folder where a file is: %v", err)
	}
	for _, name := range []string{"none", "mark/below"} {
		if _, err := tree.Stat(name); !errors.Is(err, ErrNotExist) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if info, err := tree.Stat("data/.tmp-stream"); err != nil || info.Size() != 6 {
		t.Errorf("stat: %v, %v", info, err)
	}
	if _, err := tree.Create("data"); !errors.Is(err, ErrExist) {
		t.Errorf("a file where a folder is: %v", err)
	}
	if _, err := tree.Link(t.Context(), MasterKey(digestOf("none")), "n", ""); !errors.Is(err, ErrNotExist) {
		t.Errorf("link to nothing: %v", err)
	}
	if _, err := s.NewTree("bags/b/data"); !errors.Is(err, ErrKey) {
		t.Errorf("inside a bag: %v", err)
	}
	other, err := s.NewTree("masters/sha256/x")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Abort()
	if err := other.Replace(t.Context()); !errors.Is(err, ErrKey) {
		t.Errorf("masters replaced: %v", err)
	}
}

func TestTreeReplaceTogether(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	var wg sync.WaitGroup
	for i := range 16 {
		tree := build(t, s, "bags/b", numbered(i))
		wg.Go(func() {
			if err := tree.Replace(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if got := files(t, s.Path()); len(got) != 4 {
		t.Errorf("files %q", got)
	}
}
