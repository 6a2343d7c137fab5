package capture

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"colophon/shared/completed"
	"colophon/shared/event"
	"colophon/shared/testkit"
)

// awake waits until the broker answers again.
func (r *rig) awake() {
	r.Helper()
	testkit.Eventually(r, "the broker answers", func() bool {
		_, err := r.js.Stream(r.Context(), event.StreamIngest)
		return err == nil
	})
}

// flip changes one bit of each stored message that holds one of the texts,
// under a stopped broker.
func (r *rig) flip(stream string, texts ...string) {
	r.Helper()
	r.broker.Stop()
	files := testkit.Must(filepath.Glob(filepath.Join(r.broker.Dir, "jetstream", "*", "streams", stream, "msgs", "*.blk")))(r)
	left := len(texts)
	for _, f := range files {
		data := testkit.Must(os.ReadFile(f))(r)
		for _, text := range texts {
			if at := bytes.Index(data, []byte(text)); at >= 0 {
				data[at] ^= 1
				left--
			}
		}
		testkit.OK(r, os.WriteFile(f, data, 0o600))
	}
	if left != 0 {
		r.Fatalf("%d of %q are not in %s", left, texts, stream)
	}
	r.broker.Start()
	r.awake()
}

// starve has a consumer find out that there is nothing for it.
func (r *rig) starve(stream, consumer string) {
	r.Helper()
	c := testkit.Must(r.js.Consumer(r.Context(), stream, consumer))(r)
	testkit.Eventually(r, "nothing is left for "+consumer, func() bool {
		batch, err := c.Fetch(1, jetstream.FetchMaxWait(100*time.Millisecond))
		testkit.OK(r, err)
		for m := range batch.Messages() {
			r.Fatalf("%s gets %s", consumer, m.Headers().Get(event.HeaderMsgID))
		}
		info, err := c.Info(r.Context())
		testkit.OK(r, err)
		return info.NumPending == 0
	})
}

// A bit that flips where the view has read already, and one at the end of the
// log: both holes are told once, what they said is said again, and the batch
// converges.
func TestHoles(t *testing.T) {
	r := newRig(t)
	r.premis()
	r.start()
	r.opened(2, 1)
	b := r.take(r.message("b", r.source("b.tif", "bbb")))
	a := r.take(r.message("a", r.source("a.tif", "aaa")))
	fa := r.fix(a)
	r.read()
	st := testkit.Must(r.js.Stream(t.Context(), event.StreamIngest))(t)
	end := st.CachedInfo().State.LastSeq
	r.flip(event.StreamIngest, b.MsgID(), fa.MsgID())
	testkit.Eventually(t, "two holes are told", func() bool { return r.log.Count("log_hole") == 2 })
	var ops []event.OpFact
	testkit.Eventually(t, "and in the log", func() bool {
		ops = nil
		for seq := end + 1; ; seq++ {
			m, err := st.GetMsg(t.Context(), seq)
			if err != nil {
				break
			}
			if m.Subject == "ingest.op.hole" {
				f, err := event.DecodeFact(m.Subject, m.Data)
				testkit.OK(t, err)
				ops = append(ops, f.(event.OpFact))
			}
		}
		return len(ops) == 2
	})
	for n, first := range []string{"2", "4"} {
		if d := ops[n].Detail; d["stream"] != event.StreamIngest || d["first"] != first || d["last"] != first {
			t.Errorf("told of %v, want message %s", d, first)
		}
	}
	r.drop(event.StreamIngest, "hasher", 1) // a's
	// What was said of b is said again; what hasher said of a, hasher says, when
	// the order comes again.
	words := func(subject, id string) func() bool {
		return func() bool {
			r.round()
			m, err := st.GetLastMsgForSubject(t.Context(), subject)
			return err == nil && strings.HasPrefix(m.Header.Get(event.HeaderMsgID), id) && m.Sequence > end
		}
	}
	testkit.Eventually(t, "b's order is there again", words(event.SubjectFrameCaptured, b.MsgID()))
	r.fix(b)
	r.read()
	r.derive(fa, "jp2")
	fb := fa
	fb.Work = b.Work
	fb.Schema = event.SchemaFrameFixed
	r.derive(fb, "jp2")
	r.stands(1)
	r.stop()
	testkit.OK(t, os.RemoveAll(filepath.Join(r.state, "view"))) // a new one reads that they are told
	r.start()
	r.read()
	r.round()
	expect(t, "told", r.log.Count("log_hole"), 2)
}

