package storage

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
)

func TestWrite(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	key := MasterKey(digestOf("master"))
	w := put(t, s, key, "master")
	if want := (Written{Key: key, Digest: digestOf("master"), Size: 6}); w != want {
		t.Errorf("got %+v, want %+v", w, want)
	}
	info, err := s.Stat(key)
	if err != nil || info.Mode() != 0o444 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if again := put(t, s, key, "master"); !again.Existed || again.Digest != w.Digest {
		t.Errorf("again: %+v", again)
	}
	if got := content(t, s, key); got != "master" {
		t.Errorf("content %q", got)
	}
	noTemporaries(t, s.Path())
}

// TestWriteRefuses: a write that fails leaves nothing, and says why.
func TestWriteRefuses(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken source")
	cancelled, cancel := context.WithCancelCause(t.Context())
	cancel(broken)
	for _, c := range []struct {
		name   string
		ctx    context.Context
		r      io.Reader
		o      Options
		expect func(error) bool
	}{
		{"one byte over the limit", t.Context(), strings.NewReader("12345"), Options{MaxBytes: 4}, is[*TooLargeError]},
		{"other digest", t.Context(), strings.NewReader("12345"), Options{Expect: digestOf("1234")}, is[*DigestError]},
		{"source fails", t.Context(), io.MultiReader(strings.NewReader("123"), iotest.ErrReader(broken)), Options{}, func(err error) bool {
			return is[*SourceError](err) && errors.Is(err, broken)
		}},
		{"source misses", t.Context(), iotest.ErrReader(fs.ErrNotExist), Options{}, func(err error) bool {
			return is[*SourceError](err) && !errors.Is(err, ErrNotExist) && !errors.Is(err, ErrUnavailable)
		}},
		{"source gives nothing", t.Context(), stuck{}, Options{}, func(err error) bool { return errors.Is(err, io.ErrNoProgress) }},
		{"cancelled", cancelled, strings.NewReader("12345"), Options{}, func(err error) bool { return errors.Is(err, broken) && !is[*SourceError](err) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newStore(t)
			_, err := s.Write(c.ctx, "staging/b/f", c.r, c.o)
			if !c.expect(err) {
				t.Errorf("error %v (%T)", err, err)
			}
			if left := files(t, s.Path()); len(left) > 0 {
				t.Errorf("left behind: %q", left)
			}
		})
	}
}

func TestWriteAtTheLimit(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	o := Options{MaxBytes: 5, Expect: digestOf("12345")}
	// Data and end of file in one call is legal for a reader.
	if _, err := s.Write(t.Context(), "staging/b/f", iotest.DataErrReader(strings.NewReader("12345")), o); err != nil {
		t.Error(err)
	}
}

func TestWriteConflict(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	put(t, s, "staging/b/f", "first!")
	for _, other := range []string{"second", "much longer than the first"} {
		_, err := s.Write(t.Context(), "staging/b/f", strings.NewReader(other), Options{})
		var conflict *ConflictError
		if !errors.As(err, &conflict) || conflict.Want != digestOf(other) || conflict.HaveN != 6 {
			t.Errorf("%q: %v", other, err)
		}
	}
	if got := content(t, s, "staging/b/f"); got != "first!" {
		t.Errorf("content %q", got)
	}
	noTemporaries(t, s.Path())
}

// TestRacers: of 32 writers of one key one stores it, and all succeed; and
// with different bytes one succeeds, and 31 learn of it.
func TestRacers(t *testing.T) {
	t.Parallel()
	const n = 32
	data := strings.Repeat("page", 100_000)
	for _, c := range []struct {
		name                    string
		of                      func(i int) string
		first, second, conflict int
	}{
		{"equal bytes", func(int) string { return data }, 1, n - 1, 0},
		{"other bytes", func(i int) string { return data + string(rune('A'+i)) }, 1, 0, n - 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newStore(t)
			var (
				wg                      sync.WaitGroup
				mu                      sync.Mutex
				first, second, conflict int
				start                   = make(chan struct{})
			)
			for i := range n {
				wg.Go(func() {
					<-start
					w, err := s.Write(t.Context(), "masters/sha256/aa/bb/one", strings.NewReader(c.of(i)), Options{})
					mu.Lock()
					defer mu.Unlock()
					switch {
					case is[*ConflictError](err):
						conflict++
					case err != nil:
						t.Error(err)
					case w.Existed:
						second++
					default:
						first++
					}
				})
			}
			close(start)
			wg.Wait()
			if first != c.first || second != c.second || conflict != c.conflict {
				t.Errorf("stored %d, existed %d, conflicts %d", first, second, conflict)
			}
			if got := files(t, s.Path()); len(got) != 1 {
				t.Errorf("files %q", got)
			}
		})
	}
}

