package stage_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"colophon/shared/event"
	"colophon/shared/fault"
	"colophon/shared/retry"
	"colophon/shared/testkit"
)

// guardedPolicy retries after 10, 20, 40 s, and opens a breaker.
func guardedPolicy(attempts, threshold int, cooldown time.Duration) []byte {
	p := retry.Default()
	p.MaxAttempts, p.InitialDelay, p.Jitter = attempts, retry.Duration(10*time.Second), false
	p.CircuitFailureThreshold, p.CircuitCooldown = threshold, retry.Duration(cooldown)
	data, _ := p.Canonical()
	return data
}

// dependsOnName makes the part of a frame's name before its dash what its act
// leans on; the acts on those of dead end with err while it is away.
func (r *rig) dependsOnName(work time.Duration, away func(dependency string) error) {
	r.worker.On = func(in event.FrameFixed) string {
		d, _, _ := strings.Cut(string(in.Frame), "-")
		return d
	}
	r.worker.Script = func(_ context.Context, in event.FrameFixed, _ event.Work) error {
		time.Sleep(work) // virtual
		return away(r.worker.On(in))
	}
}

// TestOneDeadDependencyOfThree: the frames of the other two are done no later
// than without it, and its own keep their attempts.
func TestOneDeadDependencyOfThree(t *testing.T) {
	const each = 20
	took := func(t *testing.T, alive bool) (others time.Duration) {
		world(t, func(r *rig) {
			var repaired atomic.Bool
			repaired.Store(alive)
			r.config.Concurrency = 4
			r.dependsOnName(time.Second, func(d string) error {
				if d == "dead" && !repaired.Load() {
					return fault.New(fault.ConnectionRefused, nil, "connection refused")
				}
				return nil
			})
			policy := guardedPolicy(4, 3, 5*time.Minute)
			var slots []string
			for i := range each {
				for _, d := range []string{"dead", "one", "two"} {
					slot := fmt.Sprintf("%s-%d", d, i)
					slots = append(slots, slot)
					r.send(slot, slot, policy)
				}
			}
			began := time.Now()
			r.start()
			testkit.EventuallyWithin(r, time.Hour, "the others are done", func() bool {
				n := 0
				for _, a := range r.worker.Acts() {
					if !strings.HasPrefix(string(a.Work.Frame), "dead") {
						n++
					}
				}
				return n == 2*each && r.worker.Busy() == 0
			})
			others = time.Since(began)
			if alive {
				return
			}
			r.expect("open", r.metrics.Breakers(), "open: dead")
			r.expect("on the readiness page", r.metrics.Breakers(), "open: dead")
			r.expect("as a metric", r.gauges("ingest_breaker_state", "dependency"), map[string]float64{"dead": 2})
			testkit.EventuallyWithin(r, time.Minute, "the opening is told", func() bool { return len(r.ops(event.OpBreakerOpened)) == 1 })
			time.Sleep(16 * time.Minute) // of virtual time: three probes
			tried := map[int]int{}
			for _, f := range r.failed() {
				tried[f.Attempt]++
			}
			if tried[1]+tried[2]+tried[3] > 10 { // four that ran when it opened, a probe each five minutes, and some that came due before
				r.Errorf("attempts spent on a dead dependency: %v", tried)
			}
			r.expect("letters meanwhile", len(r.letters()), 0)
			repaired.Store(true)
			r.once(slots...)
			r.expect("letters", len(r.letters()), 0)
			r.expect("told", []int{len(r.ops(event.OpBreakerOpened)), len(r.ops(event.OpBreakerClosed))}, []int{1, 1})
			r.expect("the dependency told", r.ops(event.OpBreakerOpened)[0].Detail["dependency"], "dead")
			r.expect("logged", []int{r.log.Count("breaker_opened"), r.log.Count("breaker_closed")}, []int{1, 1})
			r.expect("open at the end", r.metrics.Breakers(), "")
			r.expect("as a metric", r.gauges("ingest_breaker_state", "dependency"), map[string]float64{"dead": 0})
			c, err := r.js.Consumer(r.Context(), event.StreamIngest, consumer)
			testkit.OK(r, err)
			r.expect("redelivered", c.CachedInfo().NumRedelivered, 0) // kept alive meanwhile
		})
		return others
	}
	var with, without time.Duration
	t.Run("all", func(t *testing.T) {
		t.Run("one of them dead", func(t *testing.T) { with = took(t, false) })
		t.Run("none dead", func(t *testing.T) { without = took(t, true) })
	})
	if t.Failed() {
		return
	}
	// Alive, the dead one's frames take their share of the work; dead, next to none.
	if with > without {
		t.Errorf("the others took %v beside a dead dependency, %v beside a live one", with, without)
	}
}

// TestAProbeThatPanicsDoesNotJam: the breaker lets the next one probe.
func TestAProbeThatPanicsDoesNotJam(t *testing.T) {
	world(t, func(r *rig) {
		acts := 0
		r.config.Concurrency = 1
		r.worker.On = func(event.FrameFixed) string { return "d" }
		r.worker.Script = func(context.Context, event.FrameFixed, event.Work) error {
			switch acts++; acts {
			case 1:
				return fault.New(fault.Timeout, nil, "no answer")
			case 2:
				panic("so early")
			}
			return nil
		}
		for i := range 20 {
			r.send(fmt.Sprint(i), fmt.Sprint(i), guardedPolicy(4, 1, time.Minute))
		}
		r.start()
		r.settled()
		r.expect("facts", len(r.made()), 19)
		letters := r.letters()
		r.expect("letters", len(letters), 1)
		r.expect("its code", letters[0].Header.Get(event.HeaderCode), "panic")
		r.expect("told", []int{len(r.ops(event.OpBreakerOpened)), len(r.ops(event.OpBreakerClosed))}, []int{1, 1})
	})
}

