package quarantine

import (
	"context"
	"log/slog"
	"time"

	"colophon/shared/event"
)

// lock gives the right to decide: changes of a case are numbered, and a
// number is taken from what the store has read.
func (q *Service) lock(ctx context.Context) (unlock func(), err error) {
	select {
	case q.deciding <- struct{}{}:
		return func() { <-q.deciding }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// seenWait is how long a stored fact may take to be read back before it is
// published again.
const seenWait = 10 * time.Second

// tell publishes a change of a case and returns once the store has read it
// from the log. It does not give up while ctx lasts: a fact that may be stored
// must not lose its number to another.
func (q *Service) tell(ctx context.Context, f event.CaseFact) error {
	f.Schema, f.Agent, f.At = event.SchemaCase, q.Agent, f.At.UTC()
	for {
		if _, err := q.out.PublishFact(ctx, f, nil); err != nil {
			return err
		}
		seen, err := q.seen(ctx, f)
		if err != nil {
			return err
		}
		if seen {
			q.Log.Info("case_"+f.State, attrs(f)...)
			return nil
		}
		q.Log.Error("fact_not_seen", attrs(f)...)
	}
}

func (q *Service) seen(ctx context.Context, f event.CaseFact) (bool, error) {
	bound, cancel := context.WithTimeout(ctx, seenWait)
	defer cancel()
	err := q.news.Until(bound, func() (bool, error) {
		r, ok, err := q.store.Case(f.ID)
		return ok && r.Number >= f.Number, err
	})
	if err != nil && bound.Err() != nil && ctx.Err() == nil {
		return false, nil
	}
	return err == nil, err
}

// settle publishes what the log demands of a case. The right to decide is held.
func (q *Service) settle(ctx context.Context, id string) error {
	_, due, err := q.store.Due(id)
	if err != nil {
		return err
	}
	for _, f := range due {
		if err := q.tell(ctx, f); err != nil {
			return err
		}
	}
	return nil
}

// close looks at each case whose slot or state moved, first at all that are
// not settled.
func (q *Service) close(ctx context.Context) error {
	ids, err := q.store.Unsettled()
	if err != nil {
		return err
	}
	q.dirty.add(ids...)
	for {
		moved, err := q.dirty.take(ctx)
		if err != nil {
			return err
		}
		for id := range moved {
			if err := q.look(ctx, id); err != nil {
				return err
			}
		}
	}
}

func (q *Service) look(ctx context.Context, id string) error {
	if _, due, err := q.store.Due(id); err != nil || len(due) == 0 {
		return err
	}
	unlock, err := q.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	return q.settle(ctx, id)
}

// attrs are the attributes that every line about a frame carries.
func attrs(c event.CaseFact) []any {
	key := event.Key{Operation: c.Operation, Digest: c.Digest.Content()}
	if _, derivative := c.Operation.Profile(); !derivative {
		key.Slot = c.Slot
	}
	out := []any{
		slog.String("batch_id", c.Batch.Display()), slog.String("frame_id", c.Frame.Display()), slog.String("content_hash", string(c.Digest.Content())),
		slog.String("key", key.String()), slog.Int("pass", c.Pass), slog.Int("attempt", c.Attempts), slog.String("decision", c.State),
		slog.String("case", c.ID), slog.String("code", c.Code), slog.String("reason", c.Reason),
	}
	if c.Actor != "" {
		out = append(out, slog.String("actor", c.Actor), slog.String("note", c.Note))
	}
	if c.NextPass > 0 {
		out = append(out, slog.Int("next_pass", c.NextPass))
	}
	return out
}
