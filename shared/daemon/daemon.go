// Package daemon is what every long-running program of Colophon shares: its
// logger, its signals, its health page, and the connection to the broker. It
// knows no domain words.
package daemon

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/lmittmann/tint"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/term"
)

// Version of this build; set by the linker (-X colophon/shared/daemon.Version).
var Version = "dev"

var (
	versioned   = regexp.MustCompile(`^v?(\d+\.\d+\.\d+(?:-[0-9A-Za-z.-]+)?(?:\+[0-9A-Za-z.-]+)?)$`)
	unversioned = regexp.MustCompile(`[^0-9A-Za-z-]+`)
)

// Semver spells a build's version as nats.go/micro demands it: a semantic
// version, 0.0.0+<version> for a build that has none.
func Semver(v string) string {
	if m := versioned.FindStringSubmatch(v); m != nil {
		return m[1]
	}
	if v = unversioned.ReplaceAllString(v, "-"); v == "" {
		return "0.0.0"
	}
	return "0.0.0+" + v
}

// Flags are the settings every program has; kong fills them.
type Flags struct {
	LogLevel slog.Level `help:"Least severe level to log: DEBUG, INFO, WARN, ERROR." default:"INFO" env:"COLOPHON_LOG_LEVEL"`
	LogJSON  bool       `help:"Log JSON also on a terminal." env:"COLOPHON_LOG_JSON"`
}

// Logger writes for people on a terminal and for machines elsewhere.
func (f Flags) Logger(w *os.File, service string) *slog.Logger {
	var h slog.Handler
	if term.IsTerminal(int(w.Fd())) && !f.LogJSON {
		h = tint.NewHandler(w, &tint.Options{Level: f.LogLevel, TimeFormat: time.TimeOnly, NoColor: os.Getenv("NO_COLOR") != ""})
	} else {
		h = slog.NewJSONHandler(w, &slog.HandlerOptions{Level: f.LogLevel})
	}
	if service == "" { // a process of several services: each names itself
		return slog.New(h)
	}
	return slog.New(h).With(slog.String("service", service))
}

// Signals gives a context that the first SIGINT or SIGTERM ends; a second one
// kills the process as usual.
func Signals() (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}

// NATS is how a service reaches the broker; kong fills it.
type NATS struct {
	URL   string `name:"nats" help:"${nats_help}" default:"${nats_url}" env:"COLOPHON_NATS"`
	Creds string `name:"nats-nkey" help:"File with the nkey seed of this service." env:"COLOPHON_NATS_NKEY" type:"path"`
	CA    string `name:"nats-ca" help:"File with the CA certificate of the broker." env:"COLOPHON_NATS_CA" type:"path"`
	// Identity is who the nkey belongs to: the broker grants each identity an
	// inbox of its own.
	Identity string `name:"nats-identity" help:"Name of the identity that the nkey belongs to; empty: the name of its file NAME.nk, else the program's own." env:"COLOPHON_NATS_IDENTITY"`
}

// Who is the identity that a program connects as.
func (n NATS) Who(program string) string {
	if name, ok := strings.CutSuffix(filepath.Base(n.Creds), ".nk"); ok {
		program = name
	}
	return cmp.Or(n.Identity, program)
}

// hopeless tells a broker that will not have this client, or cannot be
// believed, from one that is away.
func hopeless(err error) bool {
	var certificate *tls.CertificateVerificationError
	return errors.As(err, &certificate) || errors.Is(err, nats.ErrAuthorization) || errors.Is(err, nats.ErrSecureConnRequired) || errors.Is(err, nats.ErrSecureConnWanted)
}

// Connect connects for good: it waits for the broker until ctx ends, and comes
// back after every interruption. Only a first connection that is refused for
// what this client is, or knows, is an error. Denials of the broker are errors
// in the log and fail readiness, since to the caller they look like a timeout.
func (n NATS) Connect(ctx context.Context, name string, log *slog.Logger, health *Health, extra ...nats.Option) (*nats.Conn, jetstream.JetStream, error) {
	refused, last := make(chan error, 1), ""
	opts := []nats.Option{
		nats.Name("colophon-" + name), nats.CustomInboxPrefix("_INBOX_" + n.Who(name)), nats.MaxReconnects(-1), nats.ReconnectWait(250 * time.Millisecond), nats.RetryOnFailedConnect(true),
		nats.IgnoreAuthErrorAbort(), // keys may be changed while it runs
		nats.ReconnectErrHandler(func(_ *nats.Conn, err error) {
			if text := err.Error(); text != last {
				last = text
				log.Warn("broker_unreachable", slog.Any("error", err))
			}
			if hopeless(err) {
				select {
				case refused <- err:
				default:
				}
			}
		}),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil {
				log.Warn("broker_disconnected", slog.Any("error", err))
			}
		}),
		nats.ReconnectHandler(func(*nats.Conn) {
			log.Info("broker_reconnected")
			health.reconnected()
		}),
		nats.ErrorHandler(func(nc *nats.Conn, _ *nats.Subscription, err error) {
			log.Error("broker_error", slog.Any("error", err))
			if errors.Is(err, nats.ErrPermissionViolation) && !health.denied(err) {
				time.AfterFunc(health.denialHolds(), func() { _ = nc.ForceReconnect() }) // closed meanwhile: nothing to ask for
			}
		}),
	}
	if n.Creds != "" {
		o, err := nats.NkeyOptionFromSeed(n.Creds)
		if err != nil {
			return nil, nil, fmt.Errorf("daemon: nkey seed: %w", err)
		}
		opts = append(opts, o)
	}
	if n.CA != "" {
		opts = append(opts, nats.RootCAs(n.CA))
	}
	nc, err := nats.Connect(n.URL, append(opts, extra...)...)
	if err != nil {
		return nil, nil, fmt.Errorf("daemon: connect: %w", err)
	}
	for !nc.IsConnected() {
		select {
		case <-ctx.Done():
			nc.Close()
			return nil, nil, ctx.Err()
		case err := <-refused:
			nc.Close()
			return nil, nil, fmt.Errorf("daemon: connect: %w", err)
		case <-time.After(50 * time.Millisecond):
		}
	}
	js, err := jetstream.New(nc)
	if err != nil {
		nc.Close()
		return nil, nil, fmt.Errorf("daemon: jetstream: %w", err)
	}
	health.Check("broker", func() error {
		if !nc.IsConnected() {
			return errors.New("not connected")
		}
		return nil
	})
	return nc, js, nil
}

