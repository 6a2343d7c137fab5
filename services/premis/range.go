package premis

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"colophon/shared/event"

	"colophon/services/premis/internal/ledger"
)

// rangeIdle is the time after which the broker forgets a reader of the stream.
const rangeIdle = time.Minute

// readRange appends what the stream holds from the position's next sequence
// up to, not including, to. The consumer had delivered those before, in
// another order, or to a ledger that is gone. A sequence the stream does not
// hold is a hole: it is told, and passed over.
func (s *Service) readRange(ctx context.Context, js jetstream.JetStream, from, to uint64) error {
	s.log.Info("reading_missing_range", slog.Uint64("from", from), slog.Uint64("to", to-1))
	c, err := js.CreateConsumer(ctx, event.StreamIngest, jetstream.ConsumerConfig{
		AckPolicy: jetstream.AckNonePolicy, DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: from,
		InactiveThreshold: rangeIdle, MemoryStorage: true, Replicas: 1,
	})
	if err != nil {
		return fmt.Errorf("reader from %d: %w", from, err)
	}
	for from < to {
		entries, err := s.pull(c)
		if err != nil {
			return err
		}
		if len(entries) == 0 {
			return fmt.Errorf("reader from %d: the stream gives nothing below %d", from, to)
		}
		if from, err = s.passOver(ctx, entries, from, to); err != nil {
			return err
		}
	}
	return nil
}

// pull reads one batch, in log order: a fresh reader has no redeliveries.
func (s *Service) pull(c jetstream.Consumer) ([]ledger.Entry, error) {
	batch, err := c.FetchNoWait(s.cfg.Batch)
	if err != nil {
		return nil, err
	}
	messages, err := drain(batch)
	if err != nil {
		return nil, err
	}
	return entriesOf(messages)
}

// passOver appends a batch below to, and gives the sequence to go on from.
func (s *Service) passOver(ctx context.Context, entries []ledger.Entry, from, to uint64) (uint64, error) {
	var below []ledger.Entry
	for _, e := range entries {
		if e.Sequence > from {
			s.log.Error("log_hole", slog.String("stream", event.StreamIngest), slog.Uint64("from", from), slog.Uint64("to", e.Sequence-1))
		}
		from = e.Sequence + 1
		if e.Sequence < to {
			below = append(below, e)
		}
	}
	if len(below) > 0 {
		if err := s.append(ctx, below); err != nil {
			return 0, err
		}
	}
	return from, nil
}
