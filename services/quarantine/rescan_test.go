package quarantine

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"colophon/shared/event"
	"colophon/shared/retry"

	"colophon/services/quarantine/internal/cases"
)

// declare opens a batch with devices under a policy.
func (w *world) declare(batch event.Name, policy string, devices ...string) {
	w.t.Helper()
	p, err := retry.Parse([]byte(policy))
	ok(w.t, err)
	canonical, digest := p.Canonical()
	w.fact(event.BatchFact{
		Schema: event.SchemaBatch, Batch: batch, State: "opened", Count: 1, Policy: canonical, PolicyDigest: event.Digest(digest), Devices: devices,
	})
}

// failFrom lets the deriver fail on bytes that came from a device.
func (w *world) failFrom(device, code string, s event.Slot, pass int, origin uint64) {
	w.t.Helper()
	f := fixed(s, digest(1), 1, 1)
	f.Captured.Device = device
	w.fact(attempt(jp2, s, digest(1), 1, pass))
	w.dead(dead{op: jp2, slot: s, digest: digest(1), revision: 1, pass: pass, code: code, origin: f, n: origin})
}

// rescans are who asked for a case's rescans, and into which pass.
func (w *world) rescans(id string) []string {
	w.t.Helper()
	var out []string
	for _, m := range w.messages(event.StreamIngest, event.SubjectCase+"."+event.CaseRescan) {
		var f event.CaseFact
		ok(w.t, json.Unmarshal(m.Data, &f))
		same(w.t, "only an opening asks", f.Rescan, false)
		if f.ID == id {
			out = append(out, fmt.Sprintf("%s: %s, pass %d, device %q", f.Actor, f.Note, f.NextPass, f.Device))
		}
	}
	return out
}

func TestRescan(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	q := w.run(t.TempDir())
	s := slotOf("b", "1")
	w.failFrom("left", "encoder-failed", s, 1, 1)
	w.fact(captured(s, digest(1), 1, 4)) // another operation of the slot is in a later pass
	w.quiet(q)
	by := event.CaseRequest{ID: caseOf(s), Actor: "ann", Note: "the page was folded"}
	dry := by
	dry.DryRun = true
	same(t, "dry run", get[event.CaseDecision](w, "quarantine.rescan", dry).Eligible, 1)
	same(t, "dry run", w.changes(caseOf(s)), []string{"opened.1"})
	end := w.last(event.StreamIngest)
	same(t, "done", get[event.CaseDecision](w, "quarantine.rescan", by).Done, []string{caseOf(s)})
	same(t, "one fact and nothing else", []any{w.last(event.StreamIngest) - end, w.last(event.StreamCapture), w.last(event.StreamDispatch)}, []any{1, 0, 0})
	same(t, "again", get[event.CaseDecision](w, "quarantine.rescan", by).Done, []string{caseOf(s)})
	same(t, "asked", w.rescans(caseOf(s)), []string{
		`ann: the page was folded, pass 5, device "left"`, `ann: the page was folded, pass 5, device "left"`,
	})
	c := get[event.Case](w, "quarantine.show", caseOf(s))
	same(t, "case", []any{c.State, c.Open, c.Actor}, []any{event.CaseRescan, true, "ann"})
	same(t, "listed as open", get[event.CaseList](w, "quarantine.list", "").Total, 1)
	same(t, "listed by state", get[event.CaseList](w, "quarantine.list", event.CaseRequest{State: event.CaseRescan}).Total, 1)
	same(t, "not as opened", get[event.CaseList](w, "quarantine.list", event.CaseRequest{State: event.CaseOpened}).Total, 0)

	same(t, "replayed instead", get[event.CaseDecision](w, "quarantine.replay", by).Done, []string{caseOf(s)})
	d := get[event.CaseDecision](w, "quarantine.rescan", by)
	same(t, "of what was replayed", d.Refused[caseOf(s)], "it was replayed already, into pass 2, by ann")
	w.failFrom("left", "encoder-failed", s, 2, 2)
	w.quiet(q)
	get[event.CaseDecision](w, "quarantine.rescan", by)
	same(t, "discarded instead", get[event.CaseDecision](w, "quarantine.discard", by).Done, []string{caseOf(s)})
	same(t, "changes", w.changes(caseOf(s)), []string{
		"opened.1", "rescan-requested.2", "rescan-requested.3", "replayed.4", "opened.5", "rescan-requested.6", "discarded.7",
	})
	_, code := w.ask("quarantine.rescan", event.CaseRequest{ID: caseOf(s)})
	same(t, "without an actor and a note", code, "400")
	q.end()
}

