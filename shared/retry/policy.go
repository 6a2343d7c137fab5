// Package retry is the retry policy as data, and its failsafe-go executors.
package retry

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"colophon/shared/event"
	"colophon/shared/fault"
)

// Policy says how transient faults are retried. It is pinned when a batch is
// declared and travels with every message of it.
type Policy struct {
	MaxAttempts             int          `json:"max_attempts"`
	InitialDelay            Duration     `json:"initial_delay"`
	MaxDelay                Duration     `json:"max_delay"`
	ExpBase                 float64      `json:"exp_base"`
	Jitter                  bool         `json:"jitter"`
	CircuitFailureThreshold int          `json:"circuit_failure_threshold"`
	CircuitCooldown         Duration     `json:"circuit_cooldown"`
	Retryable               []fault.Code `json:"retryable"`
	// Rescan: an image fault of a batch with devices asks for a rescan by
	// itself. True unless said otherwise, and left out of the canonical form
	// then, so that the digests of policies from before it was a field stand.
	Rescan *bool `json:"rescan,omitempty"`
}

// Rescans reports whether image faults ask for a rescan by themselves.
func (p Policy) Rescans() bool { return p.Rescan == nil || *p.Rescan }

// Duration is a [time.Duration] that JSON spells "1m30s".
type Duration = event.Duration

// Default is the installation's policy where a batch brings none.
func Default() Policy {
	return Policy{
		MaxAttempts: 4, InitialDelay: Duration(time.Second), MaxDelay: Duration(time.Minute), ExpBase: 2, Jitter: true,
		CircuitFailureThreshold: 5, CircuitCooldown: Duration(30 * time.Second), Retryable: fault.TransientCodes(),
	}
}

// Validate reports every fault at once.
func (p Policy) Validate() error {
	var errs []error
	bad := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	bad(p.MaxAttempts >= 1 && p.MaxAttempts <= 10, "/max_attempts: %d is not within 1 to 10", p.MaxAttempts)
	bad(p.InitialDelay > 0, "/initial_delay: %v is not above zero", time.Duration(p.InitialDelay))
	bad(p.MaxDelay >= p.InitialDelay, "/max_delay: %v is below initial_delay %v", time.Duration(p.MaxDelay), time.Duration(p.InitialDelay))
	bad(p.ExpBase > 1 && !math.IsInf(p.ExpBase, 0), "/exp_base: %v is not above 1", p.ExpBase)
	bad(p.CircuitFailureThreshold >= 1, "/circuit_failure_threshold: %d is below 1", p.CircuitFailureThreshold)
	bad(p.CircuitCooldown > 0, "/circuit_cooldown: %v is not above zero", time.Duration(p.CircuitCooldown))
	for i, c := range p.Retryable {
		bad(slices.Contains(fault.TransientCodes(), c), "/retryable/%d: %q is not a transient code", i, c)
	}
	return errors.Join(errs...)
}

// Parse reads a policy: fields left out have their default, unknown fields are
// refused, and every fault is reported at once. Empty data is the default.
func Parse(data []byte) (Policy, error) {
	p := Default()
	if len(bytes.TrimSpace(data)) == 0 {
		return p, nil
	}
	var one json.RawMessage
	if err := event.Unmarshal(data, &one); err != nil { // one value, no key twice
		return Policy{}, fmt.Errorf("retry: policy: %w", err)
	}
	d := json.NewDecoder(bytes.NewReader(one))
	d.DisallowUnknownFields()
	if err := d.Decode(&p); err != nil {
		return Policy{}, fmt.Errorf("retry: policy: %w", err)
	}
	if err := p.Validate(); err != nil {
		return Policy{}, fmt.Errorf("retry: policy: %w", err)
	}
	return p, nil
}

// Canonical gives the policy's one spelling and the SHA-256 of it, in hex:
// fields in declared order, codes sorted, worker-lost always among them.
func (p Policy) Canonical() ([]byte, string) {
	p.Retryable = slices.Clone(p.Retryable)
	if !slices.Contains(p.Retryable, fault.WorkerLost) {
		p.Retryable = append(p.Retryable, fault.WorkerLost)
	}
	slices.Sort(p.Retryable)
	p.Retryable = slices.Compact(p.Retryable)
	if p.Rescans() {
		p.Rescan = nil
	}
	data, err := json.Marshal(p)
	if err != nil { // plain data cannot fail
		panic(fmt.Sprintf("retry: %v", err))
	}
	sum := sha256.Sum256(data)
	return data, hex.EncodeToString(sum[:])
}

// Retries reports whether a failed attempt may be followed by another: its
// class and code allow it and the number is below the limit.
func (p Policy) Retries(f *fault.Error, attempt int) bool {
	if attempt >= p.MaxAttempts {
		return false
	}
	return f.Code == fault.WorkerLost || f.Class() == fault.Transient && slices.Contains(p.Retryable, f.Code)
}

// Delay is the wait before attempt n+1:
//
//	min(max_delay, initial · base^(n−1)) + U(0, initial)
//
// The random term is there with jitter on; random gives a number in [0, 1).
func (p Policy) Delay(n int, random func() float64) time.Duration {
	return p.DelayAtLeast(n, 0, random)
}

// DelayAtLeast is [Policy.Delay] where the other side asked for a wait of its
// own: it is never shorter than that, and spread like any other, since many may
// have been told the same moment.
func (p Policy) DelayAtLeast(n int, least time.Duration, random func() float64) time.Duration {
	d := math.Min(float64(p.MaxDelay), float64(p.InitialDelay)*math.Pow(p.ExpBase, float64(n-1)))
	d = math.Max(d, float64(least))
	if p.Jitter {
		d += random() * float64(p.InitialDelay)
	}
	return time.Duration(d)
}
