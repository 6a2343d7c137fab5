package export_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"colophon/shared/event"

	"colophon/services/premis/internal/export"
	"colophon/services/premis/internal/facttest"
	"colophon/services/premis/internal/ledger"
	"colophon/services/premis/internal/premisxml"
)

// files is a sink in memory.
type files struct {
	names []string
	data  map[string]*bytes.Buffer
	whole map[string]bool
}

type sinkFile struct {
	*bytes.Buffer
	close func()
}

func (f sinkFile) Close() error { f.close(); return nil }

func (f *files) sink(name string) (io.WriteCloser, error) {
	if f.data == nil {
		f.data, f.whole = map[string]*bytes.Buffer{}, map[string]bool{}
	}
	f.names = append(f.names, name)
	f.data[name] = &bytes.Buffer{}
	return sinkFile{f.data[name], func() { f.whole[name] = true }}, nil
}

func open(t *testing.T, entries []ledger.Entry) *ledger.Ledger {
	t.Helper()
	l, err := ledger.Open(t.TempDir(), ledger.Options{Origin: facttest.Origin})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	if _, err := l.Append(t.Context(), entries); err != nil {
		t.Fatal(err)
	}
	return l
}

func exporter(t *testing.T, l *ledger.Ledger) *export.Exporter {
	t.Helper()
	s, err := l.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return export.New(s.View)
}

// oddNames are frame names that an export must bring through.
var oddNames = []event.Name{
	`a<b>&"c'.tif`, "tab\tand\nline.tif", "ctrl\x01.tif", "emoji 📚.tif", "عربي.tif", "caf\xe9.tif", "cafe\u0301.tif", "-dash.tif",
	"=formula.tif", event.Name("long/" + strings.Repeat("x", 250) + ".tif"), "deep/ /odd/one.tif", "nonchar\ufffe.tif",
}

