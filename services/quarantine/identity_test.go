package quarantine

import (
	"testing"

	"github.com/nats-io/nats.go"

	"colophon/shared/event"
)

// A fact whose id the broker remembers for another message goes out as
// <id>!<n> (shared/stage). What it says is its name, not the header it came by.
func TestFactUnderAnotherHeaderIsItself(t *testing.T) {
	t.Parallel()
	w, state := newWorld(t), t.TempDir()
	s := slotOf("b", "1")
	opened := event.CaseFact{Slot: s, Operation: jp2, Digest: digest(1), Pass: 1, State: event.CaseOpened, Number: 1}.MsgID()
	w.publish(&nats.Msg{Subject: "ingest.op.taken", Header: nats.Header{event.HeaderMsgID: {opened}}, Data: []byte("{}")})
	q := w.run(state)
	w.fail(s, digest(1), 1, 1)
	w.quiet(q)
	by := event.CaseRequest{ID: caseOf(s), Actor: "ann", Note: "n"}
	same(t, "done", get[event.CaseDecision](w, "quarantine.discard", by).Done, []string{caseOf(s)})
	facts := w.messages(event.StreamIngest, event.SubjectCase+".>")
	same(t, "headers", []string{facts[0].Header.Get(event.HeaderMsgID), facts[1].Header.Get(event.HeaderMsgID)[:5]}, []string{opened + "!1", "case:"})
	want := get[event.CaseList](w, "quarantine.list", event.CaseRequest{All: true})
	q.end()

	end := w.last(event.StreamIngest)
	for _, dir := range []string{state, t.TempDir()} {
		q = w.run(dir)
		ok(t, q.store.Forget()) // as behind a rollback: what the log holds is not published again
		q.end()
		q = w.run(dir)
		w.quiet(q)
		same(t, "cases", get[event.CaseList](w, "quarantine.list", event.CaseRequest{All: true}), want)
		same(t, "end of the log", w.last(event.StreamIngest), end)
		q.end()
	}

	// The same letter under another header is the same letter.
	m := dead{op: jp2, slot: s, digest: digest(1), revision: 1, pass: 1, origin: fixed(s, digest(1), 1, 1), n: 1}.msg(t)
	m.Header.Set(event.HeaderMsgID, m.Header.Get(event.HeaderMsgID)+"!1")
	w.publish(m)
	q = w.run(state)
	w.quiet(q)
	same(t, "changes", w.changes(caseOf(s)), []string{"opened.1", "discarded.2"})
	q.end()
}
