package ledger

import (
	"slices"
	"strings"

	"colophon/shared/event"

	"colophon/services/premis/internal/checkpoint"
	"colophon/services/premis/internal/mapping"
	"colophon/services/premis/internal/record"
)

// index sets the entries of one record. All of them follow from the record, so
// they can be made again from the records alone.
func (t *txn) index(r *record.Record, n int64) error {
	for _, d := range about(r) {
		t.list(digestKeys(d), n)
	}
	if r.Slot != nil {
		if err := t.indexSlot(r, n); err != nil {
			return err
		}
	}
	if r.Outcome == record.Warning && warnsOnce(r) {
		mark, _, _ := strings.Cut(r.Name, "@")
		t.over.warned[mark] = n
	}
	return nil
}

func (t *txn) list(prefix []byte, n int64) {
	t.over.lists[string(prefix)] = append(t.over.lists[string(prefix)], n)
}

// sighted notes where the log tells of a checkpoint: after a rollback it is
// told again, elsewhere.
func (t *txn) sighted(f event.OpFact, e Entry) error {
	if f.Kind != event.OpCheckpoint {
		return nil
	}
	r, found, err := t.state.byName(f.MsgID())
	if err != nil || !found || r.Data.Checkpoint == nil {
		return err
	}
	if tree, err := checkpoint.Unverified([]byte(r.Data.Checkpoint.Note)); err == nil {
		t.over.signed[tree.Size] = sighting{r.Number, Position{e.Sequence, e.Stored.UTC(), e.MsgID}}
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
	t.list(batchKeys(r.Slot.Batch), n)
	t.list(frameKeys(r.Slot.Batch, r.Slot.Frame), n)
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
		t.indexDiscard(r, n)
	}
	return nil
}

// indexFrame keeps what is held of a slot, and its place in the batch.
func (t *txn) indexFrame(r *record.Record) error {
	s, err := t.state.slot(r.Slot.Batch, r.Slot.Frame)
	if err != nil {
		return err
	}
	if !s.known {
		s.known, s.dirty = true, true
	}
	if r.Slot.Sequence > 0 && r.Slot.Sequence != s.now.Sequence {
		s.now.Sequence, s.dirty = r.Slot.Sequence, true
	}
	if !update(&s.now, r) {
		return nil
	}
	s.dirty = true
	return t.require(s.now.Of(r.Digest))
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
	r, err := t.state.required(c.Digest)
	if err != nil {
		return err
	}
	wanted := c.Wanted()
	for _, s := range r.sets {
		if slices.Equal(s, wanted) {
			return nil
		}
	}
	r.sets, r.dirty = append(slices.Clip(r.sets), wanted), true
	return nil
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
	data, err := t.state.chain(key)
	if err != nil {
		return err
	}
	if data, err = appendLink(data, a.Pass, a.Number, t.state.space.Event(r.Name)); err != nil {
		return err
	}
	t.over.chains[string(key)] = data
	return nil
}

func (t *txn) indexDiscard(r *record.Record, n int64) {
	if c := r.Data.Closing; c != nil && c.Decision == record.DecisionDiscard {
		t.over.discards[string(discardKey(r.Slot.Batch, r.Slot.Frame, c.Operation))] = n
	}
}
