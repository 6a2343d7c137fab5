package bag

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

// check judges a bag by RFC 8493 alone. It shares no code with the writer.
func check(t testing.TB, dir string) {
	t.Helper()
	if got := read(t, dir, "bagit.txt"); got != "BagIt-Version: 1.0\nTag-File-Character-Encoding: UTF-8\n" {
		t.Errorf("bagit.txt: %q", got)
	}
	payload, octets := walk(t, dir, func(path string) bool { return strings.HasPrefix(path, "data/") })
	tags, _ := walk(t, dir, func(path string) bool { return !strings.HasPrefix(path, "data/") && path != "tagmanifest-sha256.txt" })
	compare(t, "manifest-sha256.txt", payload, parse(t, dir, "manifest-sha256.txt"))
	compare(t, "tagmanifest-sha256.txt", tags, parse(t, dir, "tagmanifest-sha256.txt"))

	oxum := fmt.Sprintf("%d.%d", octets, len(payload))
	labels := 0
	for line := range strings.Lines(read(t, dir, "bag-info.txt")) {
		label, value, ok := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
		if !ok || label == "" || !utf8.ValidString(line) {
			t.Errorf("bag-info.txt: %q", line)
		}
		if label == "Payload-Oxum" {
			labels++
			if value != oxum {
				t.Errorf("Payload-Oxum %s, counted %s", value, oxum)
			}
		}
	}
	if labels != 1 {
		t.Errorf("%d lines of Payload-Oxum", labels)
	}
}

// walk gives the digests of all files that want selects, and their size.
func walk(t testing.TB, dir string, want func(string) bool) (found map[string]string, octets int64) {
	t.Helper()
	found = map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		if !d.Type().IsRegular() {
			t.Errorf("%s is no file", path)
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil || !want(rel) {
			return err
		}
		if !utf8.ValidString(rel) {
			t.Errorf("%q is not UTF-8", rel)
		}
		data, err := os.ReadFile(path)
		sum := sha256.Sum256(data)
		found[rel] = hex.EncodeToString(sum[:])
		octets += int64(len(data))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found, octets
}

var manifestLine = regexp.MustCompile(`^([0-9a-f]{64})  ([^\r\n]+)\n$`)

// parse reads a manifest strictly: each path once, in its one spelling.
func parse(t testing.TB, dir, name string) map[string]string {
	t.Helper()
	listed := map[string]string{}
	for line := range strings.Lines(read(t, dir, name)) {
		m := manifestLine.FindStringSubmatch(line)
		if m == nil {
			t.Errorf("%s: line %q", name, line)
			continue
		}
		path := m[2]
		for i := range len(path) {
			if path[i] == '%' && !strings.HasPrefix(path[i:], "%0A") && !strings.HasPrefix(path[i:], "%0D") && !strings.HasPrefix(path[i:], "%25") {
				t.Errorf("%s: a stray %% in %q", name, path)
			}
		}
		path = strings.ReplaceAll(strings.ReplaceAll(strings.ReplaceAll(path, "%0A", "\n"), "%0D", "\r"), "%25", "%")
		if _, twice := listed[path]; twice {
			t.Errorf("%s: %q twice", name, path)
		}
		listed[path] = m[1]
	}
	return listed
}

func compare(t testing.TB, name string, there, listed map[string]string) {
	t.Helper()
	for path, digest := range there {
		if listed[path] != digest {
			t.Errorf("%s: %q has %s, listed %q", name, path, digest, listed[path])
		}
	}
	for path := range listed {
		if _, ok := there[path]; !ok {
			t.Errorf("%s: %q is listed and not there", name, path)
		}
	}
}

func read(t testing.TB, dir, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	if bytes.HasPrefix(data, []byte("\xef\xbb\xbf")) {
		t.Errorf("%s begins with a byte order mark", name)
	}
	return string(data)
}
