package export

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"

	"colophon/shared/event"

	"colophon/services/premis/internal/record"
)

// Step is one record of a batch's story, in words.
type Step struct {
	Number    int64      `json:"number"` // of the record
	Time      time.Time  `json:"time"`   // of the event
	Type      string     `json:"type"`
	Frame     event.Name `json:"frame,omitempty"`
	Operation string     `json:"operation,omitempty"`
	Pass      int        `json:"pass,omitempty"`
	Attempt   int        `json:"attempt,omitempty"`
	Happened  string     `json:"happened"`
	Decided   string     `json:"decided,omitempty"` // where there was something to decide
	Policy    string     `json:"policy,omitempty"`  // SHA-256 of the policy that decided it
}

// Story gives a batch's records in ledger order: what happened, and the reaction
// to each failure, step by step.
func (x *Exporter) Story(ctx context.Context, b event.Name) iter.Seq2[Step, error] {
	return func(yield func(Step, error) bool) {
		policy, err := x.policy(b)
		if err != nil {
			yield(Step{}, err)
			return
		}
		any := false
		for n, err := range x.view.ByBatch(b) {
			var s Step
			if err = errors.Join(err, ctx.Err()); err == nil {
				any = true
				s, err = x.step(n, policy)
			}
			if !yield(s, err) || err != nil {
				return
			}
		}
		if !any {
			yield(Step{}, fmt.Errorf("export: batch %s: %w", b.Encode(), ErrNothing))
		}
	}
}

// policy is the digest of the policy that a batch has pinned; empty where the
// ledger has not seen its declaration.
func (x *Exporter) policy(b event.Name) (string, error) {
	r, found, err := x.view.ByName(record.Name(record.PolicyAssignment, "", "") + record.At(event.Slot{Batch: b}))
	if err != nil || !found || r.Data.Policy == nil {
		return "", err
	}
	return string(r.Data.Policy.SHA256), nil
}

func (x *Exporter) step(n int64, policy string) (Step, error) {
	r, err := x.view.Get(n)
	if err != nil {
		return Step{}, err
	}
	s := Step{Number: n, Time: r.Time, Type: r.Type, Happened: strings.TrimSpace(r.Detail + " " + r.Note)}
	if r.Slot != nil {
		slot, err := r.Slot.Event()
		if err != nil {
			return s, err
		}
		s.Frame = slot.Frame
	}
	d := r.Data
	switch {
	case d.Attempt != nil:
		s.Operation, s.Pass, s.Attempt = string(d.Attempt.Operation), d.Attempt.Pass, d.Attempt.Number
	case d.Closing != nil:
		s.Operation, s.Pass = string(d.Closing.Operation), d.Closing.Pass
	case d.Case != nil:
		s.Operation, s.Pass = string(d.Case.Operation), d.Case.Pass
	case d.Derivation != nil:
		s.Operation = string(event.Derivative(d.Derivation.Profile))
	}
	switch {
	case d.Resolution != nil && d.Resolution.Status == record.StatusPending:
		s.Decided, s.Policy = "try again", policy
		if t := d.Resolution.NotBefore; !t.IsZero() {
			s.Decided += ", not before " + t.UTC().Format(time.RFC3339)
		}
	case d.Resolution != nil && d.Resolution.Status == record.StatusQuarantined:
		s.Decided, s.Policy = "give up: to quarantine", policy
	case d.Closing != nil:
		s.Decided = closed(d.Closing)
	}
	return s, nil
}

// closed is a person's decision in words.
func closed(c *record.Closing) string {
	out := c.Decision
	if c.Actor != "" {
		out += " by " + c.Actor
	}
	if c.Note != "" {
		out += ": " + c.Note
	}
	return out
}
