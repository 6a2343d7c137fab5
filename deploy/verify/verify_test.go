package verify

import (
	"bytes"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
)

// built is an archive with one converged batch: a page, an equal one, one with
// a retry and one that came out of quarantine.
func built(t testing.TB) *world {
	w := newWorld(t)
	w.pin()
	w.open("vol 1", 4)
	w.add(newPage("vol 1", "a/0001.tif", 1, "first page"))
	w.addEqual(newPage("vol 1", "a/0002.tif", 2, "first page"))
	w.addRetried(newPage("vol 1", "a/0003.tif", 3, "third page"))
	w.addReplayed(newPage("vol 1", "a/50%.tif", 4, "fourth page"))
	w.converge("vol 1", 1)
	return w
}

// TestClean: a sound archive has no findings, and everything in it was judged.
func TestClean(t *testing.T) {
	t.Parallel()
	w := built(t)
	w.write(w.book())
	r := w.run()
	if !r.Clean() {
		t.Fatalf("%v", r.Findings)
	}
	c := r.Checked
	want := Checked{Masters: 3, Derivatives: 3, Records: int64(len(w.records)), Facts: 21, Letters: 1, Batches: 1, Frames: 4, Bags: 1, Documents: 1, Bytes: c.Bytes}
	if c != want || c.Bytes == 0 || r.Damaged() || r.Drifted() || len(r.Open) != 0 || r.Size != int64(len(w.records)) {
		t.Errorf("%+v, want %+v; %+v", c, want, r)
	}
	one := w.run(func(o *Options) { o.Batch = "vol 1" })
	if !one.Clean() || one.Checked.Masters != 3 || one.Batch != "vol 1" {
		t.Errorf("one batch: %+v", one)
	}
	none := w.run(func(o *Options) { o.Batch = "another" })
	if !none.Clean() || none.Checked.Masters != 0 || none.Checked.Batches != 0 {
		t.Errorf("no batch: %+v", none)
	}
	without := w.run(func(o *Options) { o.Ledger = "" })
	if !without.Clean() || without.Checked.Records != 0 {
		t.Errorf("without a ledger: %+v", without)
	}
}

// expectKinds fails unless the report has these kinds of findings and no
// others, and one of the first kind names the object.
func expectKinds(t *testing.T, r Report, object string, kinds ...string) {
	t.Helper()
	have := map[string]bool{}
	named := false
	for _, f := range r.Findings {
		have[f.Kind] = true
		named = named || f.Kind == kinds[0] && strings.Contains(f.Object, object)
		if !slices.Contains(kinds, f.Kind) {
			t.Errorf("unexpected: %+v", f)
		}
	}
	for _, k := range kinds {
		if !have[k] {
			t.Errorf("no finding %s in %v", k, r.Findings)
		}
	}
	if !named {
		t.Errorf("no finding %s names %q: %v", kinds[0], object, r.Findings)
	}
}

// TestText: people read each finding on a line, the sum and the verdict.
func TestText(t *testing.T) {
	t.Parallel()
	w := built(t)
	b := w.book()
	b.records[5] = bytes.Replace(b.records[5], []byte("It happened."), []byte("It happened!"), 1)
	w.write(b)
	w.flip(w.frames[0].master(), 0)
	w.ok(os.WriteFile(w.path("masters/sha256/x"), nil, 0o444))
	r := w.run()
	var out bytes.Buffer
	w.ok(WriteText(&out, r))
	text := out.String()
	for _, want := range []string{
		"damage  master-damaged  masters/sha256/", "damage  record-changed  record 5 event:", "drift   unexpected-file  masters/sha256/x: ",
		"Judged 3 masters and 3 derivative files", "First bad record: record 5 event:", "DAMAGED: ",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in:\n%s", want, text)
		}
	}
	data, err := json.Marshal(r)
	w.ok(err)
	var back Report
	w.ok(json.Unmarshal(data, &back))
	if !back.Damaged() || back.Count(Drift) != r.Count(Drift) || back.FirstBad.Number != 5 {
		t.Errorf("read back: %s", data)
	}
}

// TestErrors: what cannot be judged is an error, not a finding.
func TestErrors(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, o := range map[string]Options{
		"no archive":      {JS: w.js},
		"no broker":       {Archive: w.dir},
		"missing archive": {Archive: w.path("nowhere"), JS: w.js},
		"missing scratch": {Archive: w.dir, JS: w.js, Scratch: w.path("nowhere")},
	} {
		if _, err := Run(t.Context(), o); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	w.nc.Close()
	if _, err := Run(t.Context(), Options{Archive: w.dir, JS: w.js, Scratch: t.TempDir()}); err == nil {
		t.Error("a closed connection: no error")
	}
}

// TestIdentifiers: the examples of MAPPING section 2.
func TestIdentifiers(t *testing.T) {
	t.Parallel()
	space := namespaceOf(origin)
	if got := namespace(urlNamespace.v5(origin)); got != space {
		t.Error(got)
	}
	if got := space.id("event:ingestion-start:@vol-0142"); got != "3c50f09e-7f94-57a2-8ddc-127383a41fcd" {
		t.Error(got)
	}
}
