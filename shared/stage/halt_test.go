package stage_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"colophon/shared/event"
	"colophon/shared/fault"
	"colophon/shared/testkit"
)

func (r *rig) ops(kind string) (out []event.OpFact) {
	for _, m := range r.facts(event.SubjectOp + "." + kind) {
		out = append(out, m.Fact(r).(event.OpFact))
	}
	return out
}

func (r *rig) fetches() int {
	n := 0
	for _, c := range r.faults.Calls() {
		if len(c) > 5 && c[:5] == "fetch" {
			n++
		}
	}
	return n
}

func TestAnEnvironmentFaultHalts(t *testing.T) {
	world(t, func(r *rig) {
		var full atomic.Bool
		full.Store(true)
		check := func() error {
			if full.Load() {
				return fault.New(fault.StoreFull, nil, "no space left for the archive")
			}
			return nil
		}
		r.config.Concurrency = 2
		r.worker.Script = func(context.Context, event.FrameFixed, event.Work) error { return check() }
		r.worker.Healthy = func(deep bool) error {
			if !deep {
				return nil // the cheap probe sees nothing
			}
			return check()
		}
		for i := range 5 {
			r.send(fmt.Sprint(i), fmt.Sprint(i), testkit.Policy(1, time.Second))
		}
		r.start()
		testkit.Eventually(r, "the halt", func() bool { return r.stage.Halted() != nil })
		time.Sleep(10 * time.Second) // a pull under way may still bring messages
		began, pulled := len(r.worker.Acts()), r.fetches()
		time.Sleep(30 * time.Minute) // of virtual time
		r.expect("acts meanwhile", len(r.worker.Acts()), began)
		r.expect("pulls meanwhile", r.fetches(), pulled)
		r.expect("why", r.stage.Halted().Code, fault.StoreFull)
		full.Store(false)
		r.once("0", "1", "2", "3", "4")
		for _, a := range r.worker.Acts() {
			r.expect("number of every attempt", a.Work.Attempt, 1)
		}
		r.expect("failed attempts", len(r.failed()), 0)
		r.expect("letters", len(r.letters()), 0)
		testkit.Eventually(r, "the resumption is told", func() bool { return len(r.ops("resumed")) == 1 })
		halted := r.ops("halted")
		r.expect("halts told", len(halted), 1)
		r.expect("its code", halted[0].Code, fault.StoreFull)
		for _, rel := range r.ops("released") {
			r.expect("attempt that was let go", rel.Detail["attempt"], "1")
		}
		c, err := r.js.Consumer(r.Context(), event.StreamIngest, consumer)
		testkit.OK(r, err)
		r.expect("redelivered", c.CachedInfo().NumRedelivered, 0) // kept alive meanwhile
	})
}

// TestTheCheapProbeStopsThePull: the mark comes before anything breaks.
func TestTheCheapProbeStopsThePull(t *testing.T) {
	world(t, func(r *rig) {
		var full atomic.Bool
		full.Store(true)
		r.worker.Healthy = func(bool) error {
			if full.Load() {
				return fault.New(fault.StoreFull, nil, "below the low-water mark")
			}
			return nil
		}
		r.send("1.tif", "one", nil)
		r.start()
		testkit.Eventually(r, "the halt", func() bool { return len(r.ops("halted")) == 1 })
		time.Sleep(time.Minute)
		r.expect("pulls", r.fetches(), 0)
		full.Store(false)
		r.once("1.tif")
	})
}

// TestSurroundingsThatRelapse are probed less and less often: a probe that sees
// nothing wrong must not fill the log with halts.
func TestSurroundingsThatRelapse(t *testing.T) {
	world(t, func(r *rig) {
		r.worker.Script = func(context.Context, event.FrameFixed, event.Work) error {
			return fault.New(fault.ScratchFull, nil, "no space in the scratch folder")
		}
		r.send("1.tif", "one", nil)
		r.start()
		time.Sleep(time.Hour)
		if n := len(r.ops("halted")); n < 2 || n > 90 {
			r.Errorf("%d halts in an hour", n)
		}
		for _, a := range r.worker.Acts() {
			r.expect("number", a.Work.Attempt, 1)
		}
		r.expect("letters", len(r.letters()), 0)
	})
}

