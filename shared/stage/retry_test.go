package stage_test

import (
	"context"
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"colophon/shared/event"
	"colophon/shared/fault"
	"colophon/shared/retry"
	"colophon/shared/testkit"
)

// failTimes makes the first n acts on each slot fail transiently.
func (r *rig) failTimes(n int) {
	r.worker.Script = func(_ context.Context, in event.FrameFixed, _ event.Work) error {
		if r.worker.ActsOn(in.Slot) <= n {
			return fault.New(fault.Timeout, nil, "no answer")
		}
		return nil
	}
}

func TestTransientFaultsAreRetriedExactly(t *testing.T) {
	for attempts := 1; attempts <= 4; attempts++ {
		t.Run(fmt.Sprint(attempts), func(t *testing.T) {
			world(t, func(r *rig) {
				r.failTimes(100)
				r.send("1.tif", "one", testkit.Policy(attempts, 10*time.Second)) // delays 10, 20, 40 s
				r.start()
				r.once()
				acts, failed := r.worker.Acts(), r.failed()
				r.expect("acts", len(acts), attempts)
				r.expect("failed attempts", len(failed), attempts)
				for i, f := range failed {
					last := i == attempts-1
					r.expect("limit", f.Limit, attempts)
					r.expect("decision", f.Decision, map[bool]string{true: event.DecisionDeadLetter, false: event.DecisionRetry}[last])
					if last {
						break
					}
					delay := 10 * time.Second << i
					if wait := acts[i+1].Began.Sub(f.Ended); wait < delay || wait > delay+50*time.Millisecond {
						r.Errorf("attempt %d came after %v, want %v", i+2, wait, delay)
					}
					if acts[i+1].Began.Before(f.NotBefore) {
						r.Errorf("attempt %d came before %v", i+2, f.NotBefore)
					}
				}
				r.expect("attempts in the letter", r.letters()[0].Header.Get(event.HeaderAttempts), attempts)
				r.expect("class in the letter", r.letters()[0].Header.Get(event.HeaderClass), fault.Transient)
			})
		})
	}
}

// TestDelaysWithJitter are inside the formula's bounds, as the log tells them:
// min(max, initial·base^(n−1)) up to one initial delay more.
func TestDelaysWithJitter(t *testing.T) {
	world(t, func(r *rig) {
		p := retry.Default()
		p.MaxAttempts, p.InitialDelay, p.MaxDelay, p.ExpBase = 5, retry.Duration(7*time.Second), retry.Duration(20*time.Second), 1.5
		policy, _ := p.Canonical()
		r.failTimes(100)
		for i := range 5 {
			r.send(fmt.Sprint(i), fmt.Sprint(i), policy)
		}
		r.start()
		r.settled()
		bySlot := map[event.Slot][]event.AttemptFailed{}
		for _, f := range r.failed() {
			bySlot[f.Slot] = append(bySlot[f.Slot], f)
		}
		r.expect("slots", len(bySlot), 5)
		delays := map[time.Duration]bool{}
		for slot, failed := range bySlot {
			r.expect("attempts of "+slot.String(), len(failed), 5)
			for i, f := range failed[:4] {
				least := min(20*time.Second, time.Duration(7e9*math.Pow(1.5, float64(i))))
				wait := failed[i+1].Started.Sub(f.Ended)
				if wait < least || wait > least+7*time.Second+50*time.Millisecond {
					r.Errorf("attempt %d of %s came after %v, want %v and up to 7s more", i+2, slot, wait, least)
				}
				if failed[i+1].Started.Before(f.NotBefore) {
					r.Errorf("attempt %d of %s came before its time", i+2, slot)
				}
				delays[wait-least] = true
			}
		}
		if len(delays) < 15 {
			r.Errorf("20 delays have %d different random terms", len(delays))
		}
	})
}

func TestARetryThatSucceeds(t *testing.T) {
	world(t, func(r *rig) {
		r.failTimes(2)
		r.send("1.tif", "one", testkit.Policy(4, 10*time.Second))
		r.start()
		r.once("1.tif")
		r.expect("failed attempts", len(r.failed()), 2)
		r.expect("number that did it", r.made()[0].Fact(r).(event.DerivativeMade).Attempt, 3)
		r.expect("letters", len(r.letters()), 0)
	})
}

func TestAPolicyMayNarrow(t *testing.T) {
	world(t, func(r *rig) {
		r.failTimes(100)
		r.send("1.tif", "one", []byte(`{"max_attempts":4,"retryable":["device-busy"]}`))
		r.start()
		r.once()
		r.expect("acts", len(r.worker.Acts()), 1)
		r.expect("letters", len(r.letters()), 1)
	})
}

