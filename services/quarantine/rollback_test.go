package quarantine

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"colophon/shared/event"
)

// stopServer ends the broker; the connection comes back to the next one.
func (w *world) stopServer() {
	w.t.Helper()
	s := w.srv.Load()
	s.Shutdown()
	s.WaitForShutdown()
}

// copyTo copies the broker's files.
func copyTo(t testing.TB, from, to string) {
	t.Helper()
	ok(t, os.RemoveAll(to))
	ok(t, os.CopyFS(to, os.DirFS(from)))
}

func TestLogRolledBackUnderARunningInstance(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	q := w.run(t.TempDir())
	a, b, c := slotOf("b", "a"), slotOf("b", "b"), slotOf("b", "c")
	w.fail(a, digest(1), 1, 1)
	w.quiet(q)
	w.stopServer()
	older := filepath.Join(t.TempDir(), "older")
	copyTo(t, w.dir, older)
	w.start()

	w.fail(b, digest(2), 1, 2)
	w.fail(c, digest(3), 1, 3)
	w.quiet(q)
	get[event.CaseDecision](w, "quarantine.discard", event.CaseRequest{ID: caseOf(c), Actor: "ann", Note: "n"})
	w.fact(derived(a, digest(1), 1, 1))
	w.quiet(q)
	want := get[event.CaseList](w, "quarantine.list", event.CaseRequest{All: true})

	// The log alone is restored from the older copy; the dead letters are not.
	w.stopServer()
	log := filepath.Join("jetstream", "$G", "streams", event.StreamIngest)
	copyTo(t, filepath.Join(older, log), filepath.Join(w.dir, log))
	w.start()
	w.ends[event.StreamIngest] = 0
	w.rolledBack(q)
	w.quiet(q)
	same(t, "a", w.changes(caseOf(a)), []string{"opened.1", "resolved.2"})
	same(t, "b", w.changes(caseOf(b)), []string{"opened.1"})
	same(t, "c", w.changes(caseOf(c)), []string{"opened.1", "discarded.2"})
	same(t, "cases", get[event.CaseList](w, "quarantine.list", event.CaseRequest{All: true}), want)
	q.end()

	// An empty store cannot heal, but opens what the dead letters say.
	w.stopServer()
	copyTo(t, filepath.Join(older, log), filepath.Join(w.dir, log))
	w.start()
	q = w.run(t.TempDir())
	w.quiet(q)
	for _, s := range []event.Slot{a, b, c} {
		same(t, "opened from letters", w.changes(caseOf(s)), []string{"opened.1"})
	}
	q.end()
}

// rolledBack waits until an instance has said that the log was rolled back and
// decides again.
func (w *world) rolledBack(q *instance) {
	w.t.Helper()
	q.wait("the rollback is noticed", func() bool {
		for _, m := range w.messages(event.StreamIngest, event.SubjectOp+".>") {
			var f event.OpFact
			ok(w.t, json.Unmarshal(m.Data, &f))
			if f.Kind == event.OpRolledBack {
				return q.Ready() == nil
			}
		}
		return false
	})
}
