package stage

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"colophon/shared/completed"
	"colophon/shared/crash"
)

// lot bounds what waits in memory. A message that must wait for something (a
// declaration, a dependency whose breaker is open, its own delay) has a place
// under that name; where no place is left it is parked: stored whole in the
// completed-set, then acked, so that no batch fills the broker's window of
// unacknowledged messages, or this process.
//
// Parked messages come back first come first served, by the same path, as
// places under their name become free: those in memory find out when the wait
// is over, and each that goes on lets one follow. A name that has nobody in
// memory, since others have all places, is looked at once in a while by its
// first message.
type lot struct {
	queue     string
	each, all int // places under one name, and altogether
	set       Completed
	count     func(delta float64) // of the parked

	mu     sync.Mutex
	held   map[string]int // places taken, by name
	total  int
	up     map[uint64]bool   // parked messages that are on their way, by number
	cursor map[string]uint64 // highest number taken up of a name that has places taken
	dirty  map[string]bool   // names with a place that became free
	wake   chan struct{}
}

func newLot(c Config) *lot {
	return &lot{
		queue: c.Consumer, each: c.HoldEach, all: c.HoldAll, set: c.Completed, count: c.Metrics.parked(c.Consumer),
		held: map[string]int{}, up: map[uint64]bool{}, cursor: map[string]uint64{}, dirty: map[string]bool{}, wake: make(chan struct{}, 1),
	}
}

// parking ends a message's way for now: it is stored, and comes back.
type parking struct{ name string }

func (p *parking) Error() string { return "stage: no place left to wait for " + p.name }

// enter takes a place under a name, for a message that waits there already or
// moves from another one; or it gives [*parking].
func (l *lot) enter(d *delivery, name string, each int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if d.place == name && !d.scout {
		return nil
	}
	full := l.held[name] >= each || d.place == "" && l.total >= l.all
	if d.scout { // it came without a place
		full = l.held[name] > each || l.total > l.all
	}
	if !full && d.parked == nil {
		before, err := l.set.Parked(l.queue, name, 0, 1) // those have been here longer
		if err != nil {
			return err
		}
		full = len(before) > 0
	}
	if full {
		return &parking{name}
	}
	d.scout = false
	if d.place != name {
		l.vacate(d, true)
		l.take(d, name)
	}
	return nil
}

func (l *lot) take(d *delivery, name string) {
	d.place = name
	l.held[name]++
	l.total++
}

func (l *lot) free(name string) {
	if name == "" {
		return
	}
	l.total--
	if l.held[name]--; l.held[name] <= 0 {
		delete(l.held, name)
		delete(l.cursor, name)
	}
}

