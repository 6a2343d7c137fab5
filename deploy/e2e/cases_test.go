package e2e

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// decided is what a decision prints.
type decided struct {
	Eligible int
	Done     []string
	Refused  map[string]string
}

func (a *archive) cases(args ...string) caseList {
	a.t.Helper()
	var l caseList
	a.run(append([]string{"--json", "case", "list"}, args...)...).status(0).last(&l)
	return l
}

// TestCaseCommands lists, shows, replays and discards.
func TestCaseCommands(t *testing.T) {
	t.Parallel()
	a := newArchive(t)
	dir := filepath.Join(tempDir(t), "vol")
	putAll(t, dir, good)
	whole := tiffPage(7)
	put(t, dir, "cut.tif", whole[:900])
	put(t, dir, "empty.tif", nil)
	a.ingest(dir).status(3).counts(4, 2, 0, 2)

	l := a.cases()
	if l.Total != 2 {
		t.Fatalf("%+v", l)
	}
	id := map[string]string{}
	for _, c := range l.Cases {
		if !c.Open || c.State != "opened" || c.Pass != 1 {
			t.Errorf("%+v", c)
		}
		id[c.Frame.(string)] = c.ID
	}
	for filter, want := range map[string]int{
		"--code=empty": 1, "--service=deriver": 1, "--operation=capture": 1, "--batch=vol": 2, "--batch=other": 0, "--code=truncated": 1, "--service=hasher": 0,
	} {
		if n := a.cases(filter).Total; n != want {
			t.Errorf("%s: %d cases", filter, n)
		}
	}
	var k struct {
		ID, Code, Reason, Digest string
		Attempts                 int
		History                  []struct{ State string }
	}
	a.run("--json", "case", "show", id["cut.tif"]).status(0).last(&k)
	if k.ID != id["cut.tif"] || k.Code != "truncated" || k.Reason == "" || k.Digest != sum(whole[:900]) || k.Attempts != 1 || len(k.History) != 1 {
		t.Errorf("%+v", k)
	}
	if text := a.run("case", "show", id["cut.tif"]).status(0).stdout; !strings.Contains(text, "truncated") {
		t.Errorf("case show prints %q", text)
	}
	a.run("case", "show", "no-such-case").status(1)
	a.run("case", "discard", id["cut.tif"]).status(2)          // no note
	a.run("case", "discard", "--note", "x").status(2)          // no case, no filter
	a.run("case", "replay", "--note", "x", "nosuch").status(1) // unknown

	var d decided
	a.run("--json", "case", "replay", "--dry-run", "--note", "x", id["cut.tif"]).status(0).last(&d)
	if d.Eligible != 1 || len(d.Done) != 0 {
		t.Errorf("a dry run: %+v", d)
	}
	if a.cases().Total != 2 {
		t.Error("a dry run changed something")
	}

	// A replay without a repair fails again, in the next pass.
	o := a.run("--json", "case", "replay", "--note", "again", id["cut.tif"]).status(0)
	if o.last(&d); len(d.Done) != 1 {
		t.Errorf("%+v", d)
	}
	eventuallyCase(t, a, id["cut.tif"], 2)

	// A derivative that is not wanted: the slot is done without it, and bagged.
	a.run("--json", "case", "discard", "--note", "not wanted", id["cut.tif"]).status(0).last(&d)
	if len(d.Done) != 1 {
		t.Errorf("%+v", d)
	}
	a.run("--json", "case", "discard", "--note", "again", id["cut.tif"]).status(3).last(&d)
	if d.Refused[id["cut.tif"]] == "" {
		t.Errorf("a decided case is decided again: %+v", d)
	}
	// An unfinished capture: the slot is discarded.
	a.run("--json", "case", "discard", "--batch", "vol", "--note", "no such page").status(0).last(&d)
	if len(d.Done) != 1 {
		t.Errorf("%+v", d)
	}
	if n := a.cases().Total; n != 0 {
		t.Errorf("%d cases are open", n)
	}
	a.run("status", "vol").status(0)
	a.noStrays()
	m := a.manifest("vol")
	if m.State != "converged" || m.Totals.Done != 3 || m.Totals.Discarded != 1 {
		t.Errorf("the manifest says %s, %+v", m.State, m.Totals)
	}
	payload := a.bag("vol")
	if len(payload) != 5 || payload["data/masters/cut.tif"] != sum(whole[:900]) {
		t.Errorf("the bag holds %v", payload)
	}
	for _, f := range m.Frames {
		if f.Frame == "cut.tif" && (f.State != "done" || len(f.Waived) != 1) {
			t.Errorf("%+v", f)
		}
	}
	a.ingest(dir).status(0).counts(0, 0, 4, 0)
	kinds := map[string]int{}
	for _, e := range a.events("vol") {
		kinds[e.kind]++
	}
	for kind, want := range map[string]int{"quarantine": 3, "unquarantine": 1, "appraisal": 2, "accession": 3, "ingestion end": 1} {
		if kinds[kind] != want {
			t.Errorf("%d events of %s, not %d: %v", kinds[kind], kind, want, kinds)
		}
	}
	a.ledger("vol")
	a.verify(0)
}

