package quarantine

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"colophon/shared/event"
)

func TestConfigReportsEveryFault(t *testing.T) {
	t.Parallel()
	err := Config{}.Validate()
	for _, want := range []string{"state folder", "instance", "agent", "replay", "the log", "connection", "JetStream", "logger", "clock"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not name the %s", err, want)
		}
	}
}

func TestDeadLetterOpensOneCase(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	q := w.run(t.TempDir())
	s := slotOf("b", "Vol. 142 (Smith)/f 1.tif")
	f := attempt(jp2, s, digest(1), 1, 1)
	f.Declared = digest(9)
	w.fact(f)
	letter := w.dead(dead{op: jp2, slot: s, digest: digest(1), revision: 1, pass: 1, origin: fixed(s, digest(1), 1, 1), n: 7})
	w.quiet(q)

	c := get[event.Case](w, "quarantine.show", caseOf(s))
	same(t, "changes", w.changes(caseOf(s)), []string{"opened.1"})
	same(t, "open", c.Open, true)
	same(t, "reason", c.Reason, "the image ends early, 50% of it")
	same(t, "detail", c.Detail, "opj_compress: no\nreally")
	same(t, "declared", c.Declared, digest(9))
	same(t, "letter", c.Letter, letter.Sequence)
	same(t, "history", len(c.History), 1)
	same(t, "slot", c.Slot, s)
	if c.Code != "truncated" || c.Class != "permanent" || c.Attempts != 1 || c.Service != "deriver" || c.Origin != "INGEST-7" || c.Pass != 1 {
		t.Errorf("the evidence is not kept: %+v", c)
	}
	for _, body := range []string{fmt.Sprint(letter.Sequence), fmt.Sprintf("%q", caseOf(s)), fmt.Sprintf(`{"id":%q}`, fmt.Sprint(letter.Sequence))} {
		same(t, body, get[event.Case](w, "quarantine.show", body).ID, caseOf(s))
	}
	// The same letter, stored twice outside the broker's memory of ids.
	m := dead{op: jp2, slot: s, digest: digest(1), revision: 1, pass: 1, origin: fixed(s, digest(1), 1, 1), n: 7}.msg(t)
	m.Header.Del(event.HeaderMsgID)
	w.publish(m)
	w.quiet(q)
	same(t, "changes after the second letter", w.changes(caseOf(s)), []string{"opened.1"})
	q.end()
}

// cut is a broker whose client dies behind the n-th publish below a subject.
type cut struct {
	jetstream.JetStream
	subject string
	left    atomic.Int32
	die     func()
}

func (c *cut) PublishMsg(ctx context.Context, m *nats.Msg, o ...jetstream.PublishOpt) (*jetstream.PubAck, error) {
	ack, err := c.JetStream.PublishMsg(ctx, m, o...)
	if strings.HasPrefix(m.Subject, c.subject) && c.left.Add(-1) == 0 {
		c.die()
		return nil, errors.New("done, but reported as failed")
	}
	return ack, err
}

// runCut runs an instance that is stopped behind its n-th publish.
func (w *world) runCut(state, subject string, n int32) *instance {
	w.t.Helper()
	c := &cut{JetStream: w.js, subject: subject}
	c.left.Store(n)
	dying := make(chan struct{})
	c.die = func() { close(dying) }
	i := w.begin(state, func(conf *Config) { conf.JS = c })
	go func() {
		<-dying
		i.stop()
	}()
	return i
}

func TestStoppedBetweenPublishAndStore(t *testing.T) {
	t.Parallel()
	w, state := newWorld(t), t.TempDir()
	s := slotOf("b", "1")
	q := w.runCut(state, event.SubjectCase, 1)
	w.fail(s, digest(1), 1, 7)
	q.ends()
	same(t, "changes", w.changes(caseOf(s)), []string{"opened.1"})

	for _, dir := range []string{state, t.TempDir(), state} {
		q = w.run(dir)
		w.quiet(q)
		same(t, "changes", w.changes(caseOf(s)), []string{"opened.1"})
		c := get[event.Case](w, "quarantine.show", caseOf(s))
		if !c.Open || c.Detail == "" {
			t.Errorf("the case came back as %+v", c)
		}
		q.end()
	}
}

