package capture

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"colophon/shared/event"
)

// resent is the mark that a slot was sent again: stored before it is, so that
// no crash makes it twice. It is never removed.
type resent struct {
	event.Slot
	Operation event.Operation `json:"operation"`
	Pass      int             `json:"pass"`
	Order     uint64          `json:"order"`             // sequence of the order that nothing followed
	Counter   uint64          `json:"counter"`           // of the fact that tells of it
	At        time.Time       `json:"at"`                // of that fact
	Stream    string          `json:"stream,omitempty"`  // that it goes to; empty: not chosen yet
	After     uint64          `json:"after,omitempty"`   // what that stream held last, before
	Sent      uint64          `json:"sent,omitempty"`    // sequence of what was sent
	Problem   string          `json:"problem,omitempty"` // why nothing was
	Told      bool            `json:"told,omitempty"`
}

func resentKey(s event.Slot, o event.Operation, pass int) string {
	return fmt.Sprintf("%s%s/%s#%d", viewResent, s, event.Encode(string(o)), pass)
}

func (m *resent) key() string { return resentKey(m.Slot, m.Operation, m.Pass) }

// resent reports whether a mark is there.
func (l look) resent(key string) (bool, error) {
	var m resent
	return getJSON(l.r, key, &m)
}

// sentAgain gives the newest mark of a slot; nil when it was never sent again.
func (l look) sentAgain(s event.Slot) (newest *resent, err error) {
	err = l.each(viewResent+s.String()+"/", "", func(_ string, value []byte) error {
		var m resent
		err := json.Unmarshal(value, &m)
		if newest == nil || m.At.After(newest.At) {
			newest = &m
		}
		return err
	})
	return newest, err
}

// sentAgain takes over a mark from the log: of another replica, or of a view
// that was lost.
func (c *change) sentAgain(f event.OpFact) error {
	slot, err := event.ParseSlot(f.Detail["slot"])
	pass, none := strconv.Atoi(f.Detail["pass"])
	if f.Kind != event.OpStuck || err != nil || none != nil {
		return nil
	}
	m := resent{Slot: slot, Operation: event.Operation(f.Detail["operation"]), Pass: pass, Counter: f.Counter, At: f.At, Problem: f.Detail["problem"], Told: true}
	if known, err := (look{c.b}).resent(m.key()); err != nil || known {
		return err
	}
	return setJSON(c.b, m.key(), m)
}

func (v *view) put(key string, value any) error {
	data, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("capture: view: %w", err)
	}
	return v.db.Set([]byte(key), data, pebble.Sync)
}

// resume ends what a crash left half done.
func (s *Service) resume(ctx context.Context) error {
	var left []resent
	err := s.view.each(viewResent, "", func(_ string, value []byte) error {
		var m resent
		err := json.Unmarshal(value, &m)
		if err == nil && !m.Told {
			left = append(left, m)
		}
		return err
	})
	for i := range left {
		p, _, lost := s.view.slot(left[i].Slot)
		if lost == nil {
			lost = s.resend(ctx, &p, &left[i])
		}
		err = errors.Join(err, lost)
	}
	return err
}

// sendAgain sends what orders an operation of a slot once more, unless that
// was done in this pass.
func (s *Service) sendAgain(ctx context.Context, p *event.Progress, o event.Operation) error {
	m := &resent{Slot: p.Slot, Operation: o, Pass: p.Pass(), At: time.Now().UTC()}
	for _, order := range p.Orders(o) {
		m.Order = order.Sequence // the last is its own
	}
	if known, err := s.view.resent(m.key()); err != nil || known {
		return err
	}
	var err error
	if m.Counter, err = s.set.Next("op"); err != nil {
		return err
	}
	return s.resend(ctx, p, m)
}

// resend does what a mark is to stand for: mark, send, tell. A crash in between
// begins again, under the same ids.
func (s *Service) resend(ctx context.Context, p *event.Progress, m *resent) error {
	for _, order := range p.Orders(m.Operation) { // ordered behind the mark: it was sent, and not noted
		if streamOf(order.Operation) == m.Stream && order.Sequence > m.After {
			m.Sent = max(m.Sent, order.Sequence)
		}
	}
	if m.Sent == 0 && m.Problem == "" {
		msg, err := s.orderOf(ctx, p, m.Operation)
		if err != nil {
			return err
		}
		if msg == nil {
			m.Problem = fmt.Sprintf("the message that orders %s is lost, and nothing here holds what it said: send the frame again", m.Operation)
		}
		if err := s.mark(ctx, m, msg); err != nil {
			return err
		}
		if msg != nil {
			if m.Sent, err = s.force(ctx, msg, m.After); err != nil {
				return err
			}
		}
	}
	s.Log.Error("slot_stuck", slog.String("batch_id", m.Batch.Display()), slog.String("frame_id", m.Frame.Display()), slog.String("operation", string(m.Operation)),
		slog.Int("pass", m.Pass), slog.Uint64("order", m.Order), slog.Uint64("sent", m.Sent), slog.String("problem", m.Problem))
	s.Metrics.Alarm(event.OpStuck)
	detail := map[string]string{
		"slot": m.Slot.String(), "operation": string(m.Operation), "pass": strconv.Itoa(m.Pass), "order": strconv.FormatUint(m.Order, 10),
	}
	reason := "no message would have moved the slot: it was sent again"
	if m.Problem == "" {
		detail["stream"], detail["sent"] = m.Stream, strconv.FormatUint(m.Sent, 10)
	} else {
		detail["problem"], reason = m.Problem, "no message will move the slot: "+m.Problem
		if err := s.view.note(m.Batch, func(b *made) { b.Problem = m.Frame.Display() + ": " + m.Problem }); err != nil {
			return err
		}
	}
	if err := s.tellOp(ctx, event.OpStuck, m.Counter, m.At, "stuck", reason, detail); err != nil {
		return err
	}
	m.Told = true
	return s.view.put(m.key(), m)
}

