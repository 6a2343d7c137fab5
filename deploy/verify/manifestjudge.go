package verify

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"colophon/shared/event"
)

// judgeManifest judges the manifest by itself, and at rest against the log.
func (b *batch) judgeManifest(ctx context.Context) error {
	key := b.manifestKey()
	info, err := b.root.Lstat(key)
	if errors.Is(err, fs.ErrNotExist) {
		if b.rests() {
			b.out.drift("manifest-missing", key, "the batch is converged, and has no manifest")
		}
		return nil
	}
	if err != nil || !info.Mode().IsRegular() {
		b.out.damage("manifest-unreadable", key, "%v", err)
		return nil
	}
	h, ok := b.readManifest(key, "")
	if !ok {
		return nil
	}
	switch {
	case h.Batch != b.name:
		b.out.damage("manifest-head", key, "it is of batch %s", h.Batch.Display())
	case b.meanwhile(info): // newer than the log as it was read
	case !b.rests():
	case h.State != "converged" || h.Convergence < b.Convergence:
		b.out.drift("manifest-stale", key, "it says %s, convergence %d; the log says converged, number %d", h.State, h.Convergence, b.Convergence)
	default:
		return b.compareManifest(ctx, key, h)
	}
	return nil
}

// readManifest reads the manifest once and judges what it says by itself;
// where names the copy, in a bag.
func (b *batch) readManifest(key, where string) (h manifestHead, ok bool) {
	f, err := b.root.Open(key)
	if err != nil {
		b.out.damage("manifest-unreadable", key, "%v", err)
		return h, false
	}
	defer f.Close() //nolint:errcheck // only read from
	var counted event.Totals
	h, err = readManifest(f, func(f manifestFrame) error {
		counted.Count(f.State, 1)
		return nil
	})
	if err != nil {
		b.out.damage("manifest-unreadable", key, "it is not whole: %v", err)
		return h, false
	}
	if h.Schema != manifestSchema {
		b.out.drift("manifest-head", key, "schema %q; this judge reads %q", h.Schema, manifestSchema)
		return h, false
	}
	counted.Declare(h.Totals.Declared)
	if counted != h.Totals {
		b.out.damage("manifest-totals", key, "its frames give %s%s, its totals say %s", totals(counted), where, totals(h.Totals))
	}
	return h, true
}

func totals(t event.Totals) string {
	return fmt.Sprintf("%d declared = %d done + %d failed + %d pending + %d missing + %d discarded, %d too many",
		t.Declared, t.Done, t.Failed, t.Pending, t.Missing, t.Discarded, t.Surplus)
}

// compareManifest holds the manifest of a batch at rest against the log.
func (b *batch) compareManifest(ctx context.Context, key string, h manifestHead) error {
	if h.Totals != b.totals {
		b.out.damage("manifest-totals", key, "it says %s; the log gives %s", totals(h.Totals), totals(b.totals))
	}
	if h.Convergence != b.Convergence || h.Declaration != b.Number || h.Order != b.Order || !slices.Equal(h.Profiles, b.Profiles) || h.PolicySHA != b.PolicyDigest {
		b.out.damage("manifest-head", key, "convergence, declaration, order, profiles or policy differ from the log's")
	}
	f, err := b.root.Open(key)
	if err != nil {
		return nil //nolint:nilerr // it was exchanged or removed since it was read above
	}
	defer f.Close() //nolint:errcheck // only read from
	order, stop := b.ordered()
	defer stop()
	place, ordered := 0, true
	_, err = readManifest(f, func(m manifestFrame) error {
		place++
		want, more, err := order()
		if err != nil || ctx.Err() != nil {
			return errors.Join(err, ctx.Err())
		}
		if ordered && (!more || want != m.Frame) {
			ordered = false
			b.out.damage("manifest-order", key, "frame %d is %s; the log has %s there", place, m.Frame.Display(), orNothing(want, more))
		}
		p, err := b.slots.progress(event.Slot{Batch: b.name, Frame: m.Frame}.String())
		if err != nil {
			return err
		}
		b.compareFrame(key, m, p)
		return nil
	})
	if err != nil {
		return err
	}
	if want, more, err := order(); err != nil || more {
		b.out.damage("manifest-order", key, "it ends behind %d frames; the log goes on with %s", place, want.Display())
		return err
	}
	return nil
}

func orNothing(n event.Name, there bool) string {
	if !there {
		return "nothing"
	}
	return n.Display()
}

func (b *batch) compareFrame(key string, m manifestFrame, p *event.Progress) {
	object := key + " " + m.Frame.Display()
	if p == nil {
		b.out.damage("manifest-frame", object, "the log knows no such frame")
		return
	}
	say := func(what string, have, want any) {
		if have != want {
			b.out.damage("manifest-frame", object, "%s is %v; the log says %v", what, have, want)
		}
	}
	say("state", m.State, p.State(b.Profiles))
	say("digest", m.Digest, p.Digest)
	say("revision", m.Revision, p.Revision)
	say("sequence", m.Sequence, p.Sequence)
	if p.Fixed != nil {
		say("size", m.Size, p.Fixed.Size)
		say("master", m.Master, p.Fixed.Master)
	}
	say("number of derivatives", len(m.Derived), len(p.Derived))
	for profile, d := range p.Derived {
		if !slices.Equal(m.Derived[profile], d.Outputs) {
			b.out.damage("manifest-frame", object, "the files of profile %s differ from the log's", profile)
		}
	}
	var waived []event.Operation
	for o, op := range p.Ops {
		if op.Waived {
			waived = append(waived, o)
		}
	}
	slices.Sort(waived)
	if !slices.Equal(m.Waived, waived) {
		b.out.damage("manifest-frame", object, "waived is %v; the log says %v", m.Waived, waived)
	}
}
