package stage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime/debug"
	"strconv"
	"time"

	"colophon/shared/completed"
	"colophon/shared/event"
	"colophon/shared/fault"
	"colophon/shared/retry"
)

// exhausted ends a pass: the fault goes to quarantine.
type exhausted struct{ fault *fault.Error }

func (e *exhausted) Error() string { return e.fault.Error() }
func (e *exhausted) Unwrap() error { return e.fault }

// attempts acts until it succeeds, the policy is exhausted, or ctx ends. The
// number of an attempt is stored before it is made and its outcome before the
// fact that reports it, so that numbers have no gaps, whoever dies.
func (s *Stage[In, Out]) attempts(ctx context.Context, in In, d *delivery) (out Out, err error) {
	policy, err := retry.Parse(d.work.Policy)
	if err != nil {
		return out, &undecodable{err}
	}
	key := d.attemptKey()
	a, err := s.resume(ctx, d, policy, key)
	if err != nil {
		return out, err
	}
	first, done, dependency := true, false, s.depends(in)
	err = retry.Run(s.stop, func(context.Context) error { // the wait ends with a stop, the work has its grace
		s.lot.leave(d)
		if wait := time.Until(a.NotBefore); first && wait > 0 {
			first = false
			return s.again(d, wait, errors.New("the delay that was stored"))
		}
		leave, err := s.admit(d, dependency, policy, a.Suspect)
		if err != nil {
			return err
		}
		o, err := s.try(ctx, in, d, policy, key, &a, func(err error) { s.left(d, dependency, leave(outcome(ctx, err)), err) })
		var unmade *unmade
		switch {
		case err == nil:
			out, done = o, true
			return nil
		case errors.As(err, &unmade):
			return unmade.err
		case ctx.Err() != nil: // a stop: the number is used again
			return errors.Join(ctx.Err(), s.release(ctx, d, key, &a))
		}
		f := fault.Of(err)
		if f.Class() == fault.Environment {
			return s.halt(ctx, d, key, &a, f)
		}
		return s.failed(ctx, d, policy, key, &a, f)
	})
	if done {
		return out, nil
	}
	return out, err
}

// again lets a message wait out a delay, without a work slot.
func (s *Stage[In, Out]) again(d *delivery, wait time.Duration, cause error) error {
	d.permit.drop()
	if err := s.lot.enter(d, "delay", s.HoldAll); err != nil {
		return err
	}
	return &retry.Again{After: wait, Cause: cause}
}

// unmade is why an attempt was not made: its number could not be stored.
type unmade struct{ err error }

func (u *unmade) Error() string { return u.err.Error() }

// try makes one attempt: the number is stored before it. left hears how it
// ended, whatever happens.
func (s *Stage[In, Out]) try(ctx context.Context, in In, d *delivery, policy retry.Policy, key string, a *completed.Attempt, left func(error)) (out Out, err error) {
	said := error(fault.New(panicked, nil, "nothing was asked"))
	defer func() { left(said) }()
	switch a.State {
	case completed.AttemptReleased: // its number is used again
	case completed.AttemptDone: // done before, and not believed: the budget is new, the number is not
		a.Number, a.Counted, a.Suspect = a.Number+1, 1, false
	default:
		a.Number, a.Counted = a.Number+1, a.Counted+1
	}
	*a = completed.Attempt{Number: a.Number, Counted: a.Counted, State: completed.AttemptBegun, Suspect: a.Suspect, Alone: d.permit.alone(), Started: time.Now().UTC()}
	if err := s.Completed.SetAttempt(key, *a); err != nil {
		return out, &unmade{err}
	}
	d.work.Attempt, d.work.Limit, d.work.Started = a.Number, policy.MaxAttempts+a.Number-a.Counted, a.Started
	s.Log.Info("idempotent_execute", d.attrs("execute")...)
	out, err = s.act(ctx, in, d)
	d.work.Ended, said = time.Now().UTC(), err
	return out, err
}

// panicked is the code of work that panicked.
const panicked fault.Code = "panic"

// act runs the work and contains its panics: a decoder that panics has failed
// an attempt, no more.
func (s *Stage[In, Out]) act(ctx context.Context, in In, d *delivery) (out Out, err error) {
	defer func() {
		if p := recover(); p != nil {
			s.Log.Error("panic_contained", append(d.attrs("execute"), slog.Any("panic", p), slog.String("stack", string(debug.Stack())))...)
			err = fault.New(panicked, nil, "the program failed: %v", p)
		}
	}()
	return s.Worker.Act(ctx, in, d.work)
}

