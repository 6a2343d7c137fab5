package testkit

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"colophon/shared/event"
	"colophon/shared/retry"
	"colophon/shared/schema"
)

// Digest is the SHA-256 of a text.
func Digest(content string) event.Digest {
	sum := sha256.Sum256([]byte(content))
	return event.Digest(hex.EncodeToString(sum[:]))
}

// Slot is a slot of the batch "b".
func Slot(frame string) event.Slot { return event.Slot{Batch: "b", Frame: event.Name(frame)} }

// Policy is a quick retry policy without jitter.
func Policy(attempts int, initial time.Duration) json.RawMessage {
	p := retry.Default()
	p.MaxAttempts, p.InitialDelay, p.MaxDelay, p.Jitter = attempts, retry.Duration(initial), retry.Duration(max(time.Minute, initial)), false
	data, _ := p.Canonical()
	return data
}

// FrameMessage is a valid body of capture.frame.
func FrameMessage(slot event.Slot, sequence int, content string) event.FrameMessage {
	return event.FrameMessage{
		Schema: event.SchemaCaptureFrame, Slot: slot, Sequence: sequence, Sources: []string{"file:///in/" + string(slot.Frame)}, SHA256: Digest(content), Pass: 1,
	}
}

// Fixed is a valid frame.fixed fact: the work order of a derivative.
func Fixed(slot event.Slot, content string, policy json.RawMessage) event.FrameFixed {
	d := Digest(content)
	return event.FrameFixed{
		Work: event.Work{
			Schema: event.SchemaFrameFixed, Slot: slot, Sequence: 1, Revision: 1, Digest: d, Pass: 1, Attempt: 1,
			Agent: event.Agent{Name: "hasher", Version: "test"}, Policy: policy, Profiles: []string{"jp2"},
		},
		Fixed: event.Fixed{StoredDigest: d, Size: int64(len(content)), Master: "masters/" + string(d)},
	}
}

// Publish stores a fact under its own id and gives its ack.
func Publish(tb testing.TB, js jetstream.JetStream, f event.Fact) *jetstream.PubAck {
	tb.Helper()
	return PublishRaw(tb, js, f.Subject(), nats.Header{event.HeaderMsgID: {f.MsgID()}}, JSON(tb, f))
}

// PublishRaw stores a message as it is.
func PublishRaw(tb testing.TB, js jetstream.JetStream, subject string, h nats.Header, data []byte) *jetstream.PubAck {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	ack, err := js.PublishMsg(ctx, &nats.Msg{Subject: subject, Header: h, Data: data})
	OK(tb, err)
	return ack
}

// JSON is the encoding of v.
func JSON(tb testing.TB, v any) []byte {
	tb.Helper()
	data, err := json.Marshal(v)
	OK(tb, err)
	return data
}

// Stored is a message of a stream.
type Stored struct {
	Sequence uint64
	Subject  string
	Header   nats.Header
	Data     []byte
	Time     time.Time
}

// ID is its message id.
func (s Stored) ID() string { return s.Header.Get(event.HeaderMsgID) }

// Fact decodes it.
func (s Stored) Fact(tb testing.TB) event.Fact {
	tb.Helper()
	f, err := event.DecodeFact(s.Subject, s.Data)
	OK(tb, err)
	OK(tb, schema.Validate(schema.Of(s.Subject), s.Data)) // what tests make the line say, it may say
	return f
}

// ReadAll reads a stream from its first to its last message; subjects, where
// given, select.
func ReadAll(tb testing.TB, js jetstream.JetStream, stream string, subjects ...string) []Stored {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	st, err := js.Stream(ctx, stream)
	OK(tb, err)
	info := st.CachedInfo()
	want := map[string]bool{}
	for _, s := range subjects {
		want[s] = true
	}
	var out []Stored
	for seq := info.State.FirstSeq; seq <= info.State.LastSeq && info.State.Msgs > 0; seq++ {
		m, err := st.GetMsg(ctx, seq)
		OK(tb, err)
		if len(want) == 0 || want[m.Subject] {
			for _, h := range []string{"Nats-Sequence", "Nats-Stream", "Nats-Subject", "Nats-Time-Stamp"} { // of a direct get
				m.Header.Del(h)
			}
			out = append(out, Stored{m.Sequence, m.Subject, m.Header, m.Data, m.Time})
		}
	}
	return out
}

// Unfinished tells how many messages of a consumer are not acked, delivered or
// not.
func Unfinished(tb testing.TB, js jetstream.JetStream, stream, consumer string) int {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	c, err := js.Consumer(ctx, stream, consumer)
	OK(tb, err)
	info := c.CachedInfo()
	left := info.NumAckPending + int(info.NumPending)
	if left > 0 {
		return left
	}
	// A message that was stored a moment ago may not be counted as pending yet.
	st, err := js.Stream(ctx, stream)
	OK(tb, err)
	for _, filter := range append(info.Config.FilterSubjects, info.Config.FilterSubject) {
		if filter == "" {
			continue
		}
		last, err := st.GetLastMsgForSubject(ctx, filter)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			continue
		}
		OK(tb, err)
		if last.Sequence > info.Delivered.Stream {
			left++
		}
	}
	return left
}
