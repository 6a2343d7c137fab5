package capture

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"colophon/shared/event"
	"colophon/shared/fault"
	"colophon/shared/profile"
	"colophon/shared/stage"
)

// retryWait is how long the sending may take beside its spread.
const retryWait = time.Minute

// retry sends every failed slot of a batch again, or every slot that lacks a
// derivative, under its next pass.
func (s *Service) retry(ctx context.Context, in event.RetryRequest) (event.RetryReply, error) {
	in.Spread = max(in.Spread, 0)
	ctx, cancel := context.WithTimeout(ctx, retryWait+in.Spread)
	defer cancel()
	declared, err := s.wanted(ctx, in)
	if err != nil {
		return event.RetryReply{}, err
	}
	slots, out, err := s.chosen(in)
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
		seq, sent, err := s.again(ctx, slot, in, declared)
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

// wanted makes sure that the batch wants the profile that was asked for, by a
// corrected declaration, and gives the number of the one that says so.
func (s *Service) wanted(ctx context.Context, in event.RetryRequest) (int, error) {
	if in.Profile == "" {
		return 0, nil
	}
	if _, ok := profile.Named(in.Profile); !ok {
		return 0, badRequest{fmt.Errorf("/profile: there is no profile %q", in.Profile)}
	}
	for sent := 0; ; {
		changed := s.view.changed.Next()
		r, err := s.view.batch(in.Batch)
		switch {
		case err != nil:
			return 0, err
		case !r.Known:
			return 0, badRequest{fmt.Errorf("/batch: %s is not known", in.Batch.Display())}
		case in.DryRun || slices.Contains(r.Profiles, in.Profile):
			return r.Number, nil
		}
		if sent <= r.Number { // also when somebody else's correction came first
			if err := s.declare(ctx, r.BatchFact, in); err != nil {
				return 0, err
			}
			sent = r.Number + 1
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

func (s *Service) declare(ctx context.Context, now event.BatchFact, in event.RetryRequest) error {
	body, err := json.Marshal(event.BatchDeclaration{
		Schema: event.SchemaCaptureBatch, Batch: now.Batch, Count: now.Count, Order: now.Order, Operator: fault.Clean(in.Actor),
		Profiles: append(slices.Clone(now.Profiles), in.Profile), Follows: &now.Number,
	})
	if err != nil {
		return err
	}
	_, err = stage.NewLog(s.JS, s.Log).Publish(ctx, &nats.Msg{Subject: event.CaptureSubject("batch", now.Gateway, now.Batch), Data: body, Header: nats.Header{
		event.HeaderMsgID: {event.DeclarationID(body, now.Batch, now.Number+1)},
	}}, nil)
	return err
}

// eligible reports whether a slot is to be sent.
func eligible(p *event.Progress, profiles []string, in event.RetryRequest) bool {
	if in.Profile == "" {
		return p.State(profiles) == event.StateFailed
	}
	o := p.Ops[event.Derivative(in.Profile)]
	return !p.Discarded && p.Changed == 0 && (o == nil || !o.Done && !o.Waived)
}

// chosen lists the slots to send, and counts those that are left alone.
func (s *Service) chosen(in event.RetryRequest) (slots []event.Slot, out event.RetryReply, err error) {
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
		if !eligible(&p.Progress, r.Profiles, in) {
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
func (s *Service) again(ctx context.Context, slot event.Slot, in event.RetryRequest, declared int) (uint64, bool, error) {
	l, release := s.view.snapshot()
	m, err := next(l, slot, in)
	release() // before anything waits
	if err != nil || m == nil {
		return 0, false, err
	}
	m.Header[event.HeaderActor], m.Header[event.HeaderNote] = []string{fault.Clean(in.Actor)}, []string{fault.Clean(in.Note)}
	if in.Profile != "" {
		m.Header.Set(event.HeaderDeclared, strconv.Itoa(declared))
	}
	ack, err := stage.NewLog(s.JS, s.Log).Publish(ctx, m, nil)
	if err != nil {
		return 0, false, err
	}
	return ack.Sequence, true, nil
}

// next makes the message of a slot's next pass: the body as it came.
func next(l look, slot event.Slot, in event.RetryRequest) (*nats.Msg, error) {
	p, _, err := l.slot(slot)
	if err != nil {
		return nil, err
	}
	r, err := l.batch(slot.Batch)
	if err != nil || !eligible(&p, r.Profiles, in) {
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
