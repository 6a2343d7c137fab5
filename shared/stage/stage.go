// Package stage is the one path of a message, and its settling:
//
//	decode → key → check → act → publish → record → ack
//
// A service brings its work as a [Worker]; the order, the counting of
// attempts, retries, halts and dead letters are here, once. [Stage.handle] is
// the promise: each step says what is true if the process dies behind it.
package stage

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"colophon/shared/completed"
	"colophon/shared/crash"
	"colophon/shared/event"
	"colophon/shared/fault"
	"colophon/shared/retry"
	"colophon/shared/schema"
	"colophon/shared/topology"
)

// Worker is what one service does to one message, without messages: In is
// what it reads, Out the content result that it makes and that the
// completed-set keeps.
type Worker[In, Out any] interface {
	// Decode reads a message. An error makes a dead letter of the message.
	Decode(subject string, header nats.Header, data []byte) (In, error)
	// Work gives what the message says about its slot: ids, revision, digest,
	// written pass, policy, profiles.
	Work(in In) event.Work
	// Key names the work, from content; never from time or delivery.
	Key(in In) event.Key
	// Act does the work. Doing it twice equals doing it once: the output of a
	// first try that was not recorded is found and adopted. An error's class
	// (shared/fault) decides what follows.
	Act(ctx context.Context, in In, w event.Work) (Out, error)
	// Fact says what happened, of this message's own slot and pass, hit or miss.
	Fact(in In, out Out, w event.Work) event.Fact
	// Tokens are the completed-set keys that the result is kept under.
	Tokens(in In, out Out) []string
	// Learn reads a fact of this service back: the tokens and the result it
	// was made from. It reports false for facts that complete nothing here.
	Learn(f event.Fact) (tokens []string, out Out, ok bool)
	// Finish tidies up what the next stages no longer need, after the record.
	// It must be safe to repeat.
	Finish(ctx context.Context, in In, out Out) error
	// Probe tells whether the surroundings allow work: an environment fault
	// halts the consumer before anything breaks. It is asked before each pull,
	// and must be cheap; deep is set while the consumer is halted, to prove
	// that what failed works again.
	Probe(ctx context.Context, deep bool) error
}

