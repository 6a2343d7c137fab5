package retry

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/failsafe-go/failsafe-go/circuitbreaker"
)

// Outcome is what an attempt says of the dependency that it leant on.
type Outcome int

// Outcomes. The zero value says nothing: a stop, a panic, our own surroundings.
const (
	Silent Outcome = iota
	Answered
	Away
)

// State of a dependency's breaker, as a number for a gauge.
type State int

// States. Half-open: the cooldown is over, and one probe is under way.
const (
	Closed State = iota
	HalfOpen
	Open
	Forgotten // its breaker is kept no longer
)

// Bounds of what is kept, since names and policies come from outside.
const (
	maxDependencies = 1000
	maxVariants     = 8
	keepIdle        = 10 * time.Minute // a closed breaker that nobody used
)

// Breakers guard dependencies by name: a device, an endpoint, a store. It is
// the breaker of the three-policy composition outer(inner(breaker(op))): [Run]
// is the inner policy, waiting for [Breakers.Try] the outer one, so that an
// open breaker spends no attempt. Each attempt counts under the threshold and
// the cooldown of its own policy, and its outcome on the breakers of all.
//
// A dependency is kept from its first failure on. Past 1,000 that failed lately
// further ones are not guarded. Safe for concurrent use.
type Breakers struct {
	changed func(dependency string, s State)

	mu    sync.Mutex
	deps  map[string]*dependency
	swept time.Time
}

type dependency struct {
	variants map[variant]*breaker
	failures int           // consecutive ones, for variants that come later
	moved    chan struct{} // closed when waiting may have ended
	used     time.Time
	told     State
	opened   bool // ever
}

type variant struct {
	threshold int
	cooldown  Duration
}

type breaker struct {
	circuitbreaker.CircuitBreaker[any]
}

// NewBreakers makes an empty set. changed hears of every change of a state; it
// must return at once and not call back.
func NewBreakers(changed func(dependency string, s State)) *Breakers {
	return &Breakers{changed: changed, deps: map[string]*dependency{}}
}

// Try begins an attempt on a dependency, or says how to wait. Where the breaker
// lets it pass, leave is to be called exactly once with the outcome, whatever
// happens; it reports whether that outcome opened or closed the breaker. Where
// the breaker is open, leave is nil, and wait returns when it is worth another
// Try, or with ctx's error.
func (b *Breakers) Try(name string, p Policy) (leave func(Outcome) Change, wait func(context.Context) error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	d := b.deps[name]
	if d == nil { // nothing failed lately
		return func(o Outcome) Change { return b.settle(name, &p, nil, o) }, nil
	}
	d.used = time.Now()
	v := d.variant(p)
	if !v.TryAcquirePermit() {
		cooldown := v.RemainingDelay()
		if v.IsOpen() {
			cooldown = max(cooldown, time.Millisecond)
		}
		return nil, d.wait(cooldown)
	}
	var probe *breaker
	if v.IsHalfOpen() {
		probe = v
	}
	b.tell(name, d)
	return func(o Outcome) Change { return b.settle(name, &p, probe, o) }, nil
}

// Heard counts what somebody else says of a dependency, such as a gateway of
// its device.
func (b *Breakers) Heard(name string, o Outcome) Change { return b.settle(name, nil, nil, o) }

// Change is what an outcome did to a dependency's breaker.
type Change int

// Changes. A probe that fails is none: the breaker stays open.
const (
	Unchanged Change = iota
	HasOpened
	HasClosed
)

