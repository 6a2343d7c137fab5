package verify

import (
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"colophon/shared/event"
	"colophon/shared/topology"
)

// TestLog: facts that contradict one another are found. The ledger is left
// out: what it makes of such a log is another matter.
func TestLog(t *testing.T) {
	t.Parallel()
	first := newPage("vol 1", "a/0001.tif", 1, "first page")
	marked := func(id string) nats.Header { return nats.Header{event.HeaderMsgID: {id + "!1"}} }
	for title, c := range map[string]struct {
		spoil  func(*world)
		object string
		kinds  []string
	}{
		"a message lost": {func(w *world) {
			st, err := w.js.Stream(w.Context(), event.StreamIngest)
			w.ok(err)
			w.ok(st.DeleteMsg(w.Context(), 3)) // a capture
		}, "INGEST 3", []string{"log-gap"}},
		"the last message lost": {func(w *world) {
			st, err := w.js.Stream(w.Context(), event.StreamIngest)
			w.ok(err)
			w.ok(st.DeleteMsg(w.Context(), w.last.seq))
		}, "INGEST 21", []string{"log-gap", "convergence-pending"}},
		"no fact": {func(w *world) {
			_, err := w.js.Publish(w.Context(), event.SubjectFrameFixed, []byte("{"))
			w.ok(err)
		}, "INGEST 22", []string{"log-undecodable"}},
		"a later schema": {func(w *world) {
			_, err := w.js.Publish(w.Context(), event.SubjectFrameFixed, []byte(`{"schema":"colophon/frame.fixed/v9"}`))
			w.ok(err)
		}, "INGEST 22", []string{"log-unknown-schema"}},
		"the same again": {func(w *world) {
			w.send(event.SubjectFrameFixed, marked(first.fixedFact(1, 1).MsgID()), first.fixedFact(1, 2))
		}, "INGEST 22", []string{"log-duplicate"}},
		"an operator's replay": {func(w *world) {
			w.send(event.SubjectFrameFixed, nil, first.fixedFact(1, 1))
			w.send(event.SubjectBatchOpened, nil, opened("vol 2", 1))
		}, "", nil},
		"the same id, another digest": {func(w *world) {
			f := first.derivedFact(1, 1)
			f.Derived.Outputs[0].Digest = sha([]byte("other"))
			w.send(f.Subject(), marked(f.MsgID()), f)
		}, "INGEST 22", []string{"log-id-conflict", "derivative-digest", "manifest-frame", "bag-payload"}},
		"another's id": {func(w *world) {
			w.send(event.SubjectFrameFixed, nats.Header{event.HeaderMsgID: {"fixity:x@y/z#1"}}, first.fixedFact(1, 1))
		}, "INGEST 22", []string{"log-id"}},
		"under another's subject": {func(w *world) {
			w.send(event.SubjectBatchOpened, nil, withState(opened("vol 2", 1), "changed", 0))
		}, "INGEST 22", []string{"log-subject"}},
		"another digest for a revision": {func(w *world) {
			p := newPage("vol 1", "a/0001.tif", 1, "other bytes")
			w.send(event.SubjectFrameCaptured, nil, p.captureFact())
		}, "INGEST 22", []string{"slot-digest"}},
		"fixed with another digest": {func(w *world) {
			f := first.fixedFact(1, 1)
			f.Fixed.StoredDigest, f.Fixed.Size, f.Fixed.Master, f.Captured.Declared = sha([]byte("x")), 9, "masters/x", sha([]byte("y"))
			w.send(f.Subject(), nil, f)
		}, "INGEST 22", []string{"fixed-digest", "fixed-size", "fixed-key", "fixed-declared", "frame-incomplete", "manifest-frame"}},
		"a derivative of no master": {func(w *world) {
			p := newPage("vol 2", "1", 1, "never fixed")
			w.send(event.SubjectDerivative+".jp2", nil, p.derivedFact(1, 1))
		}, "INGEST 22", []string{"derivative-master", "derivative-missing", "batch-undeclared"}},
		"a derivative under another's key": {func(w *world) {
			f := first.derivedFact(1, 1)
			f.Derived.Outputs[0].Key = newPage("", "", 1, "third page").access()
			w.send(f.Subject(), nil, f)
		}, "INGEST 22", []string{"derivative-key", "derivative-digest", "manifest-frame"}},
		"a derivative without files": {func(w *world) {
			f := first.derivedFact(1, 1)
			f.Derived.Outputs = nil
			w.send(f.Subject(), nil, f)
		}, "INGEST 22", []string{"derivative-empty", "frame-incomplete", "manifest-frame", "bag-payload"}},
		"another recipe": {func(w *world) {
			f := first.derivedFact(1, 1)
			f.Derived.RecipeDigest = sha([]byte("other"))
			w.send(f.Subject(), nil, f)
		}, "INGEST 22", []string{"recipe"}},
		"a declaration skipped": {func(w *world) {
			w.send(event.SubjectBatchChanged, nil, withState(opened("vol 2", 1), "changed", 2))
		}, "INGEST 22", []string{"declaration-number"}},
		"a convergence skipped": {func(w *world) {
			w.send(event.SubjectBatchConverged, nil, withState(opened("vol 1", 4), "converged", 3))
		}, "INGEST 22", []string{"convergence-number", "manifest-stale", "bag-stale"}},
		"another policy": {func(w *world) {
			f := opened("vol 2", 1)
			f.PolicyDigest = sha(nil)
			w.send(f.Subject(), nil, f)
		}, "INGEST 22", []string{"policy-digest"}},
	} {
		t.Run(title, func(t *testing.T) {
			t.Parallel()
			w := built(t)
			c.spoil(w)
			r := w.run(func(o *Options) { o.Ledger = "" })
			if len(c.kinds) == 0 {
				if !r.Clean() {
					t.Errorf("%v", r.Findings)
				}
				return
			}
			expectKinds(t, r, c.object, c.kinds...)
		})
	}
}