// TestAWaitSurvivesARestart: the delay of the next attempt is stored; a restart
// neither skips it nor begins it anew.
func TestAWaitSurvivesARestart(t *testing.T) {
	for _, how := range []string{"stop", "crash"} {
		t.Run(how, func(t *testing.T) {
			world(t, func(r *rig) {
				r.failTimes(1)
				r.send("1.tif", "one", testkit.Policy(4, 60*time.Second))
				r.start()
				testkit.Eventually(r, "the failure", func() bool { return len(r.failed()) == 1 })
				time.Sleep(20 * time.Second) // of virtual time
				if how == "stop" {
					r.stop()
				} else {
					r.crash()
				}
				r.start()
				r.once("1.tif")
				acts, first := r.worker.Acts(), r.failed()[0]
				r.expect("acts", len(acts), 2)
				r.expect("second number", acts[1].Work.Attempt, 2)
				late := acts[1].Began.Sub(first.NotBefore)
				if late < 0 || late > 2*time.Second {
					r.Errorf("the second attempt came %v after its time", late)
				}
			})
		})
	}
}

// TestWaitingRetriesHoldNoSlot: a hundred messages wait out their delays, and
// the next ones are worked at once, in one work slot.
func TestWaitingRetriesHoldNoSlot(t *testing.T) {
	world(t, func(r *rig) {
		r.config.Concurrency = 1
		r.worker.Script = func(_ context.Context, in event.FrameFixed, _ event.Work) error {
			if in.Sequence == 2 && r.worker.ActsOn(in.Slot) == 1 {
				return fault.New(fault.Timeout, nil, "no answer")
			}
			return nil
		}
		r.start()
		for i := range 100 {
			f := testkit.Fixed(testkit.Slot(fmt.Sprint(i)), fmt.Sprint(i), testkit.Policy(4, time.Minute))
			f.Sequence = 2
			testkit.Publish(r, r.js, f)
		}
		testkit.Eventually(r, "all failed once", func() bool { return len(r.failed()) == 100 })
		sent := time.Now()
		r.send("next", "next", nil)
		testkit.Eventually(r, "the next is done", func() bool { return len(r.made()) == 1 })
		if took := time.Since(sent); took > time.Second {
			r.Errorf("the neighbour waited %v", took)
		}
		r.settled()
		r.expect("facts", len(r.made()), 101)
		r.expect("most at once", r.worker.Most(), 1)
		r.expect("acts", len(r.worker.Acts()), 201)
	})
}

// TestADueRetryDoesNotWaitForAPull: while the stage waits for messages that do
// not come, a retry whose time has come begins at once.
func TestADueRetryDoesNotWaitForAPull(t *testing.T) {
	world(t, func(r *rig) {
		r.config.Concurrency = 1
		r.failTimes(1)
		r.start()
		r.send("1.tif", "one", testkit.Policy(4, 1300*time.Millisecond))
		r.settled()
		late := r.worker.Acts()[1].Began.Sub(r.failed()[0].NotBefore)
		if late < 0 || late > 50*time.Millisecond {
			r.Errorf("the retry came %v after its time", late)
		}
	})
}

// TestSlowWorkIsKeptAlive: work of minutes is delivered once.
func TestSlowWorkIsKeptAlive(t *testing.T) {
	world(t, func(r *rig) {
		r.worker.Script = func(context.Context, event.FrameFixed, event.Work) error {
			time.Sleep(2 * time.Minute) // of virtual time: 24 ack waits
			return nil
		}
		r.send("1.tif", "one", nil)
		r.send("2.tif", "one", nil) // waits for the key as long
		r.start()
		r.once("1.tif", "2.tif")
		r.expect("acts", len(r.worker.Acts()), 1)
		c, err := r.js.Consumer(r.Context(), event.StreamIngest, consumer)
		testkit.OK(r, err)
		r.expect("redelivered", c.CachedInfo().NumRedelivered, 0)
		r.expect("delivered", c.CachedInfo().Delivered.Consumer, 2)
	})
}

func TestHeldMessagesHoldNoSlot(t *testing.T) {
	world(t, func(r *rig) {
		r.config.Concurrency = 1
		open := make(chan struct{})
		r.worker.Hold = func(ctx context.Context, in event.FrameFixed) error {
			if in.Frame != "held.tif" {
				return nil
			}
			select {
			case <-open:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		r.send("held.tif", "a", nil)
		r.send("free.tif", "b", nil)
		r.start()
		testkit.Eventually(r, "the free one is done", func() bool { return len(r.made()) == 1 })
		synctest.Wait()
		r.expect("acts", r.worker.ActsOn(testkit.Slot("held.tif")), 0)
		close(open)
		r.once("held.tif", "free.tif")
	})
}

// TestARedeliveryJoins the work that this process still does on a message.
func TestARedeliveryJoins(t *testing.T) {
	world(t, func(r *rig) {
		r.worker.Script = func(context.Context, event.FrameFixed, event.Work) error {
			time.Sleep(12 * time.Second)
			return nil
		}
		r.faults.Set(func(call string) error { // heartbeats get lost
			if call == "in-progress" {
				return testkit.ErrInjected
			}
			return nil
		}, nil)
		r.send("1.tif", "one", nil)
		r.start()
		r.once("1.tif")
		c, err := r.js.Consumer(r.Context(), event.StreamIngest, consumer)
		testkit.OK(r, err)
		if n := c.CachedInfo().Delivered.Consumer; n < 3 {
			r.Errorf("delivered %d times", n)
		}
		r.expect("calls", r.calls(), "check, attempt begun, derivative.jp2, record, ack")
		r.expect("acts", len(r.worker.Acts()), 1)
	})
}