// mark stores the mark, with where the message's stream ended before: what has
// its id behind that is its own.
func (s *Service) mark(ctx context.Context, m *resent, msg *nats.Msg) error {
	if msg == nil {
		return s.view.put(m.key(), m)
	}
	stream := event.StreamIngest
	if strings.HasPrefix(msg.Subject, "capture.") {
		stream = event.StreamCapture
	}
	if m.Stream != stream {
		st, err := s.JS.Stream(ctx, stream)
		if err != nil {
			return err
		}
		m.Stream, m.After = stream, st.CachedInfo().State.LastSeq
	}
	return s.view.put(m.key(), m)
}

// force publishes a message that its stream holds already under its id, as
// <id>!<n>: the broker would drop it else. It gives the sequence.
func (s *Service) force(ctx context.Context, msg *nats.Msg, after uint64) (uint64, error) {
	id := msg.Header.Get(event.HeaderMsgID)
	for n := 1; ; n++ {
		msg.Header.Set(event.HeaderMsgID, id+"!"+strconv.Itoa(n))
		ack, err := s.JS.PublishMsg(ctx, msg)
		if err != nil {
			return 0, fmt.Errorf("capture: send again: %w", err)
		}
		if !ack.Duplicate || ack.Sequence > after {
			return ack.Sequence, nil
		}
	}
}

// orderOf gives the message that orders an operation, as it came. Where its
// stream does not give it out, what capture itself holds of it; else the one
// before it in the line: whoever works on that finds its result and says it
// again. Nil: nothing is left.
func (s *Service) orderOf(ctx context.Context, p *event.Progress, o event.Operation) (*nats.Msg, error) {
	orders := p.Orders(o)
	for i := len(orders) - 1; i >= 0; i-- {
		msg, err := s.stored(ctx, p, orders[i])
		if msg == nil && err == nil {
			msg, err = s.held(p, orders[i].Operation)
		}
		if msg != nil || err != nil {
			return msg, err
		}
	}
	return nil, nil
}

// stored reads an order from its stream; nil where that has another message on
// its sequence, or none.
func (s *Service) stored(ctx context.Context, p *event.Progress, o event.Order) (*nats.Msg, error) {
	if o.Sequence == 0 {
		return nil, nil
	}
	st, err := s.JS.Stream(ctx, streamOf(o.Operation))
	if err != nil {
		return nil, err
	}
	m, err := st.GetMsg(ctx, o.Sequence)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	slot, id, ok := orders(m.Subject, m.Data, o.Operation)
	if !ok || slot != p.Slot {
		return nil, nil
	}
	return again(m.Subject, own(m.Header), m.Data, cmp.Or(m.Header.Get(event.HeaderMsgID), id)), nil
}

// own are the headers that are not the broker's.
func own(h nats.Header) nats.Header {
	out := nats.Header{}
	for k, v := range h {
		if !strings.HasPrefix(k, "Nats-") {
			out[k] = v
		}
	}
	return out
}

// again is a message as it came, under the id that it had first.
func again(subject string, h nats.Header, data []byte, id string) *nats.Msg {
	id, _, _ = strings.Cut(id, "!") // no encoded id holds one
	h = maps.Clone(h)
	if h == nil {
		h = nats.Header{}
	}
	h.Set(event.HeaderMsgID, id)
	return &nats.Msg{Subject: subject, Header: h, Data: data}
}

// orders tells whether a message orders an operation, of which slot, and the
// id it has by itself.
func orders(subject string, data []byte, o event.Operation) (event.Slot, string, bool) {
	if o == event.Capture {
		var f event.FrameMessage
		if !strings.HasPrefix(subject, event.SubjectCaptureFrame+".") || event.Unmarshal(data, &f) != nil {
			return event.Slot{}, "", false
		}
		return f.Slot, f.MsgID(), true
	}
	f, err := event.DecodeFact(subject, data)
	if err != nil {
		return event.Slot{}, "", false
	}
	before := event.Fixity
	if o == event.Fixity {
		before = event.Capture
	}
	done, w := event.OperationOf(f)
	return w.Slot, f.MsgID(), done == before
}

// held gives an order from capture's own stores: the fact that it published
// itself, or the body of the slot's newest capture message.
func (s *Service) held(p *event.Progress, o event.Operation) (*nats.Msg, error) {
	switch o {
	case event.Capture:
		a, ok, err := s.view.asked(p.Slot)
		if err != nil || !ok {
			return nil, err
		}
		_, id, ok := orders(a.Subject, a.Body, o)
		if !ok {
			return nil, nil
		}
		return again(a.Subject, a.Header, a.Body, cmp.Or(a.ID, id)), nil
	case event.Fixity:
		ordered := 0
		if op := p.Ops[event.Fixity]; op != nil {
			ordered = op.Ordered
		}
		for pass := p.Pass(); pass > 0; pass-- {
			f, ok, err := s.set.Fact(event.CaptureKey(p.Digest, p.Slot).MsgID(p.Slot, pass))
			if err != nil {
				return nil, err
			}
			if ok {
				m := again(f.Subject, nil, f.Data, f.ID)
				m.Header.Set(event.HeaderPass, strconv.Itoa(max(ordered, pass)))
				return m, nil
			}
		}
	}
	return nil, nil
}
