package stage_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"colophon/shared/event"
	"colophon/shared/fault"
	"colophon/shared/testkit"
)

// TestRandomSchedules submits, crashes, cuts the power, loses disks, lets the
// window expire, poisons, holds back and parks, replays and repairs, in an order drawn from a seed,
// and judges the streams at rest. COLOPHON_SEED runs one seed, COLOPHON_SOAK
// many.
func TestRandomSchedules(t *testing.T) {
	first, n := uint64(1), testkit.Scale(60, 2_000)
	if s := os.Getenv("COLOPHON_SEED"); s != "" {
		var err error
		if first, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatal(err)
		}
		n = 1
	}
	t.Parallel()
	var some sometimes
	t.Cleanup(func() { some.judge(t, n) })
	for seed := first; seed < first+uint64(n); seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			world(t, func(r *rig) {
				s := &schedule{rig: r, rng: rand.New(rand.NewPCG(seed, 42)), broken: map[event.Digest]string{}, some: &some}
				s.run()
			})
		})
	}
}

// schedule is one random history and the model it is judged by.
type schedule struct {
	*rig
	rng     *rand.Rand
	some    *sometimes
	orders  []event.FrameFixed // distinct slots, as sent first
	crashed <-chan struct{}    // the crash that is armed
	crashes int

	mu     sync.Mutex
	broken map[event.Digest]string // how an act on a content ends: "", poison, flaky, killer, full
	dying  chan struct{}           // a killer was acted on
	done   map[event.Digest]int    // acts that succeeded

	doors     *doors          // some contents are held back behind one
	forgotten map[string]bool // origins that were parked on a lost disk
}

func (s *schedule) run() {
	s.config.Grace = time.Millisecond
	s.config.Concurrency = 1 + s.rng.IntN(3)
	if s.rng.IntN(2) == 0 {
		s.doors = s.hold(1+s.rng.IntN(2), 2+s.rng.IntN(3)) // so few that delays and turns are parked too
		s.worker.Held, s.worker.Hold = s.held, func(ctx context.Context, in event.FrameFixed) error { return s.doors.wait(ctx, door(in)) }
		for _, d := range "abcdefgh" {
			if s.rng.IntN(2) == 0 {
				close(s.doors.of(string(d)))
			}
		}
	}
	s.forgotten = map[string]bool{}
	s.done = map[event.Digest]int{}
	s.dying = make(chan struct{}, 100)
	s.worker.Script = s.act
	s.start()
	for range 6 + s.rng.IntN(10) {
		s.step()
		s.recover()
	}
	s.rest()
	s.judge(false)
	s.repairAll()
	s.rest()
	s.judge(true)
}

// door is one of eight, by content.
func door(in event.FrameFixed) string { return string(rune('a' + in.Digest[0]%8)) }

func (s *schedule) held(in event.FrameFixed) string {
	if s.doors.shut(door(in)) {
		return "door " + door(in)
	}
	return ""
}

// openDoors opens every door.
func (s *schedule) openDoors() {
	if s.doors == nil {
		return
	}
	for _, d := range "abcdefgh" {
		if s.doors.shut(string(d)) {
			close(s.doors.of(string(d)))
		}
	}
}

func (s *schedule) act(ctx context.Context, in event.FrameFixed, w event.Work) error {
	s.mu.Lock()
	how := s.broken[in.Digest]
	if how == "flaky" && s.worker.ActsOn(in.Slot)%5 == 0 {
		how = ""
	}
	if how == "killer" && w.Attempt > 2 {
		how = ""
	}
	if how == "" {
		s.done[in.Digest]++
	}
	s.mu.Unlock()
	switch how {
	case "poison":
		return fault.New("truncated", nil, "the file ends early")
	case "flaky":
		return fault.New(fault.Timeout, nil, "no answer")
	case "killer":
		s.dying <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	}
	return s.faults.Note("act")
}