func withState(f event.BatchFact, state string, number int) event.BatchFact {
	f.State, f.Number = state, number
	return f
}

// TestNoStreams: a broker without the log.
func TestNoStreams(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, name := range []string{event.StreamIngest, event.StreamDeadLetter, event.StreamCapture} {
		w.ok(w.js.DeleteStream(w.Context(), name))
	}
	expectKinds(t, w.run(func(o *Options) { o.Ledger = "" }), event.StreamIngest, "log-missing", "letters-missing")
}

// TestLetters: a dead letter that quarantine has dealt with has its case.
func TestLetters(t *testing.T) {
	t.Parallel()
	w := built(t)
	w.write(w.book())
	op := event.Derivative("jp2")
	w.letter(newPage("vol 1", "a/0001.tif", 1, "first page"), op, 1) // its slot moved on
	w.letter(newPage("vol 1", "a/50%.tif", 1, "fourth page"), op, 1) // the case of that pass is there
	if r := w.run(); !r.Clean() {
		t.Errorf("%v", r.Findings)
	}
	w.letter(newPage("vol 9", "1", 1, "x"), event.Fixity, 1)
	_, err := w.js.Publish(w.Context(), "deadletter.hasher", []byte("by hand"))
	w.ok(err)
	expectKinds(t, w.run(), "fixity:", "letter-fresh", "letter-unreadable")

	c, err := w.js.CreateConsumer(w.Context(), event.StreamDeadLetter, jetstream.ConsumerConfig{Durable: topology.Quarantine, AckPolicy: jetstream.AckExplicitPolicy})
	w.ok(err)
	batch, err := c.Fetch(4)
	w.ok(err)
	for m := range batch.Messages() {
		w.ok(m.DoubleAck(w.Context()))
	}
	r := w.run()
	expectKinds(t, r, "fixity:", "letter-without-case", "letter-unreadable")
	if r.Counts["letter-without-case"] != 2 {
		t.Errorf("%v", r.Findings)
	}
	other := w.run(func(o *Options) { o.Batch = "vol 1" })
	if other.Checked.Letters != 2 || other.Damaged() {
		t.Errorf("%+v", other)
	}
}

// TestChains: a retry chain has no gap, and says so while it is open.
func TestChains(t *testing.T) {
	t.Parallel()
	p := newPage("b", "1", 1, "x")
	for title, c := range map[string]struct {
		tell  func(*world)
		kinds []string
	}{
		"open": {func(w *world) {
			w.publish(p.failedFact(event.Fixity, 1, 1, false), w.retry(p, event.Fixity, 1, 1, "Pending Retry", ""))
		}, []string{"chain-open"}},
		"a gap at the start": {func(w *world) {
			w.publish(p.failedFact(event.Fixity, 1, 2, true), w.retry(p, event.Fixity, 1, 2, "Quarantined", ""))
		}, []string{"chain-gap"}},
		"a second try of what was done": {func(w *world) {
			w.publish(p.fixedFact(1, 1), w.fixedRecords(p)...)
			again := p.fixedFact(1, 2)
			w.send(again.Subject(), nats.Header{event.HeaderMsgID: {again.MsgID() + "!1"}}, again, w.retry(p, event.Fixity, 1, 2, "Success", ""))
		}, nil},
		"behind its end": {func(w *world) {
			w.publish(p.failedFact(event.Fixity, 1, 1, true), w.retry(p, event.Fixity, 1, 1, "Quarantined", ""))
			w.publish(p.failedFact(event.Fixity, 1, 2, true), w.retry(p, event.Fixity, 1, 2, "Quarantined", "event:retry:fixity:"+string(p.digest())+"@b/1#1.1"))
		}, []string{"chain-after-end"}},
	} {
		t.Run(title, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.open("b", 1)
			w.publish(p.captureFact())
			c.tell(w)
			w.write(w.book())
			r := w.run()
			r.Findings = keep(r.Findings, "chain-")
			if len(c.kinds) == 0 {
				if len(r.Findings) > 0 {
					t.Errorf("%v", r.Findings)
				}
				return
			}
			expectKinds(t, r, "event:retry:fixity:", c.kinds...)
		})
	}
}

// TestConflicts: an event that the log tells in two ways is reported, and must
// be among the ledger's records.
func TestConflicts(t *testing.T) {
	t.Parallel()
	first, second := newPage("b", "1", 1, "x"), newPage("b", "2", 2, "x")
	build := func(recorded bool) Report {
		w := newWorld(t)
		w.open("b", 3)
		w.publish(first.captureFact())
		w.publish(first.fixedFact(1, 1), w.fixedRecords(first)...)
		w.publish(second.captureFact())
		f := second.fixedFact(1, 1)
		f.Fixed.Format.PUID = "fmt/1"
		records := []map[string]any{w.accession(second)}
		if recorded {
			name := "event:format-identification:" + string(first.digest())
			c := w.event("event:conflict:"+name+"+0123456789abcdef", "", first.slot, first.digest(), map[string]any{"conflict": map[string]any{"name": name}})
			c["outcome"] = "warning"
			records = append([]map[string]any{c}, records...)
		}
		w.publish(f, records...)
		w.file(first.master(), []byte(first.bytes))
		w.write(w.book())
		return w.run()
	}
	expectKinds(t, build(true), "event:format-identification:", "conflict")
	expectKinds(t, build(false), "event:format-identification:", "conflict-missing", "conflict")
}