// TestTwentyWaitForOneProbe: after the cooldown one message tries, in four work
// slots, and the others wait for what it finds.
func TestTwentyWaitForOneProbe(t *testing.T) {
	world(t, func(r *rig) {
		const cooldown = time.Minute
		var repaired atomic.Bool
		r.dependsOnName(10*time.Second, func(string) error {
			if repaired.Load() {
				return nil
			}
			return fault.New(fault.GatewayTimeout, nil, "504")
		})
		var slots []string
		for i := range 20 {
			slots = append(slots, fmt.Sprintf("d-%d", i))
			r.send(slots[i], slots[i], guardedPolicy(10, 1, cooldown))
		}
		r.start()
		testkit.EventuallyWithin(r, time.Minute, "it opens", func() bool { return r.metrics.Breakers() != "" })
		testkit.EventuallyWithin(r, time.Hour, "three probes fail", func() bool { return len(r.worker.Acts()) == 4+3 })
		repaired.Store(true)
		r.once(slots...)
		acts := r.worker.Acts()
		for i, a := range acts[4:7] { // the third probe succeeds: it ran when the repair came
			r.expect("beside a probe", a.Beside, 0)
			since := a.Began.Sub(acts[3+i].Began) - 10*time.Second // after the end of the one before
			if since < cooldown || since > cooldown+time.Second {
				r.Errorf("probe %d came %v after the breaker opened", i+1, since)
			}
		}
		if n := len(acts); n != 4+2+20 {
			r.Errorf("%d acts", n)
		}
	})
}

// TestAStopWhileABreakerIsOpen is prompt; the next start counts on.
func TestAStopWhileABreakerIsOpen(t *testing.T) {
	world(t, func(r *rig) {
		var repaired atomic.Bool
		r.dependsOnName(0, func(string) error {
			if repaired.Load() {
				return nil
			}
			return fault.New(fault.IOError, nil, "input/output error")
		})
		var slots []string
		for i := range 10 {
			slots = append(slots, fmt.Sprintf("d-%d", i))
			r.send(slots[i], slots[i], guardedPolicy(4, 4, time.Hour))
		}
		r.start()
		testkit.Eventually(r, "it opens", func() bool { return r.metrics.Breakers() != "" })
		synctest.Wait()
		began := time.Now()
		r.stop()
		if took := time.Since(began); took > 100*time.Millisecond {
			r.Errorf("the stop took %v", took)
		}
		repaired.Store(true)
		r.start()
		r.once(slots...)
		if n := len(r.failed()); n < 4 || n > 3+4 { // those that had begun when the fourth failed end too
			r.Errorf("%d failed attempts", n)
		}
		for _, a := range r.worker.Acts() {
			if a.Work.Attempt > 2 {
				r.Errorf("attempt %d", a.Work.Attempt)
			}
		}
	})
}

// TestWhatCountsAgainstADependency, by the faults that come in a row.
func TestWhatCountsAgainstADependency(t *testing.T) {
	for name, tc := range map[string]struct {
		err   error
		opens bool
	}{
		"timeout":           {fault.New(fault.Timeout, nil, "no answer"), true},
		"503":               {fault.New(fault.Unavailable, nil, "503"), true},
		"a jam":             {fault.New(fault.DeviceJam, nil, "paper"), true},
		"deadline":          {context.DeadlineExceeded, true},
		"unsettled":         {fault.New(fault.SourceUnsettled, nil, "written"), false},
		"encoder":           {fault.New(fault.EncoderFailed, nil, "exit 1"), false},
		"permanent":         {fault.New("truncated", nil, "ends early"), false},
		"an environment's":  {fault.New(fault.ScratchFull, nil, "full"), false},
		"nobody classified": {fmt.Errorf("what is this"), false},
	} {
		t.Run(name, func(t *testing.T) {
			world(t, func(r *rig) {
				acts := 0
				r.dependsOnName(0, func(string) error {
					if acts++; acts > 3 {
						return nil
					}
					return tc.err
				})
				r.config.Concurrency = 1
				for i := range 5 {
					r.send(fmt.Sprintf("d-%d", i), fmt.Sprint(i), guardedPolicy(10, 3, time.Minute))
				}
				r.start()
				r.settled()
				r.expect("opened", len(r.ops(event.OpBreakerOpened)), map[bool]int{true: 1}[tc.opens])
			})
		})
	}
}

// TestWhatAGatewayReportsCounts on the breaker of its device.
func TestWhatAGatewayReportsCounts(t *testing.T) {
	world(t, func(r *rig) {
		r.dependsOnName(0, func(string) error { return nil })
		r.start()
		for range 5 { // the standard threshold
			r.stage.Heard(r.Context(), "scanner", fault.New(fault.DeviceJam, nil, "paper"))
		}
		r.expect("opened", len(r.ops(event.OpBreakerOpened)), 1)
		r.send("scanner-1", "one", guardedPolicy(4, 5, time.Minute))
		time.Sleep(20 * time.Second)
		r.expect("acts while it is open", len(r.worker.Acts()), 0)
		r.stage.Heard(r.Context(), "scanner", nil)
		testkit.EventuallyWithin(r, time.Second, "it is tried at once", func() bool { return len(r.worker.Acts()) == 1 })
		r.once("scanner-1")
	})
}
