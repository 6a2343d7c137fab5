package e2e

import (
	"crypto/sha1" //nolint:gosec // UUID version 5 is made of it
	"encoding/csv"
	"encoding/xml"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

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
