package verify

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"colophon/shared/event"
)

// manifest writes batches/<batch>.json.
func (w *world) manifest(batch event.Name, number int, t event.Totals) {
	w.file("batches/"+batch.Encode()+".json", w.manifestOf(batch, number, t))
}

func (w *world) manifestOf(batch event.Name, number int, t event.Totals) []byte {
	h := map[string]any{
		"schema": manifestSchema, "batch": batch, "state": "converged", "convergence": number, "declaration": 0, "order": event.OrderSequence,
		"profiles": []string{"jp2"}, "policy": policy, "policy_sha256": sha(policy), "totals": t,
	}
	var frames []any
	for _, p := range w.frames {
		f := map[string]any{
			"frame": p.slot.Frame, "sequence": p.sequence, "state": "done", "revision": 1, "digest": p.digest(), "size": len(p.bytes), "master": p.master(),
		}
		if p.jp2 != "" {
			f["derivatives"] = map[string]any{"jp2": p.derivedFact(1, 1).Derived.Outputs}
		} else {
			f["waived"] = []string{"derivative:jp2"}
		}
		frames = append(frames, f)
	}
	h["frames"] = frames
	data, err := json.MarshalIndent(h, "", " ")
	w.ok(err)
	return append(data, '\n')
}

// bag writes a bag: the payload by hard links.
func (w *world) bag(batch event.Name, number int) {
	dir := "bags/" + batch.Encode() + "/"
	payload, octets := map[string]event.Digest{}, 0
	link := func(key, name, data string) {
		to := filepath.Join(w.dir, dir, name)
		w.ok(os.MkdirAll(filepath.Dir(to), 0o755))
		w.ok(os.Link(filepath.Join(w.dir, key), to))
		payload[name] = sha([]byte(data))
		octets += len(data)
	}
	for _, p := range w.frames {
		link(p.master(), "data/masters/"+string(p.slot.Frame), p.bytes)
		if p.jp2 != "" {
			link(p.access(), "data/access/"+string(p.slot.Frame)+".jp2", p.jp2)
		}
	}
	tags := map[string]event.Digest{}
	tag := func(name string, data []byte) {
		w.file(dir+name, data)
		tags[name] = sha(data)
	}
	tag(bagManifest, checksums(payload))
	tag(bagDeclaration, []byte("BagIt-Version: 1.0\nTag-File-Character-Encoding: UTF-8\n"))
	tag(bagInfo, fmt.Appendf(nil, "Bagging-Date: 2025-11-24\nPayload-Oxum: %d.%d\nColophon-Convergence: %d\n", octets, len(payload), number))
	tag(bagCopy, w.manifestOf(batch, number, event.Totals{Declared: len(w.frames), Done: len(w.frames)}))
	tag("metadata/premis/premis-0001.xml", w.premis())
	w.file(dir+bagTagManifest, checksums(tags))
}

func checksums(files map[string]event.Digest) []byte {
	var b bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(files)) {
		fmt.Fprintf(&b, "%s  %s\n", files[name], strings.NewReplacer("%", "%25", "\n", "%0A", "\r", "%0D").Replace(name))
	}
	return b.Bytes()
}

// premis writes a PREMIS document of all events that are recorded so far.
func (w *world) premis() []byte {
	var b bytes.Buffer
	objects, space := map[string]string{}, namespaceOf(origin)
	var events bytes.Buffer
	for i, r := range w.records {
		if r["type"] == "op" {
			continue
		}
		w.premisEvent(&events, space, int64(i), r, objects)
	}
	fmt.Fprintf(&b, `<premis:premis xmlns:premis="%s" xmlns:d=%q xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" version="3.0">`, premisNamespace, detailNamespace)
	for _, id := range slices.Sorted(maps.Keys(objects)) {
		kind, more := "premis:intellectualEntity", ""
		if strings.HasPrefix(objects[id], "file:") {
			kind = "premis:file"
			more = "<premis:objectCharacteristics><premis:size>10</premis:size><premis:format><premis:formatDesignation><premis:formatName>TIFF</premis:formatName></premis:formatDesignation></premis:format></premis:objectCharacteristics>"
		}
		fmt.Fprintf(&b, "\n<premis:object xsi:type=%q><premis:objectIdentifier><premis:objectIdentifierType>UUID</premis:objectIdentifierType><premis:objectIdentifierValue>%s</premis:objectIdentifierValue></premis:objectIdentifier>%s</premis:object>", kind, id, more)
	}
	b.Write(events.Bytes())
	b.WriteString("\n<premis:agent><premis:agentIdentifier><premis:agentIdentifierType>local</premis:agentIdentifierType><premis:agentIdentifierValue>worker/1.0.0</premis:agentIdentifierValue></premis:agentIdentifier><premis:agentName>worker</premis:agentName></premis:agent>\n</premis:premis>\n")
	return b.Bytes()
}