// settle counts an outcome. While a probe is under way only the probe, or an
// answer, decides: an older attempt that fails must not let a second probe in.
func (b *Breakers) settle(name string, p *Policy, probe *breaker, o Outcome) Change {
	b.mu.Lock()
	defer b.mu.Unlock()
	d := b.deps[name]
	if d == nil && o == Away {
		d = b.add(name)
	}
	if d == nil {
		return Unchanged
	}
	if p == nil {
		standard := Default()
		p = &standard
	}
	d.used = time.Now()
	d.variant(*p)
	was := d.state()
	switch o {
	case Away:
		d.failures++
		for _, v := range d.variants {
			if !v.IsHalfOpen() || v == probe {
				v.RecordFailure()
			}
		}
	case Answered:
		d.failures = 0
		for _, v := range d.variants {
			if v.IsClosed() {
				v.RecordSuccess()
			} else {
				v.Close()
			}
		}
	case Silent:
		if probe != nil && probe.IsHalfOpen() { // the next one probes instead
			probe.CircuitBreaker.Open()
			probe.CircuitBreaker.HalfOpen()
		}
	}
	now := d.state()
	if probe != nil || now != was {
		close(d.moved)
		d.moved = make(chan struct{})
	}
	b.tell(name, d)
	b.sweep()
	switch {
	case was == Closed && now == Open:
		d.opened = true
		return HasOpened
	case was != Closed && now == Closed:
		return HasClosed
	}
	return Unchanged
}

func (b *Breakers) add(name string) *dependency {
	if len(b.deps) >= maxDependencies {
		b.swept = time.Time{}
		if b.sweep(); len(b.deps) >= maxDependencies {
			return nil
		}
	}
	d := &dependency{variants: map[variant]*breaker{}, moved: make(chan struct{}), used: time.Now(), told: Forgotten}
	b.deps[name] = d
	return d
}

// sweep forgets, once a minute, what is closed and idle, or never was open and
// works again.
func (b *Breakers) sweep() {
	if time.Since(b.swept) < time.Minute {
		return
	}
	b.swept = time.Now()
	for name, d := range b.deps {
		if d.state() == Closed && (time.Since(d.used) > keepIdle || d.failures == 0 && !d.opened) {
			delete(b.deps, name)
			b.changed(name, Forgotten)
		}
	}
}

// Open lists the dependencies whose breaker is not closed, sorted.
func (b *Breakers) Open() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []string
	for _, name := range slices.Sorted(maps.Keys(b.deps)) {
		if b.deps[name].state() != Closed {
			out = append(out, name)
		}
	}
	return out
}

func (b *Breakers) tell(name string, d *dependency) {
	if now := d.state(); now != d.told {
		d.told = now
		b.changed(name, now)
	}
}

// variant gives the breaker of a policy. One that comes later knows of the
// failures before it, but is not what opens the first, which nobody would be
// told of; past 8 a policy shares another one's.
func (d *dependency) variant(p Policy) *breaker {
	k := variant{p.CircuitFailureThreshold, p.CircuitCooldown}
	if v := d.variants[k]; v != nil {
		return v
	}
	if len(d.variants) >= maxVariants {
		return slices.MinFunc(slices.Collect(maps.Values(d.variants)), func(x, y *breaker) int { return int(x.State()) - int(y.State()) })
	}
	v := &breaker{circuitbreaker.NewBuilder[any]().
		WithFailureThreshold(uint(k.threshold)).WithSuccessThreshold(1).WithDelay(time.Duration(k.cooldown)).Build()}
	known := k.threshold
	if d.state() == Closed {
		known--
	}
	for range min(d.failures, known) {
		v.RecordFailure()
	}
	d.variants[k] = v
	return v
}

// state is the least healthy of the variants'.
func (d *dependency) state() State {
	s := Closed
	for _, v := range d.variants {
		switch {
		case v.IsOpen():
			return Open
		case v.IsHalfOpen():
			s = HalfOpen
		}
	}
	return s
}

// wait gives how to wait: for the cooldown to pass, where that is what lacks,
// or for the breaker to move, since the end of a probe has no time.
func (d *dependency) wait(cooldown time.Duration) func(context.Context) error {
	moved := d.moved
	return func(ctx context.Context) error {
		var due <-chan time.Time
		if cooldown > 0 {
			t := time.NewTimer(cooldown)
			defer t.Stop()
			due = t.C
		}
		select {
		case <-moved:
			return nil
		case <-due:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
