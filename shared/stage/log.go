package stage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"colophon/shared/completed"
	"colophon/shared/event"
	"colophon/shared/fault"
	"colophon/shared/retry"
)

// Log publishes facts to the log and other messages to their streams. A
// publish returns once the broker has stored the message; until then it is
// tried again under the same id, without end, since a publish that failed may
// well have been stored.
type Log struct {
	js  jetstream.JetStream
	log *slog.Logger
}

// NewLog makes a publisher.
func NewLog(js jetstream.JetStream, log *slog.Logger) *Log { return &Log{js, log} }

// publishWait bounds one try; the broker's own sync may take a while on a busy disk.
const publishWait = 10 * time.Second

// Encode gives a fact's stored form.
func (l *Log) Encode(f event.Fact) (completed.Fact, error) {
	data, err := json.Marshal(f)
	if err != nil {
		return completed.Fact{}, fmt.Errorf("stage: fact: %w", err)
	}
	return completed.Fact{ID: f.MsgID(), Subject: f.Subject(), Data: data}, nil
}

// Publish stores a message; onTrouble hears of each failed try. It returns
// the ack, ctx's error, or a permanent fault for what no broker would take.
func (l *Log) Publish(ctx context.Context, m *nats.Msg, onTrouble func(error)) (*jetstream.PubAck, error) {
	var ack *jetstream.PubAck
	var refused error
	err := retry.Steady(ctx, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, publishWait)
		defer cancel()
		a, err := l.store(ctx, m)
		if errors.Is(err, nats.ErrMaxPayload) || errors.Is(err, nats.ErrBadSubject) {
			refused = fault.New(fault.Malformed, err, "the broker cannot carry this message")
			return nil
		}
		ack = a
		return err
	}, func(err error, wait time.Duration) {
		l.log.Warn("publish_retry", slog.String("subject", m.Subject), slog.Duration("wait", wait), slog.Any("error", err))
		if onTrouble != nil {
			onTrouble(err)
		}
	})
	return ack, errors.Join(err, refused)
}

// store publishes once. A broker that says "duplicate" is not believed blindly:
// the message it means must be there under that id, else a damaged or rolled
// back log would swallow this one, which then goes out as <id>!<n>.
func (l *Log) store(ctx context.Context, m *nats.Msg) (*jetstream.PubAck, error) {
	id := m.Header.Get(event.HeaderMsgID)
	for n := 1; ; n++ {
		ack, err := l.js.PublishMsg(ctx, m)
		if err != nil || !ack.Duplicate {
			return ack, err
		}
		if same, err := l.holds(ctx, ack, m); same || err != nil {
			return ack, err
		}
		l.log.Error("duplicate_not_held", slog.String("id", id), slog.String("stream", ack.Stream), slog.Uint64("sequence", ack.Sequence))
		m = &nats.Msg{Subject: m.Subject, Header: maps.Clone(m.Header), Data: m.Data}
		m.Header.Set(event.HeaderMsgID, fmt.Sprintf("%s!%d", id, n))
	}
}

func (l *Log) holds(ctx context.Context, ack *jetstream.PubAck, m *nats.Msg) (bool, error) {
	st, err := l.js.Stream(ctx, ack.Stream)
	if err != nil {
		return false, err
	}
	stored, err := st.GetMsg(ctx, ack.Sequence)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return stored.Subject == m.Subject && stored.Header.Get(event.HeaderMsgID) == m.Header.Get(event.HeaderMsgID), nil
}

// PublishFact is [Log.Publish] for a fact.
func (l *Log) PublishFact(ctx context.Context, f event.Fact, onTrouble func(error)) (*jetstream.PubAck, error) {
	e, err := l.Encode(f)
	if err != nil {
		return nil, err
	}
	return l.Publish(ctx, factMsg(e), onTrouble)
}

func factMsg(f completed.Fact) *nats.Msg {
	return &nats.Msg{Subject: f.Subject, Header: nats.Header{event.HeaderMsgID: {f.ID}}, Data: f.Data}
}

func (s *Stage[In, Out]) publish(ctx context.Context, f completed.Fact) error {
	return s.publishMsg(ctx, factMsg(f))
}

// publishMsg publishes; while the broker is away or refuses, the consumer is
// halted: no new work begins whose fact could not be told.
func (s *Stage[In, Out]) publishMsg(ctx context.Context, m *nats.Msg) error {
	ack, err := s.log.Publish(ctx, m, func(err error) {
		s.close(fault.New(fault.BrokerUnavailable, err, "the broker does not take messages"))
	})
	if err != nil {
		return err
	}
	if ack.Duplicate {
		s.Metrics.duplicate(s.Consumer)
	}
	return nil
}

// headerText makes any text fit for a header; [HeaderText] undoes it.
func headerText(s string) string { return url.PathEscape(s) }

// HeaderText reads a text from a header of a dead letter.
func HeaderText(s string) string {
	if t, err := url.PathUnescape(s); err == nil {
		return t
	}
	return s
}

func encodeHeader(h nats.Header) ([]byte, error) { return json.Marshal(h) }

func decodeHeader(data []byte) (nats.Header, error) {
	var h nats.Header
	if err := json.Unmarshal(data, &h); err != nil {
		return nil, fmt.Errorf("stage: stored header: %w", err)
	}
	return h, nil
}
