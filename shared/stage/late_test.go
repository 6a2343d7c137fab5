package stage_test

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"colophon/shared/completed"
	"colophon/shared/event"
	"colophon/shared/fault"
	"colophon/shared/stage"
	"colophon/shared/testkit"
)

// blind is a set whose follower is far behind: it knows no fact.
type blind struct{ stage.Completed }

func (blind) Fact(string) (completed.Fact, bool, error) { return completed.Fact{}, false, nil }

// rival starts another process of the same service on a disk of its own.
func (r *rig) rival(disk *testkit.Disk, w *testkit.Deriver) (stop func()) {
	c := r.config
	c.Instance, c.Log, c.Metrics = "rival", r.log.Logger(), stage.NewMetrics(prometheus.NewRegistry())
	c.JS, c.Completed = r.js, disk.Set
	ctx, end := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	s := stage.New[event.FrameFixed, event.Derived](c, w)
	go func() { ended <- s.Run(ctx) }()
	return func() {
		end()
		if err := <-ended; err != nil {
			r.Errorf("the rival ended with: %v", err)
		}
		disk.Close()
	}
}

// TestALateOutcome: a worker stalls, its disk is moved to another process, which
// reports the attempt lost and goes on; then the first one's attempt ends after
// all. What it says stands beside the loss, and decides nothing.
func TestALateOutcome(t *testing.T) {
	for name, tc := range map[string]struct {
		outcome error
		blind   bool // the worker has not read of the loss when it ends
		late    int
	}{
		"a failure":                         {fault.New(fault.Timeout, nil, "no answer"), false, 1},
		"a failure, the loss not read yet":  {fault.New(fault.Timeout, nil, "no answer"), true, 1},
		"a failure for good":                {fault.New("truncated", nil, "ends early"), false, 1},
		"a failure for good, not read yet":  {fault.New("truncated", nil, "ends early"), true, 1},
		"a success":                         {nil, false, 0},
		"a success, the loss not read yet ": {nil, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			world(t, func(r *rig) {
				r.config.Concurrency = 1
				wake := make(chan struct{})
				r.worker.Script = func(context.Context, event.FrameFixed, event.Work) error {
					<-wake
					return tc.outcome
				}
				r.faults.Set(func(call string) error { // it stalls: no sign of life
					if call == "in-progress" {
						return testkit.ErrInjected
					}
					return nil
				}, nil)
				if tc.blind {
					r.wrap = func(c stage.Completed) stage.Completed { return blind{c} }
				}
				r.send("1.tif", "one", testkit.Policy(4, time.Minute))
				r.start()
				testkit.Eventually(r, "the act", func() bool { return len(r.worker.Acts()) == 1 })
				moved := r.disk.Cut(rand.New(rand.NewPCG(1, 1)))
				other := &testkit.Deriver{Profile: "jp2"}
				stop := r.rival(moved, other)
				testkit.Eventually(r, "the loss is told", func() bool { return len(r.failed()) == 1 })
				close(wake)
				testkit.Eventually(r, "its end is told", func() bool {
					return len(r.failed()) == 1+tc.late && (tc.late == 1 || len(r.made()) == 1)
				})
				r.settled()
				failed := r.failed()
				r.expect("failed attempts", len(failed), 1+tc.late)
				r.expect("the loss", []any{failed[0].Attempt, failed[0].Code, failed[0].Decision, failed[0].Late}, []any{1, fault.WorkerLost, event.DecisionRetry, false})
				if tc.late == 1 {
					l := failed[1]
					r.expect("the late one", []any{l.Attempt, l.Code, l.Decision, l.Late}, []any{1, fault.Of(tc.outcome).Code, event.DecisionRetry, true})
					r.expect("not before", l.NotBefore, failed[0].NotBefore)
					r.expect("its id", r.facts(event.SubjectAttemptFailed)[1].ID(), failed[0].MsgID()+"+late")
					r.expect("acts of the other", []int{len(other.Acts()), other.Acts()[0].Work.Attempt}, []int{1, 2})
					r.expect("acts of the first", len(r.worker.Acts()), 1)
					r.expect("number that did it", r.made()[0].Fact(r).(event.DerivativeMade).Attempt, 2)
				} else {
					r.expect("number that did it", r.made()[0].Fact(r).(event.DerivativeMade).Attempt, 1)
				}
				r.expect("facts", len(r.made()), 1)
				r.expect("letters", len(r.letters()), 0)
				stop()
			})
		})
	}
}

