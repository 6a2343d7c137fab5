package stage_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"colophon/shared/event"
	"colophon/shared/fault"
	"colophon/shared/testkit"
)

// TestARolledBackLogIsHealed: the broker comes back with an older copy of its
// folder; what this stage had said is said again, and told as a rollback.
func TestARolledBackLogIsHealed(t *testing.T) {
	for _, how := range []string{"running", "down"} {
		t.Run(how, func(t *testing.T) {
			copies := testkit.TempDir(t)
			realWorld(t, func(r *rig) {
				r.failTimes(1)
				r.start()
				r.send("1.tif", "one", testkit.Policy(4, time.Second))
				r.settled()
				r.broker.Stop()
				older := filepath.Join(copies, "older")
				testkit.OK(t, os.CopyFS(older, os.DirFS(r.broker.Dir)))
				r.broker.Start()
				testkit.Eventually(r, "the connection", r.nc.IsConnected)
				r.send("2.tif", "two", testkit.Policy(4, time.Second))
				r.send("3.tif", "two", testkit.Policy(4, time.Second))
				r.settled()
				if how == "down" {
					r.stop()
				}
				r.broker.Stop()
				testkit.OK(t, os.RemoveAll(r.broker.Dir))
				testkit.OK(t, os.CopyFS(r.broker.Dir, os.DirFS(older)))
				r.broker.Start()
				testkit.Eventually(r, "the connection", r.nc.IsConnected)
				if how == "down" {
					r.start()
				}
				testkit.EventuallyWithin(r, 10*time.Minute, "the log is healed", func() bool { return r.log.Count("log_healed") == 1 })
				r.once("1.tif", "2.tif", "3.tif")
				r.expect("failed attempts", len(r.failed()), 2)
				r.expect("rollbacks told", len(r.ops("rolled-back")), 1)
				r.expect("acts", len(r.worker.Acts()), 4)
			})
		})
	}
}

// TestAHealThatACrashInterrupts is taken up at the next start, though the log
// has been read again by then.
func TestAHealThatACrashInterrupts(t *testing.T) {
	copies := testkit.TempDir(t)
	realWorld(t, func(r *rig) {
		r.start()
		r.send("1.tif", "one", nil)
		r.settled()
		r.broker.Stop()
		older := filepath.Join(copies, "older")
		testkit.OK(t, os.CopyFS(older, os.DirFS(r.broker.Dir)))
		r.broker.Start()
		testkit.Eventually(r, "the connection", r.nc.IsConnected)
		r.send("2.tif", "two", nil)
		r.settled()
		r.stop()
		r.broker.Stop()
		testkit.OK(t, os.RemoveAll(r.broker.Dir))
		testkit.OK(t, os.CopyFS(r.broker.Dir, os.DirFS(older)))
		r.broker.Start()
		testkit.Eventually(r, "the connection", r.nc.IsConnected)
		crashed := r.crashAt("publish "+event.SubjectDerivative+".jp2", false)
		r.start()
		testkit.Closed(r, "the crash", crashed)
		r.crash()
		r.expect("facts", len(r.made()), 1)
		r.start()
		testkit.Eventually(r, "the log is healed", func() bool { return len(r.made()) == 2 })
		testkit.Eventually(r, "it is read to its end", func() bool {
			at, err := r.disk.Set.Position("own:" + consumer)
			testkit.OK(r, err)
			return at.MsgID == r.made()[1].ID()
		})
		r.stop()
		told := len(r.ops("rolled-back"))
		r.start()
		r.send("3.tif", "three", nil)
		r.once("1.tif", "2.tif", "3.tif")
		r.expect("rollbacks told later", len(r.ops("rolled-back"))-told, 0)
	})
}

// TestADuplicateThatIsNotThere: the broker answers "duplicate" for a message
// that it no longer holds under that id.
func TestADuplicateThatIsNotThere(t *testing.T) {
	world(t, func(r *rig) {
		r.start()
		f := testkit.Fixed(testkit.Slot("1.tif"), "one", nil)
		w := f.Work
		w.Schema = event.SchemaDerivative
		id := event.DerivativeMade{Work: w, Derived: event.Derived{Profile: "jp2"}}.MsgID()
		// Something else has taken the id.
		testkit.PublishRaw(r, r.js, "ingest.op.hole", nats.Header{event.HeaderMsgID: {id}}, []byte("{}"))
		testkit.Publish(r, r.js, f)
		r.settled()
		made := r.made()
		r.expect("facts", len(made), 1)
		r.expect("id", made[0].ID(), id+"!1")

		// Whoever reads it knows it under the id that it was made for.
		r.stop()
		r.disk.Close()
		r.disk = testkit.NewDisk(r)
		r.start()
		testkit.Eventually(r, "it is learned", func() bool {
			f, known, err := r.disk.Set.Fact(id)
			testkit.OK(r, err)
			return known && string(f.Data) == string(made[0].Data)
		})
		again, err := r.disk.Set.HasFact(id + "!1")
		testkit.OK(r, err)
		r.expect("known twice", again, false)
	})
}

