package stage

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"colophon/shared/completed"
	"colophon/shared/crash"
	"colophon/shared/event"
	"colophon/shared/fault"
)

// undecodable marks a message that says nothing this service can read.
type undecodable struct{ err error }

func (u *undecodable) Error() string { return u.err.Error() }
func (u *undecodable) Unwrap() error { return u.err }

// receive settles one message: it is acked when done or when its dead letter
// is stored, and let go when the stage stops.
func (s *Stage[In, Out]) receive(ctx context.Context, d *delivery) {
	defer d.permit.drop()
	defer s.lot.ended(d)
	var err error
	if d.meta, err = d.msg.Metadata(); err != nil {
		s.Log.Error("message_without_metadata", slog.String("subject", d.msg.Subject()), slog.Any("error", err))
		return
	}
	d.origin = originOf(d.meta)
	if parked, err := s.isParked(d); err != nil {
		s.settle(ctx, d, err)
		return
	} else if parked { // the broker forgot the ack
		s.ack(ctx, d)
		return
	}
	key := flying{d.origin, d.meta.Timestamp.UnixNano()}
	if !s.flight.enter(key, d.msg) {
		return // a redelivery of what this process still works on joins that work
	}
	defer s.flight.leave(key)
	if d.meta.NumDelivered > 1 {
		s.Metrics.redelivered(s.Consumer)
	}
	if err = s.finished(ctx, d); !errors.Is(err, errNotFinished) {
		s.settle(ctx, d, err)
		return
	}
	s.settle(ctx, d, s.contained(ctx, d))
}

func (s *Stage[In, Out]) contained(ctx context.Context, d *delivery) (err error) {
	defer func() {
		if p := recover(); p != nil {
			s.Log.Error("panic_contained", append(d.attrs("dead-letter"), slog.Any("panic", p), slog.String("stack", string(debug.Stack())))...)
			err = &undecodable{fmt.Errorf("the program failed on this message: %v", p)}
		}
	}()
	return s.handle(ctx, d)
}

var errNotFinished = errors.New("stage: not the origin of a dead letter")

// finished looks whether the message is the origin of a dead letter: then that
// letter is published again, and the message is done.
func (s *Stage[In, Out]) finished(ctx context.Context, d *delivery) error {
	o, ok, err := s.Completed.DeadOrigin(d.origin, d.meta.Timestamp.UTC(), idOf(d.msg.Headers()))
	if err != nil {
		return err
	}
	if !ok {
		return errNotFinished
	}
	h, err := decodeHeader(o.Header)
	if err != nil {
		return err
	}
	d.recall(h)
	return s.letter(ctx, d, h)
}

// recall fills in, from a dead letter, what its line in the log says: the
// message itself is not read again.
func (d *delivery) recall(h nats.Header) {
	batch, berr := event.DecodeName(h.Get(event.HeaderBatch))
	frame, ferr := event.DecodeName(h.Get(event.HeaderFrame))
	if berr == nil && ferr == nil {
		d.work.Slot = event.Slot{Batch: batch, Frame: frame}
	}
	d.work.Digest = event.Digest(h.Get(event.HeaderDigest))
	d.work.Pass, _ = strconv.Atoi(h.Get(event.HeaderPass))
	d.work.Attempt, _ = strconv.Atoi(h.Get(event.HeaderAttempts))
	d.key = event.Key{Operation: event.Operation(cmp.Or(h.Get(event.HeaderFoundBy), h.Get(event.HeaderOperation))), Digest: d.work.Digest}
	if _, derivative := d.key.Operation.Profile(); !derivative {
		d.key.Slot = d.work.Slot
	}
}

func (s *Stage[In, Out]) settle(ctx context.Context, d *delivery, err error) {
	var spent *exhausted
	var unreadable *undecodable
	var place *parking
	var over *takenOver
	switch {
	case err == nil:
		return
	case errors.As(err, &over): // whoever told of it settles it
		return
	case errors.As(err, &place):
		if s.stop.Err() == nil {
			err = s.park(ctx, d, place.name)
		}
	case errors.As(err, &spent):
		err = s.deadLetter(ctx, d, spent.fault)
	case errors.As(err, &unreadable):
		f := fault.New(fault.Malformed, unreadable.err, "the message cannot be read: %s", fault.Clean(unreadable.err.Error()))
		if errors.Is(err, event.ErrUnknownSchema) {
			f.Code = fault.UnknownSchema
		}
		if d.work.Frame != "" { // the slot is known: its pass ends, as a fact and as a case of its own
			s.settle(ctx, d, s.refused(ctx, d, f))
			return
		}
		f.Operation = string(event.Decode(s.Service))
		d.work = event.Work{Pass: 1}
		d.key = event.Key{Operation: event.Decode(s.Service)}
		err = s.deadLetter(ctx, d, f)
	}
	if err == nil {
		return
	}
	if s.stop.Err() != nil { // stopping: somebody else, or the next start, takes it up
		if err := d.msg.Nak(); err != nil {
			s.Log.Debug("nak_failed", slog.Any("error", err))
		}
		return
	}
	// Neither done nor decided: the store or the broker failed us. The message
	// stays unacked and comes again; a store that fails is an environment fault.
	f := fault.Of(err)
	s.Log.Error("idempotent_failed", append(d.attrs("halt"), slog.String("code", string(f.Code)), slog.Any("error", err))...)
	if f.Class() != fault.Environment {
		f = fault.New(fault.StoreUnavailable, err, "a step of the order failed")
	}
	s.close(f)
}