func TestWriteNamed(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	name := func(d Digest) string { return StagingName("vol 1/p.tif", 3, d) }
	w, err := s.WriteNamed(t.Context(), StagingFolder("b"), strings.NewReader("page"), name, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if want := StagingKey("b", "vol 1/p.tif", 3, digestOf("page")); w.Key != want || content(t, s, want) != "page" {
		t.Errorf("key %q, want %q", w.Key, want)
	}
	for _, bad := range []string{"", "..", "a/b", ".tmp-a", "../x"} {
		_, err := s.WriteNamed(t.Context(), StagingFolder("b"), strings.NewReader("x"), func(Digest) string { return bad }, Options{})
		if !errors.Is(err, ErrKey) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	noTemporaries(t, s.Path())
}

func TestWriteFile(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	from := filepath.Join(t.TempDir(), "out.jp2")
	if err := os.WriteFile(from, []byte("jp2"), 0o600); err != nil {
		t.Fatal(err)
	}
	key := DerivativeKey("jp2", digestOf("m"), "jp2")
	if _, err := s.WriteFile(t.Context(), from, key, Options{Expect: digestOf("jp2")}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(from, []byte("XXX"), 0o600); err != nil { // the encoder writes on
		t.Fatal(err)
	}
	if got := content(t, s, key); got != "jp2" {
		t.Errorf("content %q", got)
	}
	for _, bad := range []string{from + ".missing", filepath.Dir(from)} {
		if _, err := s.WriteFile(t.Context(), bad, key, Options{}); !is[*SourceError](err) {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

func TestPromote(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	d := digestOf("page")
	staged, master := StagingKey("b", "f", 1, d), MasterKey(d)
	put(t, s, staged, "page")
	promote := func(from string, existed bool) {
		t.Helper()
		w, err := s.Promote(t.Context(), from, master, d)
		if err != nil || w != (Written{Key: master, Digest: d, Size: 4, Existed: existed}) {
			t.Errorf("%+v, %v", w, err)
		}
	}
	promote(staged, false)
	promote(staged, true) // the very file
	equal := StagingKey("b", "g", 1, d)
	put(t, s, equal, "page")
	promote(equal, true) // another file, same bytes
	for _, key := range []string{staged, equal, equal} {
		if err := s.Remove(key); err != nil {
			t.Error(err)
		}
	}
	promote(staged, true) // done before, source gone
	if got := content(t, s, master); got != "page" {
		t.Errorf("content %q", got)
	}
	_, err := s.Promote(t.Context(), staged, MasterKey(digestOf("other")), digestOf("other"))
	if !errors.Is(err, ErrNotExist) || errors.Is(err, ErrUnavailable) {
		t.Errorf("nothing anywhere: %v", err)
	}
}

// TestPromoteOntoDamage: a master whose bytes are not those of its name is
// never taken for stored, nor overwritten.
func TestPromoteOntoDamage(t *testing.T) {
	t.Parallel()
	for _, damaged := range []string{"PAGE", "short", ""} {
		s := newStore(t)
		d := digestOf("page")
		staged := StagingKey("b", "f", 1, d)
		put(t, s, staged, "page")
		put(t, s, MasterKey(d), damaged)
		if _, err := s.Promote(t.Context(), staged, MasterKey(d), d); !is[*ConflictError](err) {
			t.Errorf("%q: %v", damaged, err)
		}
		if err := s.Remove(staged); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Promote(t.Context(), staged, MasterKey(d), d); !is[*ConflictError](err) {
			t.Errorf("%q, source gone: %v", damaged, err)
		}
		if got := content(t, s, MasterKey(d)); got != damaged {
			t.Errorf("content %q", got)
		}
	}
}

func TestReplace(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	key := ManifestKey("b")
	for _, data := range []string{"one", "two", ""} {
		if _, err := s.ReplaceFile(t.Context(), key, []byte(data)); err != nil {
			t.Fatal(err)
		}
		if got := content(t, s, key); got != data {
			t.Errorf("content %q, want %q", got, data)
		}
	}
	noTemporaries(t, s.Path())
}

// TestFolderRemovedMeanwhile: a folder the store remembers as durable and
// somebody removed is made again.
func TestFolderRemovedMeanwhile(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	put(t, s, "staging/b/f", "x")
	if err := os.RemoveAll(filepath.Join(s.Path(), "staging")); err != nil {
		t.Fatal(err)
	}
	put(t, s, "staging/b/f", "x")
}

func TestVanished(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	d := digestOf("page")
	put(t, s, StagingKey("b", "f", 1, d), "page")
	if err := os.RemoveAll(s.Path()); err != nil {
		t.Fatal(err)
	}
	_, open := s.Open(StagingKey("b", "f", 1, d))
	_, write := s.Write(t.Context(), "staging/b/g", strings.NewReader("x"), Options{})
	_, promote := s.Promote(t.Context(), StagingKey("b", "f", 1, d), MasterKey(d), d)
	_, replace := s.ReplaceFile(t.Context(), "batches/b.json", nil)
	_, sweep := s.SweepTemp(t.Context())
	_, missing := OpenReadOnly(s.Path())
	for name, err := range map[string]error{
		"check": s.Check(), "open": open, "write": write, "promote": promote, "replace": replace,
		"remove": s.Remove(StagingKey("b", "f", 1, d)), "sweep": sweep, "open read-only": missing,
	} {
		if !errors.Is(err, ErrUnavailable) || errors.Is(err, ErrNotExist) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestReadOnlyStore(t *testing.T) {
	t.Parallel()
	w := newStore(t)
	put(t, w, "staging/b/f", "x")
	s, err := OpenReadOnly(w.Path())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close() //nolint:errcheck // a test's end
	if content(t, s, "staging/b/f") != "x" {
		t.Error("cannot read")
	}
	_, write := s.Write(t.Context(), "staging/b/g", strings.NewReader("x"), Options{})
	_, promote := s.Promote(t.Context(), "staging/b/f", MasterKey(digestOf("x")), digestOf("x"))
	_, replace := s.ReplaceFile(t.Context(), "batches/b.json", nil)
	_, tree := s.NewTree("bags/b")
	_, sweep := s.SweepTemp(t.Context())
	for name, err := range map[string]error{
		"write": write, "promote": promote, "replace": replace, "tree": tree, "sweep": sweep, "remove": s.Remove("staging/b/f"), "check": s.Check(),
	} {
		if !errors.Is(err, ErrReadOnly) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestList(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	want := map[string]bool{}
	for i := range 700 { // more than one chunk
		key := StagingKey("b", numbered(i), 1, digestOf("x"))
		put(t, s, key, "x")
		want[key] = true
	}
	for _, key := range listed(t, s, "staging") {
		if !want[key] {
			t.Errorf("extra %q", key)
		}
		delete(want, key)
	}
	if len(want) > 0 {
		t.Errorf("missing %d", len(want))
	}
	if got := listed(t, s, "staging/none"); len(got) > 0 {
		t.Errorf("missing folder: %q", got)
	}
	for range s.List(t.Context(), "staging") {
		break // the consumer may stop
	}
	for _, err := range s.List(t.Context(), "..") {
		if !errors.Is(err, ErrKey) {
			t.Error(err)
		}
	}
}

// is reports whether err is, or wraps, an E.
func is[E error](err error) bool {
	var e E
	return errors.As(err, &e)
}

type stuck struct{}

func (stuck) Read([]byte) (int, error) { return 0, nil }
