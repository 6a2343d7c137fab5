package e2e

import (
	"crypto/sha256"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestDoubleRun: a batch that converged is run again. Nothing happens, and
// nothing is touched.
func TestDoubleRun(t *testing.T) {
	t.Parallel()
	a := newArchive(t)
	dir := filepath.Join(tempDir(t), "mixed")
	frames := mixed()
	putAll(t, dir, frames)
	n := len(frames)
	a.ingest(dir).converged(n)
	files, records := a.stamps(stored...), a.ledger("mixed")
	for _, again := range [][]string{nil, {"--checksum"}, {"--replace"}} {
		o := a.ingest(dir, again...).converged(n).counts(0, 0, n, 0)
		checkLines(t, o)
		for _, l := range o.lines {
			if l.msg() == "idempotent_execute" {
				t.Errorf("%v: work was done: %v", again, l)
			}
		}
	}
	// The same files copied elsewhere are the same batch, read once to know it.
	other := filepath.Join(tempDir(t), "mixed")
	putAll(t, other, frames)
	a.ingest(other).converged(n).counts(0, 0, n, 0)
	same(t, "stored files", a.stamps(stored...), files)
	for id, e := range a.ledger("mixed") {
		if _, there := records[id]; !there {
			t.Errorf("a new record: %s %s", id, e.Type)
		}
	}
}

// TestHalfFinished: a batch of files, one of them unreadable, and the run
// killed there. Repaired and run again, only what had not finished is
// dispatched.
func TestHalfFinished(t *testing.T) {
	t.Parallel()
	halfFinished(t, 300, 91)
}

func halfFinished(t *testing.T, n, bad int) {
	a := newArchive(t)
	dir := pages(t, n)
	name := pageName(bad - 1)
	whole := tiffPage(uint64(bad) - 1 + 1000)
	put(t, dir, name, whole[:len(whole)*6/10])
	p := a.startIngest(dir)
	if !p.waitFor(message("dead_letter", "", "frame_id", name)) {
		t.Fatalf("the run ended without a dead letter of %s:\n%s", name, p.wait().tail(20))
	}
	p.kill()
	done := a.doneInLog(t)
	t.Logf("killed with %d of %d derivatives in the log", len(done), n)
	if len(done) == 0 || len(done) >= n-1 {
		t.Errorf("killed too late or too early to show anything: %d of %d done", len(done), n)
	}
	put(t, dir, name, whole)
	o := a.ingest(dir).converged(n)
	j := o.json
	if j.Dispatched < 1 || j.Dispatched > n-len(done) {
		t.Errorf("%d were dispatched; %d had not finished", j.Dispatched, n-len(done))
	}
	if j.Processed+j.Skipped != n {
		t.Errorf("processed %d and skipped %d are not %d", j.Processed, j.Skipped, n)
	}
	checkLines(t, o)
	for _, l := range o.lines {
		if l.msg() == "idempotent_execute" && done[l.str("frame_id")] {
			t.Errorf("finished work was done again: %v", l)
		}
	}
	var frames []frame
	for i := range n {
		frames = append(frames, frame{pageName(i), tiffPage(uint64(i) + 1000)})
	}
	a.judgeMany("vol", frames)
	a.doubleRun(dir, n)
}

// judgeMany is judge for a batch too large to decode each page of.
func (a *archive) judgeMany(batch string, frames []frame) {
	a.t.Helper()
	if got, want := len(a.bag(batch)), 2*len(frames); got != want {
		a.t.Errorf("the bag holds %d files, not %d", got, want)
	}
	a.sha256sum()
	for _, f := range frames {
		a.master(f.data)
	}
	m := a.manifest(batch)
	if m.State != "converged" || m.Totals.Done != len(frames) {
		a.t.Errorf("the manifest says %s, %+v", m.State, m.Totals)
	}
	a.verify(0)
}

// doubleRun runs a converged batch again and prints its time beside that of
// hashing all files.
func (a *archive) doubleRun(dir string, n int) {
	t := a.t
	t.Helper()
	files := a.stamps(stored...)
	o := a.ingest(dir).converged(n).counts(0, 0, n, 0)
	took, hashed := o.took, hashAll(t, dir)
	for range 2 { // the best of three: the machine has other work
		took = min(took, a.ingest(dir).converged(n).counts(0, 0, n, 0).took)
		hashed = min(hashed, hashAll(t, dir))
	}
	same(t, "stored files", a.stamps(stored...), files)
	t.Logf("%d frames: run again %v, all of the process (cpu %v); hashing %v", n, took.Round(time.Microsecond), o.cpu, hashed.Round(time.Microsecond))
	if limit := 2 * time.Second; took > limit {
		t.Errorf("the run again took %v", took)
	}
}

func hashAll(t testing.TB, dir string) time.Duration {
	t.Helper()
	start := time.Now()
	files, err := os.ReadDir(dir)
	ok(t, err)
	for _, f := range files {
		in, err := os.Open(filepath.Join(dir, f.Name()))
		ok(t, err)
		_, err = io.Copy(sha256.New(), in)
		ok(t, err)
		ok(t, in.Close())
	}
	return time.Since(start)
}
