package verify

import (
	"context"
	"encoding/binary"
	"fmt"
	"io/fs"
	"slices"

	"colophon/shared/event"
	"colophon/shared/storage"
)

// judgeBatches compares what stands on disk about each batch with the batch's
// slots as the log leaves them.
func (j *judge) judgeBatches(ctx context.Context) error {
	for p, err := range j.mem.each(memBatch, "") {
		if err != nil {
			return err
		}
		name, err := event.DecodeName(string(p.key))
		if err != nil {
			return fmt.Errorf("scratch: %w", err)
		}
		if !j.chosen(name) {
			continue
		}
		b, err := j.slots.batch(name)
		if err != nil {
			return err
		}
		if err := j.judgeBatch(ctx, &batch{judge: j, batchState: *b, name: name}); err != nil {
			return fmt.Errorf("batch %s: %w", name.Display(), err)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	if j.Batch != "" {
		return nil
	}
	return j.leftovers(ctx)
}

// batch is one batch under judgement.
type batch struct {
	*judge
	batchState
	name   event.Name
	totals event.Totals
}

func (j *judge) judgeBatch(ctx context.Context, b *batch) error {
	j.out.checked.Batches++
	for _, key := range []string{b.manifestKey(), b.bagKey()} {
		if err := j.mem.set(memSeen, key, nil); err != nil {
			return err
		}
	}
	if err := b.arrange(ctx); err != nil {
		return err
	}
	if !b.Known {
		j.out.drift("batch-undeclared", b.name.Display(), "facts speak of %d frames of a batch that nobody declared", b.totals.Surplus)
		return nil
	}
	t := b.totals
	if !t.Converged() {
		j.out.batch(OpenBatch{
			Batch: b.name.Display(), Declared: t.Declared, Done: t.Done, Failed: t.Failed, Pending: t.Pending, Missing: t.Missing,
			Discarded: t.Discarded, Surplus: t.Surplus,
		})
	} else if !b.Holds {
		j.out.note("convergence-pending", b.name.Display(), "every frame is done or discarded, and the log does not say so yet")
	}
	if err := b.judgeManifest(ctx); err != nil {
		return err
	}
	return b.judgeBag(ctx)
}

func (b *batch) manifestKey() string { return storage.ManifestKey(string(b.name)) }

func (b *batch) bagKey() string { return storage.BagKey(string(b.name)) }

// rests reports whether manifest and bag must speak of the batch as it is.
func (b *batch) rests() bool { return b.totals.Converged() && b.Holds }

// arrange puts the slots in the batch's order, counts their states, and judges
// each.
func (b *batch) arrange(ctx context.Context) error {
	if err := b.mem.clear(memOrder); err != nil {
		return err
	}
	for e, err := range b.mem.each(memSlot, b.name.Encode()+"/") {
		if err != nil {
			return err
		}
		p, err := readProgress(e)
		if err != nil {
			return err
		}
		b.out.checked.Frames++
		state := p.State(b.Profiles)
		b.totals.Count(state, 1)
		if err := b.mem.set(memOrder, b.place(p), []byte(p.Frame)); err != nil {
			return err
		}
		if err := b.frame(p, state); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	b.totals.Declare(b.Count)
	return nil
}

// place gives bytes by which slots sort in the batch's order.
func (b *batch) place(p *event.Progress) string {
	key := string(event.NaturalKey(string(p.Frame)))
	if b.Order == event.OrderNatural {
		return key
	}
	return string(binary.BigEndian.AppendUint64(nil, uint64(max(p.Sequence, 0)))) + key
}

// frame judges one slot by its state.
func (b *batch) frame(p *event.Progress, state event.State) error {
	object := p.Batch.Display() + "/" + p.Frame.Display()
	switch state {
	case event.StateDone:
		return b.done(p, object)
	case event.StateFailed:
		return b.failed(p, object)
	}
	return nil
}

// done: a done frame has its master, its derivatives and its accession.
func (b *batch) done(p *event.Progress, object string) error {
	if p.Fixed == nil {
		b.out.damage("frame-incomplete", object, "done without a master")
		return nil
	}
	if !b.there(p.Fixed.Master) {
		b.out.damage("frame-incomplete", object, "done, and its master %s is not there", p.Digest)
	}
	for _, profile := range b.Profiles {
		if op := p.Ops[event.Derivative(profile)]; op != nil && op.Waived {
			continue
		}
		d := p.Derived[profile]
		if d == nil || len(d.Outputs) == 0 {
			b.out.damage("frame-incomplete", object, "done without a derivative of profile %s", profile)
			continue
		}
		if i := slices.IndexFunc(d.Outputs, func(o event.Output) bool { return !b.there(o.Key) }); i >= 0 {
			b.out.damage("frame-incomplete", object, "done, and its derivative %q is not there", d.Outputs[i].Key)
		}
	}
	return b.accessioned(p, object)
}

func (b *batch) there(key string) bool {
	info, err := b.root.Lstat(key)
	return err == nil && info.Mode().IsRegular()
}

func (b *batch) accessioned(p *event.Progress, object string) error {
	if b.ledger == nil {
		return nil
	}
	name := accession(p)
	_, found, err := b.ledger.lookup(name)
	switch {
	case err != nil:
		b.out.damage("ledger-unreadable", "index", "%q cannot be looked up: %v", name, err)
	case found:
	case b.limits.ledger < b.limits.last:
		b.out.note("accession-pending", object, "done, and the ledger has not read so far that %q could be in it", name)
	default:
		b.out.damage("accession-missing", object, "done, and the ledger has no event %q", name)
	}
	return nil
}

// failed: what a slot failed of is a case, or on its way to one.
func (b *batch) failed(p *event.Progress, object string) error {
	for _, t := range p.Troubles(b.Profiles) {
		if t.Dead == 0 && t.Operation != event.SourceChanged || t.Done {
			continue
		}
		id := event.CaseID(t.Operation, p.Slot, "")
		opened, err := b.mem.has(memCase, id)
		if err != nil {
			return err
		}
		written, err := b.mem.has(memLetter, id)
		if err != nil {
			return err
		}
		if !opened && !written {
			b.out.note("case-pending", object, "%s failed with %s, and there is neither a dead letter nor a case yet", t.Operation, t.Code)
		}
	}
	return nil
}

// leftovers looks for manifests and bags of no batch.
func (j *judge) leftovers(ctx context.Context) error {
	for _, area := range []string{areaBatches, areaBags} {
		err := j.walk(ctx, area, func(key string, e fs.DirEntry) (bool, error) {
			known, err := j.mem.has(memSeen, key)
			if err == nil && !known {
				if info, err := e.Info(); err == nil && !j.meanwhile(info) {
					j.out.drift("unexpected-file", key, "the log knows no batch of this name")
				}
			}
			return false, err
		})
		if err != nil {
			return err
		}
	}
	return nil
}
