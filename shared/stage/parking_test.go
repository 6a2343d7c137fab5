package stage_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"colophon/shared/event"
	"colophon/shared/fault"
	"colophon/shared/testkit"
)

// doors hold back the messages whose slot begins with a name, until it is opened.
type doors struct {
	mu    sync.Mutex
	open  map[string]chan struct{}
	waits map[string]int
	most  map[string]int
}

func (d *doors) of(name string) chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.open[name] == nil {
		d.open[name] = make(chan struct{})
	}
	return d.open[name]
}

func (d *doors) shut(name string) bool {
	select {
	case <-d.of(name):
		return false
	default:
		return true
	}
}

func (d *doors) wait(ctx context.Context, name string) error {
	d.mu.Lock()
	d.waits[name]++
	d.most[name] = max(d.most[name], d.waits[name])
	d.mu.Unlock()
	defer func() {
		d.mu.Lock()
		d.waits[name]--
		d.mu.Unlock()
	}()
	select {
	case <-d.of(name):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (d *doors) waiting(name string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.waits[name]
}

// hold makes the part of a frame's name before its dash the door it waits for.
func (r *rig) hold(each, all int) *doors {
	d := &doors{open: map[string]chan struct{}{}, waits: map[string]int{}, most: map[string]int{}}
	door := func(in event.FrameFixed) string {
		name, _, _ := strings.Cut(string(in.Frame), "-")
		return name
	}
	r.config.HoldEach, r.config.HoldAll = each, all
	r.worker.Held = func(in event.FrameFixed) string {
		if name := door(in); d.shut(name) {
			return "door " + name
		}
		return ""
	}
	r.worker.Hold = func(ctx context.Context, in event.FrameFixed) error { return d.wait(ctx, door(in)) }
	return d
}

func (r *rig) sendTo(door string, n int) (slots []string) {
	for i := range n {
		slots = append(slots, fmt.Sprintf("%s-%03d", door, i))
		r.send(slots[i], slots[i], testkit.Policy(3, time.Second))
	}
	return slots
}

func (r *rig) parked() int {
	r.Helper()
	n, err := r.disk.Set.CountParked(consumer)
	testkit.OK(r, err)
	return n
}

func (r *rig) unacked() int {
	c, err := r.js.Consumer(r.Context(), event.StreamIngest, consumer)
	testkit.OK(r, err)
	return c.CachedInfo().NumAckPending
}

// TestWhatWaitsLongIsParked: one batch without a declaration fills neither the
// broker's window nor the memory, and others go on.
func TestWhatWaitsLongIsParked(t *testing.T) {
	world(t, func(r *rig) {
		r.config.Concurrency = 1
		doors := r.hold(5, 100)
		close(doors.of("declared"))
		c, err := r.js.Consumer(r.Context(), event.StreamIngest, consumer)
		testkit.OK(r, err)
		config := c.CachedInfo().Config
		config.MaxAckPending = 10
		_, err = r.js.UpdateConsumer(r.Context(), event.StreamIngest, config)
		testkit.OK(r, err)

		slots := r.sendTo("undeclared", 50)
		slots = append(slots, r.sendTo("declared", 20)...)
		r.start()
		testkit.Eventually(r, "the declared are done", func() bool { return len(r.worker.Acts()) == 20 })
		testkit.Eventually(r, "the others are parked", func() bool { return r.parked() == 45 && r.unacked() == 5 })
		time.Sleep(time.Minute) // of virtual time
		r.expect("parked still", r.parked(), 45)
		r.expect("as a metric", r.gauges("ingest_messages_parked", "consumer")[consumer], 45.0)

		close(doors.of("undeclared"))
		testkit.Eventually(r, "all are done", func() bool { return len(r.worker.Acts()) == 70 && r.parked() == 0 })
		r.once(slots...)
		r.expect("facts", len(r.made()), 70)
		r.expect("most in memory", doors.most["undeclared"], 5)
		r.expect("as a metric", r.gauges("ingest_messages_parked", "consumer")[consumer], 0.0)
		for i, a := range r.worker.Acts()[20:] { // first come first served, but for those in memory together
			if at := slices.Index(slots, string(a.Work.Frame)); at-i > 2*5 || i-at > 2*5 {
				r.Errorf("%s was done at place %d", a.Work.Frame, i)
			}
		}
		r.expect("letters", len(r.letters()), 0)
		r.expect("failed attempts", len(r.failed()), 0)
	})
}

// TestParkedMessagesSurvive a stop, a crash and a power cut, and their own
// attempts with them.
func TestParkedMessagesSurvive(t *testing.T) {
	for _, how := range []string{"stop", "crash", "power cut"} {
		t.Run(how, func(t *testing.T) {
			world(t, func(r *rig) {
				doors := r.hold(3, 100)
				slots := r.sendTo("u", 12)
				r.start()
				testkit.Eventually(r, "nine are parked", func() bool { return r.parked() == 9 })
				switch how {
				case "stop":
					r.stop()
				case "power cut":
					after := r.disk.Cut(rand.New(rand.NewPCG(1, 2)))
					r.crash()
					r.disk.Close()
					r.disk = after
				case "crash":
					r.crash()
				}
				r.expect("parked", r.parked(), 9)
				r.failTimes(1)
				close(doors.of("u"))
				r.start()
				r.allDone(slots...)
				r.expect("failed attempts", len(r.failed()), 12)
			})
		})
	}
}

// allDone waits for parked messages too.
func (r *rig) allDone(slots ...string) {
	r.Helper()
	testkit.EventuallyWithin(r, 10*time.Minute, "nothing is parked", func() bool { return r.parked() == 0 })
	r.once(slots...)
	testkit.EventuallyWithin(r, 10*time.Minute, "nothing is parked", func() bool { return r.parked() == 0 })
	r.expect("facts", len(r.made()), len(slots))
}

// TestACrashAtEachStepOfParking: the process dies at a step, before or behind
// its effect, and nothing is lost or done twice.
func TestACrashAtEachStepOfParking(t *testing.T) {
	t.Parallel()
	parkingSteps := []string{"park", "ack", "unpark", "record", "publish ingest.derivative.jp2"}
	for _, cut := range []bool{false, true} {
		t.Run(map[bool]string{false: "kill", true: "power cut"}[cut], func(t *testing.T) {
			eachWay(t, parkingSteps, func(r *rig, step string, behind bool) {
				doors := r.hold(2, 100)
				opened := step != "park" && step != "ack"
				if !opened {
					crashed := r.crashAt(step, behind)
					defer testkit.Closed(r, "the crash", crashed)
				}
				slots := r.sendTo("u", 6)
				r.start()
				if opened {
					testkit.Eventually(r, "four are parked", func() bool { return r.parked() == 4 })
					crashed := r.crashAt(step, behind)
					close(doors.of("u"))
					testkit.Closed(r, "the crash", crashed)
				} else {
					testkit.Eventually(r, "the crash", func() bool { return r.faults.Killed() })
				}
				if cut {
					after := r.disk.Cut(rand.New(rand.NewPCG(7, 8)))
					r.crash()
					r.disk.Close()
					r.disk = after
				} else {
					r.crash()
				}
				if !opened {
					close(doors.of("u"))
				}
				r.start()
				r.allDone(slots...)
				for _, f := range r.failed() {
					r.expect("only losses are told", f.Code, fault.WorkerLost)
				}
			})
		})
	}
}

// TestAForgottenAckOfAParkedMessage: delivered again, it is acked, and not
// stored twice.
func TestAForgottenAckOfAParkedMessage(t *testing.T) {
	world(t, func(r *rig) {
		doors := r.hold(1, 100)
		acks := 0
		r.faults.Set(func(call string) error {
			if call == "ack" {
				if acks++; acks <= 3 {
					return testkit.ErrInjected
				}
			}
			return nil
		}, nil)
		slots := r.sendTo("u", 2)
		r.start()
		testkit.Eventually(r, "it is parked, and acked at last", func() bool { return r.parked() == 1 && r.unacked() == 1 })
		parks := 0
		for _, c := range r.faults.Calls() {
			if c == "park" {
				parks++
			}
		}
		r.expect("stored", parks, 1)
		close(doors.of("u"))
		r.allDone(slots...)
		r.expect("acts", len(r.worker.Acts()), 2)
	})
}

// TestManyNamesAtOnce: places are bounded altogether; a name that has nobody in
// memory is found when its door opens.
func TestManyNamesAtOnce(t *testing.T) {
	world(t, func(r *rig) {
		doors := r.hold(3, 8)
		var slots []string
		for i := range 20 {
			slots = append(slots, r.sendTo(fmt.Sprint("b", i), 2)...)
		}
		r.start()
		testkit.Eventually(r, "the rest is parked", func() bool { return r.parked() == 32 && r.unacked() == 8 })
		for _, i := range []int{19, 7, 12} { // parked ones
			close(doors.of(fmt.Sprint("b", i)))
			want := 2 + len(r.worker.Acts())
			testkit.EventuallyWithin(r, time.Minute, "its frames are done", func() bool { return len(r.worker.Acts()) == want })
		}
		r.expect("in memory", r.unacked() <= 8, true)
		for i := range 20 {
			if n := fmt.Sprint("b", i); doors.shut(n) {
				close(doors.of(n))
			}
		}
		r.allDone(slots...)
	})
}

// TestAFullLotHoldsNobodyBack: while others take all places, what is parked and
// may go on goes one after the other, not one a round.
func TestAFullLotHoldsNobodyBack(t *testing.T) {
	world(t, func(r *rig) {
		doors := r.hold(2, 2)
		slots := r.sendTo("shut", 2)
		r.start()
		testkit.Eventually(r, "all places are taken", func() bool { return doors.waiting("shut") == 2 })
		slots = append(slots, r.sendTo("b", 40)...)
		testkit.Eventually(r, "the others are parked", func() bool { return r.parked() == 40 })
		began := time.Now()
		close(doors.of("b"))
		testkit.Eventually(r, "they are done", func() bool { return r.parked() == 0 })
		if took := time.Since(began); took > 10*time.Second { // virtual
			r.Errorf("40 messages took %v", took)
		}
		close(doors.of("shut"))
		r.allDone(slots...)
	})
}

// TestAMovedMessageKeepsItsAge: what it waits for changes, not since when.
func TestAMovedMessageKeepsItsAge(t *testing.T) {
	world(t, func(r *rig) {
		doors := r.hold(1, 1)
		r.failTimes(1)
		slots := r.sendTo("shut", 1)
		r.start()
		testkit.Eventually(r, "the place is taken", func() bool { return doors.waiting("shut") == 1 })
		f := testkit.Fixed(testkit.Slot("b-1"), "b", testkit.Policy(3, 5*time.Minute))
		testkit.Publish(r, r.js, f)
		since := func(name string) (at time.Time) {
			testkit.Eventually(r, "it is parked for "+name, func() bool {
				p, err := r.disk.Set.Parked(consumer, name, 0, 1)
				testkit.OK(r, err)
				if len(p) > 0 {
					at = p[0].Since
				}
				return len(p) > 0
			})
			return at
		}
		began := since("door b")
		time.Sleep(time.Hour) // of virtual time
		close(doors.of("b"))
		r.expect("since", since("delay"), began)
		close(doors.of("shut"))
		r.allDone(append(slots, "b-1")...)
	})
}

// TestAnOpenBreakerParks: a dead dependency's frames are parked behind those
// that wait in memory, keep their attempts, and come back when it answers.
func TestAnOpenBreakerParks(t *testing.T) {
	world(t, func(r *rig) {
		var dead sync.Map
		dead.Store("dead", true)
		r.config.HoldEach, r.config.HoldAll = 4, 100
		r.dependsOnName(0, func(d string) error {
			if _, is := dead.Load(d); is {
				return fault.New(fault.ConnectionReset, nil, "connection reset")
			}
			return nil
		})
		var slots []string
		for i := range 30 {
			for _, d := range []string{"dead", "well"} {
				slots = append(slots, fmt.Sprintf("%s-%d", d, i))
				r.send(slots[len(slots)-1], slots[len(slots)-1], guardedPolicy(8, 2, 5*time.Minute))
			}
		}
		r.start()
		testkit.Eventually(r, "the living are done", func() bool { return len(r.made()) == 30 })
		testkit.Eventually(r, "the rest is parked", func() bool { return r.parked() > 15 && r.unacked() < 14 })
		time.Sleep(20 * time.Minute) // of virtual time
		spent := len(r.failed())
		if spent > 16 {
			r.Errorf("%d attempts on a dead dependency", spent)
		}
		dead.Delete("dead")
		r.allDone(slots...)
		r.expect("letters", len(r.letters()), 0)
	})
}

// TestAParkedMessageThatDies has the letter of any other.
func TestAParkedMessageThatDies(t *testing.T) {
	world(t, func(r *rig) {
		r.breaks()
		doors := r.hold(1, 100)
		r.sendTo("u", 3)
		orders := r.facts(event.SubjectFrameFixed)
		r.start()
		testkit.Eventually(r, "two are parked", func() bool { return r.parked() == 2 })
		close(doors.of("u"))
		testkit.Eventually(r, "all are dead", func() bool { return len(r.letters()) == 3 && r.parked() == 0 })
		r.once()
		for _, l := range r.letters() {
			var origin *testkit.Stored
			for _, o := range orders {
				if l.Header.Get(event.HeaderOrigin) == fmt.Sprint("INGEST-", o.Sequence) {
					origin = &o
				}
			}
			if origin == nil {
				r.Fatalf("the letter of %s", l.Header.Get(event.HeaderOrigin))
			}
			r.expect("payload", string(l.Data), string(origin.Data))
			r.expect("id of the origin", l.Header.Get(event.HeaderOriginID), origin.ID())
			r.expect("its time", l.Header.Get(event.HeaderOriginAt), origin.Time.UTC().Format(time.RFC3339Nano))
		}
	})
}
