// Package capture is the first stage: it takes the bytes of declared frames
// into staging, and keeps the batch view.
//
//   - takes: capture.batch (a declaration), capture.frame (where a slot's bytes
//     are) and capture.fault (what a device could not do) from gateways; frames
//     wait for their declaration
//   - keys by: the digest it read, and the slot
//   - does: reads the source once, into staging, hashing it; follows the log for
//     the batch view; writes batches/<batch>.json, and the bag at convergence;
//     asks devices for the slots that somebody decided to scan again
//   - publishes: ingest.batch.opened, .changed, .converged, ingest.frame.captured,
//     ingest.op.device-fault, gateway.dispatch; ingest.op.hole and .stuck, and the lost order of a stuck
//     slot once more, whoever's it was
//   - answers: batch.status, batch.frames, batch.list, batch.retry
//   - refuses: sources outside its roots and its list of hosts, other schemes, empty files, files
//     still being written, other bytes for a slot that is done
package capture

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"colophon/services/capture/internal/remote"
	"colophon/shared/completed"
	"colophon/shared/event"
	"colophon/shared/retry"
	"colophon/shared/stage"
	"colophon/shared/storage"
	"colophon/shared/topology"
)

// Config is what capture is told.
type Config struct {
	State       string // folder of its databases
	Store       *storage.Store
	Roots       *Roots
	Hosts       []string // that http(s) sources may be read from; none by default
	NC          *nats.Conn
	JS          jetstream.JetStream
	Log         *slog.Logger
	Metrics     *stage.Metrics
	Instance    string
	Version     string
	Concurrency int          // frames read at once
	Policy      retry.Policy // of batches that bring none
	Profiles    []string     // of batches that name none
	// Reconcile is how often the service looks for what no message will move
	// any more; 0 is a minute.
	Reconcile time.Duration
}

// Service is capture at work.
type Service struct {
	Config
	agent event.Agent
	set   *completed.Set
	view  *view
	halts stage.Halts
	// remote reads http(s) sources.
	remote *remote.Client
	// caughtUp holds a word each time a connection has been read to its end.
	caughtUp chan struct{}
	turn     sync.Mutex // of the reconcile loop: one round at a time
}

// New opens the service's databases. Close releases them.
func New(c Config) (*Service, error) {
	hosts, err := remote.New(remote.Options{Hosts: c.Hosts})
	if err != nil {
		return nil, fmt.Errorf("capture: %w", err)
	}
	set, err := completed.Open(filepath.Join(c.State, "set"), completed.Options{Logger: c.Log})
	if err != nil {
		return nil, fmt.Errorf("capture: %w", err)
	}
	view, err := openView(nil, filepath.Join(c.State, "view"), c.Log)
	if err != nil {
		return nil, errors.Join(err, set.Close())
	}
	return &Service{Config: c, agent: event.Agent{Name: "capture", Version: c.Version}, set: set, view: view, remote: hosts, caughtUp: make(chan struct{}, 1)}, nil
}

// Close releases the databases; after Run has returned.
func (s *Service) Close() error {
	s.remote.Close()
	return errors.Join(s.view.close(), s.set.Close())
}

// Health tells what halts the service, or nil.
func (s *Service) Health() error { return s.halts.Err() }

// Run works until ctx ends. When it returns, nothing of it reads or writes any
// more.
func (s *Service) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	followers := s.view.followers(s.JS, func() {
		select {
		case s.caughtUp <- struct{}{}:
		default: // one word is enough
		}
	})
	for _, f := range followers {
		g.Go(func() error { return f.Run(ctx) })
	}
	for _, f := range followers { // the view first: it tells which slots are done
		select {
		case <-f.Ready():
		case <-ctx.Done():
			return g.Wait()
		}
	}
	g.Go(func() error {
		stop, err := s.serve(ctx)
		if err != nil {
			return err
		}
		<-ctx.Done()
		stop()
		return nil
	})
	known := declared{s.set, new(stage.News)}
	batches := stage.New(s.stage(topology.CaptureBatch, 1, event.SubjectBatchOpened, event.SubjectBatchChanged, event.SubjectBatchConverged), &declarations{
		declared: known, store: s.Store, agent: s.agent, policy: s.Policy, defaults: s.Profiles,
	})
	frames := stage.New(s.stage(topology.CaptureFrame, s.Concurrency, event.SubjectFrameCaptured), &frames{
		set: s.set, store: s.Store, inputs: inputs{s.Roots, s.remote}, view: s.view, js: s.JS, declared: known,
	})
	reports := stage.New(s.stage(topology.CaptureFault, 1, event.SubjectOp+"."+event.OpDeviceFault), &reports{
		declared: known, set: s.set, store: s.Store, agent: s.agent, instance: s.Instance,
		heard: func(ctx context.Context, device string, err error) { frames.Heard(ctx, deviceName(device), err) },
	})
	s.halts.Add(batches.Halted)
	s.halts.Add(frames.Halted)
	s.halts.Add(reports.Halted)
	g.Go(func() error { return batches.Run(ctx) })
	g.Go(func() error { return frames.Run(ctx) })
	g.Go(func() error { return reports.Run(ctx) })
	g.Go(func() error { return s.keep(ctx) })
	g.Go(func() error { return s.reconcile(ctx) })
	return g.Wait()
}

func (s *Service) stage(consumer string, concurrency int, own ...string) stage.Config {
	return stage.Config{
		Service: "capture", Instance: s.Instance, Agent: s.agent, Stream: event.StreamCapture, Consumer: consumer, Own: own,
		Concurrency: concurrency, Log: s.Log, JS: s.JS, Completed: s.set, Metrics: s.Metrics,
	}
}
