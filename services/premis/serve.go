package premis

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"colophon/shared/completed"
	"colophon/shared/crash"
	"colophon/shared/event"
	"colophon/shared/retry"
	"colophon/shared/topology"

	"colophon/services/premis/internal/ledger"
)

// idle is how long one pull waits for a first message.
const idle = 5 * time.Second

// Run follows the log and answers requests until ctx ends, and returns nil
// then. A broker that is away is waited for; an error of the ledger, or a fact
// this build cannot read, ends it.
func (s *Service) Run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	js, err := jetstream.New(s.nc)
	if err != nil {
		return fmt.Errorf("premis: %w", err)
	}
	end, err := s.answer(ctx)
	if err != nil {
		return err
	}
	defer func() { stop(); end() }() // exports under way end with the context
	var final error
	err = retry.Steady(ctx, func(ctx context.Context) error {
		err := s.session(ctx, js)
		if final = fatal(err); final != nil {
			return nil
		}
		return err
	}, func(err error, after time.Duration) {
		s.log.Warn("follow_interrupted", slog.Any("error", err), slog.Duration("after", after))
	})
	if final != nil {
		return fmt.Errorf("premis: %w", final)
	}
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// ledgerError is a failure that trying again does not mend.
type ledgerError struct{ error }

func (e ledgerError) Unwrap() error { return e.error }

func fatal(err error) error {
	var l ledgerError
	if errors.As(err, &l) {
		return l.error
	}
	return nil
}

// session follows the log over one stay of the broker.
func (s *Service) session(ctx context.Context, js jetstream.JetStream) error {
	stream, err := js.Stream(ctx, event.StreamIngest)
	if err != nil {
		return fmt.Errorf("stream %s: %w", event.StreamIngest, err)
	}
	consumer, err := js.Consumer(ctx, event.StreamIngest, topology.Premis)
	if err != nil {
		return fmt.Errorf("consumer %s: %w", topology.Premis, err)
	}
	if err := s.checkPosition(ctx, stream); err != nil {
		return err
	}
	if err := s.catchUp(ctx, js, stream, consumer); err != nil {
		return err
	}
	s.markReady()
	for seen := s.nc.Stats().Reconnects; ; {
		if n := s.nc.Stats().Reconnects; n != seen { // it may have come back with an older disk
			seen = n
			if err := errors.Join(s.checkPosition(ctx, stream), s.catchUp(ctx, js, stream, consumer)); err != nil {
				return err
			}
		}
		messages, err := s.fetch(ctx, consumer)
		if err != nil {
			return err
		}
		if err := s.take(ctx, js, messages); err != nil {
			return err
		}
		if len(messages) < s.cfg.Batch { // nothing waits: while the log is read again, one checkpoint is enough
			if err := s.sign(ctx, js); err != nil {
				return err
			}
		}
	}
}

func (s *Service) markReady() {
	select {
	case <-s.ready:
	default:
		close(s.ready)
	}
}

// checkPosition compares the position with the log's message at its sequence.
// A log that holds another one there, or ends before it, was rolled back: it
// is read again from its beginning, which adds what the ledger lacks.
func (s *Service) checkPosition(ctx context.Context, stream jetstream.Stream) error {
	at := s.ledger.Position()
	if at.Sequence == 0 {
		return nil
	}
	same, err := topology.Holds(ctx, stream, completed.Position{Sequence: at.Sequence, Stored: at.Stored, MsgID: at.MsgID})
	if err != nil {
		return fmt.Errorf("position: %w", err)
	}
	if same {
		return nil
	}
	s.log.Error("log_rolled_back", slog.String("stream", event.StreamIngest), slog.Uint64("sequence", at.Sequence),
		slog.String("msg_id", at.MsgID), slog.Time("stored", at.Stored))
	s.retold = false
	if err := s.ledger.Rewind(ledger.Position{}); err != nil {
		return ledgerError{err}
	}
	return nil
}

