package verify

import (
	"slices"

	"colophon/shared/event"
)

// derived: the image check, the migration, and the digests of what was made.
func (x *expecter) derived(f event.DerivativeMade) error {
	v := f.Derived
	op := event.Derivative(v.Profile)
	if err := x.completion(op, f.Work); err != nil {
		return err
	}
	name := eventName(tValidation, v.Profile, f.Digest)
	var err error
	if len(v.Findings) == 0 {
		err = x.add(name, succeeded)
	} else {
		err = x.warn(name, at(f.Slot)+pass(f.Pass), material{Outcome: warning})
	}
	if err != nil {
		return err
	}
	m := material{Outcome: success, Digest: set(v.Outputs)}
	for _, o := range v.Outputs {
		m.Outputs, m.Sizes = append(m.Outputs, o.Digest), append(m.Sizes, o.Size)
	}
	if err := x.add(eventName(tMigration, string(op), f.Digest), m); err != nil {
		return err
	}
	var seen []event.Digest
	for _, o := range v.Outputs {
		if slices.Contains(seen, o.Digest) {
			continue
		}
		seen = append(seen, o.Digest)
		if err := x.add(eventName(tDigest, "", o.Digest), material{Outcome: success, Digest: o.Digest, Size: o.Size}); err != nil {
			return err
		}
	}
	var sets [][]string
	if _, err := x.mem.getJSON(memEnough, string(f.Digest), &sets); err != nil {
		return err
	}
	return x.ingested(f.Digest, sets...)
}
