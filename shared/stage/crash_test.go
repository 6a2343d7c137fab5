package stage_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"colophon/shared/event"
	"colophon/shared/fault"
	"colophon/shared/testkit"
)

// steps are the outside calls of one message's path, in order.
var steps = []string{"check", "attempt begun", "act", "publish ingest.derivative.jp2", "record", "finish", "ack"}

// failing steps of a message that is given up.
var lastSteps = []string{"attempt begun", "act", "attempt failed", "publish ingest.attempt.failed", "publish deadletter.deriver", "dead", "ack"}

func eachWay(t *testing.T, steps []string, test func(r *rig, step string, behind bool)) {
	for _, step := range steps {
		for way, behind := range map[string]bool{"not done": false, "done but reported as failed": true} {
			t.Run(step+" "+way, func(t *testing.T) {
				world(t, func(r *rig) { test(r, step, behind) })
			})
		}
	}
}

// TestACrashAtEachStep: the process dies at a step, before or behind its
// effect; a fresh stage on the same disk and streams ends with everything once.
func TestACrashAtEachStep(t *testing.T) {
	t.Parallel()
	eachWay(t, steps, func(r *rig, step string, behind bool) {
		r.noting()
		crashed := r.crashAt(step, behind)
		r.send("1.tif", "same", nil)
		r.start()
		testkit.Closed(r, "the crash", crashed)
		r.crash()
		r.send("2.tif", "same", nil)
		r.start()
		r.once("1.tif", "2.tif")
		r.expect("letters", len(r.letters()), 0)
		for _, f := range r.failed() {
			r.expect("only losses are told", f.Code, fault.WorkerLost)
		}
		stored := map[string]bool{"record": true, "finish": true, "ack": true}[step] || step == "publish ingest.derivative.jp2" && behind
		if acts := len(r.worker.Acts()); stored && acts != 1 || acts > 2 {
			r.Errorf("%d acts, stored before the crash: %v", acts, stored)
		}
	})
}

// TestAPowerCutAtEachStep is the same with what was not synced lost as well.
func TestAPowerCutAtEachStep(t *testing.T) {
	t.Parallel()
	for seed := range uint64(3) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			eachWay(t, steps, func(r *rig, step string, behind bool) {
				r.noting()
				crashed := r.crashAt(step, behind)
				r.send("1.tif", "same", nil)
				r.start()
				testkit.Closed(r, "the crash", crashed)
				after := r.disk.Cut(rand.New(rand.NewPCG(seed, 1)))
				r.crash()
				r.disk.Close()
				r.disk = after
				r.send("2.tif", "same", nil)
				r.start()
				r.once("1.tif", "2.tif")
			})
		})
	}
}

// TestACrashAtEachStepOfGivingUp: the same for a message that fails for good.
func TestACrashAtEachStepOfGivingUp(t *testing.T) {
	t.Parallel()
	eachWay(t, lastSteps, func(r *rig, step string, behind bool) {
		r.worker.Script = func(context.Context, event.FrameFixed, event.Work) error {
			if err := r.faults.Note("act"); err != nil {
				return err
			}
			return fault.New("truncated", nil, "the file ends early")
		}
		crashed := r.crashAt(step, behind)
		r.send("1.tif", "one", nil)
		r.start()
		testkit.Closed(r, "the crash", crashed)
		r.crash()
		r.start()
		r.once()
		letters := r.letters()
		r.expect("letters", len(letters), 1)
		r.expect("code", letters[0].Header.Get(event.HeaderCode), "truncated")
		r.expect("facts", len(r.made()), 0)
	})
}

// TestAStepThatFailsOnce: nobody dies, one call fails, and the stage carries on.
func TestAStepThatFailsOnce(t *testing.T) {
	t.Parallel()
	eachWay(t, steps, func(r *rig, step string, behind bool) {
		r.worker.Script = func(context.Context, event.FrameFixed, event.Work) error {
			if err := r.faults.Note("act"); err != nil {
				return fault.New(fault.Timeout, err, "no answer")
			}
			return nil
		}
		r.worker.Finished = func(event.FrameFixed) error { return r.faults.Note("finish") }
		var failed atomic.Bool
		once := func(call string) error {
			if call != step || !failed.CompareAndSwap(false, true) {
				return nil
			}
			return testkit.ErrInjected
		}
		if behind {
			r.faults.Set(nil, once)
		} else {
			r.faults.Set(once, nil)
		}
		r.send("1.tif", "one", nil)
		r.start()
		r.once("1.tif")
		r.expect("letters", len(r.letters()), 0)
		testkit.EventuallyWithin(r, time.Minute, "the stage runs again", func() bool { return r.stage.Halted() == nil })
	})
}

// TestAStoppedStageLetsGoOfTheAttempt: a graceful stop reuses the number.
func TestAStoppedStageLetsGoOfTheAttempt(t *testing.T) {
	world(t, func(r *rig) {
		r.config.Grace = 3 * time.Second
		again := false
		r.worker.Script = func(ctx context.Context, _ event.FrameFixed, _ event.Work) error {
			if again {
				return nil
			}
			<-ctx.Done() // work that cannot finish in its grace
			return ctx.Err()
		}
		r.send("1.tif", "one", nil)
		r.start()
		testkit.Eventually(r, "the act", func() bool { return len(r.worker.Acts()) == 1 })
		began := time.Now()
		r.stop()
		if took := time.Since(began); took > 4*time.Second {
			r.Errorf("the stop took %v", took)
		}
		again = true
		r.start()
		r.once("1.tif")
		acts := r.worker.Acts()
		r.expect("numbers", []int{acts[0].Work.Attempt, acts[1].Work.Attempt}, []int{1, 1})
		r.expect("failed attempts", len(r.failed()), 0)
		released := r.facts(event.SubjectOp + ".released")
		r.expect("released facts", len(released), 1)
		r.expect("its attempt", released[0].Fact(r).(event.OpFact).Detail["attempt"], "1")
	})
}

// TestAStopIsPrompt: waiting retries, halts and held messages end at once.
func TestAStopIsPrompt(t *testing.T) {
	world(t, func(r *rig) {
		r.worker.Script = func(_ context.Context, in event.FrameFixed, _ event.Work) error {
			if in.Frame == "halts.tif" {
				return fault.New(fault.StoreFull, nil, "no space")
			}
			return fault.New(fault.Timeout, nil, "no answer")
		}
		r.worker.Hold = func(ctx context.Context, in event.FrameFixed) error {
			if in.Frame != "held.tif" {
				return nil
			}
			<-ctx.Done()
			return ctx.Err()
		}
		r.send("held.tif", "a", nil)
		r.send("waits.tif", "b", testkit.Policy(4, time.Hour))
		r.start()
		testkit.Eventually(r, "the failure", func() bool { return len(r.failed()) == 1 })
		r.send("halts.tif", "c", nil)
		testkit.Eventually(r, "the halt", func() bool { return r.stage.Halted() != nil })
		synctest.Wait()
		began := time.Now()
		r.stop()
		if took := time.Since(began); took > 100*time.Millisecond {
			r.Errorf("the stop took %v", took)
		}
	})
}