// A hole at a fixed frame that deriver never read, and capture does not hold:
// hasher is asked to say it again.
func TestHoleInAnothersFact(t *testing.T) {
	r := newRig(t)
	r.start()
	r.opened(1, 1)
	c := r.take(r.message("a", r.source("a.tif", "aaa")))
	r.drop(event.StreamIngest, "hasher", 1)
	f := r.fix(c)
	r.read()
	end := testkit.Must(r.js.Stream(t.Context(), event.StreamIngest))(t).CachedInfo().State.LastSeq
	r.flip(event.StreamIngest, f.MsgID())
	testkit.Eventually(t, "the hole is told", func() bool { return r.log.Count("log_hole") == 1 })
	r.read()
	r.round()
	expect(t, "sent again while deriver has not looked", r.log.Count("slot_stuck"), 0)
	r.starve(event.StreamIngest, "deriver-jp2")
	r.round()
	again := r.pull(event.StreamIngest, "hasher", 1)[0]
	meta, err := again.Metadata()
	testkit.OK(t, err)
	if id := again.Headers().Get(event.HeaderMsgID); id != c.MsgID()+"!1" || meta.Sequence.Stream <= end {
		t.Errorf("hasher gets %s, message %d", id, meta.Sequence.Stream)
	}
}

// An order that is lost, and that nobody holds: said loudly, and shown.
func TestNothingLeft(t *testing.T) {
	r := newRig(t)
	r.start()
	r.opened(1, 1)
	r.settled()
	w := event.Work{Schema: event.SchemaFrameCaptured, Slot: testkit.Slot("a"), Sequence: 1, Revision: 1, Digest: testkit.Digest("aaa"), Pass: 1, Attempt: 1}
	c := event.FrameCaptured{Work: w, Captured: event.Captured{Staging: "staging/b/a"}}
	testkit.PublishRaw(t, r.js, c.Subject(), nil, testkit.JSON(t, c)) // nobody's: without an id
	r.read()
	r.flip(event.StreamIngest, `"staging/b/a"`)
	testkit.Eventually(t, "the hole is told", func() bool { return r.log.Count("log_hole") == 1 })
	r.read()
	r.starve(event.StreamIngest, "hasher")
	r.round()
	expect(t, "alarms", r.log.Count("slot_stuck"), 1)
	st := r.status("the batch shows it", func(st event.BatchStatus) bool { return st.Problem != "" })
	if !strings.Contains(st.Problem, "a: ") || !strings.Contains(st.Problem, "fixity") {
		t.Errorf("problem %q", st.Problem)
	}
	if s := r.frame("a").Stuck; s == nil || s.Problem == "" {
		t.Errorf("the frame is %+v", s)
	}
}

// What was trimmed from CAPTURE is no hole; what lies behind its start is.
func TestTrimmedIsNoHole(t *testing.T) {
	r := newRig(t)
	r.start()
	r.opened(3, 1)
	for _, f := range []string{"a", "b", "c"} {
		r.take(r.message(f, r.source(f+".tif", f)))
	}
	r.stop()
	st := testkit.Must(r.js.Stream(t.Context(), event.StreamCapture))(t)
	testkit.OK(t, st.Purge(t.Context(), jetstream.WithPurgeSequence(2)))
	testkit.OK(t, os.RemoveAll(filepath.Join(r.state, "view"))) // a new view finds them missing
	testkit.OK(t, st.DeleteMsg(t.Context(), 3))
	r.start()
	testkit.Eventually(t, "the hole is told", func() bool { return len(r.ops(event.OpHole)) > 0 })
	r.round()
	ops := r.ops(event.OpHole)
	if len(ops) != 1 || ops[0].Detail["stream"] != event.StreamCapture || ops[0].Detail["first"] != "3" || ops[0].Detail["last"] != "3" {
		t.Errorf("told of %+v", ops)
	}
}

