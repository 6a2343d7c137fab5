package capture

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strconv"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"colophon/shared/completed"
	"colophon/shared/event"
	"colophon/shared/fault"
	"colophon/shared/stage"
	"colophon/shared/storage"
)

// frameIn is a capture.frame message with what its declaration says.
type frameIn struct {
	event.FrameMessage
	Gateway string
	follows int             // number of the declaration that it counts on
	batch   event.BatchFact // filled by Work
}

// taken is what capture made of a slot's bytes.
type taken struct {
	Digest   event.Digest `json:"digest"`
	Revision int          `json:"revision"`
	Pass     int          `json:"pass"` // that they were told under when they were read
	event.Captured
}

// frames is the worker of capture.frame: it takes the bytes of a slot in.
type frames struct {
	set   *completed.Set
	store *storage.Store
	inputs
	view *view
	js   jetstream.JetStream
	declared
}

// What a stage asks of a worker beside its work, by these methods' names alone.
var (
	_ stage.Waiter[*frameIn]         = (*frames)(nil)
	_ stage.Dependent[*frameIn]      = (*frames)(nil)
	_ stage.Serial[*frameIn]         = (*frames)(nil)
	_ stage.Doubter[*frameIn, taken] = (*frames)(nil)
)

func (f *frames) Decode(subject string, h nats.Header, data []byte) (*frameIn, error) {
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
	in.follows, _ = strconv.Atoi(h.Get(event.HeaderDeclared)) // 0: the first will do
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
	// Whoever decided the rescan asked for this pass, whatever bytes come.
	if d, err := f.view.answered(&in.FrameMessage); err == nil && d != nil && d.Actor != "" {
		w.Requested = &event.Request{Actor: d.Actor, Note: d.Note}
	}
	return w
}

func (f *frames) Key(in *frameIn) event.Key { return event.CaptureKey(in.Token(), in.Slot) }

// Turn lets one message of a slot at a time be worked on: two looks at one
// source have different keys, and both would else become the same revision.
func (f *frames) Turn(in *frameIn) string { return in.Slot.String() }

// Depends names what reading a frame leans on: the device that it comes from,
// else its first source's folder or host. The name tells no path of the machine.
func (f *frames) Depends(in *frameIn) string {
	if in.Device != "" {
		return deviceName(in.Device)
	}
	u, err := url.Parse(in.Sources[0])
	if err != nil {
		return ""
	}
	if u.Scheme != "file" {
		return u.Scheme + ":" + u.Host
	}
	dir, _, ok := f.roots.find(u.Path, func(o root) string { return o.path })
	if !ok {
		return ""
	}
	sum := sha256.Sum256([]byte(dir.Name()))
	return fmt.Sprintf("file:%s-%x", event.Encode(filepath.Base(dir.Name())), sum[:4])
}

// Fact speaks of the message's own claim, hit or miss: a corrected digest is
// compared, not the one that was declared when the bytes were read.
func (f *frames) Fact(in *frameIn, out taken, w event.Work) event.Fact {
	w.Schema, w.Digest, w.Revision = event.SchemaFrameCaptured, out.Digest, out.Revision
	if !w.Hit {
		w.Pass = out.Pass
	}
	out.Declared, out.DeclaredBy = in.SHA256, in.DeclaredBy
	return event.FrameCaptured{Work: w, Captured: out.Captured}
}

// Tokens: the digest that was read, never the one that was declared; the
// source token, which stands for the same look at the same file; and the
// revision.
func (f *frames) Tokens(in *frameIn, out taken) []string {
	return tokens(in.Slot, in.Token(), out.Digest, out.Revision)
}

func tokens(s event.Slot, sent, read event.Digest, revision int) []string {
	t := []string{event.CaptureKey(read, s).String(), revisionToken(s, revision)}
	if sent.IsSource() {
		t = append(t, event.CaptureKey(sent, s).String())
	}
	return t
}

// revisionToken is where one revision of a slot is kept. Each has its own, so
// that whatever order facts are learned in, the last one stays the last.
func revisionToken(s event.Slot, n int) string {
	return event.Key{Operation: "revision", Digest: event.Digest(strconv.Itoa(n)), Slot: s}.String()
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
	return tokens(c.Slot, sent, c.Digest, c.Revision), taken{Digest: c.Digest, Revision: c.Revision, Pass: c.Pass, Captured: c.Captured}, true
}

// revision gives what is kept of one revision of a slot.
func (f *frames) revision(s event.Slot, n int) (t taken, ok bool, err error) {
	data, ok, err := f.set.Result(revisionToken(s, n))
	if err != nil || !ok {
		return t, false, err
	}
	return t, true, json.Unmarshal(data, &t)
}

// last gives the newest revision of a slot: they are numbered from 1 without
// gaps. Zero: there is none yet.
func (f *frames) last(s event.Slot) (t taken, err error) {
	for n := 1; ; n++ {
		next, ok, err := f.revision(s, n)
		if err != nil || !ok {
			return t, err
		}
		t = next
	}
}

// Still believes a hit while the bytes are there, in staging or as a master. A
// later pass looks closer, since something was not right: whether the source
// looks otherwise now (a source that is gone is no fault then), and whether
// the staged bytes are what they were.
func (f *frames) Still(ctx context.Context, in *frameIn, out taken, w event.Work) (bool, error) {
	last, err := f.last(in.Slot)
	if err != nil {
		return false, err
	}
	if last.Digest != out.Digest { // the slot has had other bytes since
		return false, nil
	}
	again := w.Pass > out.Pass
	if again && !f.finished(in, out) && f.inputs.touched(ctx, out.Source, out.Stat) {
		return false, nil
	}
	if fixed, err := f.store.Exists(storage.MasterKey(storage.Digest(out.Digest))); err != nil || fixed {
		return fixed, err
	}
	if !again {
		return f.store.Exists(out.Staging)
	}
	d, _, err := f.store.Digest(ctx, out.Staging)
	if errors.Is(err, storage.ErrNotExist) {
		return false, nil
	}
	return event.Digest(d) == out.Digest, err
}

// finished: a slot that is done keeps its bytes, whatever the source looks like
// now. Its later pass is about something else: another derivative.
func (f *frames) finished(in *frameIn, out taken) bool {
	p, known, err := f.view.slot(in.Slot)
	return err == nil && known && p.Fixed != nil && p.Pinned == out.Digest && done(p, in.batch.Profiles)
}

// Finish has nothing to do: the staged bytes of the revision that this one took
// over from go once this one is fixed, see [Service.unstage].
func (f *frames) Finish(context.Context, *frameIn, taken) error { return nil }

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
