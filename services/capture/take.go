package capture

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"colophon/shared/event"
	"colophon/shared/fault"
	"colophon/shared/storage"
)

// Act reads the first source that gives the slot's bytes, once, into staging.
func (f *frames) Act(ctx context.Context, in *frameIn, w event.Work) (taken, error) {
	var first *fault.Error
	for _, source := range in.Sources {
		out, err := f.take(ctx, in, w, source)
		if err == nil {
			return out, nil
		}
		if ctx.Err() != nil {
			return taken{}, ctx.Err()
		}
		e := fault.Of(err)
		if e.Class() == fault.Environment || e.Operation != "" {
			return taken{}, err
		}
		// The first source is the one that was meant; but one that may do better
		// later is worth another attempt.
		if first == nil || first.Class() != fault.Transient && e.Class() == fault.Transient {
			first = e
		}
	}
	return taken{}, first
}

func (f *frames) take(ctx context.Context, in *frameIn, w event.Work, source string) (taken, error) {
	src, err := f.inputs.open(ctx, source, vouched(in))
	if err != nil {
		return taken{}, err
	}
	defer src.Close() //nolint:errcheck // only read
	before, alone := src.Look()
	if err := fit(in, before, alone); err != nil {
		return taken{}, err
	}
	last, err := f.last(in.Slot)
	if err != nil {
		return taken{}, err
	}
	s, err := f.stage(ctx, in, src, before.Size, last)
	if err != nil {
		return taken{}, err
	}
	if err := whole(ctx, in, src, before, s); err != nil {
		return taken{}, errors.Join(err, f.drop(s))
	}
	if err := f.changed(ctx, in, last, s.digest); err != nil {
		return taken{}, err
	}
	if err := f.spare(last, s); err != nil {
		return taken{}, err
	}
	pass, err := f.pass(in.Slot, s, w.Pass)
	if err != nil {
		return taken{}, err
	}
	return taken{Digest: s.digest, Revision: s.revision, Pass: pass, Captured: event.Captured{
		Source: source, Stat: known(before), Size: s.Size, Staging: s.Key, Declared: in.SHA256, DeclaredBy: in.DeclaredBy,
		Replaces: replaced(last, s.digest), Gateway: in.Gateway, Device: in.Device, Operator: in.Operator, ScannedAt: in.ScannedAt, TakenAt: time.Now().UTC(), Acquisition: in.Acquisition,
	}}, nil
}

// known leaves out a look that tells nothing.
func known(st event.SourceStat) *event.SourceStat {
	if st.Size < 0 || st.ModTime.IsZero() {
		return nil
	}
	return &st
}

// fit compares a look at the source with what the message says of it. alone is
// how long the source was left alone; a time that lies ahead tells nothing.
func fit(in *frameIn, st event.SourceStat, alone time.Duration) error {
	switch err := sized(in, st.Size); {
	case st.Size >= 0 && err != nil:
		return err
	case !vouched(in) && alone >= 0 && alone < settleTime:
		f := unsettled()
		f.After = settleTime - alone
		return f
	}
	return nil
}

// sized compares the number of a source's bytes with the declared one.
func sized(in *frameIn, n int64) error {
	switch {
	case in.Size != nil && n < *in.Size:
		return fault.New(fault.SourceUnsettled, nil, "the source has %d bytes of the %d that were declared", n, *in.Size)
	case in.Size != nil && n > *in.Size:
		return fault.New(fault.SizeMismatch, nil, "the source has %d bytes, %d were declared", n, *in.Size)
	case n == 0:
		return fault.New(fault.Empty, nil, "the source has no bytes")
	}
	return nil
}

// whole tells whether what was staged is all of the source, as it was opened.
func whole(ctx context.Context, in *frameIn, src input, before event.SourceStat, s staged) error {
	if before.Size < 0 {
		if err := sized(in, s.Size); err != nil {
			return err
		}
	} else if s.Size != before.Size {
		return unsettled()
	}
	if !src.Same(ctx) {
		return unsettled()
	}
	return nil
}

// staged is a source's bytes in staging.
type staged struct {
	storage.Written
	digest   event.Digest
	revision int
}

