package capture

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"colophon/shared/event"
	"colophon/shared/fault"
	"colophon/shared/testkit"
)

// fail plays a service that gave an operation up, in the slot's pass.
func (r *rig) fail(w event.Work, o event.Operation) {
	r.Helper()
	w.Schema = event.SchemaAttemptFailed
	testkit.Publish(r, r.js, event.AttemptFailed{Work: w, Service: "deriver", Operation: o, Class: "permanent", Code: "truncated", Decision: event.DecisionDeadLetter})
}

// rescan plays quarantine: the n-th change of a case asks for another scan.
func (r *rig) rescan(w event.Work, o event.Operation, n int) {
	r.Helper()
	testkit.Publish(r, r.js, r.caseOf(w, o, event.CaseRescan, n))
}

func (r *rig) caseOf(w event.Work, o event.Operation, state string, n int) event.CaseFact {
	f := event.CaseFact{
		Schema: event.SchemaCase, ID: event.CaseID(o, w.Slot, ""), Slot: w.Slot, Operation: o, Digest: w.Digest, Pass: w.Pass, State: state, Number: n,
		Reason: "half a page", Actor: "anna", Note: "it was torn", At: time.Now().UTC(),
	}
	if state == event.CaseRescan {
		f.NextPass = w.Pass + 1
	}
	return f
}

// dispatches waits for n dispatches, and gives all.
func (r *rig) dispatches(n int) (out []event.Dispatch) {
	r.Helper()
	testkit.Eventually(r, "the dispatches are stored", func() bool { return len(r.stored(event.StreamDispatch, "")) >= n })
	r.round()
	for _, m := range testkit.ReadAll(r, r.js, event.StreamDispatch) {
		var d event.Dispatch
		testkit.OK(r, json.Unmarshal(m.Data, &d))
		if m.Subject != d.Subject() || m.ID() != d.MsgID() {
			r.Errorf("%s is stored under %s as %s", d.MsgID(), m.Subject, m.ID())
		}
		out = append(out, d)
	}
	if len(out) != n {
		r.Fatalf("%d dispatches, want %d: %+v", len(out), n, out)
	}
	return out
}

// A slot whose derivative failed is asked of its device, once; the answer is
// its next revision, under the next pass.
func TestRescan(t *testing.T) {
	r := newRig(t)
	r.premis()
	r.start()
	r.declare(event.BatchDeclaration{Count: 1, Profiles: []string{"jp2", "jp2-lossless"}, Devices: []string{"other"}})
	r.status("the batch is open", func(st event.BatchStatus) bool { return st.Known })
	m := r.message("a", r.source("a.tif", "torn"))
	m.Device = "scanner 1"
	c := r.take(m)
	if c.Requested != nil {
		t.Errorf("the first capture was asked for by %+v", c.Requested)
	}
	r.fix(c)
	r.fail(c.Work, event.Derivative("jp2"))
	r.fail(c.Work, event.Derivative("jp2-lossless"))
	r.rescan(c.Work, event.Derivative("jp2"), 2)
	r.rescan(c.Work, event.Derivative("jp2-lossless"), 2) // the same page: one scan serves both
	r.read()
	d := r.dispatches(1)[0]
	if d.Device != "scanner 1" || d.Pass != 2 || d.Number != 1 || d.Replaces != c.Digest || d.Slot != c.Slot || d.Sequence != 1 || d.Reason != "half a page" || d.Actor != "anna" || d.Note != "it was torn" {
		t.Errorf("asked for %+v", d)
	}
	expect(t, "subject", d.Subject(), "gateway.dispatch.scanner%201")
	st := r.frame("a")
	if st.State != event.StateFailed || st.Rescan == nil || st.Rescan.Device != "scanner 1" || st.Rescan.Dispatch != d.MsgID() || !st.Rescan.Since.Equal(d.At) {
		t.Errorf("the frame is %+v, asked %+v", st, st.Rescan)
	}
	testkit.Eventually(t, "it serves both cases", func() bool {
		is, err := r.svc.view.issued(c.Slot)
		testkit.OK(t, err)
		return len(is) == 1 && len(is[0].Operations) == 2
	})
	r.stop()
	r.start()
	r.dispatches(1)

	// The operator asks again: another number. The device answers the first.
	r.rescan(c.Work, event.Derivative("jp2"), 3)
	again := r.dispatches(2)[1]
	expect(t, "number", again.Number, 2)
	expect(t, "pass", again.Pass, 2)
	a := r.message("a", r.source("a2.tif", "whole"))
	a.Pass, a.Answers, a.Device = d.Pass, d.MsgID(), d.Device
	c2 := r.take(a)
	expect(t, "revision", c2.Revision, 2)
	expect(t, "pass", c2.Pass, 2)
	if q := c2.Requested; q == nil || *q != (event.Request{Actor: "anna", Note: "it was torn"}) {
		t.Errorf("the answer was asked for by %+v", q)
	}
	if s := r.frame("a").Rescan; s == nil || s.Dispatch != again.MsgID() {
		t.Errorf("asked %+v", s)
	}
	testkit.Publish(t, r.js, r.caseOf(c.Work, event.Derivative("jp2"), event.CaseResolved, 4))
	r.derive(r.fix(c2), "jp2", "jp2-lossless")
	r.stands(1)
	r.dispatches(2)
	if s := r.frame("a").Rescan; s != nil {
		t.Errorf("asked still: %+v", s)
	}
}

