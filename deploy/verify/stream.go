package verify

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"colophon/shared/event"
)

// message is one stored message.
type message struct {
	seq     uint64
	stored  time.Time
	id      string
	subject string
	header  nats.Header
	data    []byte
}

const (
	fetchBatch = 1000
	idleReader = time.Minute // after which the broker forgets a reader that is gone
)

// streamState tells which sequences a stream holds. A stream that is not there is
// an error that [errors.Is] jetstream.ErrStreamNotFound.
func (j *judge) streamState(ctx context.Context, name string) (jetstream.StreamState, error) {
	st, err := j.JS.Stream(ctx, name)
	if err != nil {
		return jetstream.StreamState{}, fmt.Errorf("stream %s: %w", name, err)
	}
	return st.CachedInfo().State, nil
}

// read hands on what a stream holds up to a sequence, in order, each message
// once. It leaves nothing behind: the reader has no name and keeps no acks.
func (j *judge) read(ctx context.Context, stream string, last uint64, each func(message) error, filters ...string) error {
	if last == 0 {
		return nil
	}
	cons, err := j.JS.CreateConsumer(ctx, stream, jetstream.ConsumerConfig{
		AckPolicy: jetstream.AckNonePolicy, DeliverPolicy: jetstream.DeliverAllPolicy, FilterSubjects: filters,
		InactiveThreshold: idleReader, MemoryStorage: true, Replicas: 1,
	})
	if err != nil {
		return fmt.Errorf("stream %s: %w", stream, err)
	}
	defer j.forget(ctx, stream, cons.CachedInfo().Name)
	for idle := 0; idle < 3; {
		batch, err := cons.FetchNoWait(fetchBatch)
		if err != nil {
			return fmt.Errorf("stream %s: %w", stream, err)
		}
		got, at, err := drain(ctx, batch, last, each)
		if err != nil || at >= last {
			return err
		}
		if got {
			idle = 0
			continue
		}
		info, err := cons.Info(ctx)
		if err != nil {
			return fmt.Errorf("stream %s: %w", stream, err)
		}
		if info.NumPending == 0 {
			return nil
		}
		idle++ // it says that there is more, and gives nothing: it cannot read it
	}
	return nil
}

// forget removes a reader; one that cannot be removed is forgotten by itself.
func (j *judge) forget(ctx context.Context, stream, consumer string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	_ = j.JS.DeleteConsumer(ctx, stream, consumer)
}

// drain takes one batch, and tells whether it held anything and how far it
// went.
func drain(ctx context.Context, batch jetstream.MessageBatch, last uint64, each func(message) error) (got bool, at uint64, err error) {
	for m := range batch.Messages() { // to its end, also after an error
		if err != nil || at >= last {
			continue
		}
		var in message
		if in, err = taken(m); err != nil {
			continue
		}
		got, at = true, in.seq
		if in.seq > last {
			continue
		}
		if err = ctx.Err(); err == nil {
			err = each(in)
		}
	}
	if err != nil {
		return got, at, err
	}
	err = batch.Error()
	if errors.Is(err, jetstream.ErrNoMessages) || errors.Is(err, nats.ErrTimeout) {
		err = nil
	}
	return got, at, err
}

func taken(m jetstream.Msg) (message, error) {
	meta, err := m.Metadata()
	if err != nil {
		return message{}, err
	}
	return message{
		seq: meta.Sequence.Stream, stored: meta.Timestamp.UTC(), id: m.Headers().Get(event.HeaderMsgID),
		subject: m.Subject(), header: m.Headers(), data: m.Data(),
	}, nil
}
