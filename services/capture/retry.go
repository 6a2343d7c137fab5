package capture

import (
	"context"
	"encoding/json"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"colophon/shared/event"
	"colophon/shared/fault"
	"colophon/shared/stage"
)

// retryWait is how long the sending may take beside its spread.
const retryWait = time.Minute

// retry sends every failed slot of a batch again, under its next pass.
func (s *Service) retry(ctx context.Context, in event.RetryRequest) (event.RetryReply, error) {
	in.Spread = max(in.Spread, 0)
	ctx, cancel := context.WithTimeout(ctx, retryWait+in.Spread)
	defer cancel()
	slots, out, err := s.failed(in)
	if err != nil || in.DryRun {
		out.Dispatched = len(slots)
		return out, err
	}
	start := time.Now()
	for i, slot := range slots {
		due := start.Add(in.Spread / time.Duration(len(slots)) * time.Duration(i))
		if err := wait(ctx, time.Until(due)); err != nil {
			return out, err
		}
		seq, sent, err := s.again(ctx, slot, in.Actor, in.Note)
		if err != nil {
			return out, err
		}
		if !sent {
			out.Left++
			continue
		}
		out.Dispatched++
		out.Sequence = max(out.Sequence, seq)
	}
	return out, nil
}

// failed lists the slots to send, and counts those that are left alone.
func (s *Service) failed(in event.RetryRequest) (slots []event.Slot, out event.RetryReply, err error) {
	l, release := s.view.snapshot()
	defer release()
	r, err := l.batch(in.Batch)
	if err != nil {
		return nil, out, err
	}
	for p, err := range l.frames(in.Batch, "") {
		if err != nil {
			return nil, out, err
		}
		if p.State(r.Profiles) != event.StateFailed {
			continue
		}
		_, known, err := l.asked(p.Slot)
		if err != nil {
			return nil, out, err
		}
		if !known || in.Transient && !transient(&p.Progress, r.Profiles) {
			out.Left++
			continue
		}
		slots = append(slots, p.Slot)
	}
	return slots, out, nil
}

func transient(p *event.Progress, profiles []string) bool {
	for _, t := range p.Troubles(profiles) {
		if c := fault.Class(t.Class); c != fault.Transient && c != fault.Lost {
			return false
		}
	}
	return true
}

// again publishes a slot's newest capture message under the next pass, unless
// somebody else moved the slot meanwhile.
func (s *Service) again(ctx context.Context, slot event.Slot, actor, note string) (uint64, bool, error) {
	l, release := s.view.snapshot()
	m, err := next(l, slot)
	release() // before anything waits
	if err != nil || m == nil {
		return 0, false, err
	}
	m.Header[event.HeaderActor], m.Header[event.HeaderNote] = []string{fault.Clean(actor)}, []string{fault.Clean(note)}
	ack, err := stage.NewLog(s.JS, s.Log).Publish(ctx, m, nil)
	if err != nil {
		return 0, false, err
	}
	return ack.Sequence, true, nil
}

// next makes the message of a failed slot's next pass: the body as it came.
func next(l look, slot event.Slot) (*nats.Msg, error) {
	p, _, err := l.slot(slot)
	if err != nil {
		return nil, err
	}
	r, err := l.batch(slot.Batch)
	if err != nil || p.State(r.Profiles) != event.StateFailed {
		return nil, err
	}
	a, ok, err := l.asked(slot)
	if err != nil || !ok {
		return nil, err
	}
	var f event.FrameMessage
	if err := json.Unmarshal(a.Body, &f); err != nil {
		return nil, err
	}
	f.Pass = p.Pass() + 1
	return &nats.Msg{Subject: a.Subject, Data: a.Body, Header: nats.Header{
		event.HeaderMsgID: {f.MsgID()}, event.HeaderPass: {strconv.Itoa(f.Pass)},
	}}, nil
}
