package capture

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"colophon/shared/completed"
	"colophon/shared/event"
	"colophon/shared/fault"
	"colophon/shared/storage"
)

// settleTime is how long a file must have been left alone before its bytes are
// believed to be whole.
const settleTime = 2 * time.Second

// frameIn is a capture.frame message with what its declaration says.
type frameIn struct {
	event.FrameMessage
	Gateway string
	batch   event.BatchFact // filled by Wait
}

// taken is what capture made of a slot's bytes.
type taken struct {
	Digest   event.Digest `json:"digest"`
	Revision int          `json:"revision"`
	Pass     int          `json:"pass"` // that read them
	// Superseded is the staging key of the revision before.
	Superseded string `json:"superseded,omitempty"`
	event.Captured
}

// frames is the worker of capture.frame: it takes the bytes of a slot in.
type frames struct {
	set   *completed.Set
	store *storage.Store
	roots *Roots
	view  *view
	declared
}

func (f *frames) Decode(subject string, _ nats.Header, data []byte) (*frameIn, error) {
	in := new(frameIn)
	if err := event.Unmarshal(data, &in.FrameMessage); err != nil {
		return nil, err
	}
	if in.Schema != event.SchemaCaptureFrame {
		return nil, fmt.Errorf("%w: %q", event.ErrUnknownSchema, in.Schema)
	}
	if err := in.Validate(); err != nil {
		return nil, err
	}
	_, gateway, batch, err := event.ParseCaptureSubject(subject)
	if err != nil {
		return nil, err
	}
	if batch != in.Batch {
		return nil, fmt.Errorf("/batch: %q was sent under the subject of %q", in.Batch, batch)
	}
	in.Gateway = gateway
	return in, nil
}

func (f *frames) Work(in *frameIn) event.Work {
	w := event.Work{
		Slot: in.Slot, Sequence: in.Sequence, Digest: in.Token(), Pass: in.Pass,
	}
	// The declaration was read before the pass is worked on; see Wait.
	if b, ok, err := f.declared.get(in.Batch); err == nil && ok {
		in.batch = b
		w.Policy, w.Profiles = b.Policy, b.Profiles
	}
	return w
}

func (f *frames) Key(in *frameIn) event.Key { return event.CaptureKey(in.Token(), in.Slot) }

// Wait waits for the batch's declaration, and for a file that was touched a
// moment ago to be left alone.
func (f *frames) Wait(ctx context.Context, in *frameIn) error {
	b, err := f.declared.wait(ctx, in.Batch)
	if err != nil {
		return err
	}
	in.batch = b
	if in.Size != nil && in.SHA256 != "" {
		return nil
	}
	file, st, err := f.roots.Open(in.Sources[0])
	if err != nil {
		return nil // Act says what is wrong with it
	}
	if err := file.Close(); err != nil {
		return nil
	}
	return pause(ctx, settleTime-time.Since(st.ModTime))
}

func pause(ctx context.Context, d time.Duration) error {
	if d > settleTime { // a clock that runs ahead settles nothing
		return nil
	}
	return wait(ctx, d)
}

