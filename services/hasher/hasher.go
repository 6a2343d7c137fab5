// Package hasher is the second stage: it pins a slot's digest.
//
//   - takes: ingest.frame.captured
//   - keys by: the digest in transit, and the slot
//   - does: reads the staged bytes again and hashes them, compares the digest in
//     transit, the declared and the stored one, identifies the format, and
//     promotes the bytes to masters/
//   - publishes: ingest.frame.fixed
//   - refuses: a declared digest that the bytes do not have (digest-mismatch),
//     bytes that changed since they were captured (master-damaged)
package hasher

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"colophon/services/hasher/internal/identify"
	"colophon/shared/completed"
	"colophon/shared/event"
	"colophon/shared/stage"
	"colophon/shared/storage"
	"colophon/shared/topology"
)

// Config is what hasher is told.
type Config struct {
	State       string // folder of its database
	Store       *storage.Store
	NC          *nats.Conn
	JS          jetstream.JetStream
	Log         *slog.Logger
	Metrics     *stage.Metrics
	Instance    string
	Version     string
	Concurrency int // files read at once
}

// Service is hasher at work.
type Service struct {
	Config
	set   *completed.Set
	ids   *identify.Identifier
	halts stage.Halts
}

// New opens the service's database. Close releases it.
func New(c Config) (*Service, error) {
	ids, err := identify.New()
	if err != nil {
		return nil, fmt.Errorf("hasher: %w", err)
	}
	set, err := completed.Open(c.State, completed.Options{Logger: c.Log})
	if err != nil {
		return nil, fmt.Errorf("hasher: %w", err)
	}
	return &Service{Config: c, set: set, ids: ids}, nil
}

// Close releases the database; after Run has returned.
func (s *Service) Close() error { return s.set.Close() }

// Health tells what halts the service, or nil.
func (s *Service) Health() error { return s.halts.Err() }

// Run works until ctx ends.
func (s *Service) Run(ctx context.Context) error {
	st := stage.New(stage.Config{
		Service: "hasher", Instance: s.Instance, Agent: event.Agent{Name: "hasher", Version: s.Version}, Stream: event.StreamIngest, Consumer: topology.Hasher,
		Own: []string{event.SubjectFrameFixed}, Concurrency: s.Concurrency, Log: s.Log, JS: s.JS, Completed: s.set, Metrics: s.Metrics,
	}, &fixer{s.Store, s.ids})
	s.halts.Add(st.Halted)
	return st.Run(ctx)
}

// decode reads a captured frame.
func decode(_ string, _ nats.Header, data []byte) (*event.FrameCaptured, error) {
	f, err := event.DecodeFact(event.SubjectFrameCaptured, data)
	if err != nil {
		return nil, err
	}
	c := f.(event.FrameCaptured)
	if err := c.Slot.Validate(); err != nil {
		return nil, err
	}
	if !c.Digest.Valid() {
		return nil, errors.New("/digest: a captured frame needs its digest")
	}
	if !strings.HasPrefix(c.Staging, "staging/") { // it is promoted from there and removed
		return nil, errors.New("/staging: a captured frame needs its staging key")
	}
	return &c, nil
}
