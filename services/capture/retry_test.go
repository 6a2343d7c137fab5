package capture

import (
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"colophon/shared/event"
	"colophon/shared/testkit"
)

// five brings a batch to one frame of each fate: gone (permanent), short
// (transient), lost (transient), waits (pending), good (done).
func (r *rig) five() map[string]event.FrameMessage {
	r.Helper()
	r.start()
	r.opened(5, 1)
	out := map[string]event.FrameMessage{}
	for _, name := range []string{"gone", "short", "lost", "waits", "good"} {
		m := r.message(name, r.source(name+".tif", name))
		switch name {
		case "gone":
			m.Sources[0] += ".missing"
		case "short", "lost":
			m.Size = size(99)
		}
		out[name] = m
		r.send(m)
	}
	r.settled()
	for _, c := range r.captured() {
		if c.Frame == "good" {
			r.done(c)
		}
	}
	r.status("three failed", func(st event.BatchStatus) bool {
		return st.Totals == event.Totals{Declared: 5, Done: 1, Failed: 3, Pending: 1} && st.Settled == false
	})
	return out
}

func (r *rig) sentAfter(seq uint64) (out []testkit.Stored) {
	for _, m := range testkit.ReadAll(r, r.js, event.StreamCapture) {
		if m.Sequence > seq {
			out = append(out, m)
		}
	}
	return out
}

func TestRetry(t *testing.T) {
	r := newRig(t)
	messages := r.five()
	last := r.sentAfter(0)
	end := last[len(last)-1].Sequence

	try := func(in event.RetryRequest) event.RetryReply {
		in.Batch = "b"
		return ask[event.RetryReply](r, event.EndpointBatchRetry, in)
	}
	expect(t, "a dry run", try(event.RetryRequest{DryRun: true}), event.RetryReply{Dispatched: 3})
	expect(t, "a dry run of what may do better", try(event.RetryRequest{DryRun: true, Transient: true}), event.RetryReply{Dispatched: 2, Left: 1})
	expect(t, "sent by dry runs", len(r.sentAfter(end)), 0)

	expect(t, "what may do better", try(event.RetryRequest{Transient: true, Actor: "me\n", Note: "again"}), event.RetryReply{Dispatched: 2, Left: 1, Sequence: end + 2})
	sent := r.sentAfter(end)
	expect(t, "sent", len(sent), 2)
	for i, name := range []string{"lost", "short"} { // the batch's order
		m := messages[name]
		m.Pass = 2
		expect(t, "id", sent[i].ID(), m.MsgID())
		expect(t, "pass", sent[i].Header.Get(event.HeaderPass), "2")
		expect(t, "actor", strings.TrimSpace(sent[i].Header.Get(event.HeaderActor)), "me")
		expect(t, "note", sent[i].Header.Get(event.HeaderNote), "again")
		expect(t, "subject", sent[i].Subject, event.CaptureSubject("frame", "gw", "b"))
		expect(t, "the body as it came", string(sent[i].Data), string(testkit.JSON(t, messages[name])))
	}
	r.settled()
	r.read()
	r.status("they failed again", func(st event.BatchStatus) bool { return st.Totals.Failed == 3 && st.CapturePosition == end+2 })

	// All three; those of pass 2 run under pass 3, spread over the time.
	const spread = 600 * time.Millisecond
	reply := try(event.RetryRequest{Spread: spread})
	expect(t, "dispatched", reply.Dispatched, 3)
	sent = r.sentAfter(end + 2)
	var passes []string
	for i, m := range sent {
		passes = append(passes, m.Header.Get(event.HeaderPass))
		if least := time.Duration(i) * spread / 4; m.Time.Sub(sent[0].Time) < least {
			t.Errorf("message %d came %v after the first, not %v", i, m.Time.Sub(sent[0].Time), least)
		}
	}
	expect(t, "passes", strings.Join(passes, " "), "2 3 3") // gone, lost, short
	r.settled()
	for _, f := range r.failed() {
		if f.Pass == 2 && f.Frame != "gone" && (f.Requested == nil || f.Requested.Note != "again") {
			t.Errorf("%s, pass %d was asked for by %+v", f.Frame, f.Pass, f.Requested)
		}
	}
}

