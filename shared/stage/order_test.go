package stage_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"colophon/shared/event"
	"colophon/shared/fault"
	"colophon/shared/testkit"
)

// noting makes the worker's own steps show among the stage's calls.
func (r *rig) noting() {
	r.worker.Script = func(context.Context, event.FrameFixed, event.Work) error { return r.faults.Note("act") }
	r.worker.Finished = func(event.FrameFixed) error { return r.faults.Note("finish") }
}

func TestTheOrder(t *testing.T) {
	world(t, func(r *rig) {
		r.noting()
		r.start()
		r.send("1.tif", "one", nil)
		r.settled()
		r.expect("calls", r.calls(), "check, attempt begun, act, derivative.jp2, record, finish, ack")
		made := r.made()
		r.expect("facts", len(made), 1)
		f := made[0].Fact(r).(event.DerivativeMade)
		r.expect("id", made[0].ID(), "derivative:jp2:"+string(testkit.Digest("one"))+"@b/1%2Etif#1")
		r.expect("attempt, pass, limit, hit", []any{f.Attempt, f.Pass, f.Limit, f.Hit}, []any{1, 1, 4, false})
	})
}

func TestAHitSaysItsOwnFact(t *testing.T) {
	world(t, func(r *rig) {
		r.noting()
		r.start()
		r.send("1.tif", "same", nil)
		r.settled()
		r.faults.Forget()
		r.send("2.tif", "same", nil)
		r.settled()
		// The follower of the stage's own facts may store the fact first: then
		// there is nothing left to record.
		if got := r.calls(); got != "check, derivative.jp2, finish, ack" {
			r.expect("calls of a hit", got, "check, derivative.jp2, record, finish, ack")
		}
		r.expect("acts", len(r.worker.Acts()), 1)
		r.once("1.tif", "2.tif")
		f := r.made()[1].Fact(r).(event.DerivativeMade)
		r.expect("attempt and hit", []any{f.Attempt, f.Hit}, []any{0, true})
		r.expect("skips logged", r.log.Count("idempotent_skip"), 1)
	})
}

func TestEqualContentAtOnceIsWorkedOnce(t *testing.T) {
	world(t, func(r *rig) {
		release := make(chan struct{})
		r.worker.Script = func(context.Context, event.FrameFixed, event.Work) error {
			<-release
			return nil
		}
		r.start()
		for _, s := range []string{"1.tif", "2.tif", "3.tif"} {
			r.send(s, "same", nil)
		}
		r.send("4.tif", "other", nil)
		testkit.Eventually(r, "the other content is worked beside", func() bool { return len(r.worker.Acts()) == 2 })
		synctest.Wait()
		r.expect("acts while the first runs", len(r.worker.Acts()), 2)
		close(release)
		r.once("1.tif", "2.tif", "3.tif", "4.tif")
		r.expect("acts", len(r.worker.Acts()), 2)
	})
}

// TestAWaiterTakesNoFailureOver: the slot that waited for a running key that
// failed is tried under its own count.
func TestAWaiterTakesNoFailureOver(t *testing.T) {
	world(t, func(r *rig) {
		r.worker.Script = func(_ context.Context, in event.FrameFixed, _ event.Work) error {
			if in.Frame == "1.tif" {
				time.Sleep(time.Second)
				return fault.New("truncated", nil, "the file ends early")
			}
			return nil
		}
		r.start()
		r.send("1.tif", "same", nil)
		testkit.Eventually(r, "the first to act", func() bool { return len(r.worker.Acts()) == 1 })
		r.send("2.tif", "same", nil)
		r.once("2.tif")
		r.expect("letters", len(r.letters()), 1)
		r.expect("attempts of the first", r.worker.ActsOn(testkit.Slot("1.tif")), 1)
		r.expect("attempts of the second", r.worker.ActsOn(testkit.Slot("2.tif")), 1)
	})
}

func TestAHitThatIsNotBelievedIsWorkedAgain(t *testing.T) {
	world(t, func(r *rig) {
		gone := false
		r.worker.Believe = func(event.FrameFixed) (bool, error) { return !gone, nil }
		r.start()
		r.send("1.tif", "one", nil)
		r.settled()
		gone = true
		f := testkit.Fixed(testkit.Slot("1.tif"), "one", nil)
		testkit.PublishRaw(r, r.js, f.Subject(), nil, testkit.JSON(r, f)) // the same order once more
		r.settled()
		acts := r.worker.Acts()
		r.expect("acts", len(acts), 2)
		r.expect("number of the second attempt", acts[1].Work.Attempt, 2)
		r.expect("lost attempts told", len(r.failed()), 0) // the first one was done, not lost
	})
}

// serial is a worker whose messages take turns, whatever their content.
type serial struct{ *testkit.Deriver }

func (serial) Turn(event.FrameFixed) string { return "all" }

func TestMessagesTakeTurns(t *testing.T) {
	world(t, func(r *rig) {
		r.worker.Script = func(context.Context, event.FrameFixed, event.Work) error {
			time.Sleep(10 * time.Second)
			return nil
		}
		r.startWith(serial{r.worker})
		for _, s := range []string{"1.tif", "2.tif", "3.tif"} {
			r.send(s, s, nil)
		}
		r.once("1.tif", "2.tif", "3.tif")
		r.expect("acts", len(r.worker.Acts()), 3)
		r.expect("most at once", r.worker.Most(), 1)
	})
}

// TestTheSameEventAThousandTimes: each is acked at once as recorded already,
// and the log holds one fact.
func TestTheSameEventAThousandTimes(t *testing.T) {
	world(t, func(r *rig) {
		order := testkit.Fixed(testkit.Slot("1.tif"), "one", nil)
		testkit.Publish(r, r.js, order)
		r.start()
		r.settled()
		body := testkit.JSON(r, order)
		for range 1000 { // raw: under its own id the broker drops it
			testkit.PublishRaw(r, r.js, order.Subject(), nil, body)
		}
		r.once("1.tif")
		r.expect("skips", r.log.Count("idempotent_skip"), 1000)
		r.expect("acts", len(r.worker.Acts()), 1)
		r.expect("facts", len(r.made()), 1)
		r.expect("failed attempts", len(r.failed()), 0)
		c, err := r.js.Consumer(r.Context(), event.StreamIngest, consumer)
		testkit.OK(r, err)
		r.expect("redelivered", c.CachedInfo().NumRedelivered, 0)
	})
}