func eventuallyCase(t *testing.T, a *archive, id string, pass int) {
	t.Helper()
	eventually(t, id+" to be open again", func() bool {
		for _, c := range a.cases().Cases {
			if c.ID == id && c.Open && c.Pass == pass {
				return true
			}
		}
		return false
	})
}

// TestDiscardStaged: what a discarded slot had in staging goes, and nothing else.
func TestDiscardStaged(t *testing.T) {
	t.Parallel()
	a := newArchive(t)
	dir := tempDir(t)
	one, two := put(t, dir, "1.tif", tiffPage(1)), put(t, dir, "2.tif", tiffPage(2))
	p := a.serve("--root", dir)
	g := a.gateway()
	g.declare("vendor", 2)
	g.frame("vendor", "p1", 1, one, sum(tiffPage(1)))
	g.frame("vendor", "p2", 2, two, sum(tiffPage(99)))
	a.settledIs("vendor")
	eventually(t, "the case", func() bool { return a.cases().Total == 1 })
	if n := len(a.files("staging")); n != 1 {
		t.Errorf("%d files are staged while the case is open", n)
	}
	a.run("case", "discard", "--note", "wrong page", a.cases().Cases[0].ID).status(0)
	eventually(t, "the batch to converge", func() bool { return a.settledIs("vendor") == 0 })
	eventually(t, "the staged bytes to go", func() bool { return len(a.files("staging")) == 0 })
	p.signal(syscall.SIGTERM)
	p.wait().status(0)
	a.bag("vendor")
	a.verify(0)
	story := a.run("audit", "story", "vendor").status(0).stdout
	for _, want := range []string{"  p2  fixity  1.1  ", " -> give up: to quarantine (policy ", "  p2  fixity  1  ", "wrong page  -> discard by "} {
		_, rest, ok := strings.Cut(story, want)
		if !ok {
			t.Fatalf("no %q in this order in the rest of the story: %s", want, story)
		}
		story = rest
	}
	a.run("audit", "story", "nowhere").status(2)
}

// TestReplayCrash ends the process behind a replay's publish: the same replay
// again is the same work.
func TestReplayCrash(t *testing.T) {
	t.Parallel()
	a := newArchive(t)
	dir := filepath.Join(tempDir(t), "vol")
	putAll(t, dir, good)
	put(t, dir, "p.tif", nil)
	a.ingest(dir).status(3)
	id := a.cases().Cases[0].ID
	put(t, dir, "p.tif", tiffPage(7)) // repaired
	a.bin, a.env = crashProgram(t), []string{"COLOPHON_CRASH_AT=quarantine.after-replay"}
	if o := a.run("case", "replay", "--note", "repaired", id); o.signal != syscall.SIGKILL {
		t.Fatalf("the process was not killed: status %d\n%s", o.code, o.text)
	}
	a.env = nil
	o := a.run("--json", "case", "replay", "--note", "repaired", id)
	if o.code != 0 && o.code != 3 { // 3: it went on meanwhile
		t.Fatalf("status %d: %s", o.code, o.text)
	}
	a.ingest(dir).converged(3)
	if l := a.cases("--all"); l.Total != 1 || l.Cases[0].Open {
		t.Errorf("%+v", l)
	}
	released := 0
	for _, e := range a.events("vol") {
		if e.kind == "unquarantine" {
			released++
		}
	}
	if released != 1 {
		t.Errorf("%d releases", released)
	}
	a.verify(0)
}

// TestRetry: one more pass over what failed.
func TestRetry(t *testing.T) {
	t.Parallel()
	a := newArchive(t)
	dir := filepath.Join(tempDir(t), "vol")
	putAll(t, dir, good)
	put(t, dir, "p.tif", nil)
	a.ingest(dir).status(3)
	var r struct {
		Dispatched, Left int
		Converged        bool
	}
	a.run("--json", "retry", "vol").status(3).last(&r)
	if r.Dispatched != 1 || r.Converged {
		t.Errorf("%+v", r)
	}
	put(t, dir, "p.tif", tiffPage(7))
	a.run("--json", "retry", "vol").status(0).last(&r)
	if r.Dispatched != 1 || !r.Converged {
		t.Errorf("%+v", r)
	}
	a.run("--json", "retry", "vol").status(0).last(&r)
	if r.Dispatched != 0 {
		t.Errorf("%+v", r)
	}
	a.bag("vol")
	a.verify(0)
}
