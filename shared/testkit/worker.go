package testkit

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"colophon/shared/event"
)

// Deriver is a worker whose results are scripted: it takes ingest.frame.fixed,
// is keyed by content, and says ingest.derivative.<profile>. Its fields are set
// before it runs.
type Deriver struct {
	Profile string
	// Script is what an act does; nil succeeds at once.
	Script func(ctx context.Context, in event.FrameFixed, w event.Work) error
	// Healthy is the probe; nil is always well.
	Healthy func(deep bool) error
	// Believe is asked whether a hit's bytes still stand; nil believes.
	Believe func(in event.FrameFixed) (bool, error)
	// Finished is what tidying up does; nil does nothing.
	Finished func(in event.FrameFixed) error
	// Hold is what a message waits for before it may go on; nil: nothing.
	Hold func(ctx context.Context, in event.FrameFixed) error
	// Held names what Hold waits for; nil: nothing that may be long in coming.
	Held func(in event.FrameFixed) string
	// On is what an act leans on; nil: nothing.
	On func(in event.FrameFixed) string

	mu   sync.Mutex
	acts []Act
	busy int
	most int
}

// Act is one call of the worker.
type Act struct {
	Work   event.Work
	Began  time.Time
	Beside int // other acts that ran when it began
}

// Decode reads a fixed frame.
func (d *Deriver) Decode(subject string, _ nats.Header, data []byte) (event.FrameFixed, error) {
	f, err := event.DecodeFact(subject, data)
	if err != nil {
		return event.FrameFixed{}, err
	}
	in, ok := f.(event.FrameFixed)
	if !ok {
		return in, fmt.Errorf("%s is no order for a derivative", subject)
	}
	return in, in.Slot.Validate()
}

// Work implements stage.Worker.
func (d *Deriver) Work(in event.FrameFixed) event.Work {
	w := in.Work
	w.Schema = event.SchemaDerivative
	return w
}

// Key implements stage.Worker.
func (d *Deriver) Key(in event.FrameFixed) event.Key {
	return event.DerivativeKey(d.Profile, in.Digest)
}

// Act implements stage.Worker.
func (d *Deriver) Act(ctx context.Context, in event.FrameFixed, w event.Work) (event.Derived, error) {
	d.mu.Lock()
	d.acts = append(d.acts, Act{w, time.Now(), d.busy})
	d.busy++
	d.most = max(d.most, d.busy)
	d.mu.Unlock()
	defer func() {
		d.mu.Lock()
		d.busy--
		d.mu.Unlock()
	}()
	if d.Script != nil {
		if err := d.Script(ctx, in, w); err != nil {
			return event.Derived{}, err
		}
	}
	return event.Derived{
		Profile: d.Profile, RecipeDigest: Digest(d.Profile),
		Outputs: []event.Output{{Page: 1, Key: "derivatives/" + d.Profile + "/" + string(in.Digest), Digest: Digest(string(in.Digest))}},
	}, nil
}

// Fact implements stage.Worker.
func (d *Deriver) Fact(_ event.FrameFixed, out event.Derived, w event.Work) event.Fact {
	w.Schema = event.SchemaDerivative
	return event.DerivativeMade{Work: w, Derived: out}
}

// Tokens implements stage.Worker.
func (d *Deriver) Tokens(in event.FrameFixed, _ event.Derived) []string {
	return []string{d.Key(in).String()}
}

// Learn implements stage.Worker.
func (d *Deriver) Learn(f event.Fact) ([]string, event.Derived, bool) {
	made, ok := f.(event.DerivativeMade)
	if !ok {
		return nil, event.Derived{}, false
	}
	return []string{event.DerivativeKey(d.Profile, made.Digest).String()}, made.Derived, true
}

// Finish implements stage.Worker.
func (d *Deriver) Finish(_ context.Context, in event.FrameFixed, _ event.Derived) error {
	if d.Finished != nil {
		return d.Finished(in)
	}
	return nil
}

// Probe implements stage.Worker.
func (d *Deriver) Probe(_ context.Context, deep bool) error {
	if d.Healthy != nil {
		return d.Healthy(deep)
	}
	return nil
}

// Still implements stage.Doubter.
func (d *Deriver) Still(_ context.Context, in event.FrameFixed, _ event.Derived, _ event.Work) (bool, error) {
	if d.Believe != nil {
		return d.Believe(in)
	}
	return true, nil
}

// Depends implements stage.Dependent.
func (d *Deriver) Depends(in event.FrameFixed) string {
	if d.On != nil {
		return d.On(in)
	}
	return ""
}

// Waits implements stage.Waiter.
func (d *Deriver) Waits(in event.FrameFixed) (string, error) {
	if d.Held != nil {
		return d.Held(in), nil
	}
	return "", nil
}

// Wait implements stage.Waiter.
func (d *Deriver) Wait(ctx context.Context, in event.FrameFixed, _ time.Time) error {
	if d.Hold != nil {
		return d.Hold(ctx, in)
	}
	return nil
}

// Acts lists the calls so far.
func (d *Deriver) Acts() []Act {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]Act(nil), d.acts...)
}

// ActsOn counts the calls for a slot.
func (d *Deriver) ActsOn(slot event.Slot) int {
	n := 0
	for _, a := range d.Acts() {
		if a.Work.Slot == slot {
			n++
		}
	}
	return n
}

// Busy tells how many acts run now.
func (d *Deriver) Busy() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.busy
}

// Most tells how many acts ran at once at most.
func (d *Deriver) Most() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.most
}