func wait(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Act reads the source once, into staging, hashing what it reads.
func (f *frames) Act(ctx context.Context, in *frameIn, w event.Work) (taken, error) {
	var errs []error
	for _, source := range in.Sources {
		out, err := f.take(ctx, in, w, source)
		if err == nil {
			return out, nil
		}
		if ctx.Err() != nil {
			return taken{}, ctx.Err()
		}
		if c := fault.Of(err).Class(); c == fault.Environment || fault.Of(err).Operation != "" {
			return taken{}, err
		}
		errs = append(errs, err)
	}
	return taken{}, errs[0] // each source failed; the first is the one that was meant
}

func (f *frames) take(ctx context.Context, in *frameIn, w event.Work, source string) (taken, error) {
	file, before, err := f.roots.Open(source)
	if err != nil {
		return taken{}, err
	}
	defer file.Close() //nolint:errcheck // only read
	if before.Size == 0 {
		return taken{}, fault.New(fault.Empty, nil, "the source has no bytes")
	}
	if in.Size != nil && *in.Size != before.Size {
		return taken{}, fault.New(fault.SourceUnsettled, nil, "the source has %d bytes, %d were declared", before.Size, *in.Size)
	}
	f.store.Expect(before.Size)
	last, err := f.last(in.Slot)
	if err != nil {
		return taken{}, err
	}
	revision := 1
	written, err := f.store.WriteNamed(ctx, storage.StagingFolder(string(in.Batch)), reading{file}, func(d storage.Digest) string {
		revision = last.Revision
		if last.Digest != event.Digest(d) {
			revision++
		}
		return storage.StagingName(string(in.Frame), revision, d)
	}, storage.Options{MaxBytes: before.Size})
	var tooLarge *storage.TooLargeError
	if errors.As(err, &tooLarge) {
		return taken{}, unsettled()
	}
	if err != nil {
		return taken{}, err
	}
	digest := event.Digest(written.Digest)
	key := storage.StagingKey(string(in.Batch), string(in.Frame), revision, written.Digest)
	if after, err := look(file); err != nil || !after.Same(before) || written.Size != before.Size {
		return taken{}, errors.Join(unsettled(), f.drop(key, written.Existed))
	}
	if err := f.changed(in, last, digest); err != nil {
		return taken{}, err
	}
	return taken{Digest: digest, Revision: revision, Pass: w.Pass, Superseded: last.Staging, Captured: event.Captured{
		Source: source, Stat: &before, Size: written.Size, Staging: key, Declared: in.SHA256, DeclaredBy: in.DeclaredBy,
		Replaces: replaced(last, digest), Gateway: in.Gateway, Device: in.Device, Operator: in.Operator, ScannedAt: in.ScannedAt, TakenAt: time.Now().UTC(), Acquisition: in.Acquisition,
	}}, nil
}

func unsettled() error {
	return fault.New(fault.SourceUnsettled, nil, "the source was still being written while it was read")
}

func replaced(last taken, d event.Digest) event.Digest {
	if last.Digest == d {
		return last.Replaces
	}
	return last.Digest
}

// drop removes staged bytes that a failed attempt itself made.
func (f *frames) drop(key string, existed bool) error {
	if existed {
		return nil
	}
	return f.store.Remove(key)
}

// changed refuses other bytes for a slot that is done, unless the message says
// which content it may supersede. The bytes stay in staging while the case is
// open.
func (f *frames) changed(in *frameIn, last taken, d event.Digest) error {
	if last.Digest == "" || last.Digest == d || in.Replaces == last.Digest {
		return nil
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

func done(p event.Progress, profiles []string) bool {
	p.Changed = 0
	return p.State(profiles) == event.StateDone
}

func (f *frames) Fact(in *frameIn, out taken, w event.Work) event.Fact {
	w.Schema, w.Digest, w.Revision = event.SchemaFrameCaptured, out.Digest, out.Revision
	return event.FrameCaptured{Work: w, Captured: out.Captured}
}

// lastToken is where the newest capture of a slot is kept.
func lastToken(s event.Slot) string { return event.Key{Operation: "last-capture", Slot: s}.String() }

// Tokens: the digest that was read, never the one that was declared; and the
// source token, which stands for the same look at the same file.
func (f *frames) Tokens(in *frameIn, out taken) []string {
	return tokens(in.Slot, in.Token(), out.Digest)
}

func tokens(s event.Slot, sent, read event.Digest) []string {
	t := []string{event.CaptureKey(read, s).String(), lastToken(s)}
	if sent.IsSource() {
		t = append(t, event.CaptureKey(sent, s).String())
	}
	return t
}

func (f *frames) Learn(fact event.Fact) ([]string, taken, bool) {
	c, ok := fact.(event.FrameCaptured)
	if !ok || c.Hit {
		return nil, taken{}, false
	}
	var sent event.Digest
	if c.Stat != nil {
		sent = event.SourceToken(c.Source, *c.Stat)
	}
	return tokens(c.Slot, sent, c.Digest), taken{Digest: c.Digest, Revision: c.Revision, Pass: c.Pass, Captured: c.Captured}, true
}

// Still believes a hit while the bytes are there, in staging or as a master,
// unless a later pass was asked for and the source looks otherwise now: it may
// have been repaired. A source that is gone meanwhile is no fault then.
func (f *frames) Still(_ context.Context, in *frameIn, out taken, w event.Work) (bool, error) {
	last, err := f.last(in.Slot)
	if err != nil {
		return false, err
	}
	if last.Digest != out.Digest { // the slot has had other bytes since
		return false, nil
	}
	if w.Pass > out.Pass && f.touched(out) {
		return false, nil
	}
	if fixed, err := f.store.Exists(storage.MasterKey(storage.Digest(out.Digest))); err != nil || fixed {
		return fixed, err
	}
	return f.store.Exists(out.Staging)
}

func (f *frames) touched(out taken) bool {
	file, st, err := f.roots.Open(out.Source)
	if err != nil {
		return false
	}
	_ = file.Close()
	return out.Stat == nil || !st.Same(*out.Stat)
}

func (f *frames) last(s event.Slot) (taken, error) {
	var t taken
	data, ok, err := f.set.Result(lastToken(s))
	if err != nil || !ok {
		return t, err
	}
	return t, json.Unmarshal(data, &t)
}

// Finish removes the staged bytes of the revision that this one took over from.
func (f *frames) Finish(_ context.Context, _ *frameIn, out taken) error {
	if out.Superseded == "" || out.Superseded == out.Staging {
		return nil
	}
	return f.store.Remove(out.Superseded)
}

func (f *frames) Probe(_ context.Context, deep bool) error { return probe(f.store, deep) }

// probe is the low-water mark, before anything breaks, and, while halted,
// whether the archive takes writes.
func probe(store *storage.Store, deep bool) error {
	err := store.CheckSpace()
	if err == nil && deep {
		err = store.Check()
	}
	if err != nil {
		return fault.Of(err)
	}
	return nil
}