// What a dispatch says it may replace, its answer replaces, also in a done
// slot; what answers nothing known replaces nothing.
func TestAnswers(t *testing.T) {
	r := newRig(t)
	r.start()
	r.declare(event.BatchDeclaration{Count: 1, Devices: []string{"s1", "s2"}})
	r.status("the batch is open", func(st event.BatchStatus) bool { return st.Known })
	c := r.take(r.message("a", r.source("a.tif", "aaa")))
	r.done(c)
	m := r.message("a", r.source("a.tif", "other"))
	m.Pass, m.Answers = 2, "dispatch:s1:b/a#2.1"
	f := r.refuse(m)
	expect(t, "an answer to nothing", fault.Code(f.Code), fault.SourceChanged)

	r.rescan(f.Work, event.SourceChanged, 1)
	d := r.dispatches(1)[0]
	expect(t, "device", d.Device, "s1")
	expect(t, "pass", d.Pass, 3)
	expect(t, "replaces", d.Replaces, c.Digest)
	m.Pass, m.Answers = 3, "dispatch:s1:b/a#3.7"
	expect(t, "an answer to another", fault.Code(r.refuse(m).Code), fault.SourceChanged)
	m.Pass, m.Answers = 4, d.MsgID()
	next := r.take(m)
	expect(t, "revision", next.Revision, 2)
	r.done(next)
	r.status("it is done again", func(st event.BatchStatus) bool { return st.Totals.Done == 1 })
	m = r.message("a", r.source("a.tif", "once more"))
	m.Pass, m.Answers = 5, d.MsgID()
	expect(t, "the same answer, to other bytes", fault.Code(r.refuse(m).Code), fault.SourceChanged)
}

// Nobody has a device: that is said, once, and shown.
func TestNoDevice(t *testing.T) {
	r := newRig(t)
	r.start()
	r.opened(1, 1)
	c := r.take(r.message("a", r.source("a.tif", "torn")))
	r.fail(c.Work, event.Fixity)
	r.rescan(c.Work, event.Fixity, 2)
	testkit.Eventually(t, "it is said", func() bool { return r.log.Count("dispatch_impossible") == 1 })
	st := r.frame("a")
	if st.Rescan == nil || st.Rescan.Device != "" || st.Rescan.Problem == "" {
		t.Errorf("asked %+v", st.Rescan)
	}
	r.stop()
	r.start()
	r.round()
	expect(t, "said", r.log.Count("dispatch_impossible"), 1)
	expect(t, "dispatches", len(r.stored(event.StreamDispatch, "")), 0)
}

// A crash before or behind the publish dispatches once.
func TestDispatchAndCrash(t *testing.T) {
	r := newRig(t)
	r.start()
	r.declare(event.BatchDeclaration{Count: 2, Devices: []string{"s"}})
	r.status("the batch is open", func(st event.BatchStatus) bool { return st.Known })
	for n, frame := range []string{"a", "b"} {
		c := r.take(r.message(frame, r.source(frame+".tif", frame)))
		r.fail(c.Work, event.Fixity)
		r.read()
		r.stop()
		r.svc = r.open()
		f := r.caseOf(c.Work, event.Fixity, event.CaseRescan, 2)
		p := event.Progress{Slot: c.Slot, Sequence: 1, Digest: c.Digest}
		p.Apply(f, 1, 0)
		is, err := r.svc.issue(&p, event.Fixity, nil) // stored
		testkit.OK(t, err)
		if n == 1 { // and published
			testkit.PublishRaw(t, r.js, is[0].Subject(), nats.Header{event.HeaderMsgID: {is[0].MsgID()}}, testkit.JSON(t, is[0].Dispatch))
		}
		testkit.Publish(t, r.js, f)
		testkit.OK(t, r.svc.Close())
		r.start()
		r.read()
		d := r.dispatches(n + 1)[n]
		expect(t, "asked at", d.At.Equal(is[0].At), true)
	}
}

// A dispatch that its stream lost by going back in time is published again while
// it waits for its answer; one that was acked and trimmed is not.
func TestDispatchThatItsStreamLost(t *testing.T) {
	r := newRig(t)
	r.start()
	r.declare(event.BatchDeclaration{Count: 1, Devices: []string{"s"}})
	r.status("the batch is open", func(st event.BatchStatus) bool { return st.Known })
	c := r.take(r.message("a", r.source("a.tif", "torn")))
	r.fail(c.Work, event.Fixity)
	r.rescan(c.Work, event.Fixity, 2)
	d := r.dispatches(1)[0]
	st := testkit.Must(r.js.Stream(t.Context(), event.StreamDispatch))(t)
	testkit.OK(t, st.Purge(t.Context()))
	r.round()
	expect(t, "dispatches, after it was trimmed", len(r.stored(event.StreamDispatch, "")), 0)
	lose := func() {
		testkit.OK(t, r.js.DeleteStream(t.Context(), event.StreamDispatch))
		testkit.Must(r.js.CreateStream(t.Context(), st.CachedInfo().Config))(t)
	}
	lose()
	r.round()
	expect(t, "the dispatch", r.dispatches(1)[0].MsgID(), d.MsgID())
	a := r.message("a", r.source("a2.tif", "whole"))
	a.Pass, a.Answers = d.Pass, d.MsgID()
	r.take(a)
	testkit.OK(t, r.svc.readAll(t.Context()))
	lose()
	r.round()
	expect(t, "dispatches, after the answer", len(r.stored(event.StreamDispatch, "")), 0)
	owed, err := r.svc.view.marked(viewOwed)
	testkit.OK(t, err)
	expect(t, "owed", len(owed), 0)
}
