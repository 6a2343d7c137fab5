// Package standalone composes all five services and a broker into one process.
// It adds only composition, and the command line's own client of the line.
package standalone

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
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
	"colophon/shared/storage"
	"colophon/shared/topology"
)

// Options of an archive in one process.
type Options struct {
	Archive string      // folder
	Roots   []string    // folders that file sources may lie in
	Known   bool        // also the folders that earlier runs were given
	Listen  string      // loopback host:port of the broker; empty: a free port
	Broker  daemon.NATS // an outside broker instead of the embedded one
	Remote  bool        // only connect to the outside broker: the line runs elsewhere
	HTTP    string      // address of the health page; empty: none
	Origin  string      // of the ledger
	Log     *slog.Logger
}

// Archive is a running line: this process's own, or that of another process
// that it found running.
type Archive struct {
	Options
	*Client
	own    bool
	broker *broker
	roots  *capture.Roots
	store  *storage.Store
	health daemon.Health

	stop  context.CancelFunc
	done  chan struct{} // closed when the services have ended
	err   error         // why, once done is closed
	mu    sync.Mutex
	close []func() error
}

// Open starts the line in this process, or attaches to the one that runs on
// this archive already.
func Open(ctx context.Context, o Options) (*Archive, error) {
	abs, err := filepath.Abs(o.Archive)
	if err != nil {
		return nil, fmt.Errorf("standalone: %w", err)
	}
	o.Archive = abs
	if o.Remote {
		a := &Archive{Options: o, done: make(chan struct{}), roots: new(capture.Roots)}
		if err := a.dial(ctx); err != nil {
			return nil, errors.Join(err, a.Close())
		}
		return a, nil
	}
	var last error
	for deadline := time.Now().Add(attachWait); time.Now().Before(deadline) && ctx.Err() == nil; {
		a := &Archive{Options: o, done: make(chan struct{}), roots: new(capture.Roots)}
		err := a.start(ctx)
		if err == nil {
			return a, nil
		}
		a.Close() //nolint:errcheck // the start's own fault is told
		if !errors.Is(err, ErrRunning) {
			return nil, err
		}
		b := &Archive{Options: o, done: make(chan struct{}), roots: new(capture.Roots)}
		if last = b.attach(ctx); last == nil {
			return b, nil
		}
		b.Close() //nolint:errcheck // see above
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond): // the other one is starting or stopping
		}
	}
	return nil, errors.Join(ErrRunning, last, ctx.Err())
}

// attachWait is how long another process may take to start or stop.
const attachWait = 30 * time.Second

// Own reports whether the line runs in this process.
func (a *Archive) Own() bool { return a.own }

// Done is closed when the line has ended, or the connection to it is lost.
func (a *Archive) Done() <-chan struct{} { return a.done }

// Err tells why the line ended, once Done is closed.
func (a *Archive) Err() error {
	select {
	case <-a.done:
		return a.err
	default:
		return nil
	}
}

func (a *Archive) later(f func() error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.close = append(a.close, f)
}

// Close stops what runs and releases everything, in reverse order.
func (a *Archive) Close() error {
	if a.stop != nil {
		a.stop()
		<-a.done
	}
	var errs []error
	for i := len(a.close) - 1; i >= 0; i-- {
		errs = append(errs, a.close[i]())
	}
	a.close = nil
	return errors.Join(errs...)
}

func (a *Archive) attach(ctx context.Context) error {
	acc, err := readAccess(a.Archive)
	if err != nil {
		return err
	}
	lost := make(chan struct{})
	nc, err := nats.Connect(acc.URL, nats.Name("colophon-client"), nats.Timeout(2*time.Second), nats.NoReconnect(),
		nats.ClosedHandler(func(*nats.Conn) { close(lost) }))
	if err != nil {
		return fmt.Errorf("standalone: attach: %w", err)
	}
	a.later(func() error { nc.Close(); return nil })
	if a.Client, err = NewClient(nc, a.Log); err != nil {
		return err
	}
	for _, r := range a.Roots {
		if err := a.Client.addRoot(ctx, r); err != nil {
			return err
		}
	}
	go func() {
		<-lost
		a.err = errors.New("standalone: the process that held the archive is gone")
		close(a.done)
	}()
	return nil
}

