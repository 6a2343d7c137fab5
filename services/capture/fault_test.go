package capture

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"colophon/shared/completed"
	"colophon/shared/event"
	"colophon/shared/fault"
	"colophon/shared/testkit"
)

// report sends a gateway's word about its device.
func (r *rig) report(id byte, f event.CaptureFault) event.CaptureFault {
	r.Helper()
	f.Schema, f.ID, f.At = event.SchemaCaptureFault, "0e3a4c5e-2f0b-4f44-9a53-0d9b3f6f6a"+string([]byte{'0' + id/10, '0' + id%10}), time.Now().UTC()
	f.Device = "left"
	r.reportRaw(f.Subject("gw"), f)
	return f
}

func (r *rig) reportRaw(subject string, f event.CaptureFault) {
	r.Helper()
	testkit.PublishRaw(r, r.js, subject, nats.Header{event.HeaderMsgID: {f.MsgID()}}, testkit.JSON(r, f))
}

// TestDeviceFaults: each report is one attempt of its slot in the log, in pass
// 0, or one op fact of its device; told once, whatever comes again.
func TestDeviceFaults(t *testing.T) {
	r := newRig(t)
	r.start()
	r.opened(2, 3)
	jam := event.CaptureFault{Kind: event.FaultJam, Batch: "b", Frame: "a.tif", Sequence: 1, Message: "paper jam in /dev/usb/lp0"}
	first := r.report(1, jam)
	r.report(2, event.CaptureFault{Kind: event.FaultCoverOpen, Batch: "b", Frame: "a.tif", Sequence: 1})
	r.report(3, event.CaptureFault{Kind: event.FaultBusy})
	r.report(4, event.CaptureFault{Kind: event.FaultIO, Batch: "b", Sequence: 2})
	r.settled()
	check := func() {
		t.Helper()
		failed := r.failed()
		if len(failed) != 2 {
			t.Fatalf("%d attempts, want 2: %+v", len(failed), failed)
		}
		for i, want := range []fault.Code{fault.DeviceJam, fault.DeviceCoverOpen} {
			f := failed[i]
			expect(t, "code", fault.Code(f.Code), want)
			expect(t, "class", f.Class, string(fault.Transient))
			expect(t, "operation", f.Operation, event.Capture)
			expect(t, "pass", f.Pass, 0)
			expect(t, "attempt", f.Attempt, i+1)
			expect(t, "device", f.Device, "left")
			expect(t, "decision", f.Decision, event.DecisionRetry)
			expect(t, "sequence", f.Sequence, 1)
		}
		expect(t, "message", failed[0].Message, "paper jam in lp0")
		expect(t, "report", failed[0].Report, first.MsgID())
		ops := r.ops(event.OpDeviceFault)
		if len(ops) != 2 {
			t.Fatalf("%d op facts, want 2: %+v", len(ops), ops)
		}
		expect(t, "busy", fault.Code(ops[0].Code), fault.DeviceBusy)
		expect(t, "a sequence without a frame", ops[1].Detail["sequence"]+ops[1].Detail["batch"]+ops[1].Detail["device"], "2bleft")
	}
	check()

	// The device's tries are known, but the slot was never asked for.
	r.read()
	st := r.status("the view", func(st event.BatchStatus) bool { return st.Totals.Missing == 2 })
	if st.Totals.Pending != 0 || st.Totals.Surplus != 0 {
		t.Errorf("a slot that only its device knows is counted: %+v", st.Totals)
	}
	testkit.OK(t, r.svc.view.eachFrame("b", func(f event.FrameStatus) {
		if f.State != event.StateMissing || len(f.Troubles) != 1 || f.Troubles[0].Code != string(fault.DeviceCoverOpen) {
			t.Errorf("%+v", f)
		}
	}))

	// The same reports again, in this process and by the next one, say nothing new.
	again := first
	h := nats.Header{event.HeaderMsgID: {first.MsgID() + "-sent-by-another-client"}}
	testkit.PublishRaw(t, r.js, again.Subject("gw"), h, testkit.JSON(t, again))
	r.settled()
	check()
	r.stop()
	h[event.HeaderMsgID][0] += "-later"
	testkit.PublishRaw(t, r.js, again.Subject("gw"), h, testkit.JSON(t, again))
	r.start()
	r.settled()
	check()

	// Then the frame comes, and its own first attempt is the first.
	c := r.take(r.message("a.tif", r.source("a.tif", "aaa")))
	expect(t, "pass", c.Pass, 1)
	expect(t, "attempt", c.Attempt, 1)
	r.read()
	testkit.OK(t, r.svc.view.eachFrame("b", func(f event.FrameStatus) { expect(t, "state", f.State, event.StatePending) }))
}

func (l look) eachFrame(b event.Name, each func(event.FrameStatus)) error {
	r, err := l.batch(b)
	if err != nil {
		return err
	}
	for p, err := range l.frames(b, "") {
		if err != nil {
			return err
		}
		each(frameStatus(&p.Progress, r.Profiles))
	}
	return nil
}

// TestFaultsOpenTheBreaker: what a gateway reports of its device keeps frames
// of that device from being tried, until one tells that it works.
func TestFaultsOpenTheBreaker(t *testing.T) {
	r := newRig(t)
	r.start()
	r.opened(1, 2)
	for id := range byte(5) {
		r.report(id, event.CaptureFault{Kind: event.FaultJam})
	}
	r.settled()
	testkit.Eventually(t, "the breaker's opening is in the log", func() bool { return len(r.ops(event.OpBreakerOpened)) == 1 })
	expect(t, "dependency", r.ops(event.OpBreakerOpened)[0].Detail["dependency"], deviceName("left"))
}

// TestReportNumbers: the next number of a slot, whatever it has.
func TestReportNumbers(t *testing.T) {
	t.Parallel()
	set := testkit.Must(completed.Open(t.TempDir(), completed.Options{}))(t)
	defer func() { testkit.OK(t, set.Close()) }()
	r := &reports{set: set}
	for n := uint64(1); n < 40; n++ {
		got, err := r.number(testkit.Slot("a"))
		testkit.OK(t, err)
		expect(t, "number", got.Number, n)
		testkit.OK(t, set.Record(completed.Completion{Fact: completed.Fact{ID: strconv.FormatUint(n, 10)}, Tokens: []string{numberToken(testkit.Slot("a"), n)}, Result: []byte("{}")}))
	}
}

// TestFaultsLearned: a lost disk learns from the log what was told, and under
// which number.
func TestFaultsLearned(t *testing.T) {
	t.Parallel()
	in := &faultIn{CaptureFault: event.CaptureFault{ID: "u", Device: "d", Kind: event.FaultIO, Batch: "b", Frame: "f", At: time.Now()}}
	w := &reports{agent: event.Agent{Name: "capture"}, heard: func(context.Context, string, error) {}}
	for _, frame := range []event.Name{"f", ""} {
		in.Frame = frame
		out := told{Number: 3}
		if frame == "" {
			out.Instance = "i"
		}
		tokens, learned, ok := w.Learn(w.Fact(in, out, event.Work{Slot: in.slot(), Pass: 1}))
		if want := w.Tokens(in, out); !ok || learned != out || len(tokens) != len(want) || tokens[0] != want[0] || tokens[0] != w.Key(in).String() {
			t.Errorf("frame %q: learned %+v %q, want %+v %q", frame, learned, tokens, out, want)
		}
	}
	if _, _, ok := w.Learn(event.AttemptFailed{}); ok {
		t.Error("an attempt of the line is taken for a report")
	}
}