func TestAStoreOfOurOwnThatFailsHalts(t *testing.T) {
	world(t, func(r *rig) {
		var broken atomic.Bool
		broken.Store(true)
		r.faults.Set(func(call string) error {
			if call == "record" && broken.Load() {
				return errors.New("pebble: input/output error")
			}
			return nil
		}, nil)
		r.send("1.tif", "one", nil)
		r.start()
		testkit.Eventually(r, "the halt", func() bool { return len(r.ops("halted")) == 1 })
		r.expect("code", r.ops("halted")[0].Code, fault.StoreUnavailable)
		broken.Store(false)
		r.once("1.tif")
		r.expect("acts", len(r.worker.Acts()), 1)
		r.expect("letters", len(r.letters()), 0)
	})
}

func TestABrokerThatRefusesHalts(t *testing.T) {
	world(t, func(r *rig) {
		var refuses atomic.Bool
		refuses.Store(true)
		r.faults.Set(func(call string) error {
			if call == "publish ingest.derivative.jp2" && refuses.Load() {
				return errors.New("maximum bytes exceeded")
			}
			return nil
		}, nil)
		r.config.Concurrency = 1
		r.send("1.tif", "one", nil)
		r.send("2.tif", "two", nil)
		r.start()
		testkit.Eventually(r, "the halt", func() bool { return r.stage.Halted() != nil })
		time.Sleep(time.Minute)
		r.expect("no work begins whose fact could not be told", len(r.worker.Acts()), 1)
		refuses.Store(false)
		r.once("1.tif", "2.tif")
		r.expect("acts", len(r.worker.Acts()), 2)
	})
}

// TestABrokerThatGoesAwayUnderLoad comes back, several times: stopped, and
// killed as a process.
func TestABrokerThatGoesAwayUnderLoad(t *testing.T) {
	t.Parallel()
	t.Run("stopped", func(t *testing.T) { realWorld(t, func(r *rig) { r.loseBroker(r.broker.Stop) }) })
	t.Run("killed", func(t *testing.T) { killableWorld(t, func(r *rig) { r.loseBroker(r.broker.Kill) }) })
}

func (r *rig) loseBroker(lose func()) {
	var slots []string
	for i := range 60 {
		slots = append(slots, fmt.Sprint(i))
		r.send(slots[i], fmt.Sprint(i%40), testkit.Policy(3, 500*time.Millisecond)) // a third has a twin
	}
	r.worker.Script = func(_ context.Context, in event.FrameFixed, w event.Work) error {
		time.Sleep(20 * time.Millisecond) // the work
		if len(in.Frame) == 1 && w.Attempt == 1 {
			return fault.New(fault.Timeout, nil, "no answer")
		}
		return nil
	}
	r.start()
	for i := 1; i <= 4; i++ {
		testkit.Eventually(r, "some facts", func() bool { return len(r.made()) >= 10*i })
		lose()
		time.Sleep(time.Duration(i) * 150 * time.Millisecond) // how long it is away
		r.broker.Start()
		testkit.Eventually(r, "the connection", r.nc.IsConnected)
	}
	r.once(slots...)
	acts := map[event.Digest]int{}
	for _, a := range r.worker.Acts() {
		acts[a.Work.Digest]++
	}
	r.expect("contents", len(acts), 40)
	r.expect("letters", len(r.letters()), 0)
	if len(r.failed()) > 10 {
		r.Errorf("%d failed attempts, 10 were meant", len(r.failed()))
	}
}

// TestAConsumerThatIsGone ends the stage with an error, also while messages
// wait: it must not idle silently.
func TestAConsumerThatIsGone(t *testing.T) {
	world(t, func(r *rig) {
		r.failTimes(100)
		r.send("1.tif", "one", testkit.Policy(4, time.Hour))
		r.start()
		testkit.Eventually(r, "the failure", func() bool { return len(r.failed()) == 1 })
		testkit.OK(r, r.js.DeleteConsumer(context.Background(), event.StreamIngest, consumer))
		select {
		case err := <-r.ended:
			if err == nil {
				r.Error("the stage ended as if nothing had happened")
			}
			r.end = nil
		case <-time.After(time.Minute):
			r.Error("the stage idles")
		}
		synctest.Wait()
	})
}