// invite has the attendant look at a name, since somebody left.
func (l *lot) invite(name string) {
	l.dirty[name] = true
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// leave gives the place of a message back whose wait is over. One that was
// parked keeps its place until it is settled, so that not all come at once.
func (l *lot) leave(d *delivery) {
	if d.parked != nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.vacate(d, true)
}

func (l *lot) vacate(d *delivery, invite bool) {
	if invite && d.place != "" {
		l.invite(d.place)
	}
	l.free(d.place)
	d.place = ""
}

// ended takes note that a message is on its way no longer. One that is still in
// the set keeps its turn, and is looked at in the next round.
func (l *lot) ended(d *delivery) {
	l.mu.Lock()
	defer l.mu.Unlock()
	still := d.parked != nil && !d.gone
	if d.parked != nil {
		delete(l.up, d.parked.Number)
	}
	if still {
		if c, ok := l.cursor[d.parked.Name]; ok {
			l.cursor[d.parked.Name] = min(c, d.parked.Number-1)
		}
	}
	l.vacate(d, !still)
}

// next takes up to room parked messages of a name on their way. Where no place
// is left at all a scout comes alone.
func (l *lot) next(name string) ([]*delivery, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	room := min(l.each-l.held[name], l.all-l.total)
	scout := room <= 0 && l.held[name] == 0
	if scout {
		room = 1
	}
	var out []*delivery
	for after := l.cursor[name]; len(out) < room; {
		page, err := l.set.Parked(l.queue, name, after, min(room-len(out), 64))
		if err != nil || len(page) == 0 {
			return out, err
		}
		for _, p := range page {
			after = p.Number
			if l.up[p.Number] {
				continue
			}
			d := &delivery{parked: &p, scout: scout}
			l.up[p.Number] = true
			l.take(d, name)
			l.cursor[name] = p.Number
			out = append(out, d)
		}
	}
	return out, nil
}

// freed lists the names with places that became free.
func (l *lot) freed() (names []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for n := range l.dirty {
		names = append(names, n)
	}
	clear(l.dirty)
	return names
}

// Between two rounds of the attendant; a round looks at so many names.
const (
	parkingRound = time.Second
	parkingNames = 64
)

// attend brings parked messages back until ctx ends.
func (s *Stage[In, Out]) attend(ctx, work context.Context) {
	if n, err := s.Completed.CountParked(s.Consumer); err == nil {
		s.lot.count(float64(n))
	}
	round := time.NewTicker(parkingRound)
	defer round.Stop()
	for last := ""; ; {
		var names []string
		var err error
		select {
		case <-ctx.Done():
			return
		case <-s.lot.wake:
			names = s.lot.freed()
		case <-round.C:
			if names, err = s.Completed.ParkedFor(s.Consumer, last, parkingNames); len(names) > 0 {
				last = names[len(names)-1]
			} else {
				last = ""
			}
		}
		for _, n := range names {
			if err != nil || s.gate.reason() != nil {
				break
			}
			err = s.bringBack(work, n)
		}
		if err != nil {
			s.Log.Error("parked_unreadable", slog.String("consumer", s.Consumer), slog.Any("error", err))
		}
	}
}

func (s *Stage[In, Out]) bringBack(work context.Context, name string) error {
	up, err := s.lot.next(name)
	for _, d := range up {
		d.permit = &permit{of: s.permits}
		d.since = d.parked.Since
		d.msg = &parkedMsg{*d.parked, s.Completed, func() {
			d.gone = true
			s.lot.count(-1)
		}}
		s.wg.Go(func() { s.receive(work, d) })
	}
	return err
}

// isParked reports whether a message from the broker is parked already.
func (s *Stage[In, Out]) isParked(d *delivery) (bool, error) {
	if d.parked != nil {
		return false, nil
	}
	return s.Completed.IsParked(s.Consumer, d.origin, d.meta.Timestamp.UTC(), idOf(d.msg.Headers()))
}

// park stores a message that finds no place, and lets the broker forget it. A
// crash between the two finds it parked at the redelivery.
func (s *Stage[In, Out]) park(ctx context.Context, d *delivery, name string) error {
	if d.parked != nil && d.parked.Name == name {
		return nil // it keeps its turn
	}
	err := s.Completed.Park(completed.Parked{
		Queue: s.Consumer, Name: name, Origin: d.origin, Stored: d.meta.Timestamp.UTC(), MsgID: idOf(d.msg.Headers()), Since: d.since,
		Subject: d.msg.Subject(), Header: d.msg.Headers(), Data: d.msg.Data(),
	})
	if err != nil {
		return err
	}
	crash.At(s.Service + ".after-park")
	s.Log.Debug("message_parked", append(d.attrs("park"), slog.String("for", name))...)
	if d.parked != nil { // moved
		d.gone = true
		return nil
	}
	s.lot.count(1)
	s.ack(ctx, d)
	return nil
}

// parkedMsg is a parked message on its way: its ack removes it from the set.
type parkedMsg struct {
	completed.Parked
	set  Completed
	gone func()
}

var _ jetstream.Msg = (*parkedMsg)(nil)

func (m *parkedMsg) Metadata() (*jetstream.MsgMetadata, error) {
	stream, seq, err := parseOrigin(m.Origin)
	return &jetstream.MsgMetadata{
		Stream: stream, Consumer: m.Queue, Sequence: jetstream.SequencePair{Stream: seq}, NumDelivered: 1, Timestamp: m.Stored,
	}, err
}

func (m *parkedMsg) Data() []byte         { return m.Parked.Data }
func (m *parkedMsg) Headers() nats.Header { return m.Header }
func (m *parkedMsg) Subject() string      { return m.Parked.Subject }
func (m *parkedMsg) Reply() string        { return "" }

func (m *parkedMsg) Ack() error {
	err := m.set.Unpark(m.Parked)
	if err == nil {
		m.gone()
	}
	return err
}

func (m *parkedMsg) DoubleAck(context.Context) error    { return m.Ack() }
func (m *parkedMsg) Nak() error                         { return nil } // it is where it was
func (m *parkedMsg) NakWithDelay(time.Duration) error   { return nil }
func (m *parkedMsg) InProgress() error                  { return nil }
func (m *parkedMsg) Term() error                        { return m.Ack() }
func (m *parkedMsg) TermWithReason(reason string) error { return m.Ack() }

// origin names a message: <stream>-<sequence>.
func originOf(m *jetstream.MsgMetadata) string {
	return fmt.Sprintf("%s-%d", m.Stream, m.Sequence.Stream)
}

func parseOrigin(name string) (stream string, sequence uint64, err error) {
	i := strings.LastIndexByte(name, '-')
	if i < 0 {
		return "", 0, fmt.Errorf("stage: %q names no message", name)
	}
	if sequence, err = strconv.ParseUint(name[i+1:], 10, 64); err != nil {
		return "", 0, fmt.Errorf("stage: %q names no message: %w", name, err)
	}
	return name[:i], sequence, nil
}
