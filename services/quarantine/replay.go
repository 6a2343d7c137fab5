package quarantine

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"colophon/shared/crash"
	"colophon/shared/event"
	"colophon/shared/fault"

	"colophon/services/quarantine/internal/cases"
)

// replayOne publishes a case's original message under the next pass, and only
// then records its release. A crash in between leaves the case open; the same
// replay again has the same ids, and the first fact of the new pass releases
// the case by the same words.
func (q *Service) replayOne(ctx context.Context, r cases.Record, by event.Request, dry bool) error {
	original, err := q.original(ctx, r)
	if err != nil || dry {
		return err
	}
	if err := q.publish(ctx, again(r, original, by)); err != nil {
		return err
	}
	crash.At(Name + ".after-replay")
	return q.tell(ctx, cases.Decided(r, event.CaseReplayed, by, r.Pass+1, q.Now()))
}

// original fetches the dead letter of a case, whose body is the message that
// failed.
func (q *Service) original(ctx context.Context, r cases.Record) (*jetstream.RawStreamMsg, error) {
	sequence := r.Letter
	if e, ok, err := q.store.Evidence(r); err != nil {
		return nil, err
	} else if ok {
		sequence = e.Letter // where the letter stands by now
	}
	m, err := q.letters.GetMsg(ctx, sequence)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil, refused("its dead letter %d is gone", sequence)
	}
	if err != nil {
		return nil, fmt.Errorf("quarantine: dead letter %d: %w", sequence, err)
	}
	switch subject := m.Header.Get(event.HeaderOriginSub); {
	case !strings.HasPrefix(subject, "capture.") && !strings.HasPrefix(subject, "ingest."):
		return nil, refused("its message came by %q, which is no subject of the line", subject)
	case m.Header.Get(event.HeaderOrigin) != r.Origin:
		return nil, refused("dead letter %d is not about it", sequence)
	}
	return m, nil
}

// again is the message of a replay: subject and body unchanged, another id,
// the next pass in a header.
func again(r cases.Record, letter *jetstream.RawStreamMsg, by event.Request) *nats.Msg {
	subject, pass := letter.Header.Get(event.HeaderOriginSub), r.Pass+1
	h := nats.Header{}
	h.Set(event.HeaderMsgID, replayID(r, letter, subject, pass))
	h.Set(event.HeaderPass, strconv.Itoa(pass))
	h.Set(event.HeaderActor, by.Actor)
	h.Set(event.HeaderNote, by.Note)
	return &nats.Msg{Subject: subject, Header: h, Data: letter.Data}
}

// replayID is the id that the original message has in the next pass: a re-run
// under that pass has the same, and is the same work. It names the message
// that goes out, never the fact that its work will publish, whose id it would
// take. What has no such id has the original's and the case's number.
func replayID(r cases.Record, letter *jetstream.RawStreamMsg, subject string, pass int) string {
	if r.Frame != "" {
		if id, ok := idInPass(subject, letter.Data, pass); ok {
			return id
		}
	}
	return cmp.Or(letter.Header.Get(event.HeaderOriginID), r.Origin) + "#replay" + strconv.Itoa(r.Number)
}

func idInPass(subject string, data []byte, pass int) (string, bool) {
	switch {
	case strings.HasPrefix(subject, event.SubjectCaptureFrame+"."):
		var m event.FrameMessage
		if json.Unmarshal(data, &m) != nil {
			return "", false
		}
		m.Pass = pass
		return m.MsgID(), true
	case subject == event.SubjectFrameCaptured:
		var f event.FrameCaptured
		if json.Unmarshal(data, &f) != nil {
			return "", false
		}
		f.Pass = pass
		return f.MsgID(), true
	case subject == event.SubjectFrameFixed:
		var f event.FrameFixed
		if json.Unmarshal(data, &f) != nil {
			return "", false
		}
		f.Pass = pass
		return f.MsgID(), true
	}
	return "", false
}

// publish returns once the message is stored, or refuses after ReplayWait. A
// message that was stored all the same runs; its first fact releases the case.
func (q *Service) publish(ctx context.Context, m *nats.Msg) error {
	bound, cancel := context.WithTimeout(ctx, q.ReplayWait)
	defer cancel()
	var trouble error
	_, err := q.out.Publish(bound, m, func(err error) { trouble = err })
	if err != nil && ctx.Err() == nil {
		return refused("the broker did not take the message: %s", fault.Clean(cmp.Or(trouble, err).Error()))
	}
	return err
}
