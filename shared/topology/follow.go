package topology

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"colophon/shared/completed"
	"colophon/shared/event"
)

// Message is one stored message as a follower sees it.
type Message struct {
	completed.Position
	Subject string
	Header  nats.Header
	Data    []byte
}

// Follower reads a stream in order from a position, for good. What it hands
// on must be safe to repeat: after a rollback of the stream it begins again.
type Follower struct {
	JS      jetstream.JetStream
	Stream  string
	Filters []string // none: everything
	Log     *slog.Logger
	// Position tells where the last run ended.
	Position func() (completed.Position, error)
	// Handle stores what it is given and the position behind it, together. An
	// error ends the follower.
	Handle func(ctx context.Context, batch []Message) error
	// RolledBack is told when the stream no longer holds the position.
	RolledBack func(ctx context.Context, was completed.Position) error
	// CaughtUp, where set, is told each time a connection has handled all that
	// the stream held when it began. An error ends the follower.
	CaughtUp func(ctx context.Context) error

	once  sync.Once
	ready chan struct{}
}

const (
	followBatch = 512
	followIdle  = 10 * time.Minute
)

// Ready is closed when the follower has handled all that the stream held when
// it started.
func (f *Follower) Ready() <-chan struct{} {
	f.once.Do(func() { f.ready = make(chan struct{}) })
	return f.ready
}

// Run follows until ctx ends, and returns nil then. A broker that goes away
// and comes back is followed again from the position.
func (f *Follower) Run(ctx context.Context) error {
	f.Ready()
	var delay time.Duration
	for {
		err := f.session(ctx)
		if ctx.Err() != nil {
			return nil
		}
		var fatal *handleError
		if errors.As(err, &fatal) {
			return fatal.err
		}
		f.Log.Warn("follower_interrupted", slog.String("stream", f.Stream), slog.Any("error", err))
		delay = min(delay+100*time.Millisecond, 2*time.Second)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(delay):
		}
	}
}

type handleError struct{ err error }

func (h *handleError) Error() string { return h.err.Error() }

// start gives the sequence to read from: behind the position if the stream
// still holds it, else the beginning.
func (f *Follower) start(ctx context.Context) (uint64, error) {
	pos, err := f.Position()
	if err != nil {
		return 0, &handleError{err}
	}
	if pos.Sequence == 0 {
		return 1, nil
	}
	st, err := f.JS.Stream(ctx, f.Stream)
	if err != nil {
		return 0, err
	}
	same, err := Holds(ctx, st, pos)
	if err != nil {
		return 0, err
	}
	if same {
		return pos.Sequence + 1, nil
	}
	f.Log.Error("log_rolled_back", slog.String("stream", f.Stream), slog.Uint64("sequence", pos.Sequence))
	if f.RolledBack != nil {
		if err := f.RolledBack(ctx, pos); err != nil {
			return 0, &handleError{err}
		}
	}
	return 1, nil
}

// Holds reports whether a stream still has the message of a position: the
// same sequence, stored at the same time under the same id. A message below
// the stream's first sequence was trimmed, which is no rollback.
func Holds(ctx context.Context, st jetstream.Stream, pos completed.Position) (bool, error) {
	info, err := st.Info(ctx)
	if err != nil {
		return false, err
	}
	if pos.Sequence > info.State.LastSeq {
		return false, nil
	}
	if pos.Sequence < info.State.FirstSeq {
		return true, nil
	}
	m, err := st.GetMsg(ctx, pos.Sequence)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return !info.Config.DenyDelete, nil
	}
	if err != nil {
		return false, err
	}
	return m.Time.Equal(pos.Stored) && m.Header.Get(event.HeaderMsgID) == pos.MsgID, nil
}

func (f *Follower) session(ctx context.Context) error {
	from, err := f.start(ctx)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	config := jetstream.ConsumerConfig{
		AckPolicy: jetstream.AckNonePolicy, DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: from,
		FilterSubjects: f.Filters, InactiveThreshold: followIdle, MemoryStorage: true, Replicas: 1,
	}
	if len(f.Filters) == 1 { // then it stands in the request's subject, where grants bind it
		config.FilterSubject, config.FilterSubjects = f.Filters[0], nil
	}
	cons, err := f.JS.CreateConsumer(ctx, f.Stream, config)
	if err != nil {
		return err
	}
	behind := cons.CachedInfo().NumPending // messages until it has caught up
	if behind == 0 {
		if err := f.caughtUp(ctx); err != nil {
			return err
		}
	}
	arrived := make(chan jetstream.Msg, followBatch)
	consume, err := cons.Consume(func(m jetstream.Msg) {
		select {
		case arrived <- m:
		case <-ctx.Done():
		}
	}, jetstream.PullMaxMessages(followBatch), jetstream.ConsumeErrHandler(func(_ jetstream.ConsumeContext, err error) {
		if !errors.Is(err, jetstream.ErrNoHeartbeat) && !errors.Is(err, nats.ErrTimeout) {
			stop(err)
			return
		}
		stop(fmt.Errorf("no word from the broker: %w", err))
	}))
	if err != nil {
		return err
	}
	defer consume.Stop()
	return f.read(ctx, cons, arrived, consume.Closed(), behind)
}

// lookEvery is how often a follower that seems to be behind asks whether
// anything is left: messages that cannot be read any more are counted as
// pending, and never come.
const lookEvery = time.Second

func (f *Follower) read(ctx context.Context, cons jetstream.Consumer, arrived <-chan jetstream.Msg, closed <-chan struct{}, behind uint64) error {
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	handled := uint64(0)
	for {
		if behind == 0 {
			look.Stop()
		}
		var batch []Message
		add := func(m jetstream.Msg) error {
			meta, err := m.Metadata()
			if err != nil {
				return err
			}
			batch = append(batch, Message{
				Position: completed.Position{Sequence: meta.Sequence.Stream, Stored: meta.Timestamp.UTC(), MsgID: m.Headers().Get(event.HeaderMsgID)},
				Subject:  m.Subject(), Header: m.Headers(), Data: m.Data(),
			})
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-closed:
			return errors.New("consumer closed")
		case <-look.C:
			info, err := cons.Info(ctx)
			if err != nil || info.NumPending > 0 || info.Delivered.Consumer > handled {
				continue
			}
			behind = 0
			if err := f.caughtUp(ctx); err != nil {
				return err
			}
			continue
		case m := <-arrived:
			if err := add(m); err != nil {
				return err
			}
		}
	more:
		for len(batch) < followBatch {
			select {
			case m := <-arrived:
				if err := add(m); err != nil {
					return err
				}
			default:
				break more
			}
		}
		if err := f.Handle(ctx, batch); err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return &handleError{err}
		}
		handled += uint64(len(batch))
		if n := uint64(len(batch)); behind > n {
			behind -= n
		} else if behind > 0 {
			behind = 0
			if err := f.caughtUp(ctx); err != nil {
				return err
			}
		}
	}
}

func (f *Follower) caughtUp(ctx context.Context) error {
	if f.CaughtUp != nil {
		if err := f.CaughtUp(ctx); err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return &handleError{err}
		}
	}
	select {
	case <-f.Ready():
	default:
		close(f.ready)
	}
	return nil
}
