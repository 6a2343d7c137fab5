package stage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"colophon/shared/completed"
	"colophon/shared/event"
	"colophon/shared/fault"
	"colophon/shared/retry"
	"colophon/shared/topology"
)

// Run moves messages until ctx ends; work that runs then has the grace to
// finish. Before the first pull it reads its own facts and the dead letters to
// the end of their streams, so that a lost disk repeats nothing.
func (s *Stage[In, Out]) Run(ctx context.Context) error {
	if err := topology.Refuse(ctx, s.JS, s.Stream, event.StreamIngest, event.StreamDeadLetter); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	defer s.Metrics.watch(s.breakers)()
	work, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	g, ctx := errgroup.WithContext(ctx)
	ctx, stop := context.WithCancel(ctx)
	defer stop()
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
		attended := make(chan struct{})
		go func() {
			defer close(attended)
			s.attend(ctx, work)
		}()
		err := s.pull(ctx, work)
		stop() // nothing waits any longer
		<-attended
		grace := time.AfterFunc(s.Grace, end)
		defer grace.Stop()
		s.wg.Wait()
		return err
	})
	return g.Wait()
}

// pull takes what can start, no more: a message that is fetched is begun.
func (s *Stage[In, Out]) pull(ctx, work context.Context) error {
	cons, err := s.bind(ctx)
	if err != nil || cons == nil {
		return err
	}
	for ctx.Err() == nil {
		if err := s.Worker.Probe(ctx, false); err != nil {
			if f := fault.Of(err); f.Class() == fault.Environment {
				s.close(f)
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

// bind finds the consumer; a broker that is away is waited for, nil is a stop.
func (s *Stage[In, Out]) bind(ctx context.Context) (jetstream.Consumer, error) {
	var cons jetstream.Consumer
	var missing error
	err := retry.Steady(ctx, func(ctx context.Context) (err error) {
		cons, err = s.JS.Consumer(ctx, s.Stream, s.Consumer)
		if errors.Is(err, jetstream.ErrConsumerNotFound) || errors.Is(err, jetstream.ErrStreamNotFound) {
			missing = fmt.Errorf("stage: consumer %s (run `colophon provision`): %w", s.Consumer, err)
			return nil
		}
		return err
	}, func(err error, _ time.Duration) {
		s.Log.Warn("consumer_unreachable", slog.String("consumer", s.Consumer), slog.Any("error", err))
	})
	if err != nil { // only ctx ends the waiting
		return nil, nil
	}
	return cons, missing
}

// fetchWait bounds one pull; what becomes due meanwhile takes the slots that
// the pull has set aside.
const fetchWait = time.Second

func (s *Stage[In, Out]) fetch(ctx, work context.Context, cons jetstream.Consumer) error {
	free, err := s.permits.reserve(ctx)
	if err != nil {
		return nil // a stop
	}
	defer s.permits.unreserve()
	if s.flight.len() >= topology.MaxAckPending-free {
		return fmt.Errorf("stage: %d messages wait", topology.MaxAckPending)
	}
	batch, err := cons.Fetch(free, jetstream.FetchMaxWait(fetchWait))
	if err != nil {
		return err
	}
	for m := range batch.Messages() {
		d := &delivery{msg: m, permit: s.permits.arrived(), since: time.Now().UTC()}
		s.wg.Go(func() { s.receive(work, d) })
	}
	if err := batch.Error(); err != nil && !errors.Is(err, jetstream.ErrNoMessages) {
		return err
	}
	return nil
}

// says lists the subjects of the facts that this stage remembers, and can say
// again.
func (s *Stage[In, Out]) says() []string {
	return append(slices.Clone(s.Own), event.SubjectAttemptFailed)
}

// own follows this stage's facts: completions and attempts of this process are
// known already, those of a replica or of a lost disk are learned.
func (s *Stage[In, Out]) own() *topology.Follower {
	filters := append(s.says(), event.SubjectOp+"."+event.OpReleased, event.SubjectOp+"."+event.OpHole)
	return s.follow("own", event.StreamIngest, filters, s.says(), s.heal, func(ctx context.Context, batch []topology.Message) (done []completed.Completion, _ []completed.Dead, err error) {
		holes := map[string]*hole{}
		for _, m := range batch {
			if h := holeOf(m); h != nil {
				holes[h.stream] = holes[h.stream].with(h)
				continue
			}
			c, err := s.learn(m)
			if err != nil {
				return nil, nil, err
			}
			if c != nil {
				done = append(done, *c)
			}
		}
		// Before the position passes the facts that tell of them: a crash comes
		// back here.
		for _, h := range holes {
			if err := s.mend(ctx, h); err != nil {
				return nil, nil, err
			}
		}
		return done, nil, nil
	})
}

// dead follows the dead letters of this service.
func (s *Stage[In, Out]) dead() *topology.Follower {
	letters := []string{event.DeadLetterSubject(s.Service)}
	heal := func(ctx context.Context, lacks *healing) error { return s.healLetters(ctx, lacks, nil) }
	f := s.follow("dead", event.StreamDeadLetter, letters, letters, heal, func(_ context.Context, batch []topology.Message) (_ []completed.Completion, dead []completed.Dead, err error) {
		for _, m := range batch {
			d, err := DeadOf(m.Header)
			if err != nil {
				s.Log.Error("foreign_dead_letter", slog.Uint64("sequence", m.Sequence), slog.Any("error", err))
				continue
			}
			d.Origin.Letter = m.Sequence
			dead = append(dead, d)
		}
		return nil, dead, nil
	})
	// What was published and never read back is behind no position: that the
	// stream lost it is seen only here.
	from, position, caughtUp := uint64(0), f.Position, f.CaughtUp
	f.Position = func() (completed.Position, error) {
		at, err := position()
		from = at.Sequence
		return at, err
	}
	f.CaughtUp = func(ctx context.Context) error {
		if err := caughtUp(ctx); err != nil {
			return err
		}
		return s.healUnread(ctx, from)
	}
	return f
}

// follow makes the follower of what this stage and its replicas said in a
// stream; read gives what is to be remembered of a batch. When the stream turns
// out to be rolled back, it is read again from its start and then healed. Until
// that is done the position that the stream lost is the one that is kept: a
// crash comes back here.
func (s *Stage[In, Out]) follow(
	name, stream string, filters, subjects []string, heal func(context.Context, *healing) error,
	read func(context.Context, []topology.Message) ([]completed.Completion, []completed.Dead, error),
) *topology.Follower {
	name += ":" + s.Consumer
	var lacks *healing
	return &topology.Follower{
		JS: s.JS, Stream: stream, Filters: filters, Log: s.Log,
		Position: func() (completed.Position, error) { return s.Completed.Position(name) },
		RolledBack: func(ctx context.Context, was completed.Position) error {
			if lacks == nil { // else told of, before the connection was lost
				s.tell(ctx, event.OpRolledBack, fault.New("log-rolled-back", nil, "stream %s no longer holds message %d of %s", stream, was.Sequence, was.Stored.Format(time.RFC3339Nano)), map[string]string{"stream": stream})
			}
			lacks = newHealing(subjects)
			lacks.lost = was
			return nil
		},
		CaughtUp: func(ctx context.Context) error {
			if lacks == nil {
				return nil
			}
			if err := heal(ctx, lacks); err != nil {
				return err
			}
			at := lacks.read
			lacks = nil
			return s.Completed.Learn(name, nil, nil, at)
		},
		Handle: func(ctx context.Context, batch []topology.Message) error {
			for _, m := range batch {
				lacks.saw(m.MsgID)
			}
			done, dead, err := read(ctx, batch)
			if err != nil {
				return err
			}
			at := batch[len(batch)-1].Position
			if lacks != nil {
				lacks.read, at = at, lacks.lost
			}
			return s.Completed.Learn(name, done, dead, at)
		},
	}
}

func (s *Stage[In, Out]) learn(m topology.Message) (*completed.Completion, error) {
	f, err := event.DecodeFact(m.Subject, m.Data)
	operational := strings.HasPrefix(m.Subject, event.SubjectOp+".") // tells what others do: nothing here rests on it
	if errors.Is(err, event.ErrUnknownSchema) && !operational {      // of a newer version: refused, not guessed at
		return nil, fmt.Errorf("stage: own fact %d of the log: %w", m.Sequence, err)
	}
	if err != nil { // no fact: somebody published by hand, and the log keeps it for good
		s.Log.Error("unreadable_fact", slog.Uint64("sequence", m.Sequence), slog.String("decision", "passed over"), slog.Any("error", err))
		return nil, nil
	}
	if op, ok := f.(event.OpFact); ok && op.Kind != event.OpDeviceFault {
		return s.learnRelease(op), nil
	}
	c := &completed.Completion{Fact: completed.Fact{ID: firstID(m.MsgID), Subject: m.Subject, Data: m.Data}}
	if failed, ok := f.(event.AttemptFailed); ok && failed.Report == "" { // a reported one is no attempt of a stage
		if failed.Service != s.Service || failed.Frame == "" {
			return nil, nil
		}
		c.Attempt = endedOf(failed, c.Fact)
		return s.news(c)
	}
	tokens, out, ok := s.Worker.Learn(f)
	if !ok {
		return nil, nil
	}
	if c.Result, err = json.Marshal(out); err != nil {
		return nil, fmt.Errorf("stage: result: %w", err)
	}
	c.Tokens = tokens
	if op, w := event.OperationOf(f); w.Attempt > 0 {
		c.Attempt = completed.Ended{Key: attemptKey(op, w.Digest, w.Slot, w.Pass), Attempt: completed.Attempt{Number: w.Attempt, State: completed.AttemptDone, Started: w.Started}}
	}
	return s.news(c)
}

func (s *Stage[In, Out]) news(c *completed.Completion) (*completed.Completion, error) {
	if known, err := s.Completed.HasFact(c.Fact.ID); err != nil || known {
		return nil, err
	}
	return c, nil
}

// endedOf gives a failed attempt as its fact tells it.
func endedOf(f event.AttemptFailed, fact completed.Fact) completed.Ended {
	counted := f.Attempt
	if p, err := retry.Parse(f.Policy); err == nil {
		counted = max(0, p.MaxAttempts+f.Attempt-f.Limit)
	}
	return completed.Ended{Key: attemptKey(f.Operation, f.Digest, f.Slot, f.Pass), Attempt: completed.Attempt{
		Number: f.Attempt, Counted: counted, State: completed.AttemptFailed, Suspect: f.Code == string(fault.WorkerLost),
		Started: f.Started, NotBefore: f.NotBefore, Dead: f.Decision == event.DecisionDeadLetter, Fact: fact,
	}}
}
