package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// attempt is a failed attempt as the log tells it.
type attempt struct {
	Operation, Frame, Code, Decision string
	Pass, Attempt, Limit             int
}

func attempts(t testing.TB, facts []streamed) map[string][]attempt {
	t.Helper()
	out := map[string][]attempt{}
	for _, m := range facts {
		if m.subject == "ingest.attempt.failed" {
			var a attempt
			ok(t, json.Unmarshal(m.data, &a))
			out[a.Frame] = append(out[a.Frame], a)
		}
	}
	return out
}

// numbered demands that the attempts of a page are numbered without a gap, and
// that the last one is given up.
func numbered(t testing.TB, frame string, tries []attempt) {
	t.Helper()
	for i, a := range tries {
		want := "retry"
		if i == len(tries)-1 {
			want = "dead-letter"
		}
		if a.Attempt != i+1 || a.Decision != want || a.Pass != 1 {
			t.Errorf("attempt %d of %s: %+v", i+1, frame, a)
		}
	}
}

// retries counts a ledger's events of attempts by slot.
func retries(events []eventRow) map[string]int {
	out := map[string]int{}
	for _, e := range events {
		if e.kind == "retry" {
			out[e.frame]++
		}
	}
	return out
}

// TestKillerOfItsService: a page whose encoder kills the service each time is
// given up after max_attempts; it takes nothing along.
func TestKillerOfItsService(t *testing.T) {
	t.Parallel()
	x := newTools(t)
	x.encoder("KILLER", "kill -9 $PPID; sleep 60")
	dir := filepath.Join(tempDir(t), "vol")
	l := newLine(t, dir)
	l.extra["deriver"] = []string{x.env()}
	frames := marked("GOOD", 0, 12)
	putAll(t, dir, frames)
	put(t, dir, "0005 killer.tif", markedPage(1, "KILLER"))
	l.all()
	stop := l.supervise("deriver")
	o := l.ingest(dir, "--policy", quick(t, 2, 10*time.Millisecond)).status(3).counts(13, 12, 0, 1)
	if got := o.cases(); got["0005 killer.tif derivative:jp2"] != "worker-lost" {
		t.Errorf("the cases are %v", got)
	}
	ends := stop()
	l.ready("deriver")
	l.killed(l.facts(), ends)
	x.remove("opj_compress")
	x.install("opj_compress")
	l.ingest(dir).converged(13).counts(1, 1, 12, 0)
	l.bag("vol")
	l.noStrays()
	l.verify(0)
	l.end()
}

// killed judges what a page that killed its worker left in log and ledger.
func (a *archive) killed(facts []streamed, ends int) {
	t := a.t
	t.Helper()
	tries := attempts(t, facts)
	for frame, of := range tries {
		if !strings.Contains(frame, "killer") { // lost in company, never given up
			for _, one := range of {
				if one.Code != "worker-lost" || one.Decision != "retry" {
					t.Errorf("a neighbour failed: %+v", one)
				}
			}
			continue
		}
		numbered(t, frame, of)
		if len(of) != ends {
			t.Errorf("%s was tried %d times, and %d workers ended", frame, len(of), ends)
		}
	}
	of := tries["0005 killer.tif"]
	if len(of) < 2 || len(of) > 3 { // max_attempts, and one lost in company
		t.Fatalf("the killer was tried %d times: %+v", len(of), of)
	}
	if n := retries(a.events("vol"))["vol/"+encode("0005 killer.tif")]; n != len(of) {
		t.Errorf("the ledger tells of %d attempts of the killer, the log of %d", n, len(of))
	}
}

// TestKillerOfItsProgram is the same, where everything is in one process that
// somebody starts again.
func TestKillerOfItsProgram(t *testing.T) {
	t.Parallel()
	x := newTools(t)
	x.encoder("KILLER", "kill -9 $PPID; sleep 60")
	dir := filepath.Join(tempDir(t), "vol")
	frames := marked("GOOD", 0, 12)
	putAll(t, dir, frames)
	put(t, dir, "0005 killer.tif", markedPage(1, "KILLER"))
	a := newArchive(t)
	a.env = []string{x.env()}
	policy := quick(t, 2, 10*time.Millisecond)
	ends := 0
	var o outcome
	for ; ends < 8; ends++ {
		if o = a.start("--json", "ingest", dir, "--policy", policy).wait(); o.signal != syscall.SIGKILL {
			break
		}
	}
	o = o.parsed().status(3)
	if got := o.cases(); len(got) != 1 || got["0005 killer.tif derivative:jp2"] != "worker-lost" {
		t.Errorf("the cases are %v: %s", got, o.stdout)
	}
	a.killed(a.stream("INGEST"), ends)
	a.env = nil
	a.ingest(dir).converged(13).counts(1, 1, 12, 0)
	a.bag("vol")
	a.noStrays()
	a.verify(0)
}

