package stage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"colophon/shared/completed"
	"colophon/shared/event"
	"colophon/shared/fault"
	"colophon/shared/topology"
)

// Run moves messages until ctx ends; work that runs then has the grace to
// finish. Before the first pull it reads its own facts and the dead letters to
// the end of their streams, so that a lost disk repeats nothing.
func (s *Stage[In, Out]) Run(ctx context.Context) error {
	if err := topology.Refuse(ctx, s.JS, s.Stream, event.StreamIngest, event.StreamDeadLetter); err != nil {
		return err
	}
	work, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	g, ctx := errgroup.WithContext(ctx)
	s.stop = ctx
	own, dead := s.own(), s.dead()
	g.Go(func() error { return own.Run(ctx) })
	g.Go(func() error { return dead.Run(ctx) })
	g.Go(func() error {
		for _, f := range []*topology.Follower{own, dead} {
			select {
			case <-f.Ready():
			case <-ctx.Done():
				return nil
			}
		}
		beat, rest := context.WithCancel(work)
		defer rest()
		go s.flight.beat(beat)
		err := s.pull(ctx, work)
		grace := time.AfterFunc(s.Grace, end)
		defer grace.Stop()
		s.wg.Wait()
		return err
	})
	return g.Wait()
}

// pull takes what can start, no more: a message that is fetched is begun.
func (s *Stage[In, Out]) pull(ctx, work context.Context) error {
	cons, err := s.JS.Consumer(ctx, s.Stream, s.Consumer)
	if err != nil {
		return fmt.Errorf("stage: consumer %s: %w", s.Consumer, err)
	}
	for ctx.Err() == nil {
		if err := s.Worker.Probe(ctx, false); err != nil {
			if f := fault.Of(err); f.Class() == fault.Environment {
				s.close(ctx, f)
			}
		}
		if err := s.gate.wait(ctx); err != nil {
			return nil
		}
		if err := s.fetch(ctx, work, cons); err != nil && ctx.Err() == nil {
			s.Log.Warn("fetch_failed", slog.String("consumer", s.Consumer), slog.Any("error", err))
			if errors.Is(err, jetstream.ErrConsumerDeleted) || errors.Is(err, jetstream.ErrConsumerNotFound) {
				return fmt.Errorf("stage: consumer %s is gone: %w", s.Consumer, err)
			}
			select {
			case <-ctx.Done():
			case <-time.After(200 * time.Millisecond):
			}
		}
	}
	return nil
}

// fetchWait bounds how long free work slots wait for messages before waiting
// retries may have them.
const fetchWait = time.Second

func (s *Stage[In, Out]) fetch(ctx, work context.Context, cons jetstream.Consumer) error {
	if s.permits.sem.Acquire(ctx, 1) != nil {
		return nil
	}
	free := 1
	for free < int(s.permits.size) && s.permits.sem.TryAcquire(1) {
		free++
	}
	if s.flight.len() >= topology.MaxAckPending-free {
		s.permits.sem.Release(int64(free))
		return fmt.Errorf("stage: %d messages wait", topology.MaxAckPending)
	}
	batch, err := cons.Fetch(free, jetstream.FetchMaxWait(fetchWait))
	if err != nil {
		s.permits.sem.Release(int64(free))
		return err
	}
	for m := range batch.Messages() {
		free--
		s.wg.Go(func() { s.receive(work, m, &permit{s.permits, 1}) })
	}
	if free > 0 {
		s.permits.sem.Release(int64(free))
	}
	if err := batch.Error(); err != nil && !errors.Is(err, jetstream.ErrNoMessages) {
		return err
	}
	return nil
}

// own follows this stage's facts: completions of this process are known
// already, those of a replica or of a lost disk are learned.
func (s *Stage[In, Out]) own() *topology.Follower {
	name := "own:" + s.Consumer
	return &topology.Follower{
		JS: s.JS, Stream: event.StreamIngest, Filters: s.Own, Log: s.Log,
		Position:   func() (completed.Position, error) { return s.Completed.Position(name) },
		RolledBack: s.rolledBack(event.StreamIngest),
		Handle: func(_ context.Context, batch []topology.Message) error {
			var done []completed.Completion
			for _, m := range batch {
				c, err := s.learn(m)
				if err != nil {
					return err
				}
				if c != nil {
					done = append(done, *c)
				}
			}
			return s.Completed.Learn(name, done, nil, batch[len(batch)-1].Position)
		},
	}
}

func (s *Stage[In, Out]) learn(m topology.Message) (*completed.Completion, error) {
	f, err := event.DecodeFact(m.Subject, m.Data)
	if err != nil { // of a newer version, or damaged: refused loudly, not guessed at
		return nil, fmt.Errorf("stage: own fact %d of the log: %w", m.Sequence, err)
	}
	tokens, out, ok := s.Worker.Learn(f)
	if !ok {
		return nil, nil
	}
	known, err := s.Completed.HasFact(m.MsgID)
	if err != nil || known {
		return nil, err
	}
	result, err := json.Marshal(out)
	if err != nil {
		return nil, fmt.Errorf("stage: result: %w", err)
	}
	return &completed.Completion{Tokens: tokens, Result: result, Fact: completed.Fact{ID: m.MsgID, Subject: m.Subject, Data: m.Data}}, nil
}

// dead follows the dead letters of this service.
func (s *Stage[In, Out]) dead() *topology.Follower {
	name := "dead:" + s.Consumer
	return &topology.Follower{
		JS: s.JS, Stream: event.StreamDeadLetter, Filters: []string{event.DeadLetterSubject(s.Service)}, Log: s.Log,
		Position:   func() (completed.Position, error) { return s.Completed.Position(name) },
		RolledBack: s.rolledBack(event.StreamDeadLetter),
		Handle: func(_ context.Context, batch []topology.Message) error {
			var dead []completed.Dead
			for _, m := range batch {
				d, err := DeadOf(m.Header)
				if err != nil {
					s.Log.Error("foreign_dead_letter", slog.Uint64("sequence", m.Sequence), slog.Any("error", err))
					continue
				}
				dead = append(dead, d)
			}
			return s.Completed.Learn(name, nil, dead, batch[len(batch)-1].Position)
		},
	}
}

func (s *Stage[In, Out]) rolledBack(stream string) func(context.Context, completed.Position) error {
	return func(ctx context.Context, was completed.Position) error {
		s.tell(ctx, event.OpRolledBack, fault.New("log-rolled-back", nil, "stream %s no longer holds message %d of %s", stream, was.Sequence, was.Stored.Format(time.RFC3339Nano)))
		return nil
	}
}
