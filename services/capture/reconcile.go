package capture

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"colophon/shared/event"
	"colophon/shared/fault"
	"colophon/shared/stage"
	"colophon/shared/topology"
)

const (
	reconcileEvery = time.Minute
	scanLimit      = 20_000           // slots that one round looks at
	stuckLimit     = 1_000            // slots that one round sends again
	holeLimit      = 64               // orders that one round looks up, whether they can be read at all
	readWait       = 30 * time.Second // for the view to read what there is
	patrolEvery    = 24 * time.Hour
)

// reconciler finds what no message will move any more, and makes it good:
// slots whose order was lost, holes of the streams, dispatches that nobody
// stored. It waits for no time to pass: see [reconciler.stuck].
type reconciler struct {
	*Service
	at        place // where the last look ended
	patrolled time.Time
	looks     int // left of holeLimit in this round
	scan      int // slots that one round looks at; 0: scanLimit
}

// place is a slot's in its batch's order; without a cursor the batch's start.
type place struct {
	batch  event.Name
	cursor string
}

// reconcile runs the loop until ctx ends: each interval, and each time a
// connection has caught up. A rescan is dispatched as soon as the view has it.
func (s *Service) reconcile(ctx context.Context) error {
	r := &reconciler{Service: s}
	tick := time.NewTicker(cmp.Or(s.Reconcile, reconcileEvery))
	defer tick.Stop()
	select {
	case <-s.caughtUp: // of this start
	default:
	}
	for due := true; ctx.Err() == nil; {
		next := s.view.changed.Next()
		err := s.rescans(ctx)
		if due {
			err = errors.Join(err, r.round(ctx))
		}
		if err != nil && ctx.Err() == nil {
			s.Log.Error("reconcile_failed", slog.Any("error", err))
		}
		select {
		case <-ctx.Done():
		case <-next:
			due = false
		case <-tick.C:
			due = true
		case <-s.caughtUp:
			due, r.patrolled = true, time.Time{}
		}
	}
	return nil
}

// round does everything once; what fails does not hinder the rest.
func (r *reconciler) round(ctx context.Context) error {
	r.turn.Lock()
	defer r.turn.Unlock()
	r.looks = holeLimit
	var patrol error
	if time.Since(r.patrolled) > patrolEvery {
		if patrol = r.patrol(ctx); patrol == nil {
			r.patrolled = time.Now()
		}
	}
	return errors.Join(patrol, r.tellHoles(ctx), r.resume(ctx), r.stuck(ctx), r.dispatched(ctx))
}

// worker is the consumer that an operation waits on, as it was before the view
// was read.
type worker struct {
	stream string
	floor  uint64 // everything up to it is acked
	idle   bool   // everything that can be read is acked
}

func streamOf(o event.Operation) string {
	if o == event.Capture {
		return event.StreamCapture
	}
	return event.StreamIngest
}

// workers asks for the consumers that the pending slots of batches wait on.
func (r *reconciler) workers(ctx context.Context, profiles map[string]bool) (map[event.Operation]worker, error) {
	names := map[event.Operation]string{event.Capture: topology.CaptureFrame, event.Fixity: topology.Hasher}
	for p := range profiles {
		names[event.Derivative(p)] = topology.DeriverConsumer(p)
	}
	out := map[event.Operation]worker{}
	for o, name := range names {
		c, err := r.JS.Consumer(ctx, streamOf(o), name)
		if errors.Is(err, jetstream.ErrConsumerNotFound) {
			continue // nobody's work here: provision tells
		}
		if err != nil {
			return nil, fmt.Errorf("capture: consumer %s: %w", name, err)
		}
		i := c.CachedInfo()
		out[o] = worker{streamOf(o), i.AckFloor.Stream, i.NumPending == 0 && i.NumAckPending == 0}
	}
	return out, nil
}

// suspect is a pending operation of a slot that nothing seems to move.
type suspect struct {
	event.Slot
	event.Operation
}