// dial connects to a line that runs elsewhere, under its own credentials.
func (a *Archive) dial(ctx context.Context) error {
	nc, _, err := a.Broker.Connect(ctx, "gateway", a.Log, &a.health)
	if err != nil {
		return err
	}
	a.later(func() error { nc.Close(); return nil })
	a.Client, err = NewClient(nc, a.Log)
	return err
}

// start composes the line: broker, streams, store, five services.
func (a *Archive) start(ctx context.Context) (err error) {
	broker, opts := a.Broker, []nats.Option(nil)
	if broker.URL == "" {
		if a.broker, err = startBroker(a.Archive, a.Listen, a.Log); err != nil {
			return err
		}
		a.own = true
		a.later(func() error { a.broker.stop(); return nil })
		opts = append(opts, nats.InProcessServer(a.broker.srv), nats.UserInfo("colophon", a.password()))
	}
	connect := func(name string) (*nats.Conn, jetstream.JetStream, error) {
		nc, js, err := broker.Connect(ctx, name, a.Log, &a.health, opts...)
		if err == nil {
			a.later(func() error { nc.Close(); return nil })
		}
		return nc, js, err
	}
	nc, js, err := connect("gateway")
	if err != nil {
		return err
	}
	if a.Client, err = NewClient(nc, a.Log); err != nil {
		return err
	}
	if err := topology.Provision(ctx, js, topology.DefaultSizes(), profile.Names()); err != nil {
		return err
	}
	if err := a.openStore(ctx); err != nil {
		return err
	}
	services, err := a.services(connect)
	if err != nil {
		return err
	}
	if err := a.Client.serveRoots(a.allow); err != nil {
		return err
	}
	return a.run(services)
}

func (a *Archive) password() string {
	acc, err := readAccess(a.Archive)
	if err != nil {
		return ""
	}
	return acc.password()
}

func (a *Archive) openStore(ctx context.Context) (err error) {
	if a.store, err = storage.Open(a.Archive); err != nil {
		return err
	}
	a.later(a.store.Close)
	n, err := a.store.SweepTemp(ctx)
	if err != nil {
		return err
	}
	if n > 0 {
		a.Log.Warn("stray_temporary_files_removed", slog.Int("files", n))
	}
	a.later(a.roots.Close)
	for _, r := range a.Roots {
		if err := a.roots.Add(r); err != nil {
			return err
		}
	}
	return a.remember(a.Roots...)
}

// allow lets sources lie in one more folder: that of a command that found this
// line running.
func (a *Archive) allow(root string) error {
	if err := a.roots.Add(root); err != nil {
		return err
	}
	return a.remember(root)
}

// remember keeps the folders that this archive's owner gave, so that a later
// command that starts the line may read there again: frames of an earlier run
// may still wait, and must not be refused what that run was allowed.
func (a *Archive) remember(roots ...string) error {
	path := filepath.Join(a.Archive, "state", "roots.json")
	var known []string
	data, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(data, &known)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("standalone: %w", err)
	}
	if a.Known {
		for _, r := range known {
			if err := a.roots.Add(r); err != nil {
				a.Log.Warn("root_gone", slog.String("root", r), slog.Any("error", err))
			}
		}
	}
	before := len(known)
	for _, r := range roots {
		abs, err := filepath.Abs(r)
		if err != nil {
			return fmt.Errorf("standalone: %w", err)
		}
		if !slices.Contains(known, abs) {
			known = append(known, abs)
		}
	}
	if len(known) == before {
		return nil
	}
	if data, err = json.Marshal(known); err != nil {
		return fmt.Errorf("standalone: %w", err)
	}
	if err := writePrivate(path, data); err != nil {
		return fmt.Errorf("standalone: %w", err)
	}
	return nil
}

// runner is a service at work until ctx ends.
type runner func(context.Context) error

