package testkit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"colophon/shared/completed"
)

// ErrInjected is how a call fails that was ordered to.
var ErrInjected = errors.New("testkit: failed to order")

// Faults stands between a stage and what it calls. It records every call that
// changes something, in order, and fails those that a test orders to fail:
// before they did anything ("not done") or behind it ("done but reported as
// failed").
type Faults struct {
	mu     sync.Mutex
	calls  []string
	before func(call string) error
	after  func(call string) error
	killed bool
}

// Kill makes every later call fail before it did anything, as if the process
// had died where it stands.
func (f *Faults) Kill() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.killed = true
}

// Killed reports whether it was killed.
func (f *Faults) Killed() bool { return f.dead() != nil }

func (f *Faults) dead() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.killed {
		return ErrInjected
	}
	return nil
}

// Set orders faults: before and after are asked with each call's name; nil
// lets all pass.
func (f *Faults) Set(before, after func(call string) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.before, f.after = before, after
}

// Calls lists what was called so far.
func (f *Faults) Calls() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.calls)
}

// Forget empties the record.
func (f *Faults) Forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = nil
}

// Note records a step of the test's own, and may fail it.
func (f *Faults) Note(call string) error { return f.call(call, func() error { return nil }) }

func (f *Faults) call(name string, do func() error) error {
	f.mu.Lock()
	if f.killed {
		f.mu.Unlock()
		return ErrInjected
	}
	f.calls = append(f.calls, name)
	before, after := f.before, f.after
	f.mu.Unlock()
	if before != nil {
		if err := before(name); err != nil {
			return err
		}
	}
	if err := f.dead(); err != nil { // killed in before
		return err
	}
	if err := do(); err != nil {
		return err
	}
	if after != nil {
		if err := after(name); err != nil {
			return err
		}
	}
	return f.dead()
}

// memory is what a stage asks of its memory.
type memory interface {
	Result(token string) ([]byte, bool, error)
	HasFact(id string) (bool, error)
	Record(completed.Completion) error
	Attempt(key string) (completed.Attempt, error)
	SetAttempt(key string, a completed.Attempt) error
	SetDead(completed.Dead) error
	DeadOrigin(name string, stored time.Time, msgID string) (completed.Origin, bool, error)
	DeadPass(operation, slot string) (int, error)
	Next(name string) (uint64, error)
	Incarnation() (string, error)
	Fact(id string) (completed.Fact, bool, error)
	Facts(yield func(completed.Fact) error) error
	Letters(yield func(completed.Origin) error) error
	Park(completed.Parked) error
	Unpark(completed.Parked) error
	IsParked(queue, origin string, stored time.Time, msgID string) (bool, error)
	Parked(queue, name string, after uint64, n int) ([]completed.Parked, error)
	ParkedFor(queue, after string, n int) ([]string, error)
	CountParked(queue string) (int, error)
	Position(name string) (completed.Position, error)
	Learn(follower string, done []completed.Completion, dead []completed.Dead, pos completed.Position) error
}

// Memory is a completed-set behind faults.
type Memory struct {
	memory
	f *Faults
}

// Completed wraps a completed-set.
func (f *Faults) Completed(s *completed.Set) *Memory { return &Memory{s, f} }

// Record is a call that may fail to order.
func (m *Memory) Record(c completed.Completion) error {
	return m.f.call("record", func() error { return m.memory.Record(c) })
}

// Result is a call that may fail to order.
func (m *Memory) Result(token string) (data []byte, ok bool, err error) {
	err = m.f.call("check", func() error {
		data, ok, err = m.memory.Result(token)
		return err
	})
	return data, ok, err
}

// SetAttempt is a call that may fail to order.
func (m *Memory) SetAttempt(key string, a completed.Attempt) error {
	return m.f.call("attempt "+a.State, func() error { return m.memory.SetAttempt(key, a) })
}

// SetDead is a call that may fail to order.
func (m *Memory) SetDead(d completed.Dead) error {
	return m.f.call("dead", func() error { return m.memory.SetDead(d) })
}

// Attempt is a call that may fail to order.
func (m *Memory) Attempt(key string) (a completed.Attempt, err error) {
	err = m.f.call("attempt read", func() error {
		a, err = m.memory.Attempt(key)
		return err
	})
	return a, err
}

// Park is a call that may fail to order.
func (m *Memory) Park(p completed.Parked) error {
	return m.f.call("park", func() error { return m.memory.Park(p) })
}

// Unpark is a call that may fail to order.
func (m *Memory) Unpark(p completed.Parked) error {
	return m.f.call("unpark", func() error { return m.memory.Unpark(p) })
}

// Learn is refused once killed: what a dead process read is not stored.
func (m *Memory) Learn(follower string, done []completed.Completion, dead []completed.Dead, pos completed.Position) error {
	if err := m.f.dead(); err != nil {
		return err
	}
	return m.memory.Learn(follower, done, dead, pos)
}

// Next is refused once killed.
func (m *Memory) Next(name string) (uint64, error) {
	if err := m.f.dead(); err != nil {
		return 0, err
	}
	return m.memory.Next(name)
}

// JetStream wraps what a stage publishes and acks through.
func (f *Faults) JetStream(js jetstream.JetStream) jetstream.JetStream { return &faultyJS{js, f} }

type faultyJS struct {
	jetstream.JetStream
	f *Faults
}

func (j *faultyJS) PublishMsg(ctx context.Context, m *nats.Msg, opts ...jetstream.PublishOpt) (ack *jetstream.PubAck, err error) {
	err = j.f.call("publish "+m.Subject, func() error {
		ack, err = j.JetStream.PublishMsg(ctx, m, opts...)
		return err
	})
	if err != nil {
		return nil, err
	}
	return ack, nil
}

func (j *faultyJS) Consumer(ctx context.Context, stream, name string) (jetstream.Consumer, error) {
	c, err := j.JetStream.Consumer(ctx, stream, name)
	if err != nil {
		return nil, err
	}
	return &faultyConsumer{c, j.f}, nil
}

type faultyConsumer struct {
	jetstream.Consumer
	f *Faults
}

func (c *faultyConsumer) Fetch(n int, opts ...jetstream.FetchOpt) (jetstream.MessageBatch, error) {
	var b jetstream.MessageBatch
	err := c.f.call(fmt.Sprintf("fetch %d", n), func() (err error) {
		b, err = c.Consumer.Fetch(n, opts...)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &faultyBatch{b, c.f}, nil
}

type faultyBatch struct {
	jetstream.MessageBatch
	f *Faults
}

func (b *faultyBatch) Messages() <-chan jetstream.Msg {
	out := make(chan jetstream.Msg)
	go func() {
		defer close(out)
		for m := range b.MessageBatch.Messages() {
			out <- &faultyMsg{m, b.f}
		}
	}()
	return out
}

type faultyMsg struct {
	jetstream.Msg
	f *Faults
}

func (m *faultyMsg) DoubleAck(ctx context.Context) error {
	return m.f.call("ack", func() error { return m.Msg.DoubleAck(ctx) })
}

func (m *faultyMsg) Nak() error { return m.f.call("nak", m.Msg.Nak) }

func (m *faultyMsg) InProgress() error { return m.f.call("in-progress", m.Msg.InProgress) }