func TestEmptyStoreComesToTheSameCases(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	q := w.run(t.TempDir())
	for n := range 6 {
		w.fail(slotOf("b", fmt.Sprint(n)), digest(n), 1, uint64(n))
	}
	w.fact(derived(slotOf("b", "0"), digest(0), 1, 2))
	w.quiet(q)
	get[event.CaseDecision](w, "quarantine.replay", event.CaseRequest{ID: caseOf(slotOf("b", "1")), Actor: "ann", Note: "n"})
	get[event.CaseDecision](w, "quarantine.discard", event.CaseRequest{ID: caseOf(slotOf("b", "2")), Actor: "ann", Note: "n"})
	w.fail(slotOf("b", "1"), digest(1), 2, 77)
	w.quiet(q)
	all := event.CaseRequest{All: true}
	before, end := get[event.CaseList](w, "quarantine.list", all), w.last(event.StreamIngest)
	q.end()

	q = w.run(t.TempDir())
	w.quiet(q)
	same(t, "cases", get[event.CaseList](w, "quarantine.list", all), before)
	same(t, "end of the log", w.last(event.StreamIngest), end)
	same(t, "evidence", get[event.Case](w, "quarantine.show", caseOf(slotOf("b", "1"))).Detail, "opj_compress: no\nreally")
	q.end()
}

func TestCompletionResolves(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	q := w.run(t.TempDir())
	of := func(op event.Operation, s event.Slot, origin event.Fact) dead {
		return dead{op: op, slot: s, digest: digest(1), revision: 1, pass: 1, origin: origin, n: 3, service: "any"}
	}
	a, b, c, late := slotOf("b", "a"), slotOf("b", "b"), slotOf("b", "c"), slotOf("b", "late")
	w.dead(of(event.Capture, a, captured(a, digest(1), 1, 1)))
	w.dead(of(event.Fixity, b, captured(b, digest(1), 1, 1)))
	w.dead(of(jp2, c, fixed(c, digest(1), 1, 1)))
	w.quiet(q)
	w.fact(captured(a, digest(1), 1, 1)) // the same pass: another replica finished it
	w.fact(fixed(b, digest(1), 1, 1))
	w.fact(derived(c, digest(1), 1, 1))
	w.fact(derived(late, digest(1), 1, 1)) // complete before its letter comes
	w.dead(of(jp2, late, fixed(late, digest(1), 1, 1)))
	w.quiet(q)
	for _, id := range []string{event.CaseID(event.Capture, a, ""), event.CaseID(event.Fixity, b, ""), caseOf(c), caseOf(late)} {
		same(t, id, w.changes(id), []string{"opened.1", "resolved.2"})
	}
	// Another slot's fact, another operation's, or an older revision's closes nothing.
	d := slotOf("b", "d")
	w.fact(captured(d, digest(1), 1, 1))
	w.fact(derived(d, digest(1), 1, 1))
	w.dead(dead{op: jp2, slot: d, digest: digest(2), revision: 2, pass: 2, origin: fixed(d, digest(2), 2, 2), n: 9})
	w.quiet(q)
	w.fact(captured(d, digest(2), 2, 2))
	w.fact(fixed(d, digest(2), 2, 2))
	w.fact(derived(d, digest(1), 1, 3))
	w.quiet(q)
	same(t, "revision", w.changes(caseOf(d)), []string{"opened.1"})
	w.fact(derived(d, digest(2), 2, 2))
	w.quiet(q)
	same(t, "revision", w.changes(caseOf(d)), []string{"opened.1", "resolved.2"})
	q.end()
}

func TestLaterPassReleases(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	q := w.run(t.TempDir())
	raw, rerun := slotOf("b", "raw"), slotOf("b", "rerun")
	w.fail(raw, digest(1), 1, 1)
	w.fail(rerun, digest(2), 1, 2)
	w.quiet(q)
	f := attempt(jp2, raw, digest(1), 1, 2)
	f.Decision = event.DecisionRetry
	w.fact(f)
	d := derived(rerun, digest(2), 1, 2)
	d.Requested = &event.Request{Actor: "ann", Note: "re-run"}
	w.fact(d)
	w.quiet(q)
	same(t, "raw", w.changes(caseOf(raw)), []string{"opened.1", "replayed.2"})
	same(t, "rerun", w.changes(caseOf(rerun)), []string{"opened.1", "replayed.2", "resolved.3"})
	c := get[event.Case](w, "quarantine.show", caseOf(raw))
	same(t, "raw", []any{c.Actor, c.Note, c.NextPass, c.Open}, []any{"unknown", "raw replay", 2, false})
	h := get[event.Case](w, "quarantine.show", caseOf(rerun)).History[1]
	same(t, "rerun", []any{h.Actor, h.Note, h.NextPass}, []any{"ann", "re-run", 2})

	w.fail(raw, digest(1), 2, 3) // the raw replay failed too: the case opens again
	w.quiet(q)
	same(t, "raw", w.changes(caseOf(raw)), []string{"opened.1", "replayed.2", "opened.3"})
	same(t, "pass", get[event.Case](w, "quarantine.show", caseOf(raw)).Pass, 2)
	w.fail(raw, digest(1), 1, 1) // an old letter that comes again moves nothing
	w.quiet(q)
	same(t, "raw", len(w.changes(caseOf(raw))), 3)
	q.end()
}

