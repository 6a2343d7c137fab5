package e2e

import (
	"crypto/sha1" //nolint:gosec // UUID version 5 is made of it
	"crypto/sha256"
	"encoding/csv"
	"encoding/hex"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"unicode/utf8"
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

// eventRow is a row of events.tsv.
type eventRow struct {
	number, time, kind, outcome, status, frame, digest, agent, note string
}

// events is the ledger's table of a batch.
func (a *archive) events(batch string) []eventRow {
	a.t.Helper()
	dir := a.t.TempDir()
	a.run("export", "--out", dir, "--", "tsv", batch).status(0)
	return readEvents(a.t, filepath.Join(dir, "events.tsv"))
}

func readEvents(t testing.TB, path string) []eventRow {
	t.Helper()
	f, err := os.Open(path)
	ok(t, err)
	defer f.Close() //nolint:errcheck // only read
	r := csv.NewReader(f)
	r.Comma, r.LazyQuotes, r.FieldsPerRecord = '\t', true, 9
	rows, err := r.ReadAll()
	ok(t, err)
	var out []eventRow
	for _, c := range rows[1:] {
		out = append(out, eventRow{c[0], c[1], c[2], c[3], c[4], c[5], c[6], c[7], c[8]})
	}
	return out
}

// premisEvent is an event of a PREMIS document.
type premisEvent struct {
	ID      string `xml:"eventIdentifier>eventIdentifierValue"`
	Type    string `xml:"eventType"`
	Outcome string `xml:"eventOutcomeInformation>eventOutcome"`
}

// ledger gives a batch's events by their identifiers, which are made from
// their names, and demands that the documents are valid.
func (a *archive) ledger(batch string) map[string]premisEvent {
	a.t.Helper()
	dir := a.t.TempDir()
	a.run("export", "--out", dir, "--", "premis", batch).status(0)
	docs, err := filepath.Glob(filepath.Join(dir, "*.xml"))
	ok(a.t, err)
	return readPremis(a.t, docs)
}

// readPremis reads the documents of a batch.
func readPremis(t testing.TB, docs []string) map[string]premisEvent {
	t.Helper()
	if len(docs) == 0 {
		t.Fatal("no PREMIS document was exported")
	}
	validatePremis(t, docs)
	out := map[string]premisEvent{}
	for _, d := range docs {
		var doc struct {
			Events []premisEvent `xml:"event"`
		}
		ok(t, xml.Unmarshal([]byte(readFile(t, d)), &doc))
		for _, e := range doc.Events {
			if _, twice := out[e.ID]; twice {
				t.Errorf("event %s (%s) stands twice", e.ID, e.Type)
			}
			out[e.ID] = e
		}
	}
	return out
}

// premisSchemas is where the schemas are, on a machine that has them.
const premisSchemas = "../../../shared/premis"

// validatePremis has the documents judged by xmllint.
func validatePremis(t testing.TB, docs []string) {
	t.Helper()
	dir, err := filepath.Abs(premisSchemas)
	ok(t, err)
	driver := filepath.Join(dir, "validate.xsd")
	if _, err := os.Stat(driver); err != nil {
		t.Logf("NOT VALIDATED: the PREMIS schemas are not at %s", dir)
		return
	}
	cmd := exec.Command("xmllint", append([]string{"--nonet", "--noout", "--schema", driver}, docs...)...)
	cmd.Env = append(os.Environ(), "XML_CATALOG_FILES="+filepath.Join(dir, "catalog.xml"))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("xmllint: %v\n%s", err, out)
	}
}

// eventID is the identifier of the event with a name, in the standalone's
// ledger: UUID version 5, written a second time.
func eventID(name string) string {
	url := [16]byte{0x6b, 0xa7, 0xb8, 0x11, 0x9d, 0xad, 0x11, 0xd1, 0x80, 0xb4, 0x00, 0xc0, 0x4f, 0xd4, 0x30, 0xc8}
	u := uuid5(uuid5(url, "localhost/colophon"), name)
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[0:4], u[4:6], u[6:8], u[8:10], u[10:16])
}

func uuid5(space [16]byte, name string) (u [16]byte) {
	h := sha1.New() //nolint:gosec // see above
	h.Write(space[:])
	h.Write([]byte(name))
	copy(u[:], h.Sum(nil))
	u[6], u[8] = u[6]&0x0f|0x50, u[8]&0x3f|0x80
	return u
}

// frame is a frame that a test expects to be done.
type frame struct {
	name string
	data []byte
}

// wanted are the events that a ledger must hold: those of one name, and those
// of which exactly one of several names must be there.
type wanted struct {
	names map[string]string   // by identifier
	oneOf []map[string]string // the same
}