// A profile is added to a batch by a corrected declaration; every slot that
// lacks its derivative runs under its next pass, and keeps its bytes.
func TestRetryProfile(t *testing.T) {
	r := newRig(t)
	r.start()
	r.opened(3, 1)
	for _, name := range []string{"a", "b"} {
		r.done(r.take(r.message(name, r.source(name+".tif", name))))
	}
	r.fix(r.take(r.message("c", r.source("c.tif", "c")))) // its derivative is still being made
	r.source("b.tif", "somebody wrote to it since")
	r.read()
	before, end := r.captured(), r.sentAfter(0)[3].Sequence

	try := func(in event.RetryRequest) event.RetryReply {
		in.Batch = "b"
		return ask[event.RetryReply](r, event.EndpointBatchRetry, in)
	}
	for _, in := range []event.RetryRequest{{Batch: "b", Profile: "gif"}, {Batch: "none", Profile: "thumb"}} {
		m, err := r.nc.Request(event.EndpointBatchRetry, testkit.JSON(t, in), 30*time.Second)
		testkit.OK(t, err)
		expect(t, "refused", m.Header.Get("Nats-Service-Error-Code"), "400")
	}
	expect(t, "a dry run", try(event.RetryRequest{Profile: "thumb", DryRun: true}), event.RetryReply{Dispatched: 3})
	expect(t, "sent", len(r.sentAfter(end)), 0)

	expect(t, "dispatched", try(event.RetryRequest{Profile: "thumb", Actor: "me", Note: "small ones"}).Dispatched, 3)
	r.settled()
	sent := r.sentAfter(end)
	expect(t, "sent", len(sent), 4) // the declaration first
	for _, m := range sent[1:] {
		expect(t, "pass", m.Header.Get(event.HeaderPass), "2")
		expect(t, "counts on", m.Header.Get(event.HeaderDeclared), "1")
	}
	changed := testkit.ReadAll(t, r.js, event.StreamIngest, event.SubjectBatchChanged)
	expect(t, "corrections", len(changed), 1)
	f := changed[0].Fact(t).(event.BatchFact)
	expect(t, "profiles", strings.Join(f.Profiles, " "), "jp2 thumb")
	expect(t, "the rest stands", f.Count == 3 && f.Order == event.OrderNatural && f.Operator == "me" && f.Number == 1, true)
	again := r.captured()[len(before):]
	expect(t, "captured", len(again), 3)
	for _, c := range again {
		i := map[event.Name]int{"a": 0, "b": 1, "c": 2}[c.Frame]
		if !c.Hit || c.Pass != 2 || c.Digest != before[i].Digest || strings.Join(c.Profiles, " ") != "jp2 thumb" {
			t.Errorf("%s is captured as %+v", c.Frame, c.Work)
		}
	}
	expect(t, "failures", len(r.failed()), 0)

	for _, c := range again {
		w := c.Work
		w.Schema, w.Hit = event.SchemaFrameFixed, true
		fixed := event.FrameFixed{Work: w, Captured: c.Captured, Fixed: event.Fixed{StoredDigest: c.Digest, Size: c.Size, Master: "masters/" + string(c.Digest)}}
		testkit.Publish(t, r.js, fixed)
		if r.derive(fixed, "jp2"); c.Frame != "b" {
			r.derive(fixed, "thumb")
		}
	}
	r.status("two are done", func(st event.BatchStatus) bool { return st.Totals == event.Totals{Declared: 3, Done: 2, Pending: 1} })
	// Again: the batch wants it already, and only one lacks it.
	expect(t, "dispatched again", try(event.RetryRequest{Profile: "thumb"}).Dispatched, 1)
	expect(t, "corrections", len(testkit.ReadAll(t, r.js, event.StreamIngest, event.SubjectBatchChanged)), 1)
}

// A frame that counts on a corrected declaration waits for it.
func TestCountsOn(t *testing.T) {
	r := newRig(t)
	r.start()
	r.opened(1, 1)
	m := r.message("a", r.source("a.tif", "a"))
	h := nats.Header{event.HeaderMsgID: {m.MsgID()}, event.HeaderDeclared: {"1"}}
	testkit.PublishRaw(t, r.js, event.CaptureSubject("frame", "gw", "b"), h, testkit.JSON(t, m))
	r.declare(event.BatchDeclaration{Count: 1, Order: event.OrderNatural, Profiles: []string{"jp2", "thumb"}})
	r.settled()
	expect(t, "captured for", strings.Join(r.captured()[0].Profiles, " "), "jp2 thumb")
}

func TestEndpoints(t *testing.T) {
	r := newRig(t)
	r.five()
	st := ask[event.BatchStatus](r, event.EndpointBatchStatus, event.BatchRequest{Batch: "b"})
	expect(t, "status", st.Totals, event.Totals{Declared: 5, Done: 1, Failed: 3, Pending: 1})
	expect(t, "list", len(ask[event.BatchList](r, event.EndpointBatchList, event.BatchRequest{}).Batches), 1)
	page := ask[event.BatchFrames](r, event.EndpointBatchFrames, event.BatchRequest{Batch: "b", Undone: true})
	var names []string
	for _, f := range page.Frames {
		names = append(names, string(f.Frame)+"="+string(f.State))
	}
	expect(t, "undone", strings.Join(names, " "), "gone=failed lost=failed short=failed waits=pending")
	expect(t, "why", page.Frames[0].Troubles[0].Code, "source-missing")
	for subject, body := range map[string]string{event.EndpointBatchStatus: "{", event.EndpointBatchFrames: `{"batch":"b","after":"%"}`} {
		m, err := r.nc.Request(subject, []byte(body), 30*time.Second)
		testkit.OK(t, err)
		expect(t, "refused", m.Header.Get("Nats-Service-Error-Code"), "400")
	}

	// A long retry holds up neither the other endpoints nor a stop.
	go func() {
		_, _ = r.nc.Request(event.EndpointBatchRetry, []byte(`{"batch":"b","spread":3600000000000}`), time.Hour)
	}()
	testkit.Eventually(t, "the retry has begun", func() bool { return len(r.sentAfter(0)) == 7 })
	expect(t, "a retry beside it", ask[event.RetryReply](r, event.EndpointBatchRetry, event.RetryRequest{Batch: "none"}).Dispatched, 0)
	r.stop()

	reader, err := OpenReader(r.state)
	testkit.OK(t, err)
	defer reader.Close() //nolint:errcheck // only read
	st, err = reader.Status("b")
	testkit.OK(t, err)
	expect(t, "as read without a service", st.Totals.Done, 1)
	n := 0
	testkit.OK(t, reader.Frames("b", true, func(event.FrameStatus) error { n++; return nil }))
	expect(t, "undone", n, 4)
	list, err := reader.Batches()
	testkit.OK(t, err)
	expect(t, "batches", len(list.Batches), 1)
}