// services opens all five.
func (a *Archive) services(connect func(string) (*nats.Conn, jetstream.JetStream, error)) (map[string]runner, error) {
	reg := daemon.Registry()
	metrics := stage.NewMetrics(reg)
	state := func(name string) string { return filepath.Join(a.Archive, "state", name) }
	for _, name := range []string{"capture", "hasher", "deriver", "premis", "quarantine"} {
		if err := os.MkdirAll(state(name), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, fmt.Errorf("standalone: %w", err)
		}
	}
	if _, err := daemon.ServeHTTP(context.Background(), a.HTTP, &a.health, reg, a.Log); err != nil {
		return nil, err
	}
	out := map[string]runner{}
	var mu sync.Mutex
	var g errgroup.Group
	opened := func(s interface {
		Run(context.Context) error
		Close() error
	}, err error) (runner, error) {
		if err != nil {
			return nil, err
		}
		a.later(s.Close)
		return s.Run, nil
	}
	for name, open := range map[string]func(*nats.Conn, jetstream.JetStream, *slog.Logger) (runner, error){
		"capture": func(nc *nats.Conn, js jetstream.JetStream, log *slog.Logger) (runner, error) {
			return opened(capture.New(capture.Config{
				State: state("capture"), Store: a.store, Roots: a.roots, NC: nc, JS: js, Log: log, Metrics: metrics, Instance: "standalone", Version: daemon.Version,
				Concurrency: 8, Policy: retry.Default(), Profiles: []string{profile.Names()[0]},
			}))
		},
		"hasher": func(nc *nats.Conn, js jetstream.JetStream, log *slog.Logger) (runner, error) {
			return opened(hasher.New(hasher.Config{State: state("hasher"), Store: a.store, NC: nc, JS: js, Log: log, Metrics: metrics, Instance: "standalone", Version: daemon.Version, Concurrency: 8}))
		},
		"deriver": func(nc *nats.Conn, js jetstream.JetStream, log *slog.Logger) (runner, error) {
			return opened(deriver.New(deriver.Config{
				State: state("deriver"), Scratch: filepath.Join(state("deriver"), "scratch"), Store: a.store, NC: nc, JS: js, Log: log, Metrics: metrics,
				Instance: "standalone", Version: daemon.Version, Profiles: profile.Names(), Concurrency: runtime.GOMAXPROCS(0), Memory: 4 << 30,
			}))
		},
		"premis": func(nc *nats.Conn, _ jetstream.JetStream, log *slog.Logger) (runner, error) {
			c := premis.Defaults()
			c.Dir, c.Checkpoints, c.Logger, c.Version = state("premis"), state("premis-checkpoints"), log, daemon.Semver(daemon.Version)
			if a.Origin != "" {
				c.Origin = a.Origin
			}
			return opened(premis.New(c, nc))
		},
		"quarantine": func(nc *nats.Conn, js jetstream.JetStream, log *slog.Logger) (runner, error) {
			c := quarantine.Default()
			c.State, c.Instance, c.Agent = filepath.Join(a.Archive, "state"), "standalone", event.Agent{Name: "quarantine", Version: daemon.Version}
			c.NC, c.JS, c.Log, c.Register = nc, js, log, reg
			q, err := quarantine.New(c)
			if err != nil {
				return nil, err
			}
			return q.Run, nil
		},
	} {
		g.Go(func() error { // each opens databases, which waits for the disk: all at once
			nc, js, err := connect(name)
			if err != nil {
				return err
			}
			r, err := open(nc, js, a.Log.With(slog.String("service", name)))
			if err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			out[name] = r
			return nil
		})
	}
	return out, g.Wait()
}

func (a *Archive) run(services map[string]runner) error {
	ctx, stop := context.WithCancel(context.Background())
	a.stop = stop
	g, ctx := errgroup.WithContext(ctx)
	for name, work := range services {
		g.Go(func() error {
			if err := work(ctx); err != nil {
				if ctx.Err() != nil && errors.Is(err, context.Canceled) {
					return nil // it was stopped while it started
				}
				a.Log.Error("service_failed", slog.String("service", name), slog.Any("error", err))
				return fmt.Errorf("%s: %w", name, err)
			}
			return nil
		})
	}
	go func() {
		a.err = g.Wait()
		close(a.done)
	}()
	return nil
}