func TestRescanIsRefusedWhereNothingCanBeScanned(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	q := w.run(t.TempDir())
	w.dead(dead{op: event.Decode("hasher"), service: "hasher", pass: 1, n: 12, subject: event.SubjectFrameCaptured, body: []byte("{no"), code: "malformed"})
	w.dead(dead{op: event.BatchInvalid, slot: event.Slot{Batch: "b"}, pass: 1, service: "capture", subject: "capture.batch.gw.b", body: []byte("{}"), n: 4})
	w.fail(slotOf("b", "1"), digest(1), 1, 5)
	w.quiet(q)
	d := get[event.CaseDecision](w, "quarantine.rescan", event.CaseRequest{All: true, Actor: "ann", Note: "n"})
	same(t, "done", d.Done, []string{caseOf(slotOf("b", "1"))})
	if r := d.Refused; len(r) != 2 || !strings.Contains(r["decode:hasher@INGEST-12"], "names no frame") || !strings.Contains(r["batch-invalid@b/"], "about the batch") {
		t.Errorf("refused are %q", r)
	}
	q.end()
}

func TestRescanAnswered(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	q := w.run(t.TempDir())
	by := event.CaseRequest{Actor: "ann", Note: "folded", Batch: "b"}
	good, bad, raw, named := slotOf("b", "good"), slotOf("b", "bad"), slotOf("b", "raw"), slotOf("b", "named")
	for n, s := range []event.Slot{good, bad, raw, named} {
		w.failFrom("left", "truncated", s, 1, uint64(n))
	}
	w.quiet(q)
	same(t, "done", len(get[event.CaseDecision](w, "quarantine.rescan", by).Done), 4)
	for _, s := range []event.Slot{good, bad} { // other bytes come, as the next revision, in the next pass
		w.fact(captured(s, digest(2), 2, 2))
		w.fact(fixed(s, digest(2), 2, 2))
	}
	f := attempt(jp2, raw, digest(1), 1, 2) // the old bytes, sent by hand
	f.Decision = event.DecisionRetry
	w.fact(f)
	f = attempt(jp2, named, digest(1), 1, 2) // a re-run says who it is
	f.Decision, f.Requested = event.DecisionRetry, &event.Request{Actor: "bob", Note: "re-run"}
	w.fact(f)
	w.quiet(q)
	same(t, "a capture closes no case of a derivative", w.changes(caseOf(good)), []string{"opened.1", "rescan-requested.2"})
	w.fact(derived(good, digest(2), 2, 2))
	w.fact(attempt(jp2, bad, digest(2), 2, 2))
	w.dead(dead{op: jp2, slot: bad, digest: digest(2), revision: 2, pass: 2, origin: fixed(bad, digest(2), 2, 2), n: 9})
	w.quiet(q)
	for _, c := range []struct {
		slot            event.Slot
		changes         []string
		by, into, state string
	}{
		{good, []string{"opened.1", "rescan-requested.2", "replayed.3", "resolved.4"}, "ann: folded", "2", "resolved"},
		{bad, []string{"opened.1", "rescan-requested.2", "replayed.3", "opened.4"}, "ann: folded", "2", "opened"},
		{raw, []string{"opened.1", "rescan-requested.2", "replayed.3"}, "unknown: raw replay", "2", "replayed"},
		{named, []string{"opened.1", "rescan-requested.2", "replayed.3"}, "bob: re-run", "2", "replayed"},
	} {
		same(t, string(c.slot.Frame), w.changes(caseOf(c.slot)), c.changes)
		k := get[event.Case](w, "quarantine.show", caseOf(c.slot))
		h := k.History[2]
		same(t, string(c.slot.Frame), []any{k.State, h.Actor + ": " + h.Note, h.NextPass}, []any{c.state, c.by, c.into})
	}
	k := get[event.Case](w, "quarantine.show", caseOf(bad))
	same(t, "new evidence", []any{k.Digest, k.Pass, k.Revision}, []any{digest(2), 2, 2})
	q.end()
}

// A rescan of a page that never had bytes is answered by its first capture.
func TestRescanOfACaptureThatFailed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	q := w.run(t.TempDir())
	s := slotOf("b", "1")
	w.declare("b", "", "left")
	m := event.FrameMessage{Schema: event.SchemaCaptureFrame, Slot: s, Sequence: 1, Sources: []string{"file:1.tif"}, Device: "left"}
	body, err := json.Marshal(m)
	ok(t, err)
	w.dead(dead{op: event.Capture, slot: s, pass: 1, service: "capture", code: "empty", subject: "capture.frame.gw.b", body: body, n: 1})
	w.quiet(q)
	id := event.CaseID(event.Capture, s, "")
	same(t, "asked", w.rescans(id), []string{`policy: the image is faulty: empty, pass 2, device "left"`})
	w.fact(captured(s, digest(1), 1, 2))
	w.quiet(q)
	same(t, "changes", w.changes(id), []string{"opened.1", "rescan-requested.2", "replayed.3", "resolved.4"})
	same(t, "released by", get[event.Case](w, "quarantine.show", id).History[2].Actor, "policy")
	q.end()
}

