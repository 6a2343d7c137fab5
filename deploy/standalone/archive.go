// Package standalone composes all five services and a broker into one process.
// It adds only composition, and the command line's own client of the line.
package standalone

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

	"colophon/services/capture"
	"colophon/shared/daemon"
	"colophon/shared/profile"
	"colophon/shared/storage"
	"colophon/shared/topology"
)

// Options of an archive in one process.
type Options struct {
	Archive string      // folder
	Roots   []string    // folders that file sources may lie in
	Hosts   []string    // that http(s) sources may be read from; nil: those of the run before
	Known   bool        // also the folders that earlier runs were given
	Door    Door        // who else the broker lets in
	Listen  string      // loopback host:port of the broker; empty: a free port
	Broker  daemon.NATS // an outside broker instead of the embedded one
	Remote  bool        // only connect to the outside broker: the line runs elsewhere
	HTTP    string      // address of the health page; empty: none
	// Replicas of each stream, where an outside broker is a cluster; 0 is 1.
	Replicas int
	Origin   string // of the ledger
	// CheckpointKey is the file of the key that signs the ledger's checkpoints;
	// empty: beside the archive's folder.
	CheckpointKey string
	// LowWater is the free space, in bytes, below which no work is taken; 0:
	// the larger of 1 GiB and twice the largest master.
	LowWater uint64
	Log      *slog.Logger
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
	nc, err := nats.Connect(acc.URL, acc.pin(), nats.Name("colophon-client"), nats.Timeout(2*time.Second), nats.NoReconnect(),
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
	nc, _, err := a.Broker.Connect(ctx, "cli", a.Log, &a.health)
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
		if a.broker, err = startBroker(a.Options, a.Listen); err != nil {
			return err
		}
		a.own = true
		a.later(func() error { a.broker.stop(); return nil })
		a.health.Check("log", a.broker.health)
		opts = append(opts, nats.InProcessServer(a.broker), nats.UserInfo("colophon", a.broker.password))
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
	a.run(services)
	return nil
}

func (a *Archive) openStore(ctx context.Context) (err error) {
	if a.store, err = storage.Open(a.Archive, storage.WithLowWater(a.LowWater)); err != nil {
		return err
	}
	a.later(a.store.Close)
	a.health.Check("archive", a.store.CheckSpace)
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
	return errors.Join(a.recall(), a.remember(a.Roots...), a.recallHosts())
}
