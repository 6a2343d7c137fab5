package e2e

import (
	"fmt"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// TestTogether starts a second ingest of the same folder while the first one
// runs: the same results, the same exit status, and nothing done twice.
func TestTogether(t *testing.T) {
	t.Parallel()
	frames := twins(12)
	dir := filepath.Join(tempDir(t), "vol")
	putAll(t, dir, frames)
	begun := func(p *process) { p.waitFor(message("idempotent_execute", "capture", "batch_id", "vol")) }
	for _, c := range []struct {
		name string
		when func(*process) // the second one starts
	}{
		{"at once", func(*process) {}},
		{"while it captures", begun},
		{"while it derives", func(p *process) { p.waitFor(message("idempotent_execute", "deriver")) }},
		{"at its end", func(p *process) { p.waitFor(message("batch_converged", "capture")) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			a := newArchive(t)
			first := a.startIngest(dir)
			c.when(first)
			second := a.startIngest(dir)
			o1, o2 := first.wait().parsed().converged(len(frames)), second.wait().parsed().converged(len(frames))
			if o1.json.Processed+o1.json.Skipped != len(frames) || o2.json.Processed+o2.json.Skipped != len(frames) {
				t.Errorf("%s\n%s", o1.stdout, o2.stdout)
			}
			once(t, o1, o2)
			a.judge("vol", frames)
		})
	}
}

// TestTogetherFailing: both commands tell of the same damaged page.
func TestTogetherFailing(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(tempDir(t), "vol")
	putAll(t, dir, twins(4))
	put(t, dir, "cut.tif", tiffPage(77)[:700])
	a := newArchive(t)
	first := a.startIngest(dir)
	first.waitFor(message("idempotent_execute", "capture", "batch_id", "vol"))
	second := a.startIngest(dir)
	o1, o2 := first.wait().parsed().status(3), second.wait().parsed().status(3)
	same(t, "cases of the two", o1.cases(), o2.cases())
	a.verify(0)
}

// TestTakeOver kills the first of two: the second one takes the archive over
// and finishes the batch.
func TestTakeOver(t *testing.T) {
	t.Parallel()
	frames := twins(12)
	dir := filepath.Join(tempDir(t), "vol")
	putAll(t, dir, frames)
	for _, at := range []string{"capture", "hasher", "deriver"} {
		t.Run(at, func(t *testing.T) {
			t.Parallel()
			a := newArchive(t)
			// a page that keeps the first one running until the second is attached
			wait := filepath.Join(tempDir(t), "vol")
			putAll(t, wait, frames)
			late := put(t, wait, "zz late.tif", tiffPage(5000))
			touch(t, late)
			first := a.startIngest(wait)
			first.waitFor(message("idempotent_execute", "capture", "batch_id", "vol"))
			second := a.startIngest(wait)
			first.waitFor(message("idempotent_execute", at))
			first.signal(syscall.SIGKILL)
			o := second.wait().parsed().converged(len(frames) + 1)
			if o.took > time.Minute {
				t.Errorf("it took %v", o.took)
			}
			a.judge("vol", append([]frame{{"zz late.tif", tiffPage(5000)}}, frames...), retried...)
		})
	}
}

// twins are pages of which each second one equals the one before it.
func twins(n int) []frame {
	var out []frame
	for i := range n {
		out = append(out, frame{fmt.Sprintf("%02d.tif", i+1), tiffPage(uint64(4000 + i/2))})
	}
	return out
}

// once demands that no key was worked on twice over all these runs.
func once(t testing.TB, runs ...outcome) {
	t.Helper()
	acts := map[string]int{}
	for _, o := range runs {
		for _, l := range o.logged("idempotent_execute") {
			acts[l.str("service")+" "+l.str("key")]++
		}
	}
	for key, n := range acts {
		if n > 1 {
			t.Errorf("%s was worked on %d times", key, n)
		}
	}
}

// TestEqualPages: equal bytes are one master and one derivative, and each page
// is counted; also in a later batch.
func TestEqualPages(t *testing.T) {
	t.Parallel()
	a := newArchive(t)
	dir := filepath.Join(tempDir(t), "one")
	blank := tiffPage(1)
	frames := []frame{{"1.tif", blank}, {"2.tif", blank}, {"sub/3.tif", tiffPage(3)}}
	putAll(t, dir, frames)
	o := a.ingest(dir).converged(3).counts(3, 3, 0, 0)
	once(t, o)
	a.judge("one", frames)
	if n := len(a.files("masters")); n != 2 {
		t.Errorf("%d masters", n)
	}
	if n := len(a.files("derivatives")); n != 2 {
		t.Errorf("%d derivatives", n)
	}
	count := map[string]int{}
	for _, e := range a.events("one") {
		if e.digest == sum(blank) {
			count[e.kind]++
		}
	}
	for kind, want := range map[string]int{"accession": 2, "capture": 1, "message digest calculation": 1, "format identification": 1, "validation": 1, "migration": 1, "ingestion": 1} {
		if count[kind] != want {
			t.Errorf("%d events of %s for equal pages, not %d", count[kind], kind, want)
		}
	}

	stamps := a.stamps("masters", "derivatives")
	later := filepath.Join(tempDir(t), "two")
	put(t, later, "again.tif", blank)
	a.ingest(later).converged(1)
	for name, s := range a.stamps("masters", "derivatives") {
		if before, there := stamps[name]; !there {
			t.Errorf("new: %s", name)
		} else if inode(before) != inode(s) {
			t.Errorf("rewritten: %s", name)
		}
	}
	fresh := 0
	for _, e := range a.events("two") {
		if e.digest == sum(blank) && e.kind != "accession" {
			for _, old := range a.events("one") {
				if old.number == e.number {
					fresh--
					break
				}
			}
			fresh++
		}
	}
	if fresh != 0 {
		t.Errorf("a later batch with the same page has %d content events of its own", fresh)
	}
	a.bag("two")
	a.verify(0)
}

// inode is a stamp without what a hard link more changes.
func inode(stamp string) string {
	for i := range stamp {
		if stamp[i:min(i+7, len(stamp))] == ", ctime" {
			return stamp[:i]
		}
	}
	return stamp
}
