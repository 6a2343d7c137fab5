package quarantine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"colophon/shared/completed"
	"colophon/shared/crash"
	"colophon/shared/event"
	"colophon/shared/fault"
	"colophon/shared/topology"

	"colophon/services/quarantine/internal/cases"
)

// take deals with one dead letter, in the one order. It may be given the same
// letter again.
func (q *Service) take(ctx context.Context, l letter) error {
	r := decode(l) // decode: whatever it is, it becomes a case
	// key: (operation, slot); the log is read at least as far as the letter's
	// writer knew it.
	if err := q.readToEnd(ctx); err != nil {
		return err
	}
	unlock, err := q.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()

	if err := q.settle(ctx, r.ID); err != nil { // what the log demands of the case as it stands comes first
		return err
	}
	known, err := q.known(r) // check: a case of this failure or a later one
	if err != nil {
		return err
	}
	record := q.store.LearnEvidence
	if !known {
		opened, err := q.opened(r) // act: nothing but the decision
		if err != nil {
			return err
		}
		crash.At(Name + ".after-act")
		// publish: returns once the log holds the fact and the store has read it
		// from there. A crash before that finds it at the next start.
		if err := q.tell(ctx, opened); err != nil {
			return err
		}
		crash.At(Name + ".after-publish")
		// A slot whose operation is complete, or in a later pass already, has
		// its case opened and closed at once: each dead letter has its case, the
		// ledger its two events, and a later reading decides nothing anew. So has
		// one that the policy asks to scan again.
		if err := q.settle(ctx, r.ID); err != nil {
			return err
		}
		record = q.store.SetEvidence
	}
	e := cases.Evidence{Case: r.ID, Pass: r.Pass, Origin: r.Origin, Letter: l.Sequence, Stored: l.Stored, Detail: r.detail}
	if err := record(e, l.Position); err != nil { // record: synced, where it is new
		return err
	}
	crash.At(Name + ".after-record")
	// A crash here takes the letter again and finds its case.
	return l.ack(ctx) // ack
}

// known reports whether a case stands for a letter's failure, or a later one,
// already: a letter that is delivered again, or stored twice, or one of two
// messages that failed in the same pass.
func (q *Service) known(r report) (bool, error) {
	c, ok, err := q.store.Case(r.ID)
	if err != nil || !ok {
		return false, err
	}
	return r.Pass < c.Pass || r.Pass == c.Pass && r.Revision <= c.Revision, nil
}

// opened is the fact that a letter opens its case by, or opens it again with
// new evidence. It is a function of the letter and the log: read again, it is
// the same.
func (q *Service) opened(r report) (event.CaseFact, error) {
	old, _, err := q.store.Case(r.ID)
	if err != nil {
		return r.CaseFact, err
	}
	f := r.CaseFact
	f.State, f.Number = event.CaseOpened, old.Number+1
	if f.Declared, err = q.store.Declared(r.Slot, r.Operation); err != nil {
		return f, err
	}
	f.Rescan, err = q.asksRescan(f)
	return f, err
}

// asksRescan reports whether a failure asks for a rescan by itself: the image
// is at fault, a device can be asked, and the batch's policy wants it, in this
// pass still.
func (q *Service) asksRescan(f event.CaseFact) (bool, error) {
	if f.Frame == "" || !fault.OfImage(fault.Code(f.Code)) {
		return false, nil
	}
	b, err := q.store.Batch(f.Batch)
	return (f.Device != "" || b.Devices) && f.Pass <= b.Rescans, err
}

// sweep goes through the dead letters that the store does not know, also those
// that were acked before: a lost store has its evidence back, a rolled-back
// log its cases.
func (q *Service) sweep(ctx context.Context) error {
	ctx, done := context.WithCancel(ctx)
	defer done()
	f := &topology.Follower{
		JS: q.JS, Stream: event.StreamDeadLetter, Log: q.Log,
		Position:   func() (completed.Position, error) { return q.store.Position(cases.FollowLetters) },
		RolledBack: func(context.Context, completed.Position) error { return q.store.ForgetLetters() },
		Handle: func(ctx context.Context, batch []topology.Message) error {
			for _, m := range batch {
				l := letter{m.Position, m.Subject, m.Header, m.Data, func(context.Context) error { return nil }}
				if err := q.take(ctx, l); err != nil {
					return err
				}
			}
			return nil
		},
	}
	ended := make(chan error, 1)
	go func() { ended <- f.Run(ctx) }()
	select {
	case <-f.Ready():
	case err := <-ended:
		return errors.Join(err, ctx.Err())
	}
	done()
	return <-ended
}

// pullWait is how long one pull waits for a dead letter.
const pullWait = 5 * time.Second

// consume takes dead letters from the durable consumer, one at a time: while
// one cannot be dealt with, none is begun behind it.
func (q *Service) consume(ctx context.Context) error {
	cons, err := q.JS.Consumer(ctx, event.StreamDeadLetter, topology.Quarantine)
	if err != nil {
		return fmt.Errorf("quarantine: consumer %s: %w", topology.Quarantine, err)
	}
	for ctx.Err() == nil {
		m, err := pull(ctx, cons)
		switch {
		case errors.Is(err, jetstream.ErrConsumerDeleted), errors.Is(err, jetstream.ErrConsumerNotFound):
			return fmt.Errorf("quarantine: consumer %s is gone: %w", topology.Quarantine, err)
		case err != nil && ctx.Err() == nil:
			q.Log.Warn("fetch_failed", slog.String("consumer", topology.Quarantine), slog.Any("error", err))
			select {
			case <-ctx.Done():
			case <-time.After(200 * time.Millisecond):
			}
		case m != nil:
			if err := q.receive(ctx, m); err != nil {
				return err
			}
		}
	}
	return nil
}

// pull waits a while for a message; nil when there is none.
func pull(ctx context.Context, cons jetstream.Consumer) (jetstream.Msg, error) {
	ctx, done := context.WithTimeout(ctx, pullWait)
	defer done()
	batch, err := cons.Fetch(1, jetstream.FetchContext(ctx))
	if err != nil {
		return nil, err
	}
	for m := range batch.Messages() {
		return m, nil
	}
	if err := batch.Error(); err != nil && ctx.Err() == nil && !errors.Is(err, jetstream.ErrNoMessages) && !errors.Is(err, nats.ErrTimeout) {
		return nil, err
	}
	return nil, nil
}

func (q *Service) receive(ctx context.Context, m jetstream.Msg) error {
	meta, err := m.Metadata()
	if err != nil {
		return fmt.Errorf("quarantine: dead letter: %w", err)
	}
	pos := completed.Position{Sequence: meta.Sequence.Stream, Stored: meta.Timestamp.UTC(), MsgID: m.Headers().Get(event.HeaderMsgID)}
	return q.take(ctx, letter{pos, m.Subject(), m.Headers(), m.Data(), func(ctx context.Context) error {
		if err := m.DoubleAck(ctx); err != nil && ctx.Err() == nil { // it comes again, and is known then
			q.Log.Warn("ack_failed", slog.Uint64("letter", pos.Sequence), slog.Any("error", err))
		}
		return nil
	}})
}
