package stage

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"colophon/shared/completed"
	"colophon/shared/event"
	"colophon/shared/fault"
)

// takenOver ends a message's way in this process: somebody else has told how
// its attempt ended, and works on it now. It is not settled here, and comes
// again if the other one dies.
type takenOver struct{ told event.AttemptFailed }

func (t *takenOver) Error() string {
	return fmt.Sprintf("stage: attempt %d was told as %s by %s", t.told.Attempt, t.told.Code, t.told.Agent.Name)
}

// told gives the outcome that the log holds under this one's id, where it is
// another one: this worker stalled, or its disk was moved to another process,
// and its attempt was reported by whoever took over.
func (s *Stage[In, Out]) told(said completed.Fact) (t event.AttemptFailed, other bool, err error) {
	known, ok, err := s.Completed.Fact(said.ID)
	if err != nil || !ok || string(known.Data) == string(said.Data) {
		return t, false, err
	}
	return toldOf(known.Data)
}

func toldOf(data []byte) (t event.AttemptFailed, other bool, err error) {
	f, err := event.DecodeFact(event.SubjectAttemptFailed, data)
	if err != nil {
		return t, false, nil //nolint:nilerr // somebody published it by hand: no outcome of ours
	}
	t, ok := f.(event.AttemptFailed)
	return t, ok, nil
}

// toldInLog is told for a message that the broker called a duplicate of said.
func (s *Stage[In, Out]) toldInLog(ctx context.Context, ack *jetstream.PubAck, said completed.Fact) (t event.AttemptFailed, other bool, err error) {
	st, err := s.JS.Stream(ctx, ack.Stream)
	if err != nil {
		return t, false, err
	}
	m, err := st.GetMsg(ctx, ack.Sequence)
	if errors.Is(err, jetstream.ErrMsgNotFound) || err == nil && string(m.Data) == string(said.Data) {
		return t, false, nil
	}
	if err != nil {
		return t, false, err
	}
	return toldOf(m.Data)
}

// giveWay ends an attempt whose outcome somebody else has told. The told one
// stands: it decided what follows, and whoever told it does that. An outcome
// that is more than "lost" is evidence all the same: it is published beside the
// told one, as late, under the told decision, so that no number is used twice
// and nothing is decided twice. (A late success needs no such fact: its
// completion, which carries the attempt's number, is the evidence.) A "lost" of
// ours beside a real outcome is no evidence of anything.
func (s *Stage[In, Out]) giveWay(ctx context.Context, d *delivery, key string, told, ours event.AttemptFailed) error {
	known, err := s.log.Encode(told)
	if err != nil {
		return err
	}
	if ours.Class != string(fault.Lost) {
		ours.Late, ours.Decision, ours.NotBefore = true, told.Decision, told.NotBefore
		late, err := s.log.Encode(ours)
		if err != nil {
			return err
		}
		if err := s.publish(ctx, late); err != nil {
			return err
		}
		if err := s.Completed.Record(completed.Completion{Fact: late}); err != nil {
			return err
		}
	}
	s.Log.Warn("attempt_taken_over", append(d.attrs("give way"), slog.String("id", known.ID), slog.String("told", told.Code), slog.String("code", ours.Code))...)
	// Last: until here a crash finds the attempt as it was, and comes back here.
	end := endedOf(told, known)
	end.Key, end.Decided = key, true
	if err := s.Completed.Record(completed.Completion{Fact: known, Attempt: end}); err != nil {
		return err
	}
	return &takenOver{told}
}

// learnRelease reads that a replica let go of an attempt: its number is used
// again, by whoever takes the message over.
func (s *Stage[In, Out]) learnRelease(f event.OpFact) *completed.Completion {
	if f.Kind != event.OpReleased || f.Service != s.Service || f.Detail["consumer"] != s.Consumer {
		return nil
	}
	number, counted, err := releasedNumbers(f.Detail)
	if err != nil {
		s.Log.Error("unreadable_fact", slog.String("id", f.MsgID()), slog.String("decision", "passed over"), slog.Any("error", err))
		return nil
	}
	return &completed.Completion{Attempt: completed.Ended{Key: f.Detail["of"], Attempt: completed.Attempt{
		Number: number, Counted: counted, State: completed.AttemptReleased, Started: f.At,
	}}}
}

func releasedNumbers(detail map[string]string) (number, counted int, err error) {
	if _, err = fmt.Sscan(detail["attempt"], &number); err != nil {
		return 0, 0, fmt.Errorf("stage: a released attempt without its number: %w", err)
	}
	if _, err = fmt.Sscan(detail["counted"], &counted); err != nil {
		return 0, 0, fmt.Errorf("stage: a released attempt without its count: %w", err)
	}
	return number, counted, nil
}

// firstID is the id that a message was published under first, where it went
// out again as <id>!<n>.
func firstID(id string) string {
	first, _, _ := strings.Cut(id, "!")
	return first
}
