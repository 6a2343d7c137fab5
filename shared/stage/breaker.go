package stage

import (
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"strings"

	"colophon/shared/event"
	"colophon/shared/fault"
	"colophon/shared/retry"
)

// maxDependency bounds a dependency's name, bytes: it comes from outside, and
// becomes a label.
const maxDependency = 128

// depends names what a message's act leans on, "" for nothing.
func (s *Stage[In, Out]) depends(in In) string {
	w, ok := s.Worker.(Dependent[In])
	if !ok {
		return ""
	}
	return dependencyName(w.Depends(in))
}

func dependencyName(name string) string {
	name = strings.ToValidUTF8(name, "?")
	if len(name) > maxDependency {
		sum := sha256.Sum256([]byte(name))
		name = fmt.Sprintf("%s~%x", strings.ToValidUTF8(name[:maxDependency-33], ""), sum[:16])
	}
	return name
}

// admit lets an attempt begin: it takes a work slot and passes the dependency's
// breaker. While that is open it holds no slot, and its message is kept alive
// or parked. leave is to be called once, with what the attempt says.
func (s *Stage[In, Out]) admit(d *delivery, dependency string, p retry.Policy, alone bool) (leave func(retry.Outcome) retry.Change, err error) {
	for {
		if err := d.permit.hold(s.stop, alone); err != nil {
			return nil, err
		}
		if dependency == "" {
			s.lot.leave(d)
			return func(retry.Outcome) retry.Change { return retry.Unchanged }, nil
		}
		leave, wait := s.breakers.Try(dependency, p)
		if leave != nil {
			s.lot.leave(d)
			return leave, nil
		}
		d.permit.drop()
		if err := s.lot.enter(d, "dependency "+dependency, s.HoldEach); err != nil {
			return nil, err
		}
		if err := wait(s.stop); err != nil {
			return nil, err
		}
	}
}

// outcome is what the end of an attempt says of its dependency. Any fault that
// does not speak of it came from something that answered; a panic, a halt and
// a stop say nothing.
func outcome(ctx context.Context, err error) retry.Outcome {
	if err == nil {
		return retry.Answered
	}
	f := fault.Of(err)
	switch {
	case ctx.Err() != nil, f.Class() == fault.Environment, f.Code == panicked:
		return retry.Silent
	case f.Away():
		return retry.Away
	}
	return retry.Answered
}

// Heard counts what somebody else says of a dependency of this stage: a fault
// that the gateway of a device reported, or nil that it works again.
func (s *Stage[In, Out]) Heard(ctx context.Context, dependency string, err error) {
	dependency = dependencyName(dependency)
	if f := s.breakerMoved(dependency, s.breakers.Heard(dependency, outcome(ctx, err)), err); f != nil {
		f(ctx)
	}
}

// left counts an attempt's outcome and says what it changed.
func (s *Stage[In, Out]) left(d *delivery, dependency string, change retry.Change, err error) {
	if tell := s.breakerMoved(dependency, change, err, d.attrs("breaker")...); tell != nil {
		s.wg.Go(func() { tell(s.stop) })
	}
}

// breakerMoved logs a change and gives what tells the log of it.
func (s *Stage[In, Out]) breakerMoved(dependency string, change retry.Change, err error, attrs ...any) func(context.Context) {
	attrs = append(attrs, slog.String("consumer", s.Consumer), slog.String("dependency", dependency))
	detail := map[string]string{"dependency": dependency}
	switch change {
	case retry.HasOpened:
		f := fault.Of(err)
		s.Log.Error("breaker_opened", append(attrs, slog.String("code", string(f.Code)), slog.String("error", fault.Clean(f.Error())))...)
		return func(ctx context.Context) { s.tell(ctx, event.OpBreakerOpened, f, detail) }
	case retry.HasClosed:
		s.Log.Warn("breaker_closed", attrs...)
		return func(ctx context.Context) {
			s.tell(ctx, event.OpBreakerClosed, &fault.Error{Message: "the dependency works again"}, detail)
		}
	}
	return nil
}
