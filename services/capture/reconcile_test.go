package capture

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"colophon/shared/completed"
	"colophon/shared/event"
	"colophon/shared/testkit"
)

// round looks once for what nothing will move.
func (r *rig) round() {
	r.Helper()
	for late := 0; ; late++ { // behind a restart of the broker the view may take a while to read on
		err := (&reconciler{Service: r.svc, patrolled: time.Now()}).round(context.Background())
		if !errors.Is(err, context.DeadlineExceeded) || late == 3 {
			testkit.OK(r, err)
			return
		}
	}
}

// pull takes n messages of a consumer as its worker would, unacked.
func (r *rig) pull(stream, consumer string, n int) (out []jetstream.Msg) {
	r.Helper()
	c := testkit.Must(r.js.Consumer(context.Background(), stream, consumer))(r)
	batch, err := c.Fetch(n, jetstream.FetchMaxWait(20*time.Second))
	testkit.OK(r, err)
	for m := range batch.Messages() {
		out = append(out, m)
	}
	testkit.OK(r, batch.Error())
	return out
}

// drop acks n messages, and nothing follows from them.
func (r *rig) drop(stream, consumer string, n int) {
	r.Helper()
	for _, m := range r.pull(stream, consumer, n) {
		testkit.OK(r, m.DoubleAck(context.Background()))
	}
}

// stored lists the ids of a stream's messages on a subject.
func (r *rig) stored(stream, subject string) (ids []string) {
	r.Helper()
	for _, m := range testkit.ReadAll(r, r.js, stream) {
		if strings.HasPrefix(m.Subject, subject) {
			ids = append(ids, m.ID())
		}
	}
	return ids
}

func (r *rig) ops(kind string) (out []event.OpFact) {
	for _, m := range testkit.ReadAll(r, r.js, event.StreamIngest, event.SubjectOp+"."+kind) {
		out = append(out, m.Fact(r).(event.OpFact))
	}
	return out
}

// frame is the status of one frame as batch.frames gives it.
func (r *rig) frame(f event.Name) event.FrameStatus {
	r.Helper()
	page, err := r.svc.pageOfFrames(context.Background(), event.BatchRequest{Batch: "b"})
	testkit.OK(r, err)
	for _, s := range page.Frames {
		if s.Frame == f {
			return s
		}
	}
	r.Fatalf("there is no frame %q", f)
	return event.FrameStatus{}
}

// again expects that the last message on a subject was sent once more, once,
// and that it was told.
func (r *rig) again(stream, subject string, o event.Operation, ids, told int) {
	r.Helper()
	all := r.stored(stream, subject)
	if len(all) != ids || all[ids-1] != strings.TrimSuffix(all[ids-2], "!1")+"!1" {
		r.Fatalf("%s: stored %q", o, all)
	}
	ops := r.ops(event.OpStuck)
	if len(ops) != told || ops[told-1].Detail["operation"] != string(o) || ops[told-1].Detail["slot"] != "b/a" || ops[told-1].Detail["pass"] != "1" {
		r.Fatalf("%s: told %+v", o, ops)
	}
	expect(r, "alarms", r.log.Count("slot_stuck"), told)
}

// A message that is dropped at each operation is found, sent again once, and
// told; then the batch converges.
func TestStuck(t *testing.T) {
	r := newRig(t)
	r.premis()
	r.start()
	r.opened(1, 1)
	r.settled()
	r.stop()
	m := r.message("a", r.source("a.tif", "aaa"))
	m.Device = "s1"
	r.send(m)
	r.drop(event.StreamCapture, "capture-frame", 1)
	r.start()
	testkit.Eventually(t, "it is sent again", func() bool { return len(r.ops(event.OpStuck)) == 1 })
	r.settled()
	r.again(event.StreamCapture, event.SubjectCaptureFrame, event.Capture, 2, 1)
	r.read()

	r.round() // hasher has not acked it
	expect(t, "facts", len(r.captured()), 1)
	r.drop(event.StreamIngest, "hasher", 1)
	r.round()
	r.again(event.StreamIngest, event.SubjectFrameCaptured, event.Fixity, 2, 2)
	r.drop(event.StreamIngest, "hasher", 1) // that one too: never again in this pass
	r.round()
	r.stop()
	testkit.OK(t, os.RemoveAll(filepath.Join(r.state, "view"))) // the log knows
	r.start()
	r.read()
	r.round()
	expect(t, "facts", len(r.captured()), 2)
	st := r.frame("a")
	if st.State != event.StatePending || st.Stuck == nil || st.Stuck.Operation != event.Fixity || st.Stuck.Problem != "" {
		t.Errorf("its status is %+v, stuck %+v", st, st.Stuck)
	}

	f := r.fix(r.captured()[1])
	r.drop(event.StreamIngest, "deriver-jp2", 1)
	r.read()
	r.round()
	r.again(event.StreamIngest, event.SubjectFrameFixed, event.Derivative("jp2"), 2, 3)
	r.derive(f, "jp2")
	r.stands(1)
	r.round()
	expect(t, "told", len(r.ops(event.OpStuck)), 3)
	if s := r.frame("a").Stuck; s != nil {
		t.Errorf("a done frame is stuck: %+v", s)
	}
}