// catchUp reads what the broker will not deliver again: facts acknowledged by a
// ledger that is gone, of which this one is an older copy or a new one.
func (s *Service) catchUp(ctx context.Context, js jetstream.JetStream, stream jetstream.Stream, c jetstream.Consumer) error {
	info, errConsumer := c.Info(ctx)
	st, errStream := stream.Info(ctx)
	if err := errors.Join(errConsumer, errStream); err != nil {
		return fmt.Errorf("consumer %s: %w", topology.Premis, err)
	}
	// A log that was rolled back may end before what was acknowledged of it.
	to := min(info.AckFloor.Stream, st.State.LastSeq) + 1
	if from := s.ledger.Position().Sequence + 1; from < to {
		return s.readRange(ctx, js, from, to)
	}
	return nil
}

// fetch pulls what waits, or waits for one message.
func (s *Service) fetch(ctx context.Context, c jetstream.Consumer) ([]jetstream.Msg, error) {
	batch, err := c.FetchNoWait(s.cfg.Batch)
	if err != nil {
		return nil, err
	}
	messages, err := drain(batch)
	if err != nil || len(messages) > 0 {
		return messages, err
	}
	waiting, cancel := context.WithTimeout(ctx, idle)
	defer cancel()
	if batch, err = c.Fetch(1, jetstream.FetchContext(waiting)); err != nil {
		return nil, err
	}
	messages, err = drain(batch)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return messages, err
}

func drain(b jetstream.MessageBatch) ([]jetstream.Msg, error) {
	var out []jetstream.Msg
	for m := range b.Messages() {
		out = append(out, m)
	}
	err := b.Error()
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		err = nil
	}
	return out, err
}

// take appends delivered messages in log order, then acknowledges them all. A
// delivery below the position is only acknowledged; where one is missing
// before a delivery, the stream itself is read up to it.
func (s *Service) take(ctx context.Context, js jetstream.JetStream, messages []jetstream.Msg) error {
	entries, err := entriesOf(messages)
	if err != nil {
		return err
	}
	passed := uint64(0) // where a hole before a delivery was passed over
	for len(entries) > 0 {
		next := max(s.ledger.Position().Sequence+1, passed)
		entries = slices.DeleteFunc(entries, func(e ledger.Entry) bool { return e.Sequence < next })
		run := contiguous(entries, next)
		switch {
		case len(entries) == 0:
		case len(run) > 0:
			err = s.append(ctx, run)
		default:
			passed = entries[0].Sequence
			err = s.readRange(ctx, js, next, passed)
		}
		if err != nil {
			return err
		}
	}
	crash.At("premis.after-append")
	// Crash before the acks: the messages come again, below the position.
	for _, m := range messages {
		if err := m.Ack(); err != nil {
			return fmt.Errorf("ack: %w", err)
		}
	}
	return nil
}

func entriesOf(messages []jetstream.Msg) ([]ledger.Entry, error) {
	out := make([]ledger.Entry, 0, len(messages))
	for _, m := range messages {
		meta, err := m.Metadata()
		if err != nil {
			return nil, fmt.Errorf("metadata: %w", err)
		}
		out = append(out, ledger.Entry{
			Sequence: meta.Sequence.Stream, Stored: meta.Timestamp.UTC(), MsgID: m.Headers().Get(event.HeaderMsgID),
			Subject: m.Subject(), Data: m.Data(),
		})
	}
	slices.SortFunc(out, func(a, b ledger.Entry) int { return int(int64(a.Sequence) - int64(b.Sequence)) })
	return slices.CompactFunc(out, func(a, b ledger.Entry) bool { return a.Sequence == b.Sequence }), nil
}

// contiguous is the run of entries that begins at next.
func contiguous(entries []ledger.Entry, next uint64) []ledger.Entry {
	n := 0
	for n < len(entries) && entries[n].Sequence == next+uint64(n) {
		n++
	}
	return entries[:n]
}

func (s *Service) append(ctx context.Context, entries []ledger.Entry) error {
	done, err := s.ledger.Append(ctx, entries)
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return ledgerError{err}
	}
	s.due = s.due || done.Ends > 0
	s.log.Debug("appended", slog.Int("facts", len(entries)), slog.Int("new", done.New), slog.Int("known", done.Known),
		slog.Int("conflicts", done.Conflicts), slog.Uint64("sequence", entries[len(entries)-1].Sequence))
	return nil
}
