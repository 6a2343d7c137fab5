package verify

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"regexp"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"colophon/shared/event"
	"colophon/shared/topology"
)

// judgeLog reads the log once, judges it by itself, and keeps what the later
// steps compare with: the slots' progress, what the facts say is stored, and
// the events that must be in the ledger.
func (j *judge) judgeLog(ctx context.Context) (err error) {
	if err := j.asked(ctx); err != nil {
		return err
	}
	if j.limits.letters, err = j.taken(ctx); err != nil {
		return err
	}
	state, err := j.streamState(ctx, event.StreamIngest)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		j.out.damage("log-missing", event.StreamIngest, "the broker has no such stream")
		return nil
	}
	if err != nil {
		return err
	}
	j.limits.last = state.LastSeq
	if j.ledger != nil {
		j.limits.ledger = min(j.ledger.head.Position.Sequence, state.LastSeq)
	}
	reader := &logReader{judge: j, events: &expecter{mem: j.mem}}
	if err := j.read(ctx, event.StreamIngest, state.LastSeq, reader.take); err != nil {
		return err
	}
	reader.gap(state.LastSeq + 1)
	j.judgeGaps()
	if err := reader.judgeEarly(); err != nil {
		return err
	}
	if err := j.slots.flush(); err != nil {
		return err
	}
	j.judgePosition(reader)
	return nil
}

// asked applies the capture messages that are still there: a slot that was
// asked for is pending before any fact speaks of it.
func (j *judge) asked(ctx context.Context) error {
	state, err := j.streamState(ctx, event.StreamCapture)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	return j.read(ctx, event.StreamCapture, state.LastSeq, j.slots.asked, event.SubjectCaptureFrame+".>")
}

// logReader judges the log, message by message.
type logReader struct {
	*judge
	events *expecter
	next   uint64   // sequence that must come
	at     *message // the one at the ledger's position, without its body
}

func (r *logReader) take(m message) error {
	r.gap(m.seq)
	r.next = m.seq + 1
	r.out.checked.Facts++
	if l := r.ledger; l != nil && m.seq == l.head.Position.Sequence {
		r.at = &message{seq: m.seq, stored: m.stored, id: m.id}
	}
	f, err := event.DecodeFact(m.subject, m.data)
	switch {
	case errors.Is(err, event.ErrUnknownSchema):
		r.out.drift("log-unknown-schema", logObject(m), "%v", err)
		return nil
	case err != nil:
		r.out.damage("log-undecodable", logObject(m), "no fact: %v", err)
		if m.seq <= r.limits.ledger {
			return r.events.unreadable(m)
		}
		return nil
	}
	if op, ok := f.(event.OpFact); ok {
		r.healing.loss(op, m)
	}
	if m.seq <= r.limits.ledger {
		if op, ok := f.(event.OpFact); ok && op.Kind == event.OpCheckpoint {
			r.checkpointFact(op, m)
		}
		if err := r.events.fact(f, m); err != nil {
			return err
		}
	}
	if err := r.identity(f, m); err != nil {
		return err
	}
	if err := r.agrees(f, m); err != nil {
		return err
	}
	return r.slots.fact(f, m)
}

// gap notes what is missing before a sequence.
func (r *logReader) gap(seq uint64) {
	first := max(r.next, 1)
	if seq > first {
		r.healing.gaps = append(r.healing.gaps, stretch{first, seq - 1})
	}
}

// sighting is the first message of an id.
type sighting struct {
	Seq    uint64    `json:"s"`
	Stored time.Time `json:"t"`
	Same   string    `json:"m"` // hash of the material content
}

// resent are the marks of an id under which the same fact went out again.
var resent = regexp.MustCompile(`(![0-9]+|#replay[0-9]+)$`)

// identity judges a message's id: it names its fact, and one id has one
// content. A message that an operator sent again by hand has none.
func (r *logReader) identity(f event.Fact, m message) error {
	if want := f.Subject(); want != m.subject {
		r.out.damage("log-subject", logObject(m), "the fact belongs under %s, not %s", want, m.subject)
	}
	if m.id == "" {
		return nil
	}
	id := resent.ReplaceAllString(m.id, "")
	marked := id != m.id
	if want := inPass(f, m).MsgID(); id != want && !marked {
		r.out.damage("log-id", logObject(m), "the fact's own id is %s", want)
	}
	now := sighting{m.seq, m.stored, contentOf(f)}
	var first sighting
	known, err := r.mem.getJSON(memID, id, &first)
	if err != nil {
		return err
	}
	switch since := m.stored.Sub(first.Stored); {
	case !known:
		return r.mem.setJSON(memID, id, now)
	case now.Same != first.Same:
		r.out.damage("log-id-conflict", logObject(m), "message %d has this id and says something else", first.Seq)
	case marked || since >= topology.DedupWindow:
		r.out.note("log-duplicate", logObject(m), "the same as message %d, stored again %v later", first.Seq, since.Round(time.Second))
	default:
		r.out.drift("log-duplicate", logObject(m), "the same as message %d, stored again %v later: the broker should have dropped it", first.Seq, since.Round(time.Second))
	}
	return nil
}

// inPass gives a fact under the pass that its message was sent again for.
func inPass(f event.Fact, m message) event.Fact {
	pass, err := strconv.Atoi(m.header.Get(event.HeaderPass))
	if err != nil {
		return f
	}
	switch f := f.(type) {
	case event.FrameCaptured:
		f.Pass = pass
		return f
	case event.FrameFixed:
		f.Pass = pass
		return f
	}
	return f
}

// contentOf is a hash of what two messages of one id must agree in. Times,
// agents, passes and attempts are not: work that was done again after a crash
// tells the same.
func contentOf(f event.Fact) string {
	var content any = f
	switch f := f.(type) {
	case event.BatchFact:
		f.Agent, f.At = event.Agent{}, time.Time{}
		content = f
	case event.ProfilePinned:
		content = []any{f.Name, f.Digest}
	case event.FrameCaptured:
		content = []any{f.Slot, f.Revision, f.Digest, f.Captured.Size, f.Captured.Declared}
	case event.FrameFixed:
		content = []any{f.Slot, f.Revision, f.Digest, f.Fixed.StoredDigest, f.Fixed.Size, f.Fixed.Format.PUID, f.Captured.Declared}
	case event.DerivativeMade:
		outputs := []any{}
		for _, o := range f.Derived.Outputs {
			outputs = append(outputs, o.Key, o.Digest, o.Size)
		}
		content = []any{f.Slot, f.Revision, f.Digest, f.Derived.Profile, f.Derived.RecipeDigest, outputs}
	case event.AttemptFailed:
		content = []any{f.Slot, f.Operation, f.Class, f.Code, f.Decision}
	case event.CaseFact:
		content = []any{f.ID, f.State, f.Number, f.Pass, f.NextPass}
	case event.OpFact:
		content = []any{f.Kind, f.Service, f.Code}
		if f.Kind == event.OpCheckpoint { // two histories of one length
			content = []any{f.Kind, f.Detail}
		}
	}
	data, err := json.Marshal(content)
	if err != nil {
		panic("verify: a fact is plain values: " + err.Error())
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:12])
}
