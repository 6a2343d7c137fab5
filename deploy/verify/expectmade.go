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
	return x.ingested(f.Digest, f.Slot, f.Profiles)
}

// ingested: every required operation of a digest is done, as far as the slot
// that asks requires them.
func (x *expecter) ingested(d event.Digest, s event.Slot, profiles []string) error {
	if fixed, err := x.has(eventName(tDigest, "", d)); err != nil || !fixed {
		return err
	}
	h, err := x.held(s)
	if err != nil {
		return err
	}
	for _, p := range profiles {
		made, err := x.has(eventName(tMigration, string(event.Derivative(p)), d))
		if err != nil {
			return err
		}
		if !made && (h.Digest != d || !slices.Contains(h.Waived, p)) {
			return nil
		}
	}
	return x.add(eventName(tIngestion, "", d), succeeded)
}