// TestALossIsNotToldBesideAnOutcome: who finds an attempt of its own without an
// end, and in the log how it ended, has no loss to tell.
func TestALossIsNotToldBesideAnOutcome(t *testing.T) {
	for _, unread := range []bool{false, true} {
		t.Run(map[bool]string{false: "read", true: "not read yet"}[unread], func(t *testing.T) {
			world(t, func(r *rig) {
				r.config.Grace = time.Millisecond
				r.worker.Script = func(ctx context.Context, in event.FrameFixed, _ event.Work) error {
					if r.worker.ActsOn(in.Slot) > 1 {
						return nil
					}
					<-ctx.Done()
					return ctx.Err()
				}
				r.send("1.tif", "one", testkit.Policy(4, time.Minute))
				r.start()
				testkit.Eventually(r, "the act", func() bool { return len(r.worker.Acts()) == 1 })
				r.crash()
				w := testkit.Fixed(testkit.Slot("1.tif"), "one", testkit.Policy(4, time.Minute)).Work
				w.Schema, w.Attempt, w.Limit, w.Started = event.SchemaAttemptFailed, 1, 4, time.Now().UTC()
				w.Ended = w.Started
				testkit.Publish(r, r.js, event.AttemptFailed{ // another replica's
					Work: w, Service: "deriver", Operation: event.Derivative("jp2"), Class: "transient", Code: "timeout", Message: "no answer",
					Decision: event.DecisionRetry, NotBefore: time.Now().UTC().Add(time.Minute),
				})
				if unread {
					r.wrap = func(c stage.Completed) stage.Completed { return blind{c} }
				}
				r.start()
				r.once("1.tif")
				failed := r.failed()
				r.expect("failed attempts", []any{len(failed), failed[0].Code}, []any{1, "timeout"})
				acts := r.worker.Acts()
				r.expect("the next number", acts[1].Work.Attempt, 2)
				if acts[1].Began.Before(failed[0].NotBefore) {
					r.Errorf("the told delay was not waited out")
				}
			})
		})
	}
}

// TestAReleasedNumberIsUsedAgainByAReplica, which reads of it in the log.
func TestAReleasedNumberIsUsedAgainByAReplica(t *testing.T) {
	world(t, func(r *rig) {
		r.worker.Script = func(_ context.Context, _ event.FrameFixed, w event.Work) error {
			if w.Attempt == 1 {
				return fault.New(fault.Timeout, nil, "no answer")
			}
			return fault.New(fault.ScratchFull, nil, "full")
		}
		r.send("1.tif", "one", testkit.Policy(4, time.Second))
		r.start()
		testkit.Eventually(r, "the release is told", func() bool { return len(r.ops(event.OpReleased)) == 1 })
		key := completed.AttemptKey("derivative:jp2:"+string(testkit.Digest("one")), testkit.Slot("1.tif").String(), 1)
		r.expect("what it is about", r.ops(event.OpReleased)[0].Detail["of"], key)
		r.stop()
		replica, other := testkit.NewDisk(r), &testkit.Deriver{Profile: "jp2"}
		let := make(chan struct{})
		other.Hold = func(ctx context.Context, _ event.FrameFixed) error {
			select {
			case <-let:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		stop := r.rival(replica, other)
		testkit.Eventually(r, "it is read", func() bool {
			a, err := replica.Set.Attempt(key)
			testkit.OK(r, err)
			return a.State == completed.AttemptReleased && a.Number == 2 && a.Counted == 2
		})
		close(let)
		r.once("1.tif")
		r.expect("number", []int{other.Acts()[0].Work.Attempt, other.Acts()[0].Work.Limit}, []int{2, 4})
		stop()
	})
}
