package quarantine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"colophon/shared/completed"
	"colophon/shared/event"
	"colophon/shared/retry"
	"colophon/shared/topology"

	"colophon/services/quarantine/internal/cases"
)

// errRolledBack ends a session: the next one reads the log from its start.
var errRolledBack = errors.New("quarantine: the log was rolled back")

// follower reads the whole log. It is not filtered, so that the position can
// be compared with the stream's end: what it does not need it passes over.
func (q *Service) follower() *topology.Follower {
	return &topology.Follower{
		JS: q.JS, Stream: event.StreamIngest, Log: q.Log,
		Position:   func() (completed.Position, error) { return q.store.Position(cases.FollowLog) },
		Handle:     q.apply,
		RolledBack: q.rolledBack,
	}
}

func (q *Service) apply(_ context.Context, batch []topology.Message) error {
	entries := make([]cases.Entry, len(batch))
	for i, m := range batch {
		entries[i] = entry(m)
	}
	done, err := q.store.Apply(entries)
	if err != nil {
		return err
	}
	for _, err := range done.Unreadable {
		q.Log.Error("fact_unreadable", slog.Any("error", err))
	}
	q.dirty.add(done.Touched...)
	q.read.Store(batch[len(batch)-1].Sequence)
	q.news.Spread()
	return nil
}

func entry(m topology.Message) cases.Entry {
	e := cases.Entry{Position: m.Position, Subject: m.Subject, Data: m.Data}
	if p, err := strconv.Atoi(m.Header.Get(event.HeaderPass)); err == nil {
		e.Pass = p
	}
	if a := m.Header.Get(event.HeaderActor); a != "" {
		e.By = &event.Request{Actor: a, Note: m.Header.Get(event.HeaderNote)}
	}
	return e
}

// rolledBack makes both followers begin again and says so. A crash behind the
// store's commit begins again without the fact that says so.
func (q *Service) rolledBack(ctx context.Context, was completed.Position) error {
	if err := q.store.Forget(); err != nil {
		return err
	}
	if err := q.op(ctx, event.OpRolledBack, "log-rolled-back", "stream %s no longer holds message %d of %s",
		event.StreamIngest, was.Sequence, was.Stored.Format(time.RFC3339Nano)); err != nil {
		return err
	}
	return errRolledBack
}

// op publishes an operational fact.
func (q *Service) op(ctx context.Context, kind, code, reason string, args ...any) error {
	n, err := q.store.Next("op")
	if err != nil {
		return err
	}
	_, err = q.out.PublishFact(ctx, event.OpFact{
		Schema: event.SchemaOp, Kind: kind, Service: Name, Instance: q.Instance, Counter: n, Code: code,
		Reason: fmt.Sprintf(reason, args...), Agent: q.Agent, At: q.Now().UTC(),
	}, nil)
	return err
}

// heal publishes the decisions that a rolled-back log lost, under their old
// ids, and waits until they are read back. A crash in between heals again.
func (q *Service) heal(ctx context.Context) error {
	lost, err := q.store.Lost()
	if err != nil {
		return err
	}
	var end uint64
	for _, f := range lost {
		ack, err := q.out.Publish(ctx, &nats.Msg{Subject: f.Subject, Header: nats.Header{event.HeaderMsgID: {f.ID}}, Data: f.Data}, nil)
		if err != nil {
			return fmt.Errorf("quarantine: heal %s: %w", f.ID, err)
		}
		end = max(end, ack.Sequence)
	}
	if len(lost) > 0 {
		q.Log.Error("log_healed", slog.Int("facts", len(lost)))
		if err := q.news.Until(ctx, func() (bool, error) { return q.read.Load() >= end, nil }); err != nil {
			return err
		}
	}
	return q.store.Healed()
}

// readToEnd waits until the store has applied what the log holds by now, or
// for ReadWait.
func (q *Service) readToEnd(ctx context.Context) error {
	bound, cancel := context.WithTimeout(ctx, q.ReadWait)
	defer cancel()
	var end uint64
	err := retry.Steady(bound, func(ctx context.Context) error {
		info, err := q.log.Info(ctx)
		if err == nil {
			end = info.State.LastSeq
		}
		return err
	}, func(err error, _ time.Duration) { q.Log.Warn("log_end_unknown", slog.Any("error", err)) })
	if err == nil {
		err = q.news.Until(bound, func() (bool, error) { return q.read.Load() >= end, nil })
	}
	if err != nil && ctx.Err() == nil && bound.Err() != nil {
		q.Log.Warn("log_read_late", slog.Uint64("position", q.read.Load()), slog.Uint64("end", end))
		return nil
	}
	return err
}