func (w *world) premisEvent(b *bytes.Buffer, space namespace, n int64, r map[string]any, objects map[string]string) {
	name, uri, typ := r["name"].(string), r["uri"].(string), r["type"].(string)
	authority, list := "eventType", vocabularies+"eventType"
	if at := strings.IndexByte(uri, '#'); at > 0 {
		authority, list = "colophon", uri[:at]
	}
	outcome := r["outcome"].(string)
	fmt.Fprintf(b, "\n<premis:event><premis:eventIdentifier><premis:eventIdentifierType>UUID</premis:eventIdentifierType><premis:eventIdentifierValue>%s</premis:eventIdentifierValue></premis:eventIdentifier>", space.id(name))
	fmt.Fprintf(b, "<premis:eventType authority=%q authorityURI=%q valueURI=%q>%s</premis:eventType>", authority, list, uri, typ)
	fmt.Fprintf(b, "<premis:eventDateTime>2025-11-24T08:00:00.000Z</premis:eventDateTime><premis:eventDetailInformation><premis:eventDetail>It happened.</premis:eventDetail><premis:eventDetailExtension><d:eventName>%s</d:eventName><d:ledger origin=%q index=\"%d\" leafHash=\"%064d\" recordedAt=\"2025-11-24T08:00:00.000Z\"/></premis:eventDetailExtension></premis:eventDetailInformation>", name, origin, n, n)
	fmt.Fprintf(b, "<premis:eventOutcomeInformation><premis:eventOutcome authority=\"eventOutcome\" authorityURI=\"%seventOutcome\" valueURI=\"%seventOutcome/%s\">%s</premis:eventOutcome></premis:eventOutcomeInformation>", vocabularies, vocabularies, outcome[:3], outcome)
	b.WriteString("<premis:linkingAgentIdentifier><premis:linkingAgentIdentifierType>local</premis:linkingAgentIdentifierType><premis:linkingAgentIdentifierValue>worker/1.0.0</premis:linkingAgentIdentifierValue></premis:linkingAgentIdentifier>")
	for _, o := range r["objects"].([]any) {
		m := o.(map[string]any)
		what := fmt.Sprint(m["kind"], ":", r["slot"])
		if m["kind"] == "file" {
			what = fmt.Sprint("file:", m["digest"])
		}
		id := space.id("object:" + what)
		objects[id] = what
		fmt.Fprintf(b, "<premis:linkingObjectIdentifier><premis:linkingObjectIdentifierType>UUID</premis:linkingObjectIdentifierType><premis:linkingObjectIdentifierValue>%s</premis:linkingObjectIdentifierValue></premis:linkingObjectIdentifier>", id)
	}
	b.WriteString("</premis:event>")
}

// path is where an object is.
func (w *world) path(key string) string { return filepath.Join(w.dir, filepath.FromSlash(key)) }

// flip changes one bit of a file, in place: hard links change with it.
func (w *world) flip(key string, at int64) {
	w.Helper()
	data, err := os.ReadFile(w.path(key))
	w.ok(err)
	if at < 0 {
		at += int64(len(data))
	}
	f, err := os.OpenFile(w.path(key), os.O_RDWR, 0)
	w.ok(err)
	defer f.Close() //nolint:errcheck // a test
	_, err = f.WriteAt([]byte{data[at] ^ 1}, at)
	w.ok(err)
}

// rewrite replaces a file by a changed one, with its tag manifest brought in
// line: so that only what is inside is wrong.
func (w *world) rewrite(key string, change func(string) string) {
	w.Helper()
	data, err := os.ReadFile(w.path(key))
	w.ok(err)
	now := change(string(data))
	if now == string(data) {
		w.Fatalf("%s is not changed", key)
	}
	w.ok(os.Remove(w.path(key)))
	w.file(key, []byte(now))
	inside, bagged := strings.CutPrefix(key, "bags/")
	dir, name, _ := strings.Cut(inside, "/")
	if !bagged || strings.HasPrefix(name, "data/") || name == bagTagManifest {
		return
	}
	old, sum := sha256.Sum256(data), sha256.Sum256([]byte(now))
	w.rewrite("bags/"+dir+"/"+bagTagManifest, func(s string) string {
		return strings.ReplaceAll(s, hex.EncodeToString(old[:]), hex.EncodeToString(sum[:]))
	})
}

// copy gives a test the files of a world, hard links among them kept, over the
// same log.
func (w *world) copy(t testing.TB) *world {
	c := *w
	c.TB, c.dir = t, t.TempDir()
	known := map[string]string{}
	c.ok(filepath.WalkDir(w.dir, func(from string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		to := filepath.Join(c.dir, strings.TrimPrefix(from, w.dir))
		info, err := e.Info()
		if err != nil || e.IsDir() {
			return errors.Join(err, os.MkdirAll(to, 0o755))
		}
		id, _ := inode(info)
		if there, ok := known[id]; ok {
			return os.Link(there, to)
		}
		known[id] = to
		data, err := os.ReadFile(from)
		return errors.Join(err, os.WriteFile(to, data, info.Mode().Perm()))
	}))
	return &c
}