// deadLetter publishes the letter, remembers it and acks its origin.
func (s *Stage[In, Out]) deadLetter(ctx context.Context, d *delivery, f *fault.Error) error {
	h := nats.Header{}
	op := d.operation(f)
	set := func(k, v string) {
		if v != "" {
			h.Set(k, v)
		}
	}
	set(event.HeaderMsgID, event.DeadLetterID(op, d.work.Digest, d.work.Slot, d.work.Pass, d.origin))
	set(event.HeaderService, s.Service)
	set(event.HeaderOperation, string(op))
	if op != d.key.Operation {
		set(event.HeaderFoundBy, string(d.key.Operation))
	}
	set(event.HeaderDigest, string(d.work.Digest))
	set(event.HeaderBatch, d.work.Batch.Encode())
	set(event.HeaderFrame, d.work.Frame.Encode())
	set(event.HeaderSequence, strconv.Itoa(d.work.Sequence))
	set(event.HeaderRevision, strconv.Itoa(d.work.Revision))
	set(event.HeaderPass, strconv.Itoa(d.work.Pass))
	set(event.HeaderAttempts, strconv.Itoa(d.spent))
	set(event.HeaderClass, string(f.Class()))
	set(event.HeaderCode, string(f.Code))
	set(event.HeaderMessage, evidence(f.Message))
	set(event.HeaderDetail, evidence(f.Detail))
	set(event.HeaderOrigin, d.origin)
	set(event.HeaderOriginID, idOf(d.msg.Headers()))
	set(event.HeaderOriginAt, d.meta.Timestamp.UTC().Format(time.RFC3339Nano))
	set(event.HeaderOriginSub, d.msg.Subject())
	return s.letter(ctx, d, h)
}

// letter publishes a dead letter and returns once its origin is acked. A crash
// behind the publish finds the letter in the store or the stream, or writes it
// again under the same id.
func (s *Stage[In, Out]) letter(ctx context.Context, d *delivery, h nats.Header) error {
	ack, err := s.publishMsg(ctx, &nats.Msg{Subject: event.DeadLetterSubject(s.Service), Header: h, Data: d.msg.Data()})
	if err != nil {
		return err
	}
	crash.At(s.Service + ".after-dead-letter")
	dead, err := DeadOf(h)
	if err != nil {
		return err
	}
	dead.Origin.Letter = ack.Sequence
	if err := s.Completed.SetDead(dead); err != nil {
		return err
	}
	s.Metrics.deadLetter(s.Consumer, h.Get(event.HeaderCode))
	s.Log.Error("dead_letter", append(d.attrs("dead-letter"), slog.String("operation", h.Get(event.HeaderOperation)), slog.String("code", h.Get(event.HeaderCode)),
		slog.String("reason", HeaderText(h.Get(event.HeaderMessage))), slog.String("origin", d.origin))...)
	s.ack(ctx, d)
	return nil
}

// ack settles the message with the broker. Its work is done and recorded, so
// an ack that is not confirmed is no failure: the redelivery acks again.
func (s *Stage[In, Out]) ack(ctx context.Context, d *delivery) {
	if err := d.msg.DoubleAck(ctx); err != nil {
		s.Log.Warn("ack_unconfirmed", append(d.attrs("ack"), slog.String("origin", d.origin), slog.Any("error", err))...)
	}
}

// DeadOf reads what a stage must remember of a dead letter from its headers.
func DeadOf(h nats.Header) (completed.Dead, error) {
	pass, err := strconv.Atoi(h.Get(event.HeaderPass))
	if err != nil {
		return completed.Dead{}, fmt.Errorf("stage: dead letter without a pass: %w", err)
	}
	at, err := time.Parse(time.RFC3339Nano, h.Get(event.HeaderOriginAt))
	if err != nil {
		return completed.Dead{}, fmt.Errorf("stage: dead letter without its origin's time: %w", err)
	}
	header, err := encodeHeader(h)
	if err != nil {
		return completed.Dead{}, err
	}
	slot := ""
	if b, f := h.Get(event.HeaderBatch), h.Get(event.HeaderFrame); b != "" && f != "" {
		slot = b + "/" + f
	}
	ops := []string{h.Get(event.HeaderOperation)}
	if by := h.Get(event.HeaderFoundBy); by != "" {
		ops = append(ops, by)
	}
	return completed.Dead{
		Origin: completed.Origin{
			Name: h.Get(event.HeaderOrigin), Stored: at, MsgID: h.Get(event.HeaderOriginID), LetterID: firstID(h.Get(event.HeaderMsgID)), Header: header,
		},
		Operations: ops, Slot: slot, Pass: pass,
	}, nil
}