// halt closes the gate and waits, without a work slot, until the surroundings
// are well again; the attempt's number is used again.
func (s *Stage[In, Out]) halt(ctx context.Context, d *delivery, key string, a *completed.Attempt, f *fault.Error) error {
	a.State = completed.AttemptReleased
	if err := s.keep(d, key, *a); err != nil {
		return err
	}
	s.Log.Error("idempotent_failed", append(d.attrs("halt"), slog.String("code", string(f.Code)), slog.Any("error", f))...)
	s.close(f)
	d.permit.drop()
	s.tellReleased(s.stop, d, a, f)
	if err := s.gate.wait(s.stop); err != nil {
		return err
	}
	return &retry.Again{Cause: f}
}

// keep stores how an attempt ended. While the store fails the consumer is
// halted, and the outcome, which is known, is not given up for it: else the
// attempt would be told as lost, and made again.
func (s *Stage[In, Out]) keep(d *delivery, key string, a completed.Attempt) error {
	for {
		err := s.Completed.SetAttempt(key, a)
		if err == nil {
			return nil
		}
		s.close(fault.New(fault.StoreUnavailable, err, "the outcome of an attempt cannot be stored"))
		d.permit.drop()
		if stopped := s.gate.wait(s.stop); stopped != nil {
			return errors.Join(stopped, err)
		}
	}
}

// release lets go of an attempt that a stop interrupted: its number is used
// again. The stop waits a moment for the log to hear of it, no more.
func (s *Stage[In, Out]) release(ctx context.Context, d *delivery, key string, a *completed.Attempt) error {
	a.State = completed.AttemptReleased
	if err := s.Completed.SetAttempt(key, *a); err != nil {
		return err
	}
	moment, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	s.tellReleased(moment, d, a, fault.New("stopped", nil, "the worker was stopped during this attempt"))
	return nil
}

func (s *Stage[In, Out]) tellReleased(ctx context.Context, d *delivery, a *completed.Attempt, f *fault.Error) {
	s.tell(ctx, event.OpReleased, f, map[string]string{
		"key": d.key.String(), "slot": d.work.Slot.String(), "pass": strconv.Itoa(d.work.Pass),
		"of": d.attemptKey(), "attempt": strconv.Itoa(a.Number), "counted": strconv.Itoa(a.Counted), // see learnRelease
	})
}

// refused ends the pass of work whose fact no broker would carry; any other
// error stays what it is.
func (s *Stage[In, Out]) refused(ctx context.Context, d *delivery, err error) error {
	var f *fault.Error
	if !errors.As(err, &f) || f.Class() != fault.Permanent {
		return err
	}
	if d.work.Hit {
		return &exhausted{f}
	}
	key := d.attemptKey()
	a, err := s.Completed.Attempt(key)
	if err == nil && a.Dead { // the pass ended before, and what ended it stands
		_, err = s.takeUp(ctx, d, retry.Policy{}, key, a)
	}
	if err != nil {
		return err
	}
	if a.Number == 0 || a.State == completed.AttemptFailed || a.Number != d.work.Attempt && a.State == completed.AttemptDone {
		// It never came to a try, and the one before has its own end: numbers have no gaps all the same.
		a.Number, a.Counted, a.Started = a.Number+1, a.Counted+1, d.work.Started
	}
	d.work.Attempt, d.work.Limit = a.Number, max(a.Number, d.work.Limit)
	return s.failed(ctx, d, retry.Policy{}, key, &a, f)
}