// stage stores the bytes, under the revision that they are. Staged bytes under
// that name which lost their digest were damaged there: they make way.
func (f *frames) stage(ctx context.Context, in *frameIn, src input, size int64, last taken) (staged, error) {
	var s staged
	slot, limit := in.Slot, max(size, 0) // a source that does not say its size bounds itself
	if size < 0 && in.Size != nil {
		limit = *in.Size
	}
	var conflict *storage.ConflictError
	for healed := false; ; healed = true {
		var err error
		s.Written, err = f.store.WriteNamed(ctx, storage.StagingFolder(string(slot.Batch)), src, func(d storage.Digest) string {
			s.digest, s.revision = event.Digest(d), last.Revision
			if last.Digest != s.digest {
				s.revision++
			}
			return storage.StagingName(string(slot.Frame), s.revision, d)
		}, storage.Options{MaxBytes: limit})
		var tooLarge *storage.TooLargeError
		switch {
		case errors.As(err, &tooLarge) && size < 0:
			return s, fault.New(fault.SizeMismatch, nil, "the source has more than the %d bytes that were declared", limit)
		case errors.As(err, &tooLarge):
			return s, unsettled()
		case !errors.As(err, &conflict) || healed:
			return s, err
		}
		if err := f.store.Remove(conflict.Key); err != nil {
			return s, err
		}
		if err := src.Rewind(ctx); err != nil {
			return s, err
		}
	}
}

// pass gives the pass to tell the bytes under. A slot that comes back to bytes
// it had before begins another one: their first fact has the name of this one,
// and the broker would drop it as told already.
func (f *frames) pass(slot event.Slot, s staged, pass int) (int, error) {
	var before taken
	data, had, err := f.set.Result(event.CaptureKey(s.digest, slot).String())
	if err != nil || !had {
		return pass, err
	}
	if err := json.Unmarshal(data, &before); err != nil {
		return 0, err
	}
	if before.Revision == s.revision {
		return pass, nil
	}
	return max(pass, before.Pass+1), nil
}

func unsettled() *fault.Error {
	return fault.New(fault.SourceUnsettled, nil, "the source was still being written")
}

func replaced(last taken, d event.Digest) event.Digest {
	if last.Digest == d {
		return last.Replaces
	}
	return last.Digest
}

// drop removes staged bytes that this attempt itself made.
func (f *frames) drop(s staged) error {
	if s.Existed {
		return nil
	}
	return f.store.Remove(s.Key)
}

// spare drops bytes that came in once more though they are a master already:
// where the broker drops the fact as told before, nobody would remove them.
func (f *frames) spare(last taken, s staged) error {
	if last.Digest != s.digest {
		return nil
	}
	fixed, err := f.store.Exists(storage.MasterKey(storage.Digest(s.digest)))
	if err != nil || !fixed {
		return err
	}
	return f.drop(s)
}

// changed refuses other bytes for a slot that is done, unless the message says
// which content it may supersede, or answers a dispatch that says so. The bytes stay in staging while the case is
// open.
func (f *frames) changed(ctx context.Context, in *frameIn, last taken, d event.Digest) error {
	if last.Digest == "" || last.Digest == d || in.Replaces == last.Digest {
		return nil
	}
	if asked, err := f.view.answers(&in.FrameMessage, last.Digest); err != nil || asked {
		return err
	}
	// The view may not have read yet that the slot is done.
	if err := f.view.abreast(ctx, f.js); err != nil {
		return err
	}
	p, known, err := f.view.slot(in.Slot)
	if err != nil {
		return err
	}
	if !known || p.Fixed == nil || !done(p, in.batch.Profiles) {
		return nil // an unfinished slot takes other bytes as its next revision
	}
	e := fault.New(fault.SourceChanged, nil, "the slot is done with %s; its source now has %s", p.Pinned, d)
	e.Operation, e.Declared = string(event.SourceChanged), string(d)
	return e
}

// done: a profile that was added to the batch later, of which the slot has heard
// nothing yet, does not make it unfinished again.
func done(p event.Progress, profiles []string) bool {
	p.Changed = 0
	begun := slices.DeleteFunc(slices.Clone(profiles), func(name string) bool { return p.Ops[event.Derivative(name)] == nil })
	return p.State(profiles) == event.StateDone || len(begun) > 0 && p.State(begun) == event.StateDone
}
