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
	a, err := s.Completed.Attempt(key)
	if err != nil {
		return out, err
	}
	if a, err = s.resume(ctx, d, policy, key, a); err != nil {
		return out, err
	}
	first, done := true, false
	err = retry.Run(s.stop, func(context.Context) error { // the wait ends with a stop, the work has its grace
		if wait := time.Until(a.NotBefore); first && wait > 0 {
			first = false
			d.permit.drop()
			return &retry.Again{After: wait, Cause: errors.New("the delay that was stored")}
		}
		if err := d.permit.hold(s.stop, a.Suspect); err != nil {
			return err
		}
		switch a.State {
		case completed.AttemptReleased: // its number is used again
		case completed.AttemptDone: // done before, and not believed: the budget is new, the number is not
			a.Number, a.Counted, a.Suspect = a.Number+1, 1, false
		default:
			a.Number, a.Counted = a.Number+1, a.Counted+1
		}
		a = completed.Attempt{Number: a.Number, Counted: a.Counted, State: completed.AttemptBegun, Suspect: a.Suspect, Alone: d.permit.alone(), Started: time.Now().UTC()}
		if err := s.Completed.SetAttempt(key, a); err != nil {
			return err
		}
		d.work.Attempt, d.work.Limit, d.work.Started = a.Number, policy.MaxAttempts+a.Number-a.Counted, a.Started
		s.Log.Info("idempotent_execute", d.attrs("execute")...)
		o, err := s.act(ctx, in, d)
		d.work.Ended = time.Now().UTC()
		if err == nil {
			out, done = o, true
			return nil
		}
		if ctx.Err() != nil { // a stop: the number is used again
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

// act runs the work and contains its panics: a decoder that panics has failed
// an attempt, no more.
func (s *Stage[In, Out]) act(ctx context.Context, in In, d *delivery) (out Out, err error) {
	defer func() {
		if p := recover(); p != nil {
			s.Log.Error("panic_contained", append(d.attrs("execute"), slog.Any("panic", p), slog.String("stack", string(debug.Stack())))...)
			err = fault.New("panic", nil, "the program failed: %v", p)
		}
	}()
	return s.Worker.Act(ctx, in, d.work)
}

// halt closes the gate and waits, without a work slot, until the surroundings
// are well again; the attempt's number is used again.
func (s *Stage[In, Out]) halt(ctx context.Context, d *delivery, key string, a *completed.Attempt, f *fault.Error) error {
	a.State = completed.AttemptReleased
	if err := s.Completed.SetAttempt(key, *a); err != nil {
		return err
	}
	s.Log.Error("idempotent_failed", append(d.attrs("halt"), slog.String("code", string(f.Code)), slog.Any("error", f))...)
	s.close(f)
	d.permit.drop()
	s.tellReleased(s.stop, d, f)
	if err := s.gate.wait(s.stop); err != nil {
		return err
	}
	return &retry.Again{Cause: f}
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
	s.tellReleased(moment, d, fault.New("stopped", nil, "the worker was stopped during this attempt"))
	return nil
}

func (s *Stage[In, Out]) tellReleased(ctx context.Context, d *delivery, f *fault.Error) {
	s.tell(ctx, event.OpReleased, f, map[string]string{
		"key": d.key.String(), "slot": d.work.Slot.String(), "pass": strconv.Itoa(d.work.Pass), "attempt": strconv.Itoa(d.work.Attempt),
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
	if err != nil {
		return err
	}
	if a.Number == 0 { // it never came to a try: numbers begin at 1 all the same
		a.Number, a.Counted, a.Started = 1, 1, d.work.Started
		d.work.Attempt, d.work.Limit = 1, 1
	}
	return s.failed(ctx, d, retry.Policy{}, key, &a, f)
}

// failed stores the outcome, then says it, then decides: another attempt
// after the policy's delay, or the end of this pass.
func (s *Stage[In, Out]) failed(ctx context.Context, d *delivery, policy retry.Policy, key string, a *completed.Attempt, f *fault.Error) error {
	again := policy.Retries(f, a.Counted)
	var delay time.Duration
	decision := event.DecisionDeadLetter
	if again {
		delay = policy.Delay(a.Number, rand.Float64)
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
	if d.work.Frame == "" { // a batch is no slot: its faults are cases, not attempts in the log
		stored.ID = ""
	}
	a.State, a.Dead, a.Fact = completed.AttemptFailed, !again, stored
	if a.Dead {
		a.Origin = d.origin
	}
	if err := s.Completed.SetAttempt(key, *a); err != nil {
		return err
	}
	s.Log.Warn("idempotent_failed", append(d.attrs(decision), slog.String("code", string(f.Code)), slog.String("error", fault.Clean(f.Error())), slog.Duration("delay", delay))...)
	if err := s.sayFailed(ctx, stored); err != nil {
		return err
	}
	s.Metrics.attemptFailed(s.Consumer, string(f.Code), decision)
	if !again {
		d.spent = a.Number
		return &exhausted{f}
	}
	d.permit.drop()
	return &retry.Again{After: delay, Cause: f}
}

func (s *Stage[In, Out]) sayFailed(ctx context.Context, stored completed.Fact) error {
	if stored.ID == "" {
		return nil
	}
	return s.publish(ctx, stored)
}

// resume takes up what an earlier delivery left: an attempt without an outcome
// is reported lost; an outcome that may not have been said is said again.
func (s *Stage[In, Out]) resume(ctx context.Context, d *delivery, policy retry.Policy, key string, a completed.Attempt) (completed.Attempt, error) {
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
		if err := s.sayFailed(ctx, a.Fact); err != nil {
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
