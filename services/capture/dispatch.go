package capture

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"colophon/shared/event"
	"colophon/shared/stage"
)

// dispatchWait bounds one try to publish a dispatch; the next round tries again.
const dispatchWait = 30 * time.Second

// issue is a dispatch that a slot has, or that it cannot have.
type issue struct {
	event.Dispatch                   // without a device, where nobody has one
	Decisions      []string          `json:"decisions"`      // facts that it carries out
	Operations     []event.Operation `json:"operations"`     // of their cases
	Sent           uint64            `json:"sent,omitempty"` // sequence in DISPATCH; 0: not known to be stored
}

// issued are the dispatches of a slot, oldest first. Only the loop writes them.
type issued []issue

func (l look) issued(s event.Slot) (out issued, err error) {
	_, err = getJSON(l.r, viewIssued+s.String(), &out)
	return out, err
}

// carries gives the dispatch that carries out a decision.
func (is issued) carries(decision string) *issue {
	for i := range is {
		if slices.Contains(is[i].Decisions, decision) {
			return &is[i]
		}
	}
	return nil
}

// open reports whether the device still owes an answer.
func (i *issue) open(p *event.Progress) bool {
	if p.Discarded || i.Device != "" && slices.ContainsFunc(p.Answers, func(a string) bool { return named(a) == i.MsgID() }) {
		return false
	}
	for _, d := range p.Rescans {
		if d.Pass > 0 && slices.Contains(i.Decisions, d.Decision) { // nothing took over from it
			return true
		}
	}
	return false
}

// named gives the id of a dispatch without the mark of being sent again.
func named(answer string) string {
	id, _, _ := strings.Cut(answer, "!")
	return id
}

// answered gives the dispatch of this service that a frame message answers; nil
// where it answers none.
func (l look) answered(in *event.FrameMessage) (*issue, error) {
	if in.Answers == "" {
		return nil, nil
	}
	is, err := l.issued(in.Slot)
	for i := range is {
		if is[i].Device != "" && is[i].MsgID() == named(in.Answers) {
			return &is[i], err
		}
	}
	return nil, err
}

// answers reports whether a frame message answers a dispatch, and may take over
// from the digest that the slot has.
func (l look) answers(in *event.FrameMessage, has event.Digest) (bool, error) {
	d, err := l.answered(in)
	return d != nil && d.Replaces == has, err
}

// rescans carries out the decisions to scan again: each is a dispatch to a
// device, under the next pass. What is to be sent is stored before it is.
func (s *Service) rescans(ctx context.Context) error {
	s.turn.Lock()
	defer s.turn.Unlock()
	slots, err := s.view.marked(viewRescan)
	for _, slot := range slots {
		err = errors.Join(err, s.rescan(ctx, slot))
		if errors.Is(err, context.DeadlineExceeded) { // the broker takes none: each would wait as long, and keep the loop from all else
			break
		}
	}
	return err
}

func (s *Service) rescan(ctx context.Context, slot event.Slot) error {
	p, is, err := s.rescanned(slot)
	if err != nil {
		return err
	}
	for _, o := range slices.Sorted(maps.Keys(p.Rescans)) {
		d := p.Rescans[o]
		if d.Pass == 0 || p.Discarded || is.carries(d.Decision) != nil {
			continue
		}
		if is, err = s.issue(p, o, is); err != nil {
			return err
		}
	}
	for i := range is {
		if is[i].Device == "" || is[i].Sent > 0 || !is[i].open(p) {
			continue
		}
		if err := s.dispatch(ctx, is, i); err != nil {
			return err
		}
	}
	return s.view.unmarkRescan(slot)
}

func (s *Service) rescanned(slot event.Slot) (*event.Progress, issued, error) {
	p, _, err := s.view.slot(slot)
	if err != nil {
		return nil, nil, err
	}
	is, err := s.view.issued(slot)
	return &p, is, err
}

// issue adds what a decision asks for. A dispatch that still waits for its
// answer, for other operations of the slot, serves this one too; a second
// decision on one case is another dispatch.
func (s *Service) issue(p *event.Progress, o event.Operation, is issued) (issued, error) {
	d := p.Rescans[o]
	for i := range is {
		if is[i].open(p) && !slices.Contains(is[i].Operations, o) {
			is[i].Decisions, is[i].Operations = append(is[i].Decisions, d.Decision), append(is[i].Operations, o)
			return is, s.view.owe(p.Slot, is)
		}
	}
	device, err := s.deviceOf(p)
	if err != nil {
		return is, err
	}
	n := issue{Decisions: []string{d.Decision}, Operations: []event.Operation{o}, Dispatch: event.Dispatch{
		Schema: event.SchemaDispatch, Slot: p.Slot, Sequence: max(p.Sequence, 1), Device: device, Pass: max(d.Pass, p.Pass()+1), Number: 1,
		Replaces: p.Digest.Content(), Reason: cmp.Or(d.Reason, "somebody asked for another scan"), Actor: d.Actor, Note: d.Note, At: time.Now().UTC(),
	}}
	for _, before := range is {
		if before.Device == n.Device && before.Pass == n.Pass {
			n.Number = before.Number + 1
		}
	}
	is = append(is, n)
	err = s.view.owe(p.Slot, is)
	if err == nil && device == "" {
		s.Log.Error("dispatch_impossible", slog.String("batch_id", p.Batch.Display()), slog.String("frame_id", p.Frame.Display()), slog.String("operation", string(o)), slog.String("reason", noDevice))
	}
	return is, err
}

