package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
)

// TestChangedSource: a metadata tool rewrote masters whose batch is done.
// Nothing is derived again; each has a case. The original bytes heal it, and
// --replace takes the new ones as revisions.
func TestChangedSource(t *testing.T) {
	t.Parallel()
	a := newArchive(t)
	dir := filepath.Join(tempDir(t), "vol")
	frames := []frame{{"1.tif", tiffPage(1)}, {"2.tif", tiffPage(2)}, {"3.jpg", jpegPage(3)}, {"4.png", pngPage(4)}}
	putAll(t, dir, frames)
	a.ingest(dir).converged(4)
	before := a.stamps("masters", "derivatives", "bags")
	objects := a.inodes()
	ledger := a.ledger("vol")

	rewrite(t, dir, "1.tif", "2.tif", "3.jpg")
	o := a.ingest(dir).status(3)
	cases := o.cases()
	for _, f := range []string{"1.tif", "2.tif", "3.jpg"} {
		if cases[f+" source-changed"] != "source-changed" {
			t.Errorf("%s: the cases are %v", f, cases)
		}
	}
	if len(cases) != 3 || o.json.Dispatched != 3 || o.json.Skipped != 1 || o.json.Failed != 3 || o.json.Processed != 0 {
		t.Errorf("%s", o.stdout)
	}
	for _, l := range o.logged("idempotent_execute") {
		if l.str("service") == "deriver" || l.str("service") == "hasher" {
			t.Errorf("worked on again: %v", l)
		}
	}
	same(t, "stored files", a.stamps("masters", "derivatives", "bags"), before)
	checkLines(t, o)
	a.verify(0)

	putAll(t, dir, frames) // the original bytes, in new files
	a.ingest(dir).converged(4)
	same(t, "stored files", a.inodes(), objects)
	a.noStrays()
	for id, e := range a.ledger("vol") { // it was not converged meanwhile: it converges again
		if _, there := ledger[id]; !there && !slices.Contains([]string{"quarantine", "unquarantine", "appraisal", "retry", "ingestion end"}, e.Type) {
			t.Errorf("a record more: %s %s %s", id, e.Type, e.Outcome)
		}
	}
	a.ingest(dir).converged(4).counts(0, 0, 4, 0)
	a.verify(0)

	rewrite(t, dir, "1.tif", "2.tif")
	a.ingest(dir).status(3)
	a.ingest(dir, "--replace").converged(4).counts(2, 2, 2, 0)
	m := a.manifest("vol")
	if m.Convergence != 3 || m.Frames[0].Revision != 2 || m.Frames[1].Revision != 2 || m.Frames[3].Revision != 1 {
		t.Errorf("the manifest: convergence %d, %+v", m.Convergence, m.Frames)
	}
	after := a.inodes()
	for name, was := range objects {
		if after[name] != was {
			t.Errorf("%s is %s, was %s", name, after[name], was)
		}
	}
	payload := a.bag("vol")
	for _, name := range []string{"1.tif", "2.tif"} {
		data, err := os.ReadFile(filepath.Join(dir, name))
		ok(t, err)
		digest := a.master(data)
		a.decodes(digest)
		if payload["data/masters/"+name] != digest {
			t.Errorf("the bag holds %s of %s, not %s", payload["data/masters/"+name], name, digest)
		}
	}
	for _, f := range frames {
		a.master(f.data) // also the superseded ones
	}
	a.noStrays()
	a.ingest(dir).converged(4).counts(0, 0, 4, 0)
	kinds := map[string]int{}
	for _, e := range a.ledger("vol") {
		kinds[e.Type]++
	}
	if kinds["deaccession"] != 2 || kinds["ingestion end"] != 3 || kinds["accession"] != 6 {
		t.Errorf("the ledger holds %v", kinds)
	}
	a.verify(0)
}

// inodes tells of masters and derivatives what a rewrite would change, and a
// link more would not.
func (a *archive) inodes() map[string]string {
	out := a.stamps("masters", "derivatives")
	for name, s := range out {
		out[name] = inode(s)
	}
	return out
}

// TestChangedUnfinished: a slot that is not done takes other bytes without a
// word: that is how a damaged page is repaired.
func TestChangedUnfinished(t *testing.T) {
	t.Parallel()
	a := newArchive(t)
	dir := filepath.Join(tempDir(t), "vol")
	whole := tiffPage(7)
	putAll(t, dir, good)
	put(t, dir, "p.tif", whole[:len(whole)/2])
	a.ingest(dir).status(3).counts(3, 2, 0, 1)
	put(t, dir, "p.tif", whole[:len(whole)*2/3]) // mended badly
	a.ingest(dir).status(3).counts(1, 0, 2, 1)
	put(t, dir, "p.tif", whole)
	a.ingest(dir).converged(3).counts(1, 1, 2, 0)
	if r := a.manifest("vol").Frames[1].Revision; r != 3 {
		t.Errorf("the repaired page is revision %d", r)
	}
	a.noStrays()
	a.verify(0)
}

// rewrite changes the metadata of masters by exiftool, as a cataloguer would.
func rewrite(t *testing.T, dir string, names ...string) {
	t.Helper()
	args := append([]string{"-q", "-overwrite_original", "-Artist=somebody else"}, names...)
	cmd := exec.Command("exiftool", args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("exiftool: %v\n%s", err, out)
	}
}