// Health collects what readiness depends on.
type Health struct {
	DenialHolds time.Duration // how long a denial of the broker counts; 0 is a minute

	mu     sync.Mutex
	checks map[string]func() error
	order  []string
	notes  map[string]func() string

	denials atomic.Uint64
	denial  atomic.Pointer[denial]
}

// denial is a request that the broker does not grant.
type denial struct {
	err   error
	until time.Time // zero: for good
}

// denialHolds is how long one refused publish keeps a program from being
// ready: what it needs it tries again meanwhile. A subscription is asked for
// only once a connection, so a refused one is asked for by a new connection
// after that time, and forgotten if a twelfth of it passes without a refusal.
func (h *Health) denialHolds() time.Duration { return cmp.Or(h.DenialHolds, time.Minute) }

// denied takes note of a denial; it reports false for a subscription that is
// to be asked for again.
func (h *Health) denied(err error) bool {
	h.denials.Add(1)
	old := h.denial.Load()
	if strings.Contains(err.Error(), "for Publish") {
		if old == nil || !old.until.IsZero() {
			h.denial.Store(&denial{err, time.Now().Add(h.denialHolds())})
		}
	} else {
		h.denial.Store(&denial{err: err})
	}
	h.Check("broker-permission", func() error {
		d := h.denial.Load()
		if d == nil || !d.until.IsZero() && time.Now().After(d.until) {
			return nil
		}
		return d.err
	})
	return strings.Contains(err.Error(), "for Publish") || old != nil && old.until.IsZero()
}

// reconnected lets a refused subscription pass, unless it is refused again.
func (h *Health) reconnected() {
	if d := h.denial.Load(); d != nil && d.until.IsZero() {
		h.denial.Store(&denial{d.err, time.Now().Add(h.denialHolds() / 12)})
	}
}

// Denials counts what the broker did not grant.
func (h *Health) Denials() prometheus.Collector {
	return prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "ingest_permission_errors_total", Help: "Requests that the broker does not grant."},
		func() float64 { return float64(h.denials.Load()) })
}

// Check adds a named check; a later one under the same name replaces it.
func (h *Health) Check(name string, check func() error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.checks == nil {
		h.checks = map[string]func() error{}
	}
	if _, ok := h.checks[name]; !ok {
		h.order = append(h.order, name)
	}
	h.checks[name] = check
}

// Fail makes a named check fail from now on.
func (h *Health) Fail(name string, err error) { h.Check(name, func() error { return err }) }

// Note adds a detail that people should read beside the checks, and that keeps
// nobody from being ready; "" says nothing.
func (h *Health) Note(name string, note func() string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.notes == nil {
		h.notes = map[string]func() string{}
	}
	h.notes[name] = note
}

// Report runs the checks: "ok" or what is wrong, by name; and the notes.
func (h *Health) Report() (ready bool, report map[string]string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	ready, report = true, map[string]string{}
	for _, name := range h.order {
		report[name] = "ok"
		if err := h.checks[name](); err != nil {
			ready, report[name] = false, err.Error()
		}
	}
	for name, note := range h.notes {
		if says := note(); says != "" {
			report[name] = says
		}
	}
	return ready, report
}

// Registry makes the metrics registry of a process, with its build and
// runtime figures.
func Registry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	build := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "ingest_build_info", Help: "1, with the version of this build."}, []string{"version", "go_version"})
	build.WithLabelValues(Version, goVersion()).Set(1)
	r.MustRegister(build, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

func goVersion() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		return info.GoVersion
	}
	return "unknown"
}

// ServeHTTP answers /livez, /readyz and /metrics on addr until ctx ends; an
// empty addr serves nothing. It returns once it listens.
func ServeHTTP(ctx context.Context, addr string, h *Health, r *prometheus.Registry, log *slog.Logger) (net.Addr, error) {
	if addr == "" {
		return nil, nil
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok\n") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		ready, report := h.Report()
		w.Header().Set("Content-Type", "application/json")
		if !ready {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_ = json.NewEncoder(w).Encode(report)
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(r, promhttp.HandlerOpts{}))
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("daemon: http: %w", err)
	}
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute}
	go func() {
		if err := srv.Serve(l); err != nil && !errors.Is(err, http.ErrServerClosed) {
			log.Error("http_failed", slog.Any("error", err))
		}
	}()
	context.AfterFunc(ctx, func() { _ = srv.Close() })
	log.Info("http_listening", slog.String("addr", l.Addr().String()))
	return l.Addr(), nil
}
