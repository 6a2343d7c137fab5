package e2e

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// crashCase is one place to die at.
type crashCase struct {
	point string
	hit   int
}

// TestCrashPoints ends the process by SIGKILL at each point of the one order,
// in each service, and runs the same command again: no frame is acted on more
// than once more, and bytes, ledger and cases are those of an undisturbed run.
func TestCrashPoints(t *testing.T) {
	t.Parallel()
	bin := crashProgram(t)
	var one, many, bad []crashCase
	for _, service := range []string{"capture", "hasher", "deriver"} {
		for _, point := range []string{"after-act", "after-publish", "after-record"} {
			one = append(one, crashCase{service + "." + point, 1})
			many = append(many, crashCase{service + "." + point, 3})
			if service == "capture" { // whose first message is the declaration
				one = append(one, crashCase{service + "." + point, 2})
			}
		}
	}
	for hit := 1; hit <= 3; hit++ { // how many facts share a commit is chance
		one = append(one, crashCase{"premis.after-append", hit})
	}
	for _, hit := range []int{1, 3} {
		for _, point := range []string{"capture.after-dead-letter", "deriver.after-dead-letter", "quarantine.after-publish", "quarantine.after-record"} {
			bad = append(bad, crashCase{point, hit})
		}
	}
	single := []frame{{"0001.tif", tiffPage(1)}}
	folder := []frame{
		{"1.tif", tiffPage(1)}, {"2.tif", tiffPage(2)}, {"3.tif", tiffPage(3)}, {"4.tif", tiffPage(3)}, {"5.png", pngPage(5)}, {"6.tif", tiffPage(6)},
	}
	damaged := []frame{{"1.tif", tiffPage(1)}, {"2.tif", tiffPage(2)}}
	for i := range 3 {
		damaged = append(damaged, frame{fmt.Sprintf("cut %d.tif", i), tiffPage(uint64(20 + i))[:900]}, frame{fmt.Sprintf("empty %d.tif", i), nil})
	}
	for _, set := range []struct {
		name   string
		frames []frame
		cases  []crashCase
	}{{"one", single, one}, {"many", folder, many}, {"damaged", damaged, bad}} {
		t.Run(set.name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(tempDir(t), "vol")
			putAll(t, dir, set.frames)
			calm := newArchive(t)
			want := calm.ingest(dir)
			calm.parity(want, set.frames)
			ledger := calm.ledger("vol")
			for _, c := range set.cases {
				t.Run(fmt.Sprintf("%s/%d", c.point, c.hit), func(t *testing.T) {
					t.Parallel()
					a := newArchive(t)
					a.bin, a.env = bin, []string{"COLOPHON_CRASH_AT=" + c.point, fmt.Sprintf("COLOPHON_CRASH_HIT=%d", c.hit)}
					died := a.startIngest(dir).wait()
					if died.signal != syscall.SIGKILL {
						t.Fatalf("the process was not killed at %s: status %d\n%s", c.point, died.code, died.tail(10))
					}
					a.env = nil
					if !want.json.Converged {
						// A run again sends what failed under its next pass, as it should:
						// here only the line goes on.
						a.goOn(dir, len(set.frames))
						sameLedger(t, a.ledger("vol"), ledger)
						same(t, "bytes", a.digests("masters", "derivatives"), calm.digests("masters", "derivatives"))
						return
					}
					o := a.ingest(dir)
					if o.code != want.code || o.json.Converged != want.json.Converged {
						t.Fatalf("exit status %d, undisturbed %d\n%s", o.code, want.code, o.stdout)
					}
					a.parity(o, set.frames)
					checkLines(t, o)
					same(t, "cases", o.cases(), want.cases())
					never := ""
					if service, after := strings.CutSuffix(c.point, ".after-record"); after && len(set.frames) == 1 {
						never = service
					}
					actedAgain(t, died, o, never)
					same(t, "bytes", a.digests("masters", "derivatives"), calm.digests("masters", "derivatives"))
					sameLedger(t, a.ledger("vol"), ledger)
					a.bag("vol")
					a.noStrays()
					a.verify(0)
				})
			}
		})
	}
}

// parity checks what is true of any finished run.
func (a *archive) parity(o outcome, frames []frame) {
	a.t.Helper()
	if o.json.Pending != 0 || o.json.Frames != len(frames) {
		a.t.Errorf("%+v", o.json)
	}
	m := a.manifest("vol").Totals
	if m.Declared != len(frames) || m.Done+m.Failed != m.Declared || m.Pending+m.Missing != 0 {
		a.t.Errorf("the manifest counts %+v", m)
	}
}

// goOn runs the line until all of vol's frames that failed have their cases.
// Frames that the dead process had not sent yet are sent first.
func (a *archive) goOn(dir string, n int) {
	a.t.Helper()
	if sent := len(a.stream("CAPTURE", "capture.frame.>")); sent != n {
		a.t.Fatalf("only %d of %d frames had been sent: the crash came too early to show anything", sent, n)
	}
	p := a.serve("--root", dir)
	var status, cases outcome
	for end := time.Now().Add(patience); ; {
		var st struct {
			Settled bool
			Frames  []struct{ State string }
		}
		status = a.run("--json", "status", "vol").status(3)
		status.last(&st)
		var list struct{ Total int }
		cases = a.run("--json", "case", "list", "--batch", "vol").status(0)
		cases.last(&list)
		if st.Settled && len(st.Frames) == 6 && list.Total == 6 {
			break
		}
		if time.Now().After(end) {
			a.t.Fatalf("the batch does not settle, or lacks cases:\n%s\n%s\n%s", status.stdout, cases.stdout, p.log())
		}
	}
	p.signal(syscall.SIGTERM)
	checkFields(a.t, p.wait().status(0).lines)
}

// serve starts the line by itself.
func (a *archive) serve(args ...string) *process {
	a.t.Helper()
	p := a.start(append([]string{"serve", "--listen", "127.0.0.1:0", "--http", ""}, args...)...)
	if !p.waitFor(message("serving", "colophon")) {
		a.t.Fatalf("colophon serve ended: %s", p.wait().text)
	}
	return p
}

// actedAgain counts how often each key was worked on over two runs: at most
// twice, and once where the service had recorded it.
func actedAgain(t testing.TB, first, second outcome, never string) {
	t.Helper()
	acts := map[string]int{}
	for _, l := range slices.Concat(first.logged("idempotent_execute"), second.logged("idempotent_execute")) {
		acts[l.str("service")+" "+l.str("key")]++
	}
	for key, n := range acts {
		if n > 2 || never != "" && n > 1 && strings.HasPrefix(key, never+" ") {
			t.Errorf("%s was worked on %d times", key, n)
		}
	}
}

// sameLedger demands the events of an undisturbed run; the attempts that ended
// with their worker may stand beside them.
func sameLedger(t testing.TB, got, want map[string]premisEvent) {
	t.Helper()
	for id, e := range want {
		g, there := got[id]
		if !there {
			t.Errorf("the ledger lacks %s (%s, %s)", id, e.Type, e.Outcome)
		} else if g != e {
			t.Errorf("the ledger has %+v, undisturbed %+v", g, e)
		}
	}
	for id, e := range got {
		if _, there := want[id]; !there && !slices.Contains(retried, e.Type) {
			t.Errorf("the ledger has an event more: %s (%s, %s)", id, e.Type, e.Outcome)
		}
	}
}