// failed stores the outcome, then says it, then decides: another attempt
// after the policy's delay, or the end of this pass.
func (s *Stage[In, Out]) failed(ctx context.Context, d *delivery, policy retry.Policy, key string, a *completed.Attempt, f *fault.Error) error {
	again := policy.Retries(f, a.Counted)
	var delay time.Duration
	decision := event.DecisionDeadLetter
	if again {
		delay = policy.DelayAtLeast(a.Number, f.After, rand.Float64)
		decision = event.DecisionRetry
		a.NotBefore = time.Now().UTC().Add(delay)
	}
	fact := event.AttemptFailed{
		Work: d.work, Service: s.Service, Operation: d.operation(f), Class: string(f.Class()), Code: string(f.Code),
		Message: fault.Clean(f.Message), Detail: fault.Clean(f.Detail), Decision: decision, NotBefore: a.NotBefore, Declared: event.Digest(f.Declared),
	}
	fact.Schema = event.SchemaAttemptFailed
	if f.Class() == fault.Lost {
		fact.Ended = time.Time{}
	}
	stored, err := s.log.Encode(fact)
	if err != nil {
		return err
	}
	if told, other, err := s.told(stored); err != nil {
		return err
	} else if other {
		return s.giveWay(ctx, d, key, told, fact)
	}
	if d.work.Frame == "" { // a batch is no slot: its faults are cases, not attempts in the log
		stored.ID = ""
	}
	a.State, a.Dead, a.Fact = completed.AttemptFailed, !again, stored
	if a.Dead {
		a.Origin = d.origin
	}
	if err := s.keep(d, key, *a); err != nil {
		return err
	}
	s.Log.Warn("idempotent_failed", append(d.attrs(decision), slog.String("code", string(f.Code)), slog.String("error", fault.Clean(f.Error())), slog.Duration("delay", delay))...)
	if err := s.sayFailed(ctx, d, key, stored); err != nil {
		return err
	}
	s.Metrics.attemptFailed(s.Consumer, string(f.Code), decision)
	if !again {
		d.spent = a.Number
		return &exhausted{f}
	}
	return s.again(d, delay, f)
}

// sayFailed publishes a stored outcome. Where the log has another one under its
// id, that one stands.
func (s *Stage[In, Out]) sayFailed(ctx context.Context, d *delivery, key string, stored completed.Fact) error {
	if stored.ID == "" {
		return nil
	}
	ack, err := s.publishMsg(ctx, factMsg(stored))
	if err != nil || !ack.Duplicate {
		return err
	}
	told, other, err := s.toldInLog(ctx, ack, stored)
	if err != nil || !other {
		return err
	}
	ours, _, err := toldOf(stored.Data)
	if err != nil {
		return err
	}
	return s.giveWay(ctx, d, key, told, ours)
}

// resume takes up what an earlier delivery left. An outcome that somebody else
// has told meanwhile stands, and is taken up in its turn.
func (s *Stage[In, Out]) resume(ctx context.Context, d *delivery, policy retry.Policy, key string) (completed.Attempt, error) {
	for {
		a, err := s.Completed.Attempt(key)
		if err != nil {
			return a, err
		}
		a, err = s.takeUp(ctx, d, policy, key, a)
		var over *takenOver
		if !errors.As(err, &over) {
			return a, err
		}
	}
}

// takeUp reports an attempt without an outcome lost, and says an outcome again
// that may not have been said.
func (s *Stage[In, Out]) takeUp(ctx context.Context, d *delivery, policy retry.Policy, key string, a completed.Attempt) (completed.Attempt, error) {
	switch a.State {
	case completed.AttemptBegun:
		if !a.Alone { // lost in company: reported, takes a number, does not count
			a.Counted--
		}
		a.Suspect = true
		d.work.Attempt, d.work.Limit = a.Number, policy.MaxAttempts+a.Number-a.Counted
		d.work.Started, d.work.Ended = a.Started, time.Time{}
		f := fault.New(fault.WorkerLost, nil, "the worker ended during this attempt")
		err := s.failed(ctx, d, policy, key, &a, f)
		var again *retry.Again
		if errors.As(err, &again) {
			return a, nil
		}
		return a, err
	case completed.AttemptFailed:
		if err := s.sayFailed(ctx, d, key, a.Fact); err != nil {
			return a, err
		}
		if a.Dead {
			f, err := faultOf(a.Fact.Data)
			if err != nil {
				return a, err
			}
			d.work.Attempt = a.Number
			d.spent = a.Number
			return a, &exhausted{f}
		}
	}
	return a, nil
}

// operation is what a fault's case is about: the work's own, unless the fault
// names another.
func (d *delivery) operation(f *fault.Error) event.Operation {
	if f.Operation != "" {
		return event.Operation(f.Operation)
	}
	return d.key.Operation
}

func faultOf(data []byte) (*fault.Error, error) {
	var f event.AttemptFailed
	if err := json.Unmarshal(data, &f); err != nil {
		return nil, fmt.Errorf("stage: stored outcome: %w", err)
	}
	return &fault.Error{Code: fault.Code(f.Code), Message: f.Message, Detail: f.Detail, Operation: string(f.Operation), Declared: string(f.Declared)}, nil
}
