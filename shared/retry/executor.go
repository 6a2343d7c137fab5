package retry

import (
	"context"
	"errors"
	"time"

	"github.com/failsafe-go/failsafe-go"
	"github.com/failsafe-go/failsafe-go/retrypolicy"
)

// Again is returned by an operation that has decided that it will be tried
// again after a delay it has already written down.
type Again struct {
	After time.Duration
	Cause error
}

// Error implements error.
func (a *Again) Error() string { return "again after " + a.After.String() + ": " + a.Cause.Error() }

// Unwrap gives the cause.
func (a *Again) Unwrap() error { return a.Cause }

// Run executes op until it returns nil or an error that is not [*Again]. The
// delay between two tries is the one that Again carries, so that what was
// stored and published about the next attempt is what happens; waiting ends
// at once with ctx. The number of tries is the operation's to bound: numbers
// of attempts outlive a process.
func Run(ctx context.Context, op func(context.Context) error) error {
	policy := retrypolicy.NewBuilder[any]().
		HandleIf(func(_ any, err error) bool {
			var again *Again
			return errors.As(err, &again)
		}).
		WithMaxAttempts(-1).
		ReturnLastFailure().
		WithDelayFunc(func(e failsafe.ExecutionAttempt[any]) time.Duration {
			var again *Again
			if errors.As(e.LastError(), &again) {
				return max(again.After, 0)
			}
			return 0
		}).Build()
	return failsafe.With[any](policy).WithContext(ctx).RunWithExecution(func(e failsafe.Execution[any]) error {
		return op(e.Context())
	})
}

// Steady retries op without end while it fails, with short growing delays:
// for calls on the broker, whose absence spends no attempts. It returns only
// nil or ctx's error. onRetry hears of each failure before the wait.
func Steady(ctx context.Context, op func(context.Context) error, onRetry func(error, time.Duration)) error {
	policy := retrypolicy.NewBuilder[any]().
		HandleIf(func(_ any, err error) bool { return err != nil && ctx.Err() == nil }).
		WithMaxAttempts(-1).
		ReturnLastFailure().
		WithBackoff(50*time.Millisecond, 2*time.Second).
		OnRetryScheduled(func(e failsafe.ExecutionScheduledEvent[any]) { onRetry(e.LastError(), e.Delay) }).
		Build()
	err := failsafe.With[any](policy).WithContext(ctx).RunWithExecution(func(e failsafe.Execution[any]) error {
		return op(e.Context())
	})
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}