// A log that went back in time gets back what it lacks: declarations and
// convergences too. A convergence's number never names two.
func TestRollback(t *testing.T) {
	for _, view := range []string{"kept", "lost"} {
		t.Run(view, func(t *testing.T) {
			r := newRig(t)
			r.premis()
			r.broker.Stop()
			before := filepath.Join(testkit.TempDir(t), "before")
			testkit.OK(t, os.CopyFS(before, os.DirFS(r.broker.Dir)))
			r.broker.Start()
			r.awake()
			r.start()
			r.opened(2, 1)
			a := r.take(r.message("a", r.source("a.tif", "aaa")))
			b := r.take(r.message("b", r.source("b.tif", "bbb")))
			r.done(a)
			r.done(b)
			r.stands(1)
			said := testkit.ReadAll(t, r.js, event.StreamIngest, event.SubjectBatchConverged)[0]
			r.stop()
			r.broker.Stop()
			testkit.OK(t, os.RemoveAll(r.broker.Dir))
			testkit.OK(t, os.CopyFS(r.broker.Dir, os.DirFS(before)))
			if view == "lost" {
				testkit.OK(t, os.RemoveAll(filepath.Join(r.state, "view")))
			}
			r.broker.Start()
			r.awake()
			r.start()
			testkit.Eventually(t, "the log has them again", func() bool {
				return len(r.facts("opened", "b")) == 1 && len(r.captured()) == 2 && len(r.facts("converged", "b")) == 1
			})
			// One of them is discarded instead, so that another content converges.
			c := r.caseOf(b.Work, event.Fixity, event.CaseDiscarded, 1)
			if view == "lost" {
				testkit.Publish(t, r.js, c)
				r.derive(event.FrameFixed{Work: a.Work}, "jp2")
				w := a.Work
				w.Schema = event.SchemaFrameFixed
				testkit.Publish(t, r.js, event.FrameFixed{Work: w, Captured: a.Captured, Fixed: event.Fixed{StoredDigest: a.Digest, Size: a.Size, Master: "masters/x"}})
			}
			r.read()
			r.status("it is converged", func(st event.BatchStatus) bool { return st.Converged })
			numbers := map[string]string{}
			for _, m := range testkit.ReadAll(t, r.js, event.StreamIngest, event.SubjectBatchConverged) {
				id, _, _ := strings.Cut(m.ID(), "!")
				if was, ok := numbers[id]; ok && was != string(m.Data) {
					t.Errorf("%s says two things: %s, %s", id, was, m.Data)
				}
				numbers[id] = string(m.Data)
			}
			expect(t, "the first convergence", numbers[said.ID()], string(said.Data))
		})
	}
}

// A number that was told once is told by the same words, whatever the batch is
// by now.
func TestAConvergenceIsToldByTheSameWords(t *testing.T) {
	r := newRig(t)
	r.svc = r.open()
	defer func() { testkit.OK(t, r.svc.Close()) }()
	rec := batchRecord{BatchFact: event.BatchFact{Schema: event.SchemaBatch, Batch: "b", Count: 1}, Totals: event.Totals{Declared: 1, Done: 1}}
	f := rec.BatchFact
	f.State, f.Number, f.Totals = "converged", 1, &rec.Totals
	told := completed.Fact{ID: f.MsgID(), Subject: f.Subject(), Data: testkit.JSON(t, f)}
	testkit.OK(t, r.svc.set.Record(completed.Completion{Fact: told}))
	rec.Totals = event.Totals{Declared: 1, Discarded: 1}
	testkit.OK(t, r.svc.converge(t.Context(), rec))
	all := testkit.ReadAll(t, r.js, event.StreamIngest)
	if len(all) != 1 || all[0].ID() != told.ID || string(all[0].Data) != string(told.Data) {
		t.Errorf("stored %+v", all)
	}
}
