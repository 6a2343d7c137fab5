package standalone

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"sync"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"colophon/services/capture"
	"colophon/services/deriver"
	"colophon/services/hasher"
	"colophon/services/premis"
	"colophon/services/quarantine"
	"colophon/shared/daemon"
	"colophon/shared/event"
	"colophon/shared/profile"
	"colophon/shared/retry"
	"colophon/shared/stage"
	"colophon/shared/topology"
)

// service is one that was opened: it runs until ctx ends, and is closed then.
type service interface {
	Run(context.Context) error
	Close() error
}

// opened drops a service that was not opened.
func opened[S service](s S, err error) (service, error) {
	if err != nil {
		return nil, err
	}
	return s, nil
}

// closing is quarantine, which closes its store when Run returns.
type closing struct{ *quarantine.Service }

func (closing) Close() error { return nil }

// line is what all services share.
type line struct {
	*Archive
	registry *prometheus.Registry
	metrics  *stage.Metrics
}

func (l *line) state(name string) string { return filepath.Join(l.Archive.Archive, "state", name) }

// openers open the services, by name.
var openers = map[string]func(*line, *nats.Conn, jetstream.JetStream, *slog.Logger) (service, error){
	"capture": func(l *line, nc *nats.Conn, js jetstream.JetStream, log *slog.Logger) (service, error) {
		return opened(capture.New(capture.Config{
			State: l.state("capture"), Store: l.store, Roots: l.roots, Hosts: l.Hosts, NC: nc, JS: js, Log: log, Metrics: l.metrics, Instance: "standalone", Version: daemon.Version,
			Concurrency: 8, Policy: retry.Default(), Profiles: []string{profile.Names()[0]},
		}))
	},
	"hasher": func(l *line, nc *nats.Conn, js jetstream.JetStream, log *slog.Logger) (service, error) {
		return opened(hasher.New(hasher.Config{State: l.state("hasher"), Store: l.store, NC: nc, JS: js, Log: log, Metrics: l.metrics, Instance: "standalone", Version: daemon.Version, Concurrency: 8}))
	},
	"deriver": func(l *line, nc *nats.Conn, js jetstream.JetStream, log *slog.Logger) (service, error) {
		return opened(deriver.New(deriver.Config{
			State: l.state("deriver"), Scratch: filepath.Join(l.state("deriver"), "scratch"), Store: l.store, NC: nc, JS: js, Log: log, Metrics: l.metrics,
			Instance: "standalone", Version: daemon.Version, Profiles: profile.Names(), Concurrency: runtime.GOMAXPROCS(0), Memory: 4 << 30,
		}))
	},
	"premis": func(l *line, nc *nats.Conn, _ jetstream.JetStream, log *slog.Logger) (service, error) {
		c := premis.Defaults()
		c.Dir, c.Checkpoints, c.Logger, c.Version = l.state("premis"), l.state("premis-checkpoints"), log, daemon.Semver(daemon.Version)
		if l.Origin != "" {
			c.Origin = l.Origin
		}
		c.Key = l.signingKey()
		p, err := premis.New(c, nc)
		if err == nil {
			l.registry.MustRegister(p.Collector())
		}
		return opened(p, err)
	},
	"quarantine": func(l *line, nc *nats.Conn, js jetstream.JetStream, log *slog.Logger) (service, error) {
		c := quarantine.Default()
		c.State, c.Instance, c.Agent = filepath.Join(l.Archive.Archive, "state"), "standalone", event.Agent{Name: "quarantine", Version: daemon.Version}
		c.NC, c.JS, c.Log, c.Register = nc, js, log, l.registry
		q, err := quarantine.New(c)
		if err != nil {
			return nil, err
		}
		l.health.Check("quarantine", q.Ready)
		return closing{q}, nil
	},
}

// services opens all five.
func (a *Archive) services(connect func(string) (*nats.Conn, jetstream.JetStream, error)) (map[string]service, error) {
	l := &line{Archive: a, registry: daemon.Registry()}
	l.metrics = stage.NewMetrics(l.registry)
	l.health.Note("breakers", l.metrics.Breakers)
	var consumers []string
	for _, c := range topology.Consumers(profile.Names()) {
		consumers = append(consumers, c.Name)
	}
	l.registry.MustRegister(a.health.Denials(), topology.Lag(a.JS, consumers...))
	for name := range openers {
		if err := os.MkdirAll(l.state(name), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, fmt.Errorf("standalone: %w", err)
		}
	}
	a.health.Fail("line", errors.New("the services are starting"))
	a.health.Check("encoder", deriver.Missing)
	if _, err := daemon.ServeHTTP(context.Background(), a.HTTP, &a.health, l.registry, a.Log); err != nil {
		return nil, err
	}
	out := map[string]service{}
	var mu sync.Mutex
	var g errgroup.Group
	for name, open := range openers {
		g.Go(func() error { // each opens databases, which waits for the disk: all at once
			nc, js, err := connect(name)
			if err != nil {
				return err
			}
			s, err := open(l, nc, js, a.Log.With(slog.String("service", name)))
			if err != nil {
				return err
			}
			a.later(s.Close)
			if h, ok := s.(interface{ Health() error }); ok { // what halts it
				a.health.Check(name, h.Health)
			}
			mu.Lock()
			defer mu.Unlock()
			out[name] = s
			return nil
		})
	}
	return out, g.Wait()
}

// run has the services work until one fails or [Archive.Close] is called.
func (a *Archive) run(services map[string]service) {
	ctx, stop := context.WithCancel(context.Background())
	a.stop = stop
	g, ctx := errgroup.WithContext(ctx)
	for name, s := range services {
		g.Go(func() error {
			if err := s.Run(ctx); err != nil {
				if ctx.Err() != nil && errors.Is(err, context.Canceled) {
					return nil // it was stopped while it started
				}
				a.Log.Error("service_failed", slog.String("service", name), slog.Any("error", err))
				return fmt.Errorf("%s: %w", name, err)
			}
			return nil
		})
	}
	a.health.Check("line", a.Err)
	go func() {
		a.err = g.Wait()
		close(a.done)
	}()
}
