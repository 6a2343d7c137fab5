package storage

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestMain lets a test run this binary again as a writer that can be killed:
// see child in crash_test.go.
func TestMain(m *testing.M) {
	if role := os.Getenv("COLOPHON_STORAGE_CHILD"); role != "" {
		child(role, os.Getenv("COLOPHON_STORAGE_ROOT"))
		return
	}
	os.Exit(m.Run())
}

func newStore(t testing.TB, options ...Option) *Store {
	t.Helper()
	s, err := Open(filepath.Join(t.TempDir(), "archive"), options...)
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

func digestOf(data string) Digest {
	sum := sha256.Sum256([]byte(data))
	return Digest(hex.EncodeToString(sum[:]))
}

func put(t testing.TB, s *Store, key, data string) Written {
	t.Helper()
	w, err := s.Write(t.Context(), key, strings.NewReader(data), Options{})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func content(t testing.TB, s *Store, key string) string {
	t.Helper()
	path, err := s.FilePath(key)
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// files gives every name below the archive that is not a folder, temporary
// files included, found without the store's own code.
func files(t testing.TB, root string) []string {
	t.Helper()
	var found []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if !d.IsDir() || strings.HasPrefix(d.Name(), tempPrefix) {
			found = append(found, rel)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func noTemporaries(t testing.TB, root string) {
	t.Helper()
	for _, f := range files(t, root) {
		if strings.Contains(f, tempPrefix) {
			t.Errorf("stray temporary %s", f)
		}
	}
}

func listed(t testing.TB, s *Store, prefix string) []string {
	t.Helper()
	var keys []string
	for e, err := range s.List(context.Background(), prefix) {
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, e.Key)
	}
	return keys
}

func numbered(i int) string { return fmt.Sprintf("object %d\n%s", i, strings.Repeat("x", i%7000)) }