// stuck finds the slots that no message will move any more, and sends them
// again, once. A service publishes what follows from a message before it acks
// it. So where the consumers have acked every order of a slot's operation, and
// the view has then read both streams to where they end, and the operation
// still waits, nothing will come. Work that is slow, waits or is halted is not
// acked; what capture parked is acked, and known. What another service parked
// is not known: past 10,000 that wait in it, its orders may be sent once more
// in vain, and it finds the work done.
func (r *reconciler) stuck(ctx context.Context) error {
	batches := r.view.unsettled()
	if len(batches) == 0 {
		return nil
	}
	profiles := map[event.Name][]string{}
	all := map[string]bool{}
	for _, b := range batches {
		rec, err := r.view.batch(b)
		if err != nil {
			return err
		}
		profiles[b] = rec.Profiles
		for _, p := range rec.Profiles {
			all[p] = true
		}
	}
	line, err := r.workers(ctx, all)
	if err != nil {
		return err
	}
	suspects, err := r.suspects(ctx, batches, profiles, line)
	if err != nil || len(suspects) == 0 {
		return err
	}
	if err := r.readAll(ctx); err != nil {
		r.patrolled = time.Time{} // what does not come may be damaged
		return err
	}
	for _, s := range suspects {
		p, _, err := r.view.slot(s.Slot)
		if err != nil {
			return err
		}
		still, err := r.lost(ctx, &p, profiles[s.Batch], line)
		if err != nil {
			return err
		}
		for _, o := range still {
			if o == s.Operation {
				if err := r.sendAgain(ctx, &p, o); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// suspects looks through pending slots, from behind where the last round ended,
// at most once around: no batch keeps the loop from the others.
func (r *reconciler) suspects(ctx context.Context, batches []event.Name, profiles map[event.Name][]string, line map[event.Operation]worker) (out []suspect, err error) {
	l, release := r.view.snapshot()
	defer release()
	first, _ := slices.BinarySearch(batches, r.at.batch)
	looked := 0
	for i := range batches {
		b := batches[(first+i)%len(batches)]
		if b != r.at.batch {
			r.at = place{batch: b}
		}
		for f, err := range l.frames(b, r.at.cursor) {
			if err != nil {
				return nil, err
			}
			if looked++; looked > cmp.Or(r.scan, scanLimit) || len(out) > stuckLimit {
				return out, nil
			}
			r.at.cursor = f.cursor
			ops, err := r.lost(ctx, &f.Progress, profiles[b], line)
			if err != nil {
				return nil, err
			}
			for _, o := range ops {
				if known, err := l.resent(resentKey(f.Slot, o, f.Pass())); err != nil || known {
					if err != nil {
						return nil, err
					}
					continue
				}
				if parked, err := r.parked(&f.Progress); err != nil || parked {
					if err != nil {
						return nil, err
					}
					break
				}
				out = append(out, suspect{f.Slot, o})
			}
		}
	}
	r.at = place{}
	return out, nil
}

// parked reports whether capture itself keeps the acked message of a slot, to
// work on it later. Where it was worked on since, the view is about to read
// what followed.
func (s *Service) parked(p *event.Progress) (bool, error) {
	order := p.Orders(event.Capture)[0].Sequence
	return s.set.ParkedAt(topology.CaptureFrame, fmt.Sprintf("%s-%d", event.StreamCapture, order))
}

// lost lists the operations of a slot whose every order is acked.
func (r *reconciler) lost(ctx context.Context, p *event.Progress, profiles []string, line map[event.Operation]worker) (out []event.Operation, err error) {
	for _, o := range p.Waits(profiles) {
		over := true
		if op := p.Ops[o]; op != nil && time.Now().Before(op.NotBefore) { // it waits out a delay, and may be parked for it
			continue
		}
		for _, order := range p.Orders(o) {
			if order.Sequence == 0 && order.Operation != o {
				continue
			}
			if over, err = r.over(ctx, order, line); err != nil || !over {
				break
			}
		}
		if err != nil {
			return nil, err
		}
		if over {
			out = append(out, o)
		}
	}
	return out, nil
}

// over reports whether an order is acked, or cannot be delivered at all: it
// was damaged in its stream.
func (r *reconciler) over(ctx context.Context, o event.Order, line map[event.Operation]worker) (bool, error) {
	w, ok := line[o.Operation]
	switch {
	case !ok || o.Sequence == 0:
		return false, nil
	case o.Sequence <= w.floor:
		return true, nil
	case !w.idle || r.looks <= 0:
		return false, nil
	}
	r.looks--
	return r.unreadable(ctx, w.stream, o.Sequence)
}

// readAll waits until the view has read both streams to where they end now.
func (s *Service) readAll(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readWait)
	defer cancel()
	for _, stream := range patrolled {
		if err := s.view.abreastOf(ctx, s.JS, stream); err != nil {
			return err
		}
	}
	return nil
}

// tellOp publishes an operational fact under a durable number. The instance
// carries the name of the store that counts.
func (s *Service) tellOp(ctx context.Context, kind string, counter uint64, at time.Time, code, reason string, detail map[string]string) error {
	store, err := s.set.Incarnation()
	if err != nil {
		return err
	}
	_, err = stage.NewLog(s.JS, s.Log).PublishFact(ctx, event.OpFact{
		Schema: event.SchemaOp, Kind: kind, Service: "capture", Instance: s.Instance + "." + store, Counter: counter, Code: code,
		Reason: fault.Clean(reason), Detail: detail, Agent: s.agent, At: at,
	}, nil)
	return err
}