// Rounds that look at a few slots only come to all, of each batch, though what
// they met before is pending still.
func TestRoundsLookAtAll(t *testing.T) {
	r := newRig(t)
	r.start()
	r.opened(4, 1)
	for _, f := range []string{"a", "b", "c", "d"} {
		r.take(r.message(f, r.source(f+".tif", f)))
	}
	body := testkit.JSON(t, event.BatchDeclaration{Schema: event.SchemaCaptureBatch, Batch: "c", Count: 1})
	testkit.PublishRaw(t, r.js, event.CaptureSubject("batch", "gw", "c"), nil, body)
	m := r.message("z", r.source("z.tif", "z"))
	m.Batch = "c"
	r.take(m)
	r.drop(event.StreamIngest, "hasher", 5)
	r.read()
	loop := &reconciler{Service: r.svc, patrolled: time.Now(), scan: 2}
	for range 3 {
		testkit.OK(t, loop.round(t.Context()))
	}
	seen := map[string]bool{}
	for _, o := range r.ops(event.OpStuck) {
		seen[o.Detail["slot"]] = true
	}
	for _, slot := range []string{"b/a", "b/b", "b/c", "b/d", "c/z"} {
		if !seen[slot] {
			t.Errorf("%s was not looked at", slot)
		}
	}
	expect(t, "told", len(r.ops(event.OpStuck)), 5)
}

// A re-run's message that is lost is found by its pass, though an earlier one
// got further.
func TestStuckInALaterPass(t *testing.T) {
	r := newRig(t)
	r.start()
	r.opened(1, 1)
	c := r.take(r.message("a", r.source("a.tif", "aaa")))
	r.drop(event.StreamIngest, "hasher", 1)
	f := r.fix(c)
	r.drop(event.StreamIngest, "deriver-jp2", 1)
	w := f.Work
	w.Schema = event.SchemaAttemptFailed
	testkit.Publish(t, r.js, event.AttemptFailed{Work: w, Service: "deriver", Operation: event.Derivative("jp2"), Class: "permanent", Code: "truncated", Decision: event.DecisionDeadLetter})
	r.status("it failed", func(st event.BatchStatus) bool { return st.Totals.Failed == 1 })
	r.round()
	m := r.message("a", fileURI(r.in+"/a.tif"))
	m.Pass = 2
	c = r.take(m)
	expect(t, "pass", c.Pass, 2)
	r.read()
	r.round()
	expect(t, "sent again while hasher has it", len(r.ops(event.OpStuck)), 0)
	r.drop(event.StreamIngest, "hasher", 1)
	r.round()
	ops := r.ops(event.OpStuck)
	expect(t, "sent again", len(ops), 1)
	expect(t, "operation", ops[0].Detail["operation"], string(event.Fixity))
	expect(t, "pass", ops[0].Detail["pass"], "2")
	expect(t, "the message", r.stored(event.StreamIngest, event.SubjectFrameCaptured)[2], c.MsgID()+"!1")
}

