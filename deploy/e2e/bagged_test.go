package e2e

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

var manifestLine = regexp.MustCompile(`^([0-9a-f]{64})  (\S.*)$`)

// bag judges a batch's bag by RFC 8493, and by coreutils. It gives the payload:
// path below data/ → digest.
func (a *archive) bag(batch string) map[string]string {
	t := a.t
	t.Helper()
	dir := a.path("bags", component(batch))
	if text := readFile(t, filepath.Join(dir, "bagit.txt")); text != "BagIt-Version: 1.0\nTag-File-Character-Encoding: UTF-8\n" {
		t.Errorf("bagit.txt: %q", text)
	}
	payload := a.bagManifest(dir, "manifest-sha256.txt")
	tags := a.bagManifest(dir, "tagmanifest-sha256.txt")
	octets := int64(0)
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, _ := filepath.Rel(dir, path)
		if !d.Type().IsRegular() || !utf8.ValidString(rel) {
			t.Errorf("bag: %q is no file with a UTF-8 name", rel)
		}
		listed := tags
		if strings.HasPrefix(rel, "data/") {
			listed = payload
			info, err := d.Info()
			if err != nil {
				return err
			}
			octets += info.Size()
		}
		if _, there := listed[rel]; !there && rel != "tagmanifest-sha256.txt" {
			t.Errorf("bag: %q is in no manifest", rel)
		}
		return nil
	})
	ok(t, err)
	for _, m := range []map[string]string{payload, tags} {
		for rel, digest := range m {
			if got := sumFile(t, filepath.Join(dir, rel)); got != digest {
				t.Errorf("bag: %q has digest %s, the manifest says %s", rel, got, digest)
			}
		}
	}
	for rel := range payload {
		if !strings.HasPrefix(rel, "data/") {
			t.Errorf("bag: the payload manifest lists %q", rel)
		}
	}
	for rel := range tags {
		if strings.HasPrefix(rel, "data/") {
			t.Errorf("bag: the tag manifest lists %q", rel)
		}
	}
	for _, must := range []string{"bagit.txt", "bag-info.txt", "manifest-sha256.txt"} {
		if _, there := tags[must]; !there {
			t.Errorf("bag: %s is not in the tag manifest", must)
		}
	}
	oxum := fmt.Sprintf("Payload-Oxum: %d.%d\n", octets, len(payload))
	if info := readFile(t, filepath.Join(dir, "bag-info.txt")); strings.Count(info, "Payload-Oxum:") != 1 || !strings.Contains(info, oxum) {
		t.Errorf("bag-info.txt does not say %q: %q", oxum, info)
	}
	for _, m := range []string{"manifest-sha256.txt", "tagmanifest-sha256.txt"} {
		// coreutils knows nothing of BagIt's percent-encoding: where a name needed
		// it, the decoded list is given instead.
		text := readFile(t, filepath.Join(dir, m))
		if !strings.Contains(text, "%") {
			tool(t, dir, "", "sha256sum", "--check", "--strict", "--quiet", m)
		}
	}
	return payload
}

// bagManifest reads a manifest strictly: each path once; only CR, LF and the
// percent sign are encoded.
func (a *archive) bagManifest(dir, name string) map[string]string {
	t := a.t
	t.Helper()
	out := map[string]string{}
	text := readFile(t, filepath.Join(dir, name))
	if !strings.HasSuffix(text, "\n") || strings.Contains(text, "\r") {
		t.Errorf("%s: not lines", name)
	}
	decode := strings.NewReplacer("%0A", "\n", "%0D", "\r", "%25", "%")
	for line := range strings.Lines(text) {
		m := manifestLine.FindStringSubmatch(strings.TrimSuffix(line, "\n"))
		if m == nil {
			t.Fatalf("%s: %q", name, line)
		}
		path := decode.Replace(m[2])
		if strings.NewReplacer("%", "%25", "\n", "%0A", "\r", "%0D").Replace(path) != m[2] {
			t.Errorf("%s: %q is not the one spelling", name, m[2])
		}
		if _, twice := out[path]; twice {
			t.Errorf("%s: %q twice", name, path)
		}
		if filepath.IsAbs(path) || filepath.Clean(path) != path || strings.HasPrefix(path, "../") {
			t.Errorf("%s: %q is no plain path", name, path)
		}
		out[path] = m[1]
	}
	return out
}

// component is a batch's path component, written a second time.
func component(s string) string {
	whole := encode(s)
	if len(whole) <= 200 {
		return whole
	}
	ext := ""
	if dot := strings.LastIndexByte(s, '.'); dot >= 0 && len(encode(s[dot:])) <= 20 {
		ext = encode(s[dot:])
	}
	return whole[:160] + "~" + sum([]byte(whole))[:32] + ext
}

func readFile(t testing.TB, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	ok(t, err)
	return string(data)
}

// manifest is batches/<batch>.json, as far as the judge reads it.
type manifest struct {
	State       string `json:"state"`
	Convergence int    `json:"convergence"`
	Totals      struct {
		Declared, Done, Failed, Pending, Missing, Discarded int
	} `json:"totals"`
	Frames []struct {
		Frame    any      `json:"frame"`
		Sequence int      `json:"sequence"`
		State    string   `json:"state"`
		Revision int      `json:"revision"`
		Digest   string   `json:"digest"`
		Size     int64    `json:"size"`
		Master   string   `json:"master"`
		Waived   []string `json:"waived"`
		Derived  map[string][]struct {
			Key    string `json:"key"`
			Digest string `json:"digest"`
			Size   int64  `json:"size"`
		} `json:"derivatives"`
	} `json:"frames"`
}

func (a *archive) manifest(batch string) manifest {
	a.t.Helper()
	var m manifest
	ok(a.t, json.Unmarshal([]byte(readFile(a.t, a.path("batches", component(batch)+".json"))), &m))
	return m
}