// TestChildKilled: an encoder that is killed, as the kernel does where memory
// is short, or that takes more than it may, has failed an attempt, no more.
func TestChildKilled(t *testing.T) {
	t.Parallel()
	x := newTools(t)
	x.encoder("KILLED", "kill -9 $$")
	one := filepath.Join(x.dir, "opj_compress")
	ok(t, os.Rename(one, filepath.Join(x.dir, "killed")))
	x.install("opj_compress")
	x.encoder("EATER", "exec tail -n 1 /dev/zero")
	text := readFile(t, one)
	ok(t, os.WriteFile(one, []byte(text[:strings.LastIndex(text, "exec ")]+"exec killed \"$@\"\n"), 0o755)) //nolint:gosec // a program
	dir := filepath.Join(tempDir(t), "vol")
	putAll(t, dir, marked("GOOD", 0, 6))
	put(t, dir, "eater.tif", markedPage(1, "EATER"))
	put(t, dir, "killed.tif", markedPage(2, "KILLED"))
	a := newArchive(t)
	a.env = []string{x.env()}
	o := a.ingest(dir, "--policy", quick(t, 2, 10*time.Millisecond)).status(3).counts(8, 6, 0, 2)
	if got := o.cases(); got["eater.tif derivative:jp2"] != "encoder-failed" || got["killed.tif derivative:jp2"] != "encoder-failed" {
		t.Errorf("the cases are %v", got)
	}
	tries := attempts(t, a.stream("INGEST"))
	for _, frame := range []string{"eater.tif", "killed.tif"} {
		if numbered(t, frame, tries[frame]); len(tries[frame]) != 2 {
			t.Errorf("%s was tried %d times", frame, len(tries[frame]))
		}
	}
	if len(tries) != 2 {
		t.Errorf("others failed: %v", tries)
	}
	a.env = nil
	a.ingest(dir).converged(8).counts(2, 2, 6, 0)
	a.noStrays()
	a.verify(0)
}

// TestManyBad: 200 pages of 230 fail every attempt. Scratch space stays flat,
// each is tried as often as its policy says, and the others are done.
func TestManyBad(t *testing.T) {
	t.Parallel()
	const bad, good, tries = 200, 30, 4
	x := newTools(t)
	x.encoder("BROKEN", "head -c 65536 /dev/zero > page.jp2; echo 'no luck' >&2; exit 1")
	dir := filepath.Join(tempDir(t), "vol")
	putAll(t, dir, marked("BROKEN", 0, bad))
	putAll(t, dir, marked("GOOD", bad, good))
	a := newArchive(t)
	a.env = []string{x.env()}
	p := a.startIngest(dir, "--policy", quick(t, tries, 10*time.Millisecond))
	jobs, bytes := 0, int64(0)
	for p.running() {
		n, size := usage(a.path("state", "deriver", "scratch"))
		jobs, bytes = max(jobs, n), max(bytes, size)
		time.Sleep(5 * time.Millisecond) // between two looks
	}
	o := p.wait().parsed().status(3).counts(bad+good, good, 0, bad)
	t.Logf("%d failing attempts in %v; scratch held at most %d jobs of %d bytes", bad*tries, o.took.Round(time.Millisecond), jobs, bytes)
	if jobs > 64 || bytes > 16<<20 {
		t.Errorf("scratch held %d jobs of %d bytes", jobs, bytes)
	}
	if n, size := usage(a.path("state", "deriver", "scratch")); n != 0 {
		t.Errorf("scratch is left with %d jobs of %d bytes", n, size)
	}
	failed := attempts(t, a.stream("INGEST"))
	for frame, of := range failed {
		if numbered(t, frame, of); len(of) != tries {
			t.Errorf("%s was tried %d times", frame, len(of))
		}
	}
	if len(failed) != bad {
		t.Errorf("%d pages failed", len(failed))
	}
	a.verify(0)
}

// usage gives the number of jobs below a scratch folder and their bytes.
func usage(dir string) (jobs int, bytes int64) {
	entries, _ := os.ReadDir(dir)
	_ = filepath.WalkDir(dir, func(_ string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			if info, err := d.Info(); err == nil {
				bytes += info.Size()
			}
		}
		return nil // a file that is just gone
	})
	return len(entries), bytes
}

// TestDelaysHoldNobody: pages that wait for their next attempt hold no place:
// those behind them are done before the first of them is tried again.
func TestDelaysHoldNobody(t *testing.T) {
	t.Parallel()
	const bad, good, delay = 24, 8, 12 * time.Second
	x := newTools(t)
	x.encoder("BROKEN", "exit 1")
	dir := filepath.Join(tempDir(t), "vol")
	putAll(t, dir, marked("BROKEN", 0, bad))
	putAll(t, dir, marked("GOOD", bad, good))
	a := newArchive(t)
	a.env = []string{x.env()}
	o := a.ingest(dir, "--policy", quick(t, 2, delay)).status(3).counts(bad+good, good, 0, bad)
	done := map[string]bool{}
	for _, l := range o.lines {
		switch {
		case message("idempotent_recorded", "deriver")(l):
			done[l.str("frame_id")] = true
		case message("idempotent_execute", "deriver")(l) && l.num("attempt") == 2 && len(done) < good:
			t.Fatalf("%s was tried again when only %d of %d good pages were done", fmt.Sprint(l["frame_id"]), len(done), good)
		}
	}
}