func TestSourceChanged(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	q := w.run(t.TempDir())
	s := slotOf("b", "1")
	id := event.CaseID(event.SourceChanged, s, "")
	w.fact(captured(s, digest(1), 1, 3)) // done in a later pass than the message that brings other bytes
	changed := func(pass int, n uint64) {
		w.fact(attempt(event.SourceChanged, s, digest(2), 2, pass))
		w.dead(dead{op: event.SourceChanged, slot: s, digest: digest(2), revision: 2, pass: pass, service: "capture", subject: "capture.frame.gw.b", body: []byte("{}"), n: n})
		w.quiet(q)
	}
	changed(1, 5)
	w.fact(captured(s, digest(1), 1, 1)) // no later pass
	w.quiet(q)
	same(t, "changes", w.changes(id), []string{"opened.1"})
	w.fact(captured(s, digest(1), 1, 2)) // the bytes came back
	w.quiet(q)
	same(t, "changes", w.changes(id), []string{"opened.1", "replayed.2", "resolved.3"})
	changed(4, 6)
	same(t, "changes", w.changes(id)[3:], []string{"opened.4"})
	get[event.CaseDecision](w, "quarantine.discard", event.CaseRequest{ID: id, Actor: "ann", Note: "the old ones are right"})
	same(t, "changes", w.changes(id)[4:], []string{"discarded.5"})
	q.end()
}

func TestUndecodableAndForeign(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	q := w.run(t.TempDir())
	w.dead(dead{op: event.Decode("hasher"), service: "hasher", pass: 1, n: 12, subject: event.SubjectFrameCaptured, body: []byte("{no"), code: "malformed"})
	w.publish(&nats.Msg{Subject: "deadletter.stray", Data: []byte("hello")})
	w.publish(&nats.Msg{Subject: event.SubjectFrameCaptured, Data: []byte("garbage in the log")})
	w.quiet(q)
	id, stray := "decode:hasher@INGEST-12", "decode:stray@DEADLETTER-2"
	c := get[event.Case](w, "quarantine.show", id)
	same(t, "slot", c.Slot, event.Slot{})
	same(t, "open", c.Open && get[event.Case](w, "quarantine.show", stray).Open, true)

	by := event.CaseRequest{Actor: "ann", Note: "a new build reads it", Service: "hasher"}
	same(t, "done", get[event.CaseDecision](w, "quarantine.replay", by).Done, []string{id})
	m := w.messages(event.StreamIngest, event.SubjectFrameCaptured)
	again := m[len(m)-1]
	same(t, "body", string(again.Data), "{no")
	same(t, "id", again.Header.Get(event.HeaderMsgID), "INGEST-12#replay1")
	d := get[event.CaseDecision](w, "quarantine.replay", event.CaseRequest{ID: stray, Actor: "a", Note: "b"})
	if d.Eligible != 0 || !strings.Contains(d.Refused[stray], "no subject") {
		t.Errorf("a stray letter was replayed: %+v", d)
	}
	same(t, "discarded", get[event.CaseDecision](w, "quarantine.discard", event.CaseRequest{ID: stray, Actor: "a", Note: "b"}).Done, []string{stray})
	q.end()
}

func TestBatchCase(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	q := w.run(t.TempDir())
	s := event.Slot{Batch: "b"}
	fact := event.BatchFact{Schema: event.SchemaBatch, Batch: "b", State: "opened"}
	w.fact(fact)
	w.dead(dead{op: event.BatchInvalid, slot: s, pass: 1, service: "capture", subject: "capture.batch.gw.b", body: []byte("{}"), n: 4})
	w.quiet(q)
	id := event.CaseID(event.BatchInvalid, s, "")
	same(t, "changes", w.changes(id), []string{"opened.1"})
	fact.State, fact.Number = "changed", 1
	w.fact(fact)
	w.quiet(q)
	same(t, "changes", w.changes(id), []string{"opened.1", "resolved.2"})
	q.end()
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	w, r := newWorld(t), prometheus.NewRegistry()
	q := w.run(t.TempDir(), func(c *Config) { c.Register = r })
	w.fail(slotOf("b", "1"), digest(1), 1, 1)
	w.fail(slotOf("b", "2"), digest(2), 1, 2)
	w.quiet(q)
	families, err := r.Gather()
	ok(t, err)
	got := map[string]float64{}
	for _, f := range families {
		got[f.GetName()] = f.GetMetric()[0].GetGauge().GetValue()
	}
	if got["quarantine_open_cases"] != 2 || got["quarantine_oldest_open_case_age_seconds"] <= 0 {
		t.Errorf("metrics are %v", got)
	}
	q.end()
	families, err = r.Gather()
	ok(t, err)
	same(t, "families after the end", len(families), 0)
}