// owe stores the dispatches of a slot of which one waits for an answer.
func (v *view) owe(s event.Slot, is issued) error {
	b := v.db.NewBatch()
	defer b.Close() //nolint:errcheck // a committed or abandoned batch has nothing to report
	if err := errors.Join(b.Set([]byte(viewOwed+s.String()), nil, nil), setJSON(b, viewIssued+s.String(), is)); err != nil {
		return err
	}
	return b.Commit(pebble.Sync)
}

const noDevice = "the slot came from no device, and its batch names none: somebody must bring the file"

// deviceOf gives the device that a slot is asked of: the one that its bytes
// came from, or its newest message, or the first of its batch.
func (s *Service) deviceOf(p *event.Progress) (string, error) {
	if p.Captured != nil && p.Captured.Device != "" {
		return p.Captured.Device, nil
	}
	a, ok, err := s.view.asked(p.Slot)
	if err != nil {
		return "", err
	}
	var m event.FrameMessage
	if ok && json.Unmarshal(a.Body, &m) == nil && m.Device != "" {
		return m.Device, nil
	}
	r, err := s.view.batch(p.Batch)
	if err != nil || len(r.Devices) == 0 {
		return "", err
	}
	return r.Devices[0], nil
}

// dispatch publishes one dispatch, and notes where it is stored.
func (s *Service) dispatch(ctx context.Context, is issued, i int) error {
	d := &is[i]
	data, err := json.Marshal(d.Dispatch)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, dispatchWait)
	defer cancel()
	ack, err := stage.NewLog(s.JS, s.Log).Publish(ctx, &nats.Msg{Subject: d.Subject(), Header: nats.Header{event.HeaderMsgID: {d.MsgID()}}, Data: data}, nil)
	if err != nil {
		return fmt.Errorf("capture: dispatch %s: %w", d.MsgID(), err)
	}
	d.Sent = ack.Sequence
	s.Log.Info("dispatched", slog.String("batch_id", d.Batch.Display()), slog.String("frame_id", d.Frame.Display()), slog.String("device", d.Device), slog.Int("pass", d.Pass), slog.Int("number", d.Number))
	return s.view.put(viewIssued+d.Slot.String(), is)
}

// dispatched looks whether the dispatches that wait for an answer are stored
// still. One that its gateway acked may be trimmed; one that a stream lost by
// going back in time is published again.
func (s *Service) dispatched(ctx context.Context) error {
	slots, err := s.view.marked(viewOwed)
	for _, slot := range slots {
		if err == nil {
			err = s.dispatchedSlot(ctx, slot)
		}
	}
	return err
}

func (s *Service) dispatchedSlot(ctx context.Context, slot event.Slot) error {
	p, is, err := s.rescanned(slot)
	if err != nil {
		return err
	}
	owed := false
	for i := range is {
		if is[i].Device == "" || !is[i].open(p) {
			continue
		}
		owed = true
		if is[i].Sent == 0 { // the other half of the loop is at it
			continue
		}
		gone, err := s.lostDispatch(ctx, &is[i])
		if err == nil && gone {
			err = s.dispatch(ctx, is, i)
		}
		if err != nil {
			return err
		}
	}
	if owed {
		return nil
	}
	return s.view.unmark(viewOwed, slot)
}

func (s *Service) lostDispatch(ctx context.Context, i *issue) (bool, error) {
	st, err := s.JS.Stream(ctx, event.StreamDispatch)
	if err != nil {
		return false, err
	}
	if st.CachedInfo().State.LastSeq < i.Sent {
		return true, nil
	}
	m, err := st.GetMsg(ctx, i.Sent)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return named(m.Header.Get(event.HeaderMsgID)) != i.MsgID(), nil
}

// rescanStatus tells what is asked of a device for a slot; nil: nothing.
func (l look) rescanStatus(p *event.Progress) (*event.RescanStatus, error) {
	if len(p.Rescans) == 0 {
		return nil, nil
	}
	is, err := l.issued(p.Slot)
	for _, i := range slices.Backward(is) {
		if i.open(p) {
			out := &event.RescanStatus{Device: i.Device, Pass: i.Pass, Since: i.At, Actor: i.Actor}
			if i.Device == "" {
				out.Problem = noDevice
			} else {
				out.Dispatch = i.MsgID()
			}
			return out, nil
		}
	}
	return nil, err
}

// unmarkRescan takes a slot off the list, unless a decision came meanwhile.
func (v *view) unmarkRescan(s event.Slot) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	p, _, err := v.slot(s)
	if err != nil {
		return err
	}
	is, err := v.issued(s)
	if err != nil {
		return err
	}
	for _, d := range p.Rescans {
		if d.Pass > 0 && !p.Discarded && is.carries(d.Decision) == nil {
			return nil
		}
	}
	return v.unmark(viewRescan, s)
}