func (s *schedule) step() {
	switch k := s.rng.IntN(20); {
	case k < 6 || len(s.orders) == 0:
		s.submit()
	case k < 10 && s.crashed == nil:
		step := append(steps, lastSteps...)[s.rng.IntN(len(steps)+len(lastSteps))]
		s.crashed = s.crashAt(step, s.rng.IntN(2) == 0)
	case k < 12: // the same message again: dropped inside the window, new outside
		testkit.Publish(s, s.js, s.any())
	case k < 14: // a raw replay
		o := s.any()
		testkit.PublishRaw(s, s.js, o.Subject(), nil, testkit.JSON(s, o))
	case k == 14: // past the window; a running stage would pull 4,200 times meanwhile
		s.stop()
		time.Sleep(70 * time.Minute)
		s.start()
	case k == 15:
		s.stop()
		s.start()
	case k == 16:
		s.mu.Lock()
		delete(s.broken, s.any().Digest)
		s.mu.Unlock()
	default:
		time.Sleep(time.Duration(s.rng.IntN(4000)) * time.Millisecond)
	}
}

func (s *schedule) any() event.FrameFixed { return s.orders[s.rng.IntN(len(s.orders))] }

func (s *schedule) submit() {
	content := fmt.Sprint("content ", s.rng.IntN(4)) // so that some slots have a twin
	o := testkit.Fixed(testkit.Slot(fmt.Sprint(len(s.orders))), content, testkit.Policy(3, time.Second))
	s.mu.Lock()
	if _, known := s.broken[o.Digest]; !known {
		s.broken[o.Digest] = []string{"", "", "poison", "flaky", "killer"}[s.rng.IntN(5)]
	}
	s.mu.Unlock()
	s.orders = append(s.orders, o)
	testkit.Publish(s, s.js, o)
}

// recover crashes the stage where that was armed and reached, or where a
// killer is acted on, and starts a fresh one.
func (s *schedule) recover() {
	select {
	case <-s.crashed:
	case <-s.dying:
	default:
		return
	}
	s.crashes++
	after := s.disk
	switch s.rng.IntN(4) {
	case 0:
		after = s.disk.Cut(s.rng)
		s.some.count("power cut")
	case 1:
		after = testkit.NewDisk(s)
		s.some.count("lost disk")
	}
	s.crash()
	if n := s.parked(); n > 0 {
		s.some.count("parked over a crash")
	}
	if after != s.disk {
		if after.Set != nil && s.lost(after) {
			s.resend()
		}
		s.disk.Close()
		s.disk = after
	}
	s.crashed = nil
	for len(s.dying) > 0 {
		<-s.dying
	}
	s.start()
}

// lost reports whether a disk knows nothing of what was parked on this one.
func (s *schedule) lost(after *testkit.Disk) bool {
	n, err := after.Set.CountParked(consumer)
	testkit.OK(s, err)
	return n == 0 && s.parked() > 0
}

// resend does what capture's reconcile loop does about messages that nobody
// holds any more.
func (s *schedule) resend() {
	names, err := s.disk.Set.ParkedFor(consumer, "", 1000)
	testkit.OK(s, err)
	for _, name := range names {
		parked, err := s.disk.Set.Parked(consumer, name, 0, 1000)
		testkit.OK(s, err)
		for _, p := range parked {
			s.forgotten[p.Origin] = true
			testkit.PublishRaw(s, s.js, p.Subject, nil, p.Data)
		}
	}
}

// rest waits until every message is acked, through whatever crashes are armed.
func (s *schedule) rest() {
	s.faults.Set(nil, nil) // a call that is under way may still crash: recover looks
	s.openDoors()
	testkit.EventuallyWithin(s, 3*time.Hour, "every message is acked", func() bool {
		s.recover()
		return testkit.Unfinished(s, s.js, event.StreamIngest, consumer) == 0 && s.parked() == 0
	})
}

// repairAll repairs every cause and sends what is not done again, raw.
func (s *schedule) repairAll() {
	s.mu.Lock()
	clear(s.broken)
	s.mu.Unlock()
	for _, o := range s.orders {
		testkit.PublishRaw(s, s.js, o.Subject(), nil, testkit.JSON(s, o))
	}
}
