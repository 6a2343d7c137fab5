package stage

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"colophon/shared/completed"
	"colophon/shared/event"
	"colophon/shared/fault"
	"colophon/shared/retry"
	"colophon/shared/topology"
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

// Encode gives a fact's stored form. A fact that is too large for a dead letter
// of the work it orders is a permanent fault.
func (l *Log) Encode(f event.Fact) (completed.Fact, error) {
	data, err := json.Marshal(f)
	if err != nil {
		return completed.Fact{}, fmt.Errorf("stage: fact: %w", err)
	}
	limit := topology.MaxFactSize
	if _, failed := f.(event.AttemptFailed); failed {
		limit += failureSays // it repeats the work of a fact that fitted
	}
	if len(data) > limit {
		return completed.Fact{}, fault.New(tooLarge, nil, "a fact of %d bytes is larger than %d", len(data), limit)
	}
	return completed.Fact{ID: f.MsgID(), Subject: f.Subject(), Data: data}, nil
}

// failureSays is what a failed attempt adds to the work it speaks of, bytes: a
// message and its evidence, of 2,048 bytes each before JSON escapes them.
const failureSays = 32 << 10

// tooLarge is the code of a fact that the log does not take.
const tooLarge fault.Code = "fact-too-large"

// headerTooLarge is how the broker refuses headers of more than 64 KiB.
const headerTooLarge jetstream.ErrorCode = 10097

// Publish stores a message; onTrouble hears of each failed try. It returns
// the ack, ctx's error, or a permanent fault for what no broker would take.
func (l *Log) Publish(ctx context.Context, m *nats.Msg, onTrouble func(error)) (*jetstream.PubAck, error) {
	var ack *jetstream.PubAck
	var refused error
	err := retry.Steady(ctx, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, publishWait)
		defer cancel()
		a, err := l.store(ctx, m)
		var api *jetstream.APIError
		exceeds := errors.As(err, &api) && (api.ErrorCode == jetstream.JSErrCodeStreamMessageExceedsMaximum || api.ErrorCode == headerTooLarge)
		if errors.Is(err, nats.ErrMaxPayload) || errors.Is(err, nats.ErrBadSubject) || exceeds {
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
	_, err := s.publishMsg(ctx, factMsg(f))
	return err
}

// publishMsg publishes; while the broker is away or refuses, the consumer is
// halted: no new work begins whose fact could not be told.
func (s *Stage[In, Out]) publishMsg(ctx context.Context, m *nats.Msg) (*jetstream.PubAck, error) {
	ack, err := s.log.Publish(ctx, m, func(err error) {
		s.close(fault.New(fault.BrokerUnavailable, err, "the broker does not take messages"))
	})
	if err != nil {
		return nil, err
	}
	if ack.Duplicate {
		s.Metrics.duplicate(s.Consumer)
	}
	return ack, nil
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

// The broker takes 64 KiB of headers. A letter's own id, its frame and the id
// of its origin take up to 14 KiB each, so that is left for each text.
const (
	maxEvidence = 6 << 10  // bytes in the header
	maxID       = 14 << 10 // bytes
)

// evidence is headerText of as much of a text's end as fits.
func evidence(s string) string {
	for n := maxEvidence; ; n = n * 3 / 4 {
		if len(s) > n {
			s = strings.ToValidUTF8(s[len(s)-n:], "")
		}
		if t := headerText(s); len(t) <= maxEvidence {
			return t
		}
	}
}

// idOf gives a message's id. One that no program of ours made, and a letter
// could not carry, stands for itself by its digest.
func idOf(h nats.Header) string {
	id := h.Get(event.HeaderMsgID)
	if len(id) > maxID {
		return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(id)))
	}
	return id
}

func encodeHeader(h nats.Header) ([]byte, error) { return json.Marshal(h) }

func decodeHeader(data []byte) (nats.Header, error) {
	var h nats.Header
	if err := json.Unmarshal(data, &h); err != nil {
		return nil, fmt.Errorf("stage: stored header: %w", err)
	}
	return h, nil
}
