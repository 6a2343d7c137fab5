package retry_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"colophon/shared/retry"
)

func breakerPolicy(threshold int, cooldown time.Duration) retry.Policy {
	p := retry.Default()
	p.CircuitFailureThreshold, p.CircuitCooldown = threshold, retry.Duration(cooldown)
	return p
}

// guarded is a set of breakers that notes what it tells.
type guarded struct {
	*retry.Breakers
	t    *testing.T
	mu   sync.Mutex
	told []string
}

func guard(t *testing.T) *guarded {
	g := &guarded{t: t}
	g.Breakers = retry.NewBreakers(func(name string, s retry.State) {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.told = append(g.told, fmt.Sprintf("%s %d", name, s))
	})
	return g
}

// try makes an attempt that ends at once; it reports whether it was let through.
func (g *guarded) try(name string, p retry.Policy, o retry.Outcome) (bool, retry.Change) {
	leave, _ := g.Try(name, p)
	if leave == nil {
		return false, retry.Unchanged
	}
	return true, leave(o)
}

func (g *guarded) expect(what string, got, want any) {
	g.t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		g.t.Fatalf("%s: %v, want %v", what, got, want)
	}
}

func TestABreakersLife(t *testing.T) {
	t.Parallel()
	const cooldown = 30 * time.Second
	p := breakerPolicy(3, cooldown)
	type step struct {
		after   time.Duration
		outcome retry.Outcome
		passes  bool
		change  retry.Change
	}
	ok, away, silent := retry.Answered, retry.Away, retry.Silent
	for name, steps := range map[string][]step{
		"opens at the third in a row": {
			{0, away, true, 0}, {0, away, true, 0}, {0, ok, true, 0}, {0, away, true, 0}, {0, away, true, 0}, {0, away, true, retry.HasOpened}, {0, ok, false, 0},
		},
		"a stop counts as neither": {
			{0, away, true, 0}, {0, away, true, 0}, {0, silent, true, 0}, {0, away, true, retry.HasOpened},
		},
		"a probe that succeeds closes": {
			{0, away, true, 0}, {0, away, true, 0}, {0, away, true, retry.HasOpened},
			{cooldown - 1, ok, false, 0}, {1, ok, true, retry.HasClosed}, {0, away, true, 0}, {0, away, true, 0}, {0, ok, true, 0},
		},
		"a probe that fails opens for another cooldown, and says nothing new": {
			{0, away, true, 0}, {0, away, true, 0}, {0, away, true, retry.HasOpened},
			{cooldown, away, true, 0}, {cooldown - 1, ok, false, 0}, {1, ok, true, retry.HasClosed},
		},
		"a probe that says nothing lets the next one probe": {
			{0, away, true, 0}, {0, away, true, 0}, {0, away, true, retry.HasOpened},
			{cooldown, silent, true, 0}, {0, silent, true, 0}, {0, ok, true, retry.HasClosed},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := guard(t)
				for i, s := range steps {
					time.Sleep(s.after) // virtual
					passed, change := g.try("d", p, s.outcome)
					g.expect(fmt.Sprintf("step %d passes", i+1), passed, s.passes)
					g.expect(fmt.Sprintf("step %d changes", i+1), change, s.change)
					other, _ := g.try("another", p, ok)
					g.expect("another dependency", other, true)
				}
			})
		})
	}
}

// TestASingleProbe: of twenty that wait one goes, the others wait for what it
// finds, and all go when it succeeds.
func TestASingleProbe(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g, p := guard(t), breakerPolicy(1, time.Minute)
		g.try("d", p, retry.Away)
		opened := time.Now()
		var probes, done atomic.Int32
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				for {
					leave, wait := g.Try("d", p)
					if leave == nil {
						if err := wait(t.Context()); err != nil {
							t.Error(err)
							return
						}
						continue
					}
					switch {
					case time.Since(opened) < time.Minute:
						t.Error("let through before the cooldown")
					case probes.Add(1) == 1:
						time.Sleep(10 * time.Second) // the probe's work
						leave(retry.Away)
						opened = time.Now()
						continue
					case probes.Load() == 2:
						time.Sleep(10 * time.Second)
						if done.Load() != 0 {
							t.Error("others ran beside the probe")
						}
					}
					done.Add(1)
					leave(retry.Answered)
					return
				}
			})
		}
		wg.Wait()
		g.expect("time until all are done", time.Since(opened) < 71*time.Second, true)
		g.expect("let through", probes.Load(), 21) // the failed probe came again
		g.expect("open", g.Open(), []string{})
	})
}

func TestAWaitEndsWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g, p := guard(t), breakerPolicy(1, time.Hour)
		g.try("d", p, retry.Away)
		_, wait := g.Try("d", p)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		began := time.Now()
		g.expect("error", wait(ctx), context.Canceled)
		g.expect("took", time.Since(began), time.Duration(0))
	})
}

// TestOutcomesCountOnEveryPolicysBreaker, also on one that is made later.
func TestOutcomesCountOnEveryPolicysBreaker(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := guard(t)
		strict, mild, late := breakerPolicy(2, time.Minute), breakerPolicy(4, time.Second), breakerPolicy(3, time.Second)
		_, c := g.try("d", mild, retry.Away)
		g.expect("first", c, retry.Unchanged)
		_, c = g.try("d", strict, retry.Away) // one of its own, two in all
		g.expect("second", c, retry.HasOpened)
		passed, c := g.try("d", mild, retry.Away)
		g.expect("the mild one still lets through", []any{passed, c}, []any{true, retry.Unchanged})
		passed, _ = g.try("d", late, retry.Away)
		g.expect("a policy that comes later knows of three failures", passed, false)
		passed, c = g.try("d", mild, retry.Answered)
		g.expect("an answer closes them all", []any{passed, c}, []any{true, retry.HasClosed})
		passed, _ = g.try("d", strict, retry.Answered)
		g.expect("the strict one lets through", passed, true)
	})
}

// TestAStricterPolicyThatComesLaterOpensAloud: at its first failure, not unsaid
// when its breaker is made.
func TestAStricterPolicyThatComesLaterOpensAloud(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := guard(t)
		for range 3 {
			g.try("d", breakerPolicy(5, time.Minute), retry.Away)
		}
		passed, c := g.try("d", breakerPolicy(2, time.Minute), retry.Away)
		g.expect("the next failure", []any{passed, c}, []any{true, retry.HasOpened})
		g.expect("told", g.told, []string{"d 0", "d 2"})
	})
}

// TestAnOlderAttemptDoesNotEndTheProbe: one that began before the breaker
// opened and fails while the probe runs lets no second probe in.
func TestAnOlderAttemptDoesNotEndTheProbe(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g, p := guard(t), breakerPolicy(1, time.Minute)
		older, _ := g.Try("d", p)
		g.try("d", p, retry.Away)
		time.Sleep(time.Minute)
		probe, _ := g.Try("d", p)
		g.expect("the older one changes", older(retry.Away), retry.Unchanged)
		time.Sleep(time.Hour)
		passed, _ := g.try("d", p, retry.Answered)
		g.expect("a second probe", passed, false)
		g.expect("the probe", probe(retry.Answered), retry.HasClosed)
	})
}

// TestWhatIsKeptIsBounded: names and policies come from outside.
func TestWhatIsKeptIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := guard(t)
		for i := range 5000 {
			g.try(fmt.Sprint("well ", i), retry.Default(), retry.Answered)
		}
		g.expect("told of what works", len(g.told), 0)
		for i := range 5000 {
			g.try(fmt.Sprint("d", i), breakerPolicy(1+i%3, time.Duration(i+1)*time.Second), retry.Away)
		}
		g.expect("kept", len(g.told) <= 1000, true)
		for i := range 100 { // of one dependency
			g.try("d0", breakerPolicy(50+i, time.Hour), retry.Away)
		}
		time.Sleep(2 * time.Hour)
		for _, name := range g.Open() {
			if passed, _ := g.try(name, breakerPolicy(1, time.Second), retry.Answered); !passed {
				time.Sleep(time.Second) // a breaker made now begins with its own cooldown
				passed, _ = g.try(name, breakerPolicy(1, time.Second), retry.Answered)
				g.expect(name+" lets a probe through", passed, true)
			}
		}
		g.expect("open", g.Open(), []string{})
		time.Sleep(time.Hour)
		g.try("new", retry.Default(), retry.Away) // the sweep comes with use
		gone := 0
		for _, s := range g.told {
			if s[len(s)-1] == '3' {
				gone++
			}
		}
		g.expect("forgotten", gone >= 999, true)
		g.expect("the first of all stays none", slices.Contains(g.Open(), "well 0"), false)
	})
}