// Nothing is sent for what is only slow: not delivered, worked on, waiting out
// a delay, behind somebody's long work, or parked.
func TestSlowIsNotStuck(t *testing.T) {
	r := newRig(t)
	r.start()
	r.opened(2, 3)
	none := func(what string) {
		t.Helper()
		r.read()
		r.round()
		if ops := r.ops(event.OpStuck); len(ops) > 0 {
			t.Fatalf("%s: %+v", what, ops)
		}
	}
	a := r.take(r.message("a", r.source("a.tif", "aaa")))
	r.take(r.message("b", r.source("b.tif", "bbb")))
	none("a halted consumer")
	held := r.pull(event.StreamIngest, "hasher", 2)
	none("work that takes long")
	w := a.Work
	w.Schema = event.SchemaAttemptFailed
	testkit.Publish(t, r.js, event.AttemptFailed{Work: w, Service: "hasher", Operation: event.Fixity, Class: "transient", Code: "io-error", Decision: event.DecisionRetry, NotBefore: time.Now().Add(time.Hour)})
	none("a delay")
	testkit.OK(t, held[1].DoubleAck(t.Context()))
	none("behind the first one's long work")
	r.stop()
	r.svc = r.open() // at rest: it would take up what is parked
	defer func() { testkit.OK(t, r.svc.Close()) }()
	lot := map[event.Name]completed.Parked{}
	for _, m := range testkit.ReadAll(t, r.js, event.StreamCapture) {
		var f event.FrameMessage
		if testkit.OK(t, json.Unmarshal(m.Data, &f)); f.Frame == "" {
			continue
		}
		lot[f.Frame] = completed.Parked{
			Queue: "capture-frame", Name: "something", Number: uint64(len(lot) + 1), Origin: fmt.Sprint("CAPTURE-", m.Sequence), Stored: m.Time, MsgID: m.ID(), Subject: m.Subject, Data: m.Data,
		}
		testkit.OK(t, r.svc.set.Park(lot[f.Frame]))
	}
	testkit.OK(t, held[0].DoubleAck(t.Context()))
	none("parked")
	testkit.OK(t, r.svc.set.Unpark(lot["a"]))
	none("a delay, and acked")
	testkit.OK(t, r.svc.set.Unpark(lot["b"]))
	r.round()
	ops := r.ops(event.OpStuck)
	if len(ops) != 1 || ops[0].Detail["slot"] != "b/b" {
		t.Errorf("told %+v", ops)
	}
}

// A crash after the mark, or after the message, sends and tells once.
func TestStuckAndCrashed(t *testing.T) {
	r := newRig(t)
	r.start()
	r.opened(1, 1)
	r.take(r.message("a", r.source("a.tif", "aaa")))
	r.drop(event.StreamIngest, "hasher", 1)
	r.read()
	for sent, crash := range []func(*event.Progress, *resent){
		func(*event.Progress, *resent) {},
		func(p *event.Progress, m *resent) {
			msg, err := r.svc.orderOf(t.Context(), p, m.Operation)
			testkit.OK(t, err)
			testkit.OK(t, r.svc.mark(t.Context(), m, msg))
			_, err = r.svc.force(t.Context(), msg, m.After)
			testkit.OK(t, err)
		},
	} {
		p, _, err := r.svc.view.slot(testkit.Slot("a"))
		testkit.OK(t, err)
		m := &resent{Slot: p.Slot, Operation: event.Fixity, Pass: 1 + sent, Counter: uint64(100 + sent), At: time.Now().UTC()}
		testkit.OK(t, r.svc.view.put(m.key(), m))
		crash(&p, m)
		r.stop()
		r.start()
		testkit.Eventually(t, "it is told", func() bool { return len(r.ops(event.OpStuck)) == 1+sent })
		r.round()
		expect(t, "messages", len(r.captured()), 2+sent)
		expect(t, "number "+strconv.Itoa(sent), r.ops(event.OpStuck)[sent].Counter, uint64(100+sent))
	}
}

// What was acked is looked for in the view only when that has read what a
// service publishes before it acks: a view that stands still tells nothing.
func TestTheViewReadsFirst(t *testing.T) {
	r := newRig(t)
	r.start()
	r.opened(1, 1)
	c := r.take(r.message("a", r.source("a.tif", "aaa")))
	r.read()
	r.stop()
	r.svc = r.open() // at rest
	defer func() { testkit.OK(t, r.svc.Close()) }()
	r.fix(c)
	r.drop(event.StreamIngest, "hasher", 1)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	err := (&reconciler{Service: r.svc, patrolled: time.Now()}).round(ctx)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the round did not wait for the view: %v", err)
	}
	expect(t, "told", len(r.ops(event.OpStuck)), 0)
}