// story is a batch in which everything happens, and a second one that holds
// one of its pages again.
func story() *facttest.Log {
	var l facttest.Log
	const b = event.Name("vol. 142 (<Smith> & 'Co')")
	l.Add(facttest.Opened(b, 8+len(oddNames), "jp2"))

	plain := facttest.Page(b, "0001.tif", 1, "one")
	l.Add(plain.Captured(1, 1), plain.Fixed(1, 1), plain.Derived(1, 1))

	// Retries, a lost worker, quarantine, release, success in pass 2.
	hard := facttest.Page(b, "0002.tif", 2, "two")
	jp2 := event.Derivative("jp2")
	l.Add(hard.Captured(1, 1), hard.Failed(event.Fixity, facttest.Hasher, 1, 1, "transient", "io-error", false), hard.Fixed(1, 2),
		hard.Failed(jp2, facttest.Deriver, 1, 1, "transient", "encoder-failed", false),
		hard.Failed(jp2, facttest.Deriver, 1, 2, "lost", "worker-lost", false),
		hard.Failed(jp2, facttest.Deriver, 1, 3, "transient", "encoder-failed", true),
		hard.Case(jp2, 1, event.CaseOpened, 1), hard.Case(jp2, 1, event.CaseReplayed, 2), hard.Derived(2, 1), hard.Case(jp2, 1, event.CaseResolved, 3))

	// The same page again, its derivative a hit.
	blank := facttest.Page(b, "0003.tif", 3, "one")
	hit := blank.Derived(1, 0)
	hit.Hit = true
	l.Add(blank.Captured(1, 1), blank.Fixed(1, 1), hit)

	// A digest that was declared wrongly; discarded.
	wrong := facttest.Page(b, "0004.tif", 4, "four")
	mismatch := wrong.Failed(event.Capture, facttest.Capture, 1, 1, "permanent", "digest-mismatch", true)
	mismatch.Declared = facttest.Digest("what the list says")
	l.Add(mismatch, wrong.Case(event.Capture, 1, event.CaseOpened, 1), wrong.Case(event.Capture, 1, event.CaseDiscarded, 2))

	// A damaged image: no derivative, waived.
	broken := facttest.Page(b, "0005.tif", 5, "five")
	l.Add(broken.Captured(1, 1), broken.Fixed(1, 1),
		broken.Failed(jp2, facttest.Deriver, 1, 1, "permanent", "strip-truncated", true),
		broken.Case(jp2, 1, event.CaseOpened, 1), broken.Case(jp2, 1, event.CaseDiscarded, 2))

	// A page never readable; its case stays open.
	gone := facttest.Page(b, "0006.tif", 6, "")
	gone.Digest = "src-0123456789abcdef0123456789abcdef"
	l.Add(gone.Failed(event.Capture, facttest.Capture, 1, 1, "permanent", "source-unreadable", true), gone.Case(event.Capture, 1, event.CaseOpened, 1))

	// Unknown format, a warning of the image check, and a revision.
	odd := facttest.Page(b, "0007.tif", 7, "seven")
	f := odd.Fixed(1, 1)
	f.Fixed.Format = event.Format{}
	d := odd.Derived(1, 1)
	d.Derived.Findings = []event.Finding{{Code: "icc-ignored", Message: "the profile's colour space is not the image's"}}
	second := odd
	second.Digest, second.Revision = facttest.Digest("seven, scanned again"), 2
	again := second.Fixed(1, 1)
	again.Captured.Replaces = odd.Digest
	again.Requested = &event.Request{Actor: "9a41"}
	l.Add(f, d, again, second.Derived(1, 1))

	// Still waiting for its next attempt.
	waiting := facttest.Page(b, "0008.tif", 8, "eight")
	l.Add(waiting.Fixed(1, 1), waiting.Failed(jp2, facttest.Deriver, 1, 1, "transient", "encoder-failed", false))

	for i, name := range oddNames {
		p := facttest.Page(b, name, 9+i, "odd "+string(name))
		l.Add(p.Captured(1, 1), p.Fixed(1, 1), p.Derived(1, 1))
	}
	// Scheduled checks, a copy elsewhere, removed staging, the device's own fault.
	copied := facttest.Verified(plain.Digest, plain.Digest, "")
	copied.Kind, copied.Detail["store"] = event.OpReplicated, "store b"
	removed := event.OpFact{Schema: event.SchemaOp, Kind: event.OpDeleted, Service: "capture", Instance: "a", Counter: 1, Agent: facttest.Capture, Detail: map[string]string{
		"batch": b.Encode(), "frame": wrong.Slot.Frame.Encode(), "revision": "1", "digest": string(wrong.Digest), "operation": "capture", "pass": "1", "actor": "9a41",
	}}
	jam := gone.Failed(event.Capture, facttest.Capture, 0, 1, "transient", "device-jam", false)
	jam.Device = "scanner-03"
	l.Add(jam, facttest.Verified(plain.Digest, plain.Digest, "2027-annual"), facttest.Verified(hard.Digest, "", "2027 annual"), copied, removed)
	l.Add(event.OpFact{Schema: event.SchemaOp, Kind: event.OpHalted, Service: "deriver", Instance: "a", Counter: 1, Reason: "no space", Agent: facttest.Deriver})
	l.Add(facttest.Converged(b, 1, event.Totals{Declared: 8 + len(oddNames), Done: 6 + len(oddNames), Discarded: 1, Failed: 1}))

	other := event.Name("vol-0143")
	shared := facttest.Page(other, "0001.tif", 1, "one")
	own := facttest.Page(other, "0002.tif", 2, "only here")
	l.Add(facttest.Opened(other, 2, "jp2"), shared.Captured(1, 1), shared.Fixed(1, 1), own.Captured(1, 1), own.Fixed(1, 1), own.Derived(1, 1),
		facttest.Converged(other, 1, event.Totals{Declared: 2, Done: 2}), facttest.Converged(other, 2, event.Totals{Declared: 2, Done: 2}))
	return &l
}

const storyBatch = event.Name("vol. 142 (<Smith> & 'Co')")

// schemas is where the PREMIS schema lies beside the project's folder.
const schemas = "../../../../../shared/premis"

