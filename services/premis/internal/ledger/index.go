package ledger

import (
	"encoding/binary"
	"encoding/json"
	"slices"
	"strings"

	"colophon/shared/event"

	"colophon/services/premis/internal/mapping"
	"colophon/services/premis/internal/record"
)

// index sets the entries of one record. All of them follow from the record, so
// they can be made again from the records alone.
func (t *txn) index(r *record.Record, n int64) error {
	for _, d := range about(r) {
		if err := t.batch.Set(numbered(digestKeys(d), uint64(n)), nil, nil); err != nil {
			return err
		}
	}
	if r.Slot != nil {
		if err := t.indexSlot(r, n); err != nil {
			return err
		}
	}
	if r.Outcome == record.Warning && warnsOnce(r) {
		mark, _, _ := strings.Cut(r.Name, "@")
		return t.batch.Set(warnedKey(mark), binary.BigEndian.AppendUint64(nil, uint64(n)), nil)
	}
	return nil
}

// about lists the digests a record is found under.
func about(r *record.Record) []event.Digest {
	out := r.Files()
	if r.Digest != "" && !slices.Contains(out, r.Digest) {
		out = append(out, r.Digest)
	}
	return out
}

func warnsOnce(r *record.Record) bool {
	return r.Type == record.FormatIdentification.Label || r.Type == record.Validation.Label
}

func (t *txn) indexSlot(r *record.Record, n int64) error {
	if err := t.batch.Set(numbered(batchKeys(r.Slot.Batch), uint64(n)), nil, nil); err != nil {
		return err
	}
	if err := t.batch.Set(numbered(frameKeys(r.Slot.Batch, r.Slot.Frame), uint64(n)), nil, nil); err != nil {
		return err
	}
	if r.Slot.Frame == "" {
		return nil
	}
	if err := t.indexFrame(r); err != nil {
		return err
	}
	switch r.Type {
	case record.Retry.Label:
		return t.indexAttempt(r)
	case record.Appraisal.Label:
		return t.indexDiscard(r, n)
	}
	return nil
}

// indexFrame keeps what is held of a slot, and its place in the batch.
func (t *txn) indexFrame(r *record.Record) error {
	b, f := r.Slot.Batch, r.Slot.Frame
	was, err := t.state.Slot(b, f)
	if err != nil {
		return err
	}
	now := mapping.Frame{Sequence: r.Slot.Sequence}
	if was != nil {
		now = *was
		if r.Slot.Sequence > 0 {
			now.Sequence = r.Slot.Sequence
		}
	}
	if was == nil || now.Sequence != was.Sequence {
		if err := t.reorder(b, f, was, now.Sequence); err != nil {
			return err
		}
	}
	changed := update(&now, r)
	if changed {
		if err := t.require(now.Of(r.Digest)); err != nil {
			return err
		}
	}
	if !changed && was != nil && now.Sequence == was.Sequence {
		return nil
	}
	data, err := json.Marshal(now)
	if err != nil {
		return err
	}
	return t.batch.Set(slotKey(b, f), data, nil)
}

func (t *txn) reorder(b, f string, was *mapping.Frame, sequence int) error {
	if was != nil {
		if err := t.batch.Delete(orderKey(b, was.Sequence, f), nil); err != nil {
			return err
		}
	}
	return t.batch.Set(orderKey(b, sequence, f), nil, nil)
}

// update applies a record to what is held of its slot; false: no change.
func update(f *mapping.Frame, r *record.Record) bool {
	c := f.Of(r.Digest)
	switch {
	case r.Type == record.Accession.Label && r.Data.Accession != nil:
		if rev := max(r.Slot.Revision, 1); rev >= f.Revision {
			f.Revision, f.Digest = rev, r.Digest
		}
		if !c.Held {
			c.Held, c.Profiles = true, r.Data.Accession.Profiles
		}
	case r.Type == record.Appraisal.Label && r.Data.Closing != nil && r.Data.Closing.Decision == record.DecisionDiscard:
		profile, derived := r.Data.Closing.Operation.Profile()
		if !derived || slices.Contains(c.Waived, profile) {
			return false
		}
		c.Waived = append(slices.Clone(c.Waived), profile)
	default:
		return false
	}
	f.Contents = slices.DeleteFunc(slices.Clone(f.Contents), func(o mapping.Content) bool { return o.Digest == c.Digest })
	f.Contents = append(f.Contents, c)
	return true
}

// require adds what a slot wants of a content to the sets that are enough.
func (t *txn) require(c mapping.Content) error {
	if !c.Held {
		return nil
	}
	sets, err := t.state.Required(c.Digest)
	if err != nil {
		return err
	}
	wanted := c.Wanted()
	for _, s := range sets {
		if slices.Equal(s, wanted) {
			return nil
		}
	}
	data, err := json.Marshal(append(sets, wanted))
	if err != nil {
		return err
	}
	return t.batch.Set(requiredKey(c.Digest), data, nil)
}

func (t *txn) indexAttempt(r *record.Record) error {
	a := r.Data.Attempt
	if a == nil || r.Data.Resolution != nil && r.Data.Resolution.Late {
		return nil
	}
	s, err := r.Slot.Event()
	if err != nil {
		return err
	}
	key := chainKey(a.Operation, s)
	data, _, err := t.state.get(key)
	if err != nil {
		return err
	}
	if data, err = appendLink(data, a.Pass, a.Number, t.state.space.Event(r.Name)); err != nil {
		return err
	}
	return t.batch.Set(key, data, nil)
}

func (t *txn) indexDiscard(r *record.Record, n int64) error {
	c := r.Data.Closing
	if c == nil || c.Decision != record.DecisionDiscard {
		return nil
	}
	return t.batch.Set(discardKey(r.Slot.Batch, r.Slot.Frame, c.Operation), binary.BigEndian.AppendUint64(nil, uint64(n)), nil)
}
