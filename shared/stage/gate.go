package stage

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/nats-io/nats.go/jetstream"

	"colophon/shared/event"
	"colophon/shared/fault"
	"colophon/shared/topology"
)

// gate is shut while the surroundings do not allow work.
type gate struct {
	mu     sync.Mutex
	why    *fault.Error
	open   chan struct{}
	report func(halted bool)
}

func newGate(report func(bool)) *gate { return &gate{report: report} }

// shut reports whether this call closed the gate.
func (g *gate) shut(why *fault.Error) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.why != nil {
		return false
	}
	g.why, g.open = why, make(chan struct{})
	g.report(true)
	return true
}

func (g *gate) reopen() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.why != nil {
		g.why = nil
		close(g.open)
		g.report(false)
	}
}

func (g *gate) reason() *fault.Error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.why
}

func (g *gate) wait(ctx context.Context) error {
	g.mu.Lock()
	why, open := g.why, g.open
	g.mu.Unlock()
	if why == nil {
		return nil
	}
	select {
	case <-open:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Halted gives the fault that halts this stage, or nil.
func (s *Stage[In, Out]) Halted() *fault.Error { return s.gate.reason() }

// Halts collects what halts the stages of a service, for its readiness.
type Halts struct {
	mu  sync.Mutex
	ask []func() *fault.Error
}

// Add adds a stage by its Halted method.
func (h *Halts) Add(halted func() *fault.Error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ask = append(h.ask, halted)
}

// Err gives what halts any of them, or nil.
func (h *Halts) Err() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	var errs []error
	for _, ask := range h.ask {
		if f := ask(); f != nil {
			errs = append(errs, f)
		}
	}
	return errors.Join(errs...)
}

// close halts the consumer, says so, and starts the probe that resumes it.
func (s *Stage[In, Out]) close(ctx context.Context, f *fault.Error) {
	if !s.gate.shut(f) {
		return
	}
	s.Log.Error("consumer_halted", slog.String("consumer", s.Consumer), slog.String("code", string(f.Code)), slog.String("reason", fault.Clean(f.Error())))
	s.wg.Go(func() {
		s.tell(ctx, event.OpHalted, f)
		s.probe(ctx, f)
	})
}

func (s *Stage[In, Out]) probe(ctx context.Context, f *fault.Error) {
	tick := time.NewTicker(s.ProbeEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if err := s.Worker.Probe(ctx, true); err != nil {
			s.Log.Debug("probe_failed", slog.Any("error", err))
			continue
		}
		if _, err := s.JS.Stream(ctx, s.Stream); err != nil {
			continue
		}
		s.gate.reopen()
		s.Log.Warn("consumer_resumed", slog.String("consumer", s.Consumer), slog.String("code", string(f.Code)))
		s.tell(ctx, event.OpResumed, f)
		return
	}
}

// tell publishes an op fact about this consumer.
func (s *Stage[In, Out]) tell(ctx context.Context, kind string, f *fault.Error) {
	n, err := s.Completed.Next("op")
	if err != nil {
		s.Log.Error("op_fact_lost", slog.String("kind", kind), slog.Any("error", err))
		return
	}
	_, err = s.log.PublishFact(ctx, event.OpFact{
		Schema: event.SchemaOp, Kind: kind, Service: s.Service, Instance: s.Instance, Counter: n, Code: string(f.Code),
		Reason: fault.Clean(f.Message), Detail: map[string]string{"consumer": s.Consumer}, Agent: s.Agent, At: time.Now().UTC(),
	}, nil)
	if err != nil && ctx.Err() == nil {
		s.Log.Error("op_fact_lost", slog.String("kind", kind), slog.Any("error", err))
	}
}

// permits are the work slots of a consumer. Waiting for a delay, a running
// key or an open gate holds none.
type permits struct {
	sem  *semaphore.Weighted
	size int64
}

func newPermits(n int) *permits { return &permits{semaphore.NewWeighted(int64(n)), int64(n)} }

// permit is one message's share: nothing, one slot, or all of them.
type permit struct {
	of   *permits
	held int64
}

// hold takes a work slot, or all of them for work that is done alone.
func (p *permit) hold(ctx context.Context, alone bool) error {
	want := int64(1)
	if alone {
		want = p.of.size
	}
	if p.held >= want {
		return nil
	}
	p.drop()
	if err := p.of.sem.Acquire(ctx, want); err != nil {
		return err
	}
	p.held = want
	return nil
}

func (p *permit) alone() bool { return p.held == p.of.size }

func (p *permit) drop() {
	if p.held > 0 {
		p.of.sem.Release(p.held)
		p.held = 0
	}
}

// without runs a wait with the slot given back.
func (p *permit) without(ctx context.Context, wait func() error) error {
	p.drop()
	if err := wait(); err != nil {
		return err
	}
	return p.hold(ctx, false)
}

// keyed lets one worker at a time work on a key.
type keyed struct {
	mu   sync.Mutex
	keys map[string]*keyLock
}

type keyLock struct {
	turn chan struct{}
	refs int
}

// lock waits for the key's turn; waiting holds no work slot.
func (k *keyed) lock(ctx context.Context, key string, p *permit) (unlock func(), err error) {
	l := k.ref(key)
	unlock = func() {
		<-l.turn
		k.unref(key, l)
	}
	select {
	case l.turn <- struct{}{}:
		return unlock, nil
	default:
	}
	p.drop()
	select {
	case l.turn <- struct{}{}:
	case <-ctx.Done():
		k.unref(key, l)
		return nil, ctx.Err()
	}
	if err := p.hold(ctx, false); err != nil {
		unlock()
		return nil, err
	}
	return unlock, nil
}

func (k *keyed) ref(key string) *keyLock {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.keys == nil {
		k.keys = map[string]*keyLock{}
	}
	l := k.keys[key]
	if l == nil {
		l = &keyLock{turn: make(chan struct{}, 1)}
		k.keys[key] = l
	}
	l.refs++
	return l
}

func (k *keyed) unref(key string, l *keyLock) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if l.refs--; l.refs == 0 {
		delete(k.keys, key)
	}
}

// flight knows the messages that this process works on, and keeps them alive.
type flight struct {
	mu   sync.Mutex
	msgs map[string]jetstream.Msg
}

func (f *flight) enter(origin string, m jetstream.Msg) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.msgs == nil {
		f.msgs = map[string]jetstream.Msg{}
	}
	if _, busy := f.msgs[origin]; busy {
		return false
	}
	f.msgs[origin] = m
	return true
}

func (f *flight) leave(origin string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.msgs, origin)
}

func (f *flight) len() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.msgs)
}

// beat tells the broker, three times an ack wait, that the messages in flight
// are still worked on.
func (f *flight) beat(ctx context.Context) {
	tick := time.NewTicker(topology.AckWait / 3)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		f.mu.Lock()
		msgs := make([]jetstream.Msg, 0, len(f.msgs))
		for _, m := range f.msgs {
			msgs = append(msgs, m)
		}
		f.mu.Unlock()
		for _, m := range msgs {
			_ = m.InProgress() // a broker that is away redelivers; that is its answer
		}
	}
}
