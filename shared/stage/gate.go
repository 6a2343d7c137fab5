package stage

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"colophon/shared/event"
	"colophon/shared/fault"
	"colophon/shared/topology"
)

// gate is shut while the surroundings do not allow work.
type gate struct {
	mu       sync.Mutex
	why      *fault.Error
	open     chan struct{}
	report   func(halted bool)
	opened   time.Time // last
	relapses int       // halts that followed a resumption closely
}

// relapse is how soon after a resumption a halt means that nothing was repaired.
const relapse = time.Minute

// patience is how long a halted consumer waits between two probes.
func (g *gate) patience(every time.Duration) time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	if time.Since(g.opened) > relapse {
		g.relapses = 0
	} else {
		g.relapses = min(g.relapses+1, 5)
	}
	return every << g.relapses
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
		g.why, g.opened = nil, time.Now()
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
func (s *Stage[In, Out]) close(f *fault.Error) {
	if !s.gate.shut(f) {
		return
	}
	s.Log.Error("consumer_halted", slog.String("consumer", s.Consumer), slog.String("code", string(f.Code)), slog.String("reason", fault.Clean(f.Error())))
	s.wg.Go(func() {
		s.tell(s.stop, event.OpHalted, f, nil)
		s.probe(s.stop, f)
	})
}

// probe looks whether what failed works again. Surroundings that look well and
// fail again at once are asked less and less often.
func (s *Stage[In, Out]) probe(ctx context.Context, f *fault.Error) {
	every := s.gate.patience(s.ProbeEvery)
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(every):
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
		s.tell(ctx, event.OpResumed, f, nil)
		return
	}
}

// tell publishes an op fact about this consumer. The instance carries the name
// of the store that counts: the counter of another store, or of one that
// replaced a lost one, gives other ids.
func (s *Stage[In, Out]) tell(ctx context.Context, kind string, f *fault.Error, detail map[string]string) {
	store, err := s.Completed.Incarnation()
	var n uint64
	if err == nil {
		n, err = s.Completed.Next("op")
	}
	if err != nil {
		s.Log.Error("op_fact_lost", slog.String("kind", kind), slog.Any("error", err))
		return
	}
	if detail == nil {
		detail = map[string]string{}
	}
	detail["consumer"] = s.Consumer
	_, err = s.log.PublishFact(ctx, event.OpFact{
		Schema: event.SchemaOp, Kind: kind, Service: s.Service, Instance: s.Instance + "." + store, Counter: n, Code: string(f.Code),
		Reason: fault.Clean(f.Message), Detail: detail, Agent: s.Agent, At: time.Now().UTC(),
	}, nil)
	if err != nil {
		s.Log.Error("op_fact_lost", slog.String("kind", kind), slog.Any("error", err))
	}
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

// lock waits for the key's turn; busy is called before a wait, and may refuse it.
func (k *keyed) lock(ctx context.Context, key string, busy func() error) (unlock func(), err error) {
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
	if err := busy(); err != nil {
		k.unref(key, l)
		return nil, err
	}
	select {
	case l.turn <- struct{}{}:
		return unlock, nil
	case <-ctx.Done():
		k.unref(key, l)
		return nil, ctx.Err()
	}
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
// A message is its origin and stored time: after a rollback of the stream a
// sequence names another one.
type flight struct {
	mu   sync.Mutex
	msgs map[flying]jetstream.Msg
}

type flying struct {
	origin string
	stored int64
}

func (f *flight) enter(k flying, m jetstream.Msg) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.msgs == nil {
		f.msgs = map[flying]jetstream.Msg{}
	}
	if _, busy := f.msgs[k]; busy {
		return false
	}
	f.msgs[k] = m
	return true
}

func (f *flight) leave(k flying) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.msgs, k)
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
