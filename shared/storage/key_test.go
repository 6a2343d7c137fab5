package storage

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

func TestComponent(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a", 201)
	for _, c := range []struct{ name, in, want string }{
		{"plain stays", "vol_1-A", "vol_1-A"},
		{"dot and space", "p 001.tif", "p%20001%2Etif"},
		{"slash", "vol 1/p.tif", "vol%201%2Fp%2Etif"},
		{"parent", "..", "%2E%2E"},
		{"parentheses", "Vol. 142 (Smith)", "Vol%2E%20142%20%28Smith%29"},
		{"percent", "100%.tif", "100%25%2Etif"},
		{"newline and nul", "a\nb\x00", "a%0Ab%00"},
		{"not UTF-8", "caf\xe9", "caf%E9"},
		{"NFC", "é", "%C3%A9"},
		{"NFD", "e\u0301", "e%CC%81"},
		{"empty", "", ""},
		{"200 bytes stay", long[:200], long[:200]},
		{"201 bytes are shortened", long, long[:160] + "~51b59a6e8f2c5b7c"},
		{"the extension is last", strings.Repeat("b", 250) + ".tif", strings.Repeat("b", 160) + "~"},
	} {
		got := Component(c.in)
		if len(c.in) > 200 { // the digest itself is pinned below
			if !strings.HasPrefix(got, c.want[:161]) {
				t.Errorf("%s: %q", c.name, got)
			}
			continue
		}
		if got != c.want {
			t.Errorf("%s: Component(%q) = %q, want %q", c.name, c.in, got, c.want)
		}
	}
	// sha256sum of 201 times "a"; and of 250 times "b" and "%2Etif".
	if got, want := Component(long), long[:160]+"~"+string(digestOf(long)[:32]); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	b := strings.Repeat("b", 250)
	if got, want := Component(b+".tif"), b[:160]+"~"+string(digestOf(b + "%2Etif")[:32])+"%2Etif"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestKeysFit: whatever the ids, every key is legal, every component fits the
// file system, and other ids give other keys.
func TestKeysFit(t *testing.T) {
	t.Parallel()
	d := digestOf("x")
	shape := regexp.MustCompile(`^[A-Za-z0-9_%~.-]+$`)
	seen := map[string]string{}
	for _, id := range []string{
		"a", "A", "..", ".", "/", "a/b", "a\\b", "-rf", "~", "\x00", "\xff\xfe", strings.Repeat("/", 255), strings.Repeat("\xff", 4096),
		strings.Repeat("a", 150), strings.Repeat("a", 151), strings.Repeat("a", 200), strings.Repeat("a", 201), strings.Repeat("a", 202),
		strings.Repeat("a", 300) + ".tif", strings.Repeat("a", 300) + ".jp2", strings.Repeat("a", 300) + "." + strings.Repeat("é", 90),
		".tmp-1", "x.r1." + string(d),
	} {
		for _, key := range []string{StagingKey(id, "f", 1, d), StagingKey("b", id, 2147483647, d), ManifestKey(id), BagKey(id), DerivativeKey(id, d, "jp2")} {
			if err := checkKey(key); err != nil {
				t.Errorf("%q: %v", id, err)
			}
			if other, taken := seen[key]; taken && other != id {
				t.Errorf("%q and %q share %q", id, other, key)
			}
			seen[key] = id
			for c := range strings.SplitSeq(key, "/") {
				if len(c) >= maxComponent || !shape.MatchString(c) {
					t.Errorf("%q: component %q of %d bytes", id, c, len(c))
				}
			}
		}
	}
}

func TestContentKeys(t *testing.T) {
	t.Parallel()
	d := Digest("abcdef" + strings.Repeat("0", 58))
	for got, want := range map[string]string{
		MasterKey(d):                                  "masters/sha256/ab/cd/" + string(d),
		DerivativeKey("jp2", d, "jp2"):                "derivatives/jp2/ab/cd/" + string(d) + ".jp2",
		DerivativeKey("jp2-lossless", d, ".x"):        "derivatives/jp2-lossless/ab/cd/" + string(d) + ".x",
		DerivativeKey("jp2", d, ""):                   "derivatives/jp2/ab/cd/" + string(d),
		MasterKey("ABC"):                              "",
		MasterKey(Digest(strings.ToUpper(string(d)))): "",
		StagingKey("b 1", "v/p.tif", 2, d):            "staging/b%201/v%2Fp%2Etif.r2." + string(d),
		BagKey("b.1"):                                 "bags/b%2E1",
		ManifestKey("b.1"):                            "batches/b%2E1.json",
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// TestNoEscape: no key and no symbolic link leads out of the archive.
func TestNoEscape(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	outside := t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "secret"), []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(s.Path(), "staging", "out")); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{
		"", "/", ".", "..", "staging", "staging/", "/staging/a/b", "staging//a", "staging/../../x", "staging/a/..", "staging/./a", "state/x", "jetstream/x",
		"staging/a/.tmp-x", "staging/a/b\x00c", "staging/a/" + strings.Repeat("x", 256), "bags/b/data/x", "masters\\x", "Staging/a",
	} {
		if _, err := s.Write(t.Context(), key, strings.NewReader("x"), Options{}); !errors.Is(err, ErrKey) {
			t.Errorf("Write(%q): %v", key, err)
		}
	}
	if _, err := s.Open("staging/out/secret"); err == nil {
		t.Error("a symbolic link was followed out of the archive (Open)")
	}
	if _, err := s.Write(t.Context(), "staging/out/new", strings.NewReader("x"), Options{}); err == nil {
		t.Error("a symbolic link was followed out of the archive (Write)")
	}
	if got := files(t, outside); len(got) != 1 {
		t.Errorf("outside: %q", got)
	}
	for _, key := range []string{MasterKey(digestOf("m")), "derivatives/jp2/x", "batches/b.json", "staging/b"} {
		if err := s.Remove(key); !errors.Is(err, ErrKey) {
			t.Errorf("Remove(%q): %v", key, err)
		}
	}
	for _, key := range []string{MasterKey(digestOf("m")), "derivatives/jp2/x", "staging/b/x", "bags/b"} {
		if _, err := s.ReplaceFile(t.Context(), key, nil); !errors.Is(err, ErrKey) {
			t.Errorf("ReplaceFile(%q): %v", key, err)
		}
	}
}

func FuzzComponent(f *testing.F) {
	for _, seed := range []string{"", "a", "..", "a/b.tif", "\xff", strings.Repeat("é.", 200)} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		c := Component(s)
		if len(c) >= maxComponent || strings.ContainsAny(c, "/\x00.") || (c == "") != (s == "") {
			t.Errorf("Component(%q) = %q", s, c)
		}
	})
}
