package cases

import (
	"time"

	"colophon/shared/event"
	"colophon/shared/retry"
)

// Batch is what the log says of a batch, as far as cases need it.
type Batch struct {
	At      time.Time `json:"at"` // stored time of its last fact
	Devices bool      `json:"devices,omitempty"`
	// Rescans is the highest pass whose image fault still asks for a rescan by
	// itself; 0 where the policy does not.
	Rescans int `json:"rescans,omitempty"`
}

// Batch gives the zero value for a batch that is not declared.
func (s *Store) Batch(b event.Name) (Batch, error) {
	var d Batch
	_, err := getJSON(s.db, prefixDeclared+b.Encode(), &d)
	return d, err
}

// declare takes a batch's fact over. A page is scanned again by itself as
// often as an attempt would be made again: a device that damages every image
// is not left to it for ever. A policy that this build cannot read asks for
// nothing.
func (b *Batch) declare(f event.BatchFact, at time.Time) {
	b.At = at
	if f.State == "converged" {
		return
	}
	b.Devices, b.Rescans = len(f.Devices) > 0, 0
	if p, err := retry.Parse(f.Policy); err == nil && p.Rescans() {
		b.Rescans = max(p.MaxAttempts-1, 1)
	}
}
