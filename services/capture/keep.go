package capture

import (
	"cmp"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"colophon/shared/completed"
	"colophon/shared/event"
	"colophon/shared/stage"
)

const (
	manifestEvery = 3 * time.Second // at most this often while a batch moves
	keepRetry     = 2 * time.Second // after a failure; doubled up to keepIdle
	keepIdle      = time.Minute
	bagsAtOnce    = 2
)

// keeper says when batches converge, and makes what stands on disk about them.
// All of it follows from the view, so a crash anywhere is made good by looking
// again: at start it looks at every batch. Bags, which wait for the ledger, are
// made beside everything else: a ledger that is away holds up nothing but them.
type keeper struct {
	*Service
	tasks     map[event.Name]*task
	inspected string // the last batch that was looked at on disk, encoded
	bags      sync.WaitGroup
	places    chan struct{} // of bags in the making
	ended     chan event.Name
}

// task is what is still to be done about one batch.
type task struct {
	touched bool
	inspect bool      // whether what is noted stands on disk
	at      time.Time // when it is looked at again, touched or not
	fails   int
	said    int // convergence that was published and not yet read back
	settled bool
	written time.Time // the manifest
	bagging bool
	bagAt   time.Time
	bagFail int
}

// keep runs the keeper until ctx ends.
func (s *Service) keep(ctx context.Context) error {
	k := &keeper{Service: s, tasks: map[event.Name]*task{}, places: make(chan struct{}, bagsAtOnce), ended: make(chan event.Name)}
	defer k.bags.Wait()
	left, err := filepath.Glob(filepath.Join(s.State, bagScratch+"*"))
	if err != nil {
		return err
	}
	for _, dir := range left { // of a process that was killed
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
	}
	if err := k.inspect(-1); err != nil {
		return err
	}
	tick := time.NewTicker(cmp.Or(s.Reconcile, reconcileEvery))
	defer tick.Stop()
	for ctx.Err() == nil {
		next := s.view.changed.Next()
		for _, b := range s.view.take() {
			k.touch(b)
		}
		if err := s.unstage(ctx); err != nil && ctx.Err() == nil {
			s.Log.Error("unstage_failed", slog.Any("error", err))
		}
		timer := time.NewTimer(k.round(ctx))
		select {
		case <-ctx.Done():
		case <-next:
		case b := <-k.ended:
			k.bagged(b)
		case <-timer.C:
		case <-tick.C:
			if err := k.inspect(inspectLimit); err != nil {
				s.Log.Error("inspect_failed", slog.Any("error", err))
			}
		}
		timer.Stop()
	}
	k.farewell(ctx)
	return nil
}

// farewellWait bounds how long a stop waits for the last manifests.
const farewellWait = 10 * time.Second

// farewell writes the manifests that are due before the line ends: whoever saw
// a batch settled finds it so on disk.
func (k *keeper) farewell(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), farewellWait)
	defer cancel()
	for _, b := range k.view.take() {
		k.touch(b)
	}
	l, release := k.view.snapshot()
	defer release()
	for b, t := range k.tasks {
		r, err := l.batch(b)
		if err == nil && r.Known {
			t.written = time.Time{} // no waiting for the next turn
			_, err = k.manifestDue(ctx, l, r, t)
		}
		if err != nil {
			k.Log.Error("batch_keeping_failed", slog.String("batch_id", b.Display()), slog.Any("error", err))
		}
	}
}

func (k *keeper) touch(b event.Name) {
	if k.tasks[b] == nil {
		k.tasks[b] = &task{}
	}
	k.tasks[b].touched = true
}

// bagged ends the making of a batch's bag.
func (k *keeper) bagged(b event.Name) {
	k.tasks[b].bagging = false
	k.touch(b)
}

// round looks at the batches whose turn it is and tells how long nothing else is.
func (k *keeper) round(ctx context.Context) time.Duration {
	wait := keepIdle
	for b, t := range k.tasks {
		if d := time.Until(t.at); !t.touched && d > 0 {
			wait = min(wait, d)
			continue
		}
		t.touched = false
		again, err := k.look(ctx, b, t)
		switch {
		case ctx.Err() != nil:
			return 0
		case err != nil:
			k.Log.Error("batch_keeping_failed", slog.String("batch_id", b.Display()), slog.Any("error", err))
			again = backOff(&t.fails)
		case again == 0 && !t.bagging:
			delete(k.tasks, b)
			continue
		case again == 0:
			again = keepIdle
		}
		if err == nil {
			t.fails = 0
		}
		t.at = time.Now().Add(again)
		wait = min(wait, again)
	}
	return wait
}

func backOff(fails *int) time.Duration {
	d := min(keepRetry<<min(*fails, 10), keepIdle)
	*fails++
	return d
}

// look brings the log and the disk in line with the view of one batch, and
// tells when to look again though nothing touches it; 0: all is in line.
func (k *keeper) look(ctx context.Context, b event.Name, t *task) (time.Duration, error) {
	if t.inspect && !t.bagging {
		if err := k.stands(b); err != nil {
			return 0, err
		}
		t.inspect = false
	}
	l, release := k.view.snapshot()
	defer release()
	r, err := l.batch(b)
	if err != nil || !r.Known {
		return 0, err
	}
	if r.Totals.Converged() && !r.Converged {
		if t.said <= r.Convergence || time.Now().After(t.at) {
			if err := k.converge(ctx, r); err != nil {
				return 0, err
			}
			t.said = r.Convergence + 1
		}
		return keepIdle, nil // the view reads it soon
	}
	again, err := k.manifestDue(ctx, l, r, t)
	if err != nil || !r.Converged {
		return again, err
	}
	if err := k.sweep(ctx, l, r); err != nil {
		return 0, err
	}
	m, err := l.made(b)
	if err != nil || m.Bag >= r.Convergence || t.bagging {
		return again, err
	}
	if d := time.Until(t.bagAt); d > 0 {
		return d, nil
	}
	t.bagging = true
	k.bags.Go(func() { k.bag(ctx, r, t) })
	return again, nil
}

// converge tells the log of a convergence. Its number names it, so that it is
// told once, however often this is done.
func (s *Service) converge(ctx context.Context, r batchRecord) error {
	f := r.BatchFact
	totals := r.Totals
	f.State, f.Number, f.Totals, f.Agent, f.At = "converged", r.Convergence+1, &totals, s.agent, time.Now().UTC()
	out := stage.NewLog(s.JS, s.Log)
	fact, known, err := s.set.Fact(f.MsgID())
	if err != nil {
		return err
	}
	if !known { // a number that was told once, in a log that was rolled back since, is told by the same words
		if fact, err = out.Encode(f); err != nil {
			return err
		}
	}
	if _, err := out.Publish(ctx, &nats.Msg{Subject: fact.Subject, Header: nats.Header{event.HeaderMsgID: {fact.ID}}, Data: fact.Data}, nil); err != nil {
		return err
	}
	if err := s.set.Record(completed.Completion{Fact: fact}); err != nil {
		return err
	}
	s.Log.Info("batch_converged", slog.String("batch_id", r.Batch.Display()), slog.Int("convergence", f.Number), slog.Int("frames", totals.Declared), slog.Int("discarded", totals.Discarded))
	return nil
}
