package stage

import (
	"context"
	"errors"
	"hash/maphash"
	"log/slog"
	"slices"
	"strconv"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"colophon/shared/completed"
	"colophon/shared/event"
	"colophon/shared/fault"
	"colophon/shared/topology"
)

// healing gathers which messages a stream still holds while it is read again:
// 8 bytes each.
type healing struct {
	subjects []string
	seed     maphash.Seed
	seen     map[uint64]struct{}

	lost, read completed.Position // after a rollback: the one the stream lost, and how far it has been read again
}

func newHealing(subjects []string) *healing {
	return &healing{subjects: subjects, seed: maphash.MakeSeed(), seen: map[uint64]struct{}{}}
}

// saw notes a message; on nil, when nothing is being healed, it does nothing.
func (h *healing) saw(id string) {
	if h != nil {
		h.seen[maphash.String(h.seed, firstID(id))] = struct{}{}
	}
}

func (h *healing) has(id string) bool {
	_, ok := h.seen[maphash.String(h.seed, id)]
	return ok
}

func (h *healing) holds(f completed.Fact) bool {
	return h.has(f.ID) || !slices.Contains(h.subjects, f.Subject)
}

// heal publishes the facts that this service once published and the log lacks,
// under their own ids.
func (s *Stage[In, Out]) heal(ctx context.Context, lacks *healing) error {
	n := 0
	err := s.Completed.Facts(func(f completed.Fact) error {
		if lacks.holds(f) {
			return nil
		}
		n++
		return s.publish(ctx, f)
	})
	s.Log.Warn("log_healed", slog.String("consumer", s.Consumer), slog.Int("facts", n), slog.Any("error", err))
	return err
}

// hole is a run of sequences that a stream does not give out any more.
type hole struct {
	stream      string
	first, last uint64
}

// holeOf reads the fact that tells of a hole; nil for any other message.
func holeOf(m topology.Message) *hole {
	if m.Subject != event.SubjectOp+"."+event.OpHole {
		return nil
	}
	f, err := event.DecodeFact(m.Subject, m.Data)
	if err != nil {
		return nil // learn says what is wrong with it
	}
	d := f.(event.OpFact).Detail
	first, ferr := strconv.ParseUint(d["first"], 10, 64)
	last, lerr := strconv.ParseUint(d["last"], 10, 64)
	if errors.Join(ferr, lerr) != nil {
		first, last = 0, ^uint64(0) // not known: anywhere
	}
	return &hole{d["stream"], first, last}
}

// with joins two holes of a stream into one that covers both.
func (h *hole) with(o *hole) *hole {
	if h == nil {
		return o
	}
	return &hole{h.stream, min(h.first, o.first), max(h.last, o.last)}
}

func (h *hole) covers(sequence uint64) bool { return sequence >= h.first && sequence <= h.last }

// mend reads a stream with a hole again from its start, and publishes what this
// service once said and the stream lacks. It returns when that is done.
func (s *Stage[In, Out]) mend(ctx context.Context, h *hole) error {
	subjects, fill := s.says(), s.heal
	switch h.stream {
	case event.StreamIngest:
	case event.StreamDeadLetter:
		subjects = []string{event.DeadLetterSubject(s.Service)}
		fill = func(ctx context.Context, lacks *healing) error { return s.healLetters(ctx, lacks, h) }
	default: // nothing of this service's
		return nil
	}
	lacks := newHealing(subjects)
	reading, done := context.WithCancel(ctx)
	defer done()
	reader := &topology.Follower{
		JS: s.JS, Stream: h.stream, Filters: subjects, Log: s.Log,
		Position: func() (completed.Position, error) { return completed.Position{}, nil },
		Handle: func(_ context.Context, batch []topology.Message) error {
			for _, m := range batch {
				lacks.saw(m.MsgID)
			}
			return nil
		},
		CaughtUp: func(ctx context.Context) error {
			err := fill(ctx, lacks)
			if err == nil {
				done()
			}
			return err
		},
	}
	if err := reader.Run(reading); err != nil {
		return err
	}
	return ctx.Err()
}