// maxPass bounds the passes that a test's frames need.
const maxPass = 9

// names are the events that a batch of done frames has, and no others. outputs
// gives the digest of each master's derivative.
func names(batch string, frames []frame, outputs map[string]string) wanted {
	b := encode(batch)
	out := wanted{names: map[string]string{}}
	add := func(format string, args ...any) {
		n := fmt.Sprintf(format, args...)
		out.names[eventID(n)] = n
	}
	validations := map[string]map[string]string{}
	add("event:ingestion-start:@%s", b)
	add("event:policy-assignment:@%s", b)
	add("event:ingestion-end:@%s", b)
	for _, f := range frames {
		d := sum(f.data)
		add("event:accession:%s@%s/%s", d, b, encode(f.name))
		for _, kind := range []string{"capture", "message-digest-calculation", "format-identification", "migration:derivative:jp2", "ingestion"} {
			add("event:%s:%s", kind, d)
		}
		add("event:message-digest-calculation:%s", outputs[d])
		// a validation with a warning carries the frame and pass that met it first
		if validations[d] == nil {
			n := "event:validation:jp2:" + d
			validations[d] = map[string]string{eventID(n): n}
		}
		for pass := range maxPass {
			n := fmt.Sprintf("event:validation:jp2:%s@%s/%s#%d", d, b, encode(f.name), pass+1)
			validations[d][eventID(n)] = n
		}
	}
	out.oneOf = slices.Collect(maps.Values(validations))
	return out
}

// outputs gives the digest of each derivative file by its master's.
func (a *archive) outputs() map[string]string {
	a.t.Helper()
	out := map[string]string{}
	for name, digest := range a.digests("derivatives") {
		base := filepath.Base(name)
		out[strings.TrimSuffix(base, filepath.Ext(base))] = digest
	}
	return out
}

// exactly demands that a ledger holds the expected names and, beyond them,
// only events of the kinds allowed.
func exactly(t testing.TB, got map[string]premisEvent, want wanted, allowed ...string) {
	t.Helper()
	known := maps.Clone(want.names)
	for id, name := range want.names {
		if _, there := got[id]; !there {
			t.Errorf("the ledger lacks %s", name)
		}
	}
	for _, choice := range want.oneOf {
		n, one := 0, ""
		for id, name := range choice {
			one, known[id] = name, name
			if e, there := got[id]; there && e.Outcome != "fail" {
				n++
			}
		}
		if n != 1 {
			t.Errorf("the ledger has %d events of the kind of %s", n, one)
		}
	}
	for id, e := range got {
		if _, there := known[id]; !there && !slices.Contains(allowed, e.Type) {
			t.Errorf("the ledger has an event more: %s (%s, %s)", id, e.Type, e.Outcome)
		}
	}
}

// judge demands everything of a converged batch whose every frame is done.
func (a *archive) judge(batch string, frames []frame, allowed ...string) {
	t := a.t
	t.Helper()
	var masters []string
	for _, f := range frames {
		masters = append(masters, a.master(f.data))
	}
	slices.Sort(masters)
	masters = slices.Compact(masters)
	if n := a.sha256sum(); n < len(masters) {
		t.Errorf("%d masters are stored, there should be %d", n, len(masters))
	}
	for _, d := range masters {
		a.decodes(d)
	}
	a.noStrays()
	payload := a.bag(batch)
	if len(payload) != 2*len(frames) {
		t.Errorf("the bag holds %d files for %d frames", len(payload), len(frames))
	}
	held := map[string]int{}
	for _, d := range payload {
		held[d]++
	}
	for _, d := range masters {
		if held[d] == 0 {
			t.Errorf("the bag lacks master %s", d)
		}
	}
	m := a.manifest(batch)
	if m.State != "converged" || m.Totals.Declared != len(frames) || m.Totals.Done != len(frames) || len(m.Frames) != len(frames) {
		t.Errorf("the manifest says %s, %+v, %d frames", m.State, m.Totals, len(m.Frames))
	}
	for i, f := range m.Frames {
		if f.Sequence != i+1 || f.State != "done" {
			t.Errorf("frame %d of the manifest: %+v", i+1, f)
		}
	}
	exactly(t, a.ledger(batch), names(batch, frames, a.outputs()), allowed...)
	a.verify(0)
}

// verify has the archive judged by the program that is written for it.
func (a *archive) verify(want int) {
	a.t.Helper()
	if !hasVerify() {
		return
	}
	a.run("verify", "--json").status(want)
}

// retried are the events of attempts that ended with their worker.
var retried = []string{"retry"}