// TestAFactNoBrokerCarries ends the pass instead of halting for good.
func TestAFactNoBrokerCarries(t *testing.T) {
	world(t, func(r *rig) {
		r.faults.Set(func(call string) error {
			if strings.Contains(call, "derivative") {
				return nats.ErrMaxPayload
			}
			return nil
		}, nil)
		r.send("1.tif", "one", nil)
		r.start()
		r.once()
		r.expect("letters", len(r.letters()), 1)
		f := r.failed()
		r.expect("failed attempts", len(f), 1)
		r.expect("decision", []any{f[0].Attempt, f[0].Decision}, []any{1, event.DecisionDeadLetter})
		r.expect("acts", len(r.worker.Acts()), 1)
	})
}

// TestOtherBytesAreCountedApart: two revisions of a slot that are in the line
// at once do not share attempts.
func TestOtherBytesAreCountedApart(t *testing.T) {
	world(t, func(r *rig) {
		r.failTimes(4) // two for each
		r.start()
		for i, content := range []string{"old", "new"} {
			f := testkit.Fixed(testkit.Slot("1.tif"), content, testkit.Policy(4, 10*time.Second))
			f.Revision = i + 1
			testkit.Publish(r, r.js, f)
		}
		r.settled()
		r.once() // numbered without gaps for each digest
		r.expect("facts", len(r.made()), 2)
		for _, f := range r.failed() {
			r.expect("code", f.Code, fault.Timeout)
		}
	})
}

// TestABatchIsNoSlot: faults of work without a frame are bounded too, but are
// no attempts in the log.
func TestABatchIsNoSlot(t *testing.T) {
	world(t, func(r *rig) {
		r.config.Stream, r.config.Consumer = event.StreamIngest, consumer
		b := &batches{Deriver: r.worker}
		r.worker.Script = func(context.Context, event.FrameFixed, event.Work) error {
			return fault.New(fault.IOError, nil, "input/output error")
		}
		r.startWith(b)
		r.send("1.tif", "one", testkit.Policy(3, time.Second))
		r.settled()
		r.expect("acts", len(r.worker.Acts()), 3)
		r.expect("failed attempts in the log", len(r.failed()), 0)
		r.expect("letters", len(r.letters()), 1)
		r.expect("attempts in the letter", r.letters()[0].Header.Get(event.HeaderAttempts), 3)
	})
}

// batches is a worker whose work is a batch's, not a slot's.
type batches struct{ *testkit.Deriver }

func (b *batches) Work(in event.FrameFixed) event.Work {
	w := b.Deriver.Work(in)
	w.Frame = ""
	return w
}

// TestOpFactsOfTwoStores: two stages of one service and instance, with a store
// each, do not use each other's ids.
func TestOpFactsOfTwoStores(t *testing.T) {
	world(t, func(r *rig) {
		r.worker.Healthy = func(bool) error { return fault.New(fault.StoreFull, nil, "no space") } // the first op fact of each is its halt
		r.start()
		testkit.Eventually(r, "the halt", func() bool { return len(r.ops("halted")) == 1 })
		r.stop()
		r.disk.Close()
		r.disk = testkit.NewDisk(r) // the store of another stage, or after a lost disk
		r.start()
		testkit.Eventually(r, "another halt", func() bool { return len(r.ops("halted")) == 2 })
	})
}

func TestRefusesAWeakenedStream(t *testing.T) {
	world(t, func(r *rig) {
		ctx := context.Background()
		st, err := r.js.Stream(ctx, event.StreamDeadLetter)
		testkit.OK(r, err)
		c := st.CachedInfo().Config
		c.Discard = jetstream.DiscardOld
		_, err = r.js.UpdateStream(ctx, c)
		testkit.OK(r, err)
		r.start()
		err = <-r.ended
		r.end = nil
		if err == nil || !strings.Contains(err.Error(), "DEADLETTER: drops old messages") {
			r.Errorf("the stage starts: %v", err)
		}
		if errors.Is(err, context.Canceled) {
			r.Error(err)
		}
	})
}