// healLetters publishes the dead letters of this service that DEADLETTER lacks,
// after a rollback or in a hole. A letter that was cleared away because its
// case is long resolved is not one of them: its sequence is neither ahead of
// the stream, nor another message's, nor in the hole.
func (s *Stage[In, Out]) healLetters(ctx context.Context, lacks *healing, h *hole) error {
	st, err := s.JS.Stream(ctx, event.StreamDeadLetter)
	if err != nil {
		return err
	}
	last := st.CachedInfo().State.LastSeq
	n := 0
	err = s.Completed.Letters(func(o completed.Origin) error {
		if lacks.has(o.LetterID) {
			return nil
		}
		if h != nil && !h.covers(o.Letter) {
			return nil
		}
		if h == nil && o.Letter <= last {
			switch m, err := st.GetMsg(ctx, o.Letter); {
			case errors.Is(err, jetstream.ErrMsgNotFound), err == nil && firstID(m.Header.Get(event.HeaderMsgID)) == o.LetterID:
				return nil
			case err != nil:
				return err
			}
		}
		n++
		return s.letterAgain(ctx, o)
	})
	s.Log.Warn("letters_healed", slog.String("consumer", s.Consumer), slog.Int("letters", n), slog.Any("error", err))
	return err
}

// healUnread publishes the dead letters that this service stored behind a
// sequence of DEADLETTER and that do not stand there.
func (s *Stage[In, Out]) healUnread(ctx context.Context, from uint64) error {
	st, err := s.JS.Stream(ctx, event.StreamDeadLetter)
	if err != nil {
		return err
	}
	n := 0
	err = s.Completed.Letters(func(o completed.Origin) error {
		if o.Letter <= from {
			return nil
		}
		m, err := st.GetMsg(ctx, o.Letter)
		if err == nil && firstID(m.Header.Get(event.HeaderMsgID)) == o.LetterID {
			return nil
		}
		if err != nil && !errors.Is(err, jetstream.ErrMsgNotFound) {
			return err
		}
		n++
		return s.letterAgain(ctx, o)
	})
	if n > 0 || err != nil {
		s.Log.Warn("letters_healed", slog.String("consumer", s.Consumer), slog.Int("letters", n), slog.Any("error", err))
	}
	return err
}

// letterAgain publishes a dead letter from what is known of it and its origin,
// which stands in its own stream. Without the origin nobody could replay it:
// that is an alarm, and a fact.
func (s *Stage[In, Out]) letterAgain(ctx context.Context, o completed.Origin) error {
	header, err := decodeHeader(o.Header)
	if err != nil {
		return err
	}
	data, ok, err := s.payload(ctx, o)
	if err != nil {
		return err
	}
	if !ok {
		var d delivery
		d.recall(header)
		s.Log.Error("letter_lost", append(d.attrs("alarm"), slog.String("consumer", s.Consumer), slog.String("letter", o.LetterID), slog.String("origin", o.Name))...)
		s.Metrics.Alarm(event.OpLetterLost)
		f := fault.New(fault.BytesMissing, nil, "a dead letter is gone from its stream, and its origin from its own")
		s.tell(ctx, event.OpLetterLost, f, map[string]string{"letter": o.LetterID, "origin": o.Name})
		return nil
	}
	header.Set(event.HeaderMsgID, o.LetterID)
	ack, err := s.publishMsg(ctx, &nats.Msg{Subject: event.DeadLetterSubject(s.Service), Header: header, Data: data})
	if err != nil {
		return err
	}
	d, err := DeadOf(header)
	if err != nil {
		return err
	}
	d.Origin.Letter = ack.Sequence
	return s.Completed.SetDead(d)
}

// payload reads the body of a dead letter's origin from its stream, if that
// still holds it: the same sequence, stored time and id.
func (s *Stage[In, Out]) payload(ctx context.Context, o completed.Origin) (data []byte, ok bool, err error) {
	stream, sequence, err := parseOrigin(o.Name)
	if err != nil {
		return nil, false, nil //nolint:nilerr // a foreign letter: its origin is nowhere
	}
	st, err := s.JS.Stream(ctx, stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	m, err := st.GetMsg(ctx, sequence)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	return m.Data, m.Time.Equal(o.Stored) && idOf(m.Header) == o.MsgID, nil
}