// Completed is the durable memory that a stage needs; see
// colophon/shared/completed for what each call promises.
type Completed interface {
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

// Config is what a stage is told.
type Config struct {
	Service     string
	Instance    string // of the service: a pod's name
	Agent       event.Agent
	Stream      string
	Consumer    string
	Own         []string      // subjects of this stage's own facts
	Concurrency int           // messages in act at once
	Grace       time.Duration // for work that runs when a stop comes
	ProbeEvery  time.Duration // while halted
	HoldEach    int           // messages that wait in memory for one thing; 0: 1,000
	HoldAll     int           // messages that wait in memory; 0: 10,000
	Log         *slog.Logger
	JS          jetstream.JetStream
	Completed   Completed
	Metrics     *Metrics
}

// Stage moves messages of one consumer through a worker.
type Stage[In, Out any] struct {
	Config
	Worker Worker[In, Out]

	log      *Log
	gate     *gate
	permits  *permits
	running  keyed
	flight   flight
	lot      *lot
	wg       sync.WaitGroup
	breakers *retry.Breakers
	stop     context.Context // ends when the stage stops: no wait outlives it, work that runs has a grace
}

// New makes a stage; [Stage.Run] starts it.
func New[In, Out any](c Config, w Worker[In, Out]) *Stage[In, Out] {
	c.Concurrency = max(c.Concurrency, 1)
	if c.Grace == 0 {
		c.Grace = 10 * time.Second
	}
	if c.ProbeEvery == 0 {
		c.ProbeEvery = 2 * time.Second
	}
	c.HoldEach, c.HoldAll = cmp.Or(c.HoldEach, 1000), cmp.Or(c.HoldAll, topology.MaxAckPending/2)
	s := &Stage[In, Out]{Config: c, Worker: w, permits: newPermits(c.Concurrency)}
	s.gate = newGate(c.Metrics.halted(c.Consumer))
	s.log = NewLog(c.JS, c.Log)
	s.lot = newLot(c)
	s.breakers = retry.NewBreakers(c.Metrics.breaker(c.Consumer))
	return s
}

// delivery is one message on its way through handle.
type delivery struct {
	msg    jetstream.Msg
	meta   *jetstream.MsgMetadata
	origin string // <stream>-<sequence>
	permit *permit
	work   event.Work // once decoded
	key    event.Key
	spent  int // attempts of a pass that failed

	since  time.Time         // when it began to wait
	place  string            // what it waits for, while it does
	parked *completed.Parked // where it comes from the set
	scout  bool              // it came without a place, to look whether the wait is over
	gone   bool              // from the set, or from where it was there
}

// attemptKey names the attempts of this message's work: those of other bytes
// that the slot had or will have are counted apart.
func (d *delivery) attemptKey() string {
	return attemptKey(d.key.Operation, d.key.Digest, d.work.Slot, d.work.Pass)
}

func attemptKey(op event.Operation, digest event.Digest, slot event.Slot, pass int) string {
	return completed.AttemptKey(string(op)+":"+string(digest), slot.String(), pass)
}

// handle is the order. It returns nil when the message is acked; its one
// caller, receive, turns an error into a dead letter or lets go.
func (s *Stage[In, Out]) handle(ctx context.Context, d *delivery) error {
	if err := schema.Check(d.msg.Subject(), d.msg.Data()); err != nil { // what came from outside; a fact, when it cannot be read
		return &undecodable{err}
	}
	in, err := s.Worker.Decode(d.msg.Subject(), d.msg.Headers(), d.msg.Data()) // decode
	if err != nil {
		return &undecodable{schema.Explain(d.msg.Subject(), d.msg.Data(), err)}
	}
	if c, ok := s.Worker.(Chooser[In]); ok && !c.Wants(in) {
		return d.msg.Ack()
	}
	d.key = s.Worker.Key(in) // key: from content; the pass is fixed before waiting on a running key
	if d.work, err = s.work(in, d); err != nil {
		return err
	}
	if w, ok := s.Worker.(Waiter[In]); ok {
		if err := s.wait(w, in, d); err != nil {
			return err
		}
	}
	turn := s.turn(in, d)
	unlock, err := s.running.lock(s.stop, turn, func() error { // one works, the others wait for its result
		d.permit.drop()
		return s.lot.enter(d, "turn "+turn, s.HoldAll)
	})
	s.lot.leave(d)
	if err != nil {
		return err
	}
	defer unlock()

	out, hit, err := s.check(ctx, in, d) // check: what was made for this key, if it was
	if err != nil {
		return err
	}
	if !hit {
		if out, err = s.attempts(ctx, in, d); err != nil { // act: counted, retried, halted
			return err
		}
		crash.At(s.Service + ".after-act")
		// A crash here acts again: the output is found, byte for byte the same.
	}
	said := s.Worker.Fact(in, out, d.work)
	if w, ok := event.WorkOf(said); ok {
		d.work.Digest = w.Digest
	}
	fact, err := s.log.Encode(said)
	if err == nil {
		err = s.publish(ctx, fact) // publish: returns once stored
	}
	if err != nil {
		return s.refused(ctx, d, err)
	}
	crash.At(s.Service + ".after-publish")
	// A crash here acts and publishes again; the message id and the next
	// stage's own set absorb it.

	if err := s.record(in, out, d, fact); err != nil { // record, synced: a key in the set means the log has its fact
		return err
	}
	crash.At(s.Service + ".after-record")
	// A crash here finds the key, publishes and acks.

	if err := s.Worker.Finish(ctx, in, out); err != nil {
		return err
	}
	s.note(d, hit)
	s.ack(ctx, d) // ack
	return nil
}

// work completes what the message says about its slot: the pass is the larger
// of the written one and one more than the highest dead pass.
func (s *Stage[In, Out]) work(in In, d *delivery) (event.Work, error) {
	w := s.Worker.Work(in)
	h := d.msg.Headers()
	written, err := event.PassOf(h.Get(event.HeaderPass), w.Pass)
	if err != nil { // nobody's pass: the slot is left alone, the message becomes a case
		return event.Work{}, &undecodable{err}
	}
	dead, err := s.Completed.DeadPass(string(d.key.Operation), w.Slot.String())
	if err != nil {
		return w, err
	}
	w.Pass = max(written, dead+1)
	if dead >= written {
		// A later pass may have died since this message's own outcome was
		// stored: its letter, which nobody has seen yet, comes first.
		a, err := s.Completed.Attempt(attemptKey(d.key.Operation, d.key.Digest, w.Slot, written))
		if err != nil {
			return w, err
		}
		if a.Dead && a.Origin == d.origin {
			w.Pass = written
		}
	}
	if w.Pass != written { // nobody asked for this pass: whom the body names asked for an earlier one
		w.Requested = nil
	}
	if a := h.Get(event.HeaderActor); a != "" {
		w.Requested = &event.Request{Actor: a, Note: h.Get(event.HeaderNote)}
	}
	w.Attempt, w.Hit, w.Agent, w.Helpers = 0, false, s.Agent, nil
	w.Started = time.Now().UTC()
	w.Ended = w.Started
	return w, nil
}

// wait lets a message wait for something else, without a work slot. A fault
// that ends the wait ends the pass: nothing was attempted.
func (s *Stage[In, Out]) wait(w Waiter[In], in In, d *delivery) error {
	d.permit.drop()
	name, err := w.Waits(in)
	if err != nil {
		return err
	}
	if name != "" {
		if err := s.lot.enter(d, name, s.HoldEach); err != nil {
			return err
		}
		defer s.lot.leave(d)
	}
	err = w.Wait(s.stop, in, d.since)
	var f *fault.Error
	if errors.As(err, &f) {
		return &exhausted{f}
	}
	if err != nil {
		return err
	}
	pass := d.work.Pass
	d.work, err = s.work(in, d) // what it waited for may say more
	d.work.Pass = pass
	return err
}

// turn names what a message must have for itself: its key, or what the worker says.
func (s *Stage[In, Out]) turn(in In, d *delivery) string {
	if w, ok := s.Worker.(Serial[In]); ok {
		return w.Turn(in)
	}
	return d.key.String()
}

func (s *Stage[In, Out]) check(ctx context.Context, in In, d *delivery) (out Out, hit bool, err error) {
	data, found, err := s.Completed.Result(d.key.String())
	if err != nil || !found {
		return out, false, err
	}
	if err := json.Unmarshal(data, &out); err != nil {
		return out, false, fmt.Errorf("stage: result of %s: %w", d.key, err)
	}
	if w, ok := s.Worker.(Doubter[In, Out]); ok {
		if still, err := w.Still(ctx, in, out, d.work); err != nil || !still {
			var none Out
			return none, false, err
		}
	}
	d.work.Hit = true
	return out, true, nil
}

// record stores the completion. A hit's own fact is stored too, once, so that
// a log that lost it can be healed.
func (s *Stage[In, Out]) record(in In, out Out, d *delivery, fact completed.Fact) error {
	c := completed.Completion{Fact: fact}
	if d.work.Hit {
		known, err := s.Completed.HasFact(fact.ID)
		if err != nil || known {
			return err
		}
	} else {
		result, err := json.Marshal(out)
		if err != nil {
			return fmt.Errorf("stage: result: %w", err)
		}
		c.Tokens, c.Result = s.Worker.Tokens(in, out), result
		c.Attempt = completed.Ended{Key: d.attemptKey(), Attempt: completed.Attempt{Number: d.work.Attempt, State: completed.AttemptDone, Started: d.work.Started}}
	}
	return s.Completed.Record(c)
}

// note writes the one line of a finished message.
func (s *Stage[In, Out]) note(d *delivery, hit bool) {
	s.Metrics.settled(s.Consumer, map[bool]string{true: "hit", false: "done"}[hit], time.Since(d.work.Started))
	if hit {
		s.Log.Info("idempotent_skip", d.attrs("skip")...)
		return
	}
	s.Log.Info("idempotent_recorded", d.attrs("done")...)
}

// attrs are the attributes that every line about a frame carries.
func (d *delivery) attrs(decision string) []any {
	return []any{
		slog.String("batch_id", d.work.Batch.Display()), slog.String("frame_id", d.work.Frame.Display()),
		slog.String("content_hash", string(d.work.Digest.Content())), slog.String("key", d.key.String()),
		slog.Int("pass", d.work.Pass), slog.Int("attempt", d.work.Attempt), slog.String("decision", decision),
	}
}