func TestImageFaultAsksForARescanByItself(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	q := w.run(t.TempDir())
	for n, c := range []struct {
		name, policy, device, code string
		devices                    []string
		pass                       int
		asks                       bool
	}{
		{"the message names the device", "", "left", "truncated", nil, 1, true},
		{"the batch has devices", "", "", "empty", []string{"left", "right"}, 1, true},
		{"a folder has none", "", "", "truncated", nil, 1, false},
		{"policy off", `{"rescan":false}`, "left", "truncated", []string{"left"}, 1, false},
		{"policy on", `{"rescan":true}`, "left", "truncated", []string{"left"}, 1, true},
		{"scanning again brings the same kind", "", "left", "unsupported-compression", []string{"left"}, 1, false},
		{"no image fault", "", "left", "master-damaged", []string{"left"}, 1, false},
		{"the last pass that asks", `{"max_attempts":4}`, "left", "truncated", nil, 3, true},
		{"a device that damages all", `{"max_attempts":4}`, "left", "truncated", nil, 4, false},
		{"once in any case", `{"max_attempts":1}`, "left", "truncated", nil, 1, true},
	} {
		s := slotOf(fmt.Sprint("b", n), "1")
		w.declare(s.Batch, c.policy, c.devices...)
		w.failFrom(c.device, c.code, s, c.pass, uint64(n))
		w.quiet(q)
		want := []string{"opened.1"}
		if c.asks {
			want = append(want, "rescan-requested.2")
			same(t, c.name, w.rescans(caseOf(s)), []string{fmt.Sprintf("policy: the image is faulty: %s, pass %d, device %q", c.code, c.pass+1, c.device)})
		}
		same(t, c.name, w.changes(caseOf(s)), want)
	}
	w.failFrom("left", "truncated", slotOf("undeclared", "1"), 1, 99)
	w.quiet(q)
	same(t, "no policy is known", w.changes(caseOf(slotOf("undeclared", "1"))), []string{"opened.1"})
	before := get[event.CaseList](w, "quarantine.list", event.CaseRequest{All: true})
	q.end()

	q = w.run(t.TempDir()) // an empty store comes to the same, and asks no more
	w.quiet(q)
	same(t, "cases", get[event.CaseList](w, "quarantine.list", event.CaseRequest{All: true}), before)
	q.end()
}

// A decision that meets the opening before the policy has asked stands behind
// what the policy asked.
func TestDecisionBesideThePolicy(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	q := w.run(t.TempDir())
	s := slotOf("b", "1")
	f := attempt(jp2, s, digest(1), 1, 1)
	w.fact(f)
	q.deciding <- struct{}{} // the look at the opening waits for its turn
	w.fact(event.CaseFact{
		Schema: event.SchemaCase, ID: caseOf(s), Slot: s, Operation: jp2, Digest: digest(1), Pass: 1, State: event.CaseOpened, Number: 1, Code: "truncated",
		Service: "deriver", Rescan: true, Origin: "INGEST-1", At: time.Unix(7, 0).UTC(),
	})
	q.wait("the opening is read", func() bool { return q.read.Load() >= w.last(event.StreamIngest) })
	by := event.Request{Actor: "a", Note: "n"}
	for _, dry := range []bool{true, false} {
		ok(t, q.eligible(t.Context(), caseOf(s), dry, func(r cases.Record) error { return q.discardOne(t.Context(), r, by, dry) }))
		if dry {
			same(t, "dry run", w.changes(caseOf(s)), []string{"opened.1"})
		}
	}
	<-q.deciding
	w.quiet(q)
	same(t, "changes", w.changes(caseOf(s)), []string{"opened.1", "rescan-requested.2", "discarded.3"})
	q.end()
}

func TestStoppedBetweenOpeningAndRescan(t *testing.T) {
	t.Parallel()
	w, state := newWorld(t), t.TempDir()
	s := slotOf("b", "1")
	w.declare("b", "", "left")
	q := w.runCut(state, event.SubjectCase, 1)
	w.failFrom("left", "truncated", s, 1, 7)
	q.ends()
	same(t, "changes", w.changes(caseOf(s)), []string{"opened.1"})
	for _, dir := range []string{state, t.TempDir()} {
		q = w.run(dir)
		w.quiet(q)
		same(t, "changes", w.changes(caseOf(s)), []string{"opened.1", "rescan-requested.2"})
		q.end()
	}
}