// validator gives a driver schema that validates PREMIS and our content, or
// says loudly why it cannot.
func validator(t *testing.T) string {
	t.Helper()
	premis, err := filepath.Abs(filepath.Join(schemas, "premis-v3-0.xsd"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(premis); err != nil {
		t.Logf("NOT VALIDATED against the schema: %v", err)
		return ""
	}
	if _, err := exec.LookPath("xmllint"); err != nil {
		t.Logf("NOT VALIDATED against the schema: %v", err)
		return ""
	}
	dir := t.TempDir()
	detail := filepath.Join(dir, "detail-1.xsd")
	driver := fmt.Sprintf(`<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema">
<xs:import namespace="%s" schemaLocation="%s"/><xs:import namespace="%s" schemaLocation="%s"/></xs:schema>`,
		premisxml.Namespace, premis, premisxml.DetailNamespace, detail)
	path := filepath.Join(dir, "validate.xsd")
	if err := errors.Join(os.WriteFile(detail, premisxml.DetailSchema, 0o600), os.WriteFile(path, []byte(driver), 0o600)); err != nil {
		t.Fatal(err)
	}
	return path
}

// judge validates documents and makes the ten checks.
func judge(t *testing.T, f *files) []premisxml.Report {
	t.Helper()
	schema, dir := validator(t), t.TempDir()
	args := []string{"--noout", "--nonet", "--schema", schema}
	var out []premisxml.Report
	for _, name := range f.names {
		if !f.whole[name] {
			t.Errorf("%s was not closed", name)
		}
		r, err := premisxml.Inspect(bytes.NewReader(f.data[name].Bytes()))
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		out = append(out, r)
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, f.data[name].Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, path)
	}
	if schema != "" {
		if text, err := exec.Command("xmllint", args...).CombinedOutput(); err != nil {
			t.Errorf("xmllint: %v\n%.4000s", err, text)
		}
	}
	return out
}

func TestBatchIsValidAndPassesTheChecks(t *testing.T) {
	t.Parallel()
	x := exporter(t, open(t, story().Entries))
	var f files
	if err := x.Batch(t.Context(), storyBatch, f.sink); err != nil {
		t.Fatal(err)
	}
	reports := judge(t, &f)
	if len(f.names) != 1 || f.names[0] != "premis-0001.xml" {
		t.Fatalf("files: %v", f.names)
	}
	if got := reports[0].Open; len(got) != 1 || !strings.Contains(got[0], "0008") {
		t.Errorf("open chains: %v", got)
	}
	text := f.data[f.names[0]].String()
	for _, want := range []string{
		`a&lt;b&gt;&amp;&#34;c&#39;.tif`, "tab&#x9;and&#xA;line.tif</", ">ctrl%01%2Etif</", "emoji 📚.tif", "عربي.tif", ">caf%E9%2Etif</",
		"cafe\u0301.tif", ">nonchar%EF%BF%BE%2Etif<",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in the document", want)
		}
	}
	for _, never := range []string{"/srv/secret", "src-0123"} {
		if strings.Contains(text, never) {
			t.Errorf("%q is in the document", never)
		}
	}
}

func TestSecondBatchHoldsTheSharedContent(t *testing.T) {
	t.Parallel()
	x := exporter(t, open(t, story().Entries))
	var f files
	if err := x.Batch(t.Context(), "vol-0143", f.sink); err != nil {
		t.Fatal(err)
	}
	judge(t, &f)
	text := f.data["premis-0001.xml"].String()
	one := facttest.Digest("one")
	for _, want := range []string{"event:capture:" + string(one) + "<", "event:migration:derivative:jp2:" + string(one) + "<", "#2<", "Content already held."} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in the document", want)
		}
	}
	if strings.Contains(text, "0002%2Etif:") || strings.Contains(text, string(facttest.Digest("two"))) {
		t.Error("content of another batch's own is in the document")
	}
}

func TestMasters(t *testing.T) {
	t.Parallel()
	x := exporter(t, open(t, story().Entries))
	var f files
	for _, bytes := range []string{"one", "two", "four", "five", "seven", "seven, scanned again", "only here", "odd caf\xe9.tif"} {
		err := x.Master(t.Context(), facttest.Digest(bytes), f.sink)
		if err != nil {
			t.Errorf("%s: %v", bytes, err)
		}
	}
	judge(t, &f)
	text := f.data["premis-"+string(facttest.Digest("one"))+".xml"].String()
	if n := strings.Count(text, "event:accession:"); n != 3 {
		t.Errorf("%d accessions of the page that three frames hold", n)
	}
	if n := strings.Count(text, ">represents<"); n != 3 {
		t.Errorf("it represents %d frames", n)
	}
}

func TestNothingKnown(t *testing.T) {
	t.Parallel()
	x := exporter(t, open(t, story().Entries))
	var f files
	if err := x.Batch(t.Context(), "no such", f.sink); !errors.Is(err, export.ErrNothing) {
		t.Errorf("batch: %v", err)
	}
	if err := x.Master(t.Context(), facttest.Digest("none"), f.sink); !errors.Is(err, export.ErrNothing) {
		t.Errorf("master: %v", err)
	}
	if len(f.names) != 0 {
		t.Errorf("files were opened: %v", f.names)
	}
}

func TestSameLedgerSameBytes(t *testing.T) {
	t.Parallel()
	entries := story().Entries
	one := open(t, entries)
	two, err := ledger.Open(t.TempDir(), ledger.Options{Origin: facttest.Origin})
	if err != nil {
		t.Fatal(err)
	}
	defer two.Close()
	for _, e := range entries { // one at a time
		if _, err := two.Append(context.Background(), []ledger.Entry{e}); err != nil {
			t.Fatal(err)
		}
	}
	var a, b files
	for _, p := range []struct {
		l *ledger.Ledger
		f *files
	}{{one, &a}, {two, &b}} {
		x := exporter(t, p.l)
		for _, err := range []error{
			x.Batch(t.Context(), storyBatch, p.f.sink), x.BatchTSV(t.Context(), storyBatch, p.f.sink), x.FramesTSV(t.Context(), storyBatch, p.f.sink),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, n := range a.names {
		if !bytes.Equal(a.data[n].Bytes(), b.data[n].Bytes()) {
			t.Errorf("%s differs", n)
		}
	}
}
