package capture

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/nats-io/nats.go/jetstream"

	"colophon/shared/event"
)

// hole is a run of sequences that a stream does not give out though it never
// dropped them: a flipped bit, a lost block.
type hole struct {
	First   uint64    `json:"first"`
	Last    uint64    `json:"last"`
	Counter uint64    `json:"counter,omitempty"` // of the fact that tells of it
	At      time.Time `json:"at,omitzero"`       // of that fact
	Told    bool      `json:"told,omitempty"`
}

func holeKey(stream string, first uint64) string {
	return fmt.Sprintf("%s%s/%020d", viewHole, stream, first)
}

// store is a reader and writer of the view: the view itself, or a change.
type store interface {
	pebble.Reader
	pebble.Writer
}

// putHole notes a hole, unless it is known.
func putHole(b store, stream string, first, last uint64) error {
	var known hole
	if _, err := getJSON(b, holeKey(stream, first), &known); err != nil || known.Last >= last {
		return err
	}
	return setJSON(b, holeKey(stream, first), hole{First: first, Last: last})
}

// toldOf takes over from the log that a hole was told.
func (c *change) toldOf(f event.OpFact) error {
	first, err := strconv.ParseUint(f.Detail["first"], 10, 64)
	last, none := strconv.ParseUint(f.Detail["last"], 10, 64)
	stream := f.Detail["stream"]
	if f.Kind != event.OpHole || !slices.Contains(patrolled, stream) || err != nil || none != nil {
		return nil
	}
	var known hole
	if _, err := getJSON(c.b, holeKey(stream, first), &known); err != nil || known.Last > last || known.Told {
		return err
	}
	return setJSON(c.b, holeKey(stream, first), hole{First: first, Last: last, Counter: f.Counter, At: f.At, Told: true})
}

// changeHole writes or, with nil, removes what is noted of a hole.
func (v *view) changeHole(stream string, first uint64, h *hole) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if h == nil {
		return v.db.Delete([]byte(holeKey(stream, first)), pebble.Sync)
	}
	data, err := json.Marshal(h)
	if err != nil {
		return err
	}
	return v.db.Set([]byte(holeKey(stream, first)), data, pebble.Sync)
}

func (v *view) holes(stream string) (out []hole, err error) {
	err = v.each(viewHole+stream+"/", "", func(_ string, value []byte) error {
		var h hole
		err := json.Unmarshal(value, &h)
		out = append(out, h)
		return err
	})
	return out, err
}

// forgetHoles forgets those of a stream that was rolled back: its sequences
// name other messages now.
func (v *view) forgetHoles(stream string) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	prefix := viewHole + stream + "/"
	return v.db.DeleteRange([]byte(prefix), upper(prefix), pebble.NoSync)
}

// patrolled are the streams that the view reads.
var patrolled = []string{event.StreamIngest, event.StreamCapture}

// patrol reads the streams from their start, for holes that came where the view
// had read already: the broker itself never tells of one. Only heads travel.
func (s *Service) patrol(ctx context.Context) error {
	for _, stream := range patrolled {
		if err := s.patrolStream(ctx, stream); err != nil {
			return fmt.Errorf("capture: patrol of %s: %w", stream, err)
		}
	}
	return nil
}

// patrolPull bounds a pull of a patrol.
const (
	patrolPull = 2000
	patrolWait = 2 * time.Second
)

func (s *Service) patrolStream(ctx context.Context, stream string) error {
	st, err := s.JS.Stream(ctx, stream)
	if err != nil {
		return err
	}
	state := st.CachedInfo().State
	cons, err := st.CreateConsumer(ctx, jetstream.ConsumerConfig{
		AckPolicy: jetstream.AckNonePolicy, DeliverPolicy: jetstream.DeliverAllPolicy, HeadersOnly: true, MemoryStorage: true, Replicas: 1, InactiveThreshold: time.Minute,
	})
	if err != nil {
		return err
	}
	last, left := uint64(0), cons.CachedInfo().NumPending
	if stream == event.StreamCapture && state.FirstSeq > 0 {
		last = state.FirstSeq - 1 // what was trimmed is no hole
	}
	for left > 0 && last < state.LastSeq && ctx.Err() == nil {
		batch, err := cons.Fetch(patrolPull, jetstream.FetchMaxWait(patrolWait))
		if err != nil {
			return err
		}
		n := 0
		for m := range batch.Messages() {
			meta, err := m.Metadata()
			if err != nil {
				return err
			}
			if err := s.gap(stream, last+1, meta.Sequence.Stream); err != nil {
				return err
			}
			last, left = meta.Sequence.Stream, meta.NumPending
			if n++; left == 0 || last >= state.LastSeq {
				break
			}
		}
		if err := batch.Error(); err != nil && !errors.Is(err, jetstream.ErrNoMessages) {
			return err
		}
		if n == 0 {
			break // pending are only those that cannot be read
		}
	}
	return errors.Join(ctx.Err(), s.gap(stream, last+1, state.LastSeq+1))
}

// gap notes the sequences from first up to, not with, next.
func (s *Service) gap(stream string, first, next uint64) error {
	if first >= next {
		return nil
	}
	s.view.mu.Lock()
	defer s.view.mu.Unlock()
	return putHole(s.view.db, stream, first, next-1)
}

// tellHoles says of each hole once that it is there: as a fact and an alarm.
func (s *Service) tellHoles(ctx context.Context) error {
	for _, stream := range patrolled {
		holes, err := s.view.holes(stream)
		if err != nil {
			return err
		}
		for _, h := range holes {
			if h.Told {
				continue
			}
			if err := s.tellHole(ctx, stream, h); err != nil {
				return err
			}
		}
	}
	return nil
}

// tellHole tells of one hole, under a number that is stored first: a crash
// behind the publish tells it again under the same id.
func (s *Service) tellHole(ctx context.Context, stream string, h hole) error {
	real, err := s.unreadable(ctx, stream, h.First)
	if err != nil {
		return err
	}
	if !real {
		return s.view.changeHole(stream, h.First, nil)
	}
	if h.Counter == 0 {
		if h.Counter, err = s.set.Next("op"); err != nil {
			return err
		}
		h.At = time.Now().UTC()
		if err := s.view.changeHole(stream, h.First, &h); err != nil {
			return err
		}
	}
	s.Log.Error("log_hole", slog.String("stream", stream), slog.Uint64("first", h.First), slog.Uint64("last", h.Last))
	s.Metrics.Alarm(event.OpHole)
	err = s.tellOp(ctx, event.OpHole, h.Counter, h.At, "hole", fmt.Sprintf("stream %s does not give out messages %d to %d, which it never dropped", stream, h.First, h.Last), map[string]string{
		"stream": stream, "first": strconv.FormatUint(h.First, 10), "last": strconv.FormatUint(h.Last, 10),
	})
	if err != nil {
		return err
	}
	h.Told = true
	return s.view.changeHole(stream, h.First, &h)
}

// unreadable reports whether a stream does not give out a message that it
// should have: one at or behind its first.
func (s *Service) unreadable(ctx context.Context, stream string, seq uint64) (bool, error) {
	st, err := s.JS.Stream(ctx, stream)
	if err != nil {
		return false, err
	}
	if seq < st.CachedInfo().State.FirstSeq && stream != event.StreamIngest { // trimmed
		return false, nil
	}
	_, err = st.GetMsg(ctx, seq)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return true, nil
	}
	return false, err
}
