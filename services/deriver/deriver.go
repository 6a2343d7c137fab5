// Package deriver is the third stage: it makes the derivatives of a master,
// one durable consumer for each profile.
//
//   - takes: ingest.frame.fixed
//   - keys by: profile and digest; equal content is encoded once
//   - does: hashes the master as it reads it, checks it strictly, has it encoded
//     by a limited child, and compares the result with the master's samples
//     before anybody sees it
//   - publishes: ingest.profile.pinned, ingest.derivative.<profile>
//   - refuses: what it cannot read for sure (a code of the image check, or
//     unsupported-…); never a guess from the encoder's exit status
package deriver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"colophon/services/deriver/internal/derive"
	"colophon/shared/completed"
	"colophon/shared/event"
	"colophon/shared/stage"
	"colophon/shared/storage"
	"colophon/shared/topology"

	"colophon/shared/profile"
)

// Config is what deriver is told.
type Config struct {
	State       string // folder of its databases, one for each profile
	Scratch     string // folder for what is made on the way; emptied at start
	Store       *storage.Store
	NC          *nats.Conn
	JS          jetstream.JetStream
	Log         *slog.Logger
	Metrics     *stage.Metrics
	Instance    string
	Version     string
	Profiles    []string // that this instance makes
	Concurrency int      // masters worked on at once, of all profiles together
	Memory      int64    // bytes that all helpers together may take
}

// Missing tells which helper programs a machine lacks: nil when none.
func Missing() error { return derive.Probe(profile.Recipe{}) }

// Service is deriver at work.
type Service struct {
	Config
	sets   []*completed.Set
	makers []*maker
	halts  stage.Halts
}

// New opens the service's databases. Close releases them.
func New(c Config) (*Service, error) {
	s := &Service{Config: c}
	if err := os.MkdirAll(c.Scratch, 0o700); err != nil {
		return nil, fmt.Errorf("deriver: scratch: %w", err)
	}
	if err := derive.Sweep(c.Scratch); err != nil {
		return nil, fmt.Errorf("deriver: scratch: %w", err)
	}
	memory, cores := semaphore.NewWeighted(c.Memory), semaphore.NewWeighted(int64(max(c.Concurrency, 1)))
	for _, name := range c.Profiles {
		recipe, ok := profile.Named(name)
		if !ok {
			return nil, errors.Join(fmt.Errorf("deriver: there is no profile %q", name), s.Close())
		}
		set, err := completed.Open(filepath.Join(c.State, event.Encode(name)), completed.Options{Logger: c.Log})
		if err != nil {
			return nil, errors.Join(fmt.Errorf("deriver: %w", err), s.Close())
		}
		s.sets = append(s.sets, set)
		m, err := newMaker(s, recipe, set, memory, cores)
		if err != nil {
			return nil, errors.Join(err, s.Close())
		}
		s.makers = append(s.makers, m)
	}
	return s, nil
}

// Close releases the databases; after Run has returned.
func (s *Service) Close() error {
	var errs []error
	for _, set := range s.sets {
		errs = append(errs, set.Close())
	}
	return errors.Join(errs...)
}

// Health tells what halts the service, or nil.
func (s *Service) Health() error { return s.halts.Err() }

// Run works until ctx ends.
func (s *Service) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for i, m := range s.makers {
		st := stage.New(stage.Config{
			Service: "deriver", Instance: s.Instance, Agent: m.agent, Stream: event.StreamIngest, Consumer: topology.DeriverConsumer(m.recipe.Name),
			Own: []string{event.SubjectDerivative + "." + event.Encode(m.recipe.Name), event.SubjectProfilePinned}, Concurrency: s.Concurrency,
			Log: s.Log, JS: s.JS, Completed: s.sets[i], Metrics: s.Metrics,
		}, m)
		s.halts.Add(st.Halted)
		g.Go(func() error { return st.Run(ctx) })
	}
	return g.Wait()
}
