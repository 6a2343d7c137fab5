// Package quarantine keeps the cases: what a service gave up on, from the dead
// letter to its resolution.
//
//   - It takes dead letters (DEADLETTER, consumer "quarantine"), follows the
//     log (INGEST) to its end, and answers operators over nats.go/micro.
//   - It keys by (operation, slot): one case each, reopened when a later pass
//     fails too. A message that nobody could read has no slot: its case is
//     named by the message's origin.
//   - It does, for a person: it publishes a case's original message again under
//     the next pass (replay), records that nothing more is to be done (discard),
//     or asks for the frame to be scanned again (rescan), which an image fault
//     of a batch with devices does by itself unless its policy says no. By
//     itself it closes a case as soon as the slot's operation is complete, by
//     the slot's own fact of any pass, or a later pass began.
//     opened → replayed | discarded | rescan-requested → resolved; a failure of
//     a later pass opens it again, and one that waits for a rescan can still be
//     replayed, discarded or asked for once more.
//   - It publishes every change of a case as a fact, ingest.case.<state>,
//     numbered within its case, and halts of its own as ingest.op.<kind>.
//   - It refuses a decision without an actor and a note, on a case that is not
//     open, or on one that the log has closed meanwhile: nothing changes then.
//
// State moves in one direction only: a decision is published, read back from
// the log, and only by that becomes state (internal/cases). So any store, also
// an empty one, comes to the same cases by reading, and a decision that was
// published before a crash is found, not made again. Before it decides
// anything, the service reads the log to its end and goes through the dead
// letters that its store does not know. One instance decides at a time: two
// would number their changes alike.
package quarantine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"colophon/shared/event"
	"colophon/shared/stage"
	"colophon/shared/topology"

	"colophon/services/quarantine/internal/cases"
)

// Name of the service: in its subjects, facts and log lines.
const Name = "quarantine"

// Service is one instance; [Service.Run] starts it.
type Service struct {
	Config
	store    *cases.Store
	out      *stage.Log
	log      jetstream.Stream
	letters  jetstream.Stream
	read     atomic.Uint64 // sequence of the log that the store has applied
	news     stage.News    // tells that the store moved
	dirty    dirty         // cases to look at
	deciding chan struct{} // one decision at a time
	whole    atomic.Bool   // the log was read to its end, once
	ready    atomic.Bool   // and every dead letter was gone through
	closing  sync.RWMutex  // held by requests while they run
	closed   bool
}

// New makes a service. It returns every fault of the configuration at once.
func New(c Config) (*Service, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	return &Service{Config: c, out: stage.NewLog(c.JS, c.Log), deciding: make(chan struct{}, 1)}, nil
}

// Ready tells why the service does not decide yet, or nil.
func (q *Service) Ready() error {
	if !q.ready.Load() {
		return errors.New("the log and the dead letters are not read to their end")
	}
	return nil
}

// Run keeps cases until ctx ends, and returns nil then. It returns an error
// when the broker differs from the topology, or its store fails. It is called
// once.
func (q *Service) Run(ctx context.Context) (err error) {
	if err := topology.Refuse(ctx, q.JS, event.StreamCapture, event.StreamIngest, event.StreamDeadLetter); err != nil {
		return err
	}
	if q.log, err = q.JS.Stream(ctx, event.StreamIngest); err != nil {
		return fmt.Errorf("quarantine: the log: %w", err)
	}
	if q.letters, err = q.JS.Stream(ctx, event.StreamDeadLetter); err != nil {
		return fmt.Errorf("quarantine: dead letters: %w", err)
	}
	if q.store, err = cases.Open(filepath.Join(q.State, Name), cases.Options{Logger: q.Log}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, q.shut()) }()
	ctx, end := context.WithCancel(ctx)
	defer end() // of requests that still wait, before the store is shut
	if q.Register != nil {
		m := &collector{q}
		if err := q.Register.Register(m); err != nil {
			return fmt.Errorf("quarantine: metrics: %w", err)
		}
		defer q.Register.Unregister(m)
	}
	stop, err := q.answer(ctx)
	if err != nil {
		return err
	}
	defer stop()
	q.Log.Info("quarantine_started", slog.Any("config", q.Config))
	for {
		if err := q.session(ctx); !errors.Is(err, errRolledBack) {
			return err
		}
	}
}

// shut waits for running requests and closes the store.
func (q *Service) shut() error {
	q.closing.Lock()
	defer q.closing.Unlock()
	q.closed = true
	return q.store.Close()
}

// session follows the log from where the store stands until ctx ends or the
// log turns out to be rolled back. The order is the promise: nothing is decided
// before the log is read, healed, and the dead letters are gone through.
func (q *Service) session(ctx context.Context) error {
	pos, err := q.store.Position(cases.FollowLog)
	if err != nil {
		return err
	}
	q.read.Store(pos.Sequence)
	q.ready.Store(false)
	g, ctx := errgroup.WithContext(ctx)
	log := q.follower()
	g.Go(func() error { return log.Run(ctx) })
	g.Go(func() error {
		select {
		case <-log.Ready():
		case <-ctx.Done():
			return nil
		}
		q.whole.Store(true)
		if err := q.heal(ctx); err != nil {
			return quiet(ctx, err)
		}
		if err := q.sweep(ctx); err != nil {
			return quiet(ctx, err)
		}
		q.ready.Store(true)
		q.Log.Info("quarantine_ready", slog.Uint64("position", q.read.Load()))
		g.Go(func() error { return quiet(ctx, q.close(ctx)) })
		return quiet(ctx, q.consume(ctx))
	})
	return g.Wait()
}

// quiet drops the errors that an end of ctx brings about.
func quiet(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}
