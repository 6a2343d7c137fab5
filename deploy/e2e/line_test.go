package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

var natsServer = sync.OnceValue(func() error { return build("nats-server", "github.com/nats-io/nats-server/v2") })

// broker is a nats-server of its own process.
type broker struct {
	t     testing.TB
	dir   string
	port  int
	users string // of its configuration; "": everybody may do everything
	proc  *process
}

func newBroker(t testing.TB) *broker {
	t.Helper()
	if err := natsServer(); err != nil {
		t.Fatal(err)
	}
	return &broker{t: t, dir: tempDir(t), port: freePort(t)}
}

func (b *broker) store() string { return filepath.Join(b.dir, "jetstream") }

// configure writes the configuration that the server starts with, or reads
// again at SIGHUP.
func (b *broker) configure() string {
	b.t.Helper()
	path := filepath.Join(b.dir, "nats.conf")
	ok(b.t, os.WriteFile(path, fmt.Appendf(nil, "listen: 127.0.0.1:%d\njetstream { store_dir: %q, sync_interval: always, max_file_store: 1TB }\n%s\n", b.port, b.store(), b.users), 0o600))
	return path
}

func (b *broker) start() {
	b.t.Helper()
	b.proc = startProcess(b.t, program("nats-server"), b.dir, nil, nil, "-c", b.configure())
	eventually(b.t, "the broker to be ready", func() bool {
		if !b.proc.running() {
			b.t.Fatalf("nats-server ended: %s", b.proc.log())
		}
		nc, err := nats.Connect(b.url("admin"), nats.Timeout(time.Second))
		if err == nil {
			nc.Close()
		}
		return err == nil
	})
}

// stop ends the server as its owner does.
func (b *broker) stop() {
	b.t.Helper()
	b.proc.signal(syscall.SIGTERM)
	b.proc.wait()
}

func (b *broker) url(user string) string {
	if b.users == "" {
		return fmt.Sprintf("nats://127.0.0.1:%d", b.port)
	}
	return fmt.Sprintf("nats://%s:%s@127.0.0.1:%d", user, user, b.port)
}

// line is the five services, each a process of its own, and their broker.
type line struct {
	*archive
	broker *broker
	state  string
	roots  []string
	extra  map[string][]string // environment of single services
	ports  map[string]int

	mu    sync.Mutex
	procs map[string][]*process // each service's, the last one runs
}

// newLine starts a broker and makes its streams; the services are started by
// the test.
func newLine(t testing.TB, roots ...string) *line {
	t.Helper()
	if err := services(); err != nil {
		t.Fatal(err)
	}
	l := &line{archive: newArchive(t), broker: newBroker(t), state: tempDir(t), roots: roots, extra: map[string][]string{}, ports: map[string]int{}, procs: map[string][]*process{}}
	l.broker.start()
	l.nats = l.broker.url("admin")
	l.run("provision").status(0)
	for _, s := range serviceNames {
		l.ports[s] = freePort(t)
	}
	return l
}

// begin starts one service, or starts it again.
func (l *line) begin(service string) *process {
	l.t.Helper()
	args := []string{"--nats", l.broker.url(service), "--http", fmt.Sprintf("127.0.0.1:%d", l.ports[service]), "--state", filepath.Join(l.state, service)}
	switch service {
	case "capture":
		args = append(args, "--archive", l.dir)
		for _, r := range l.roots {
			args = append(args, "--root", r)
		}
	case "hasher":
		args = append(args, "--archive", l.dir)
	case "deriver":
		args = append(args, "--archive", l.dir, "--scratch", filepath.Join(l.state, "scratch"))
	case "premis":
		args = append(args, "--origin", "localhost/colophon")
	}
	p := startProcess(l.t, program(service), "", slices.Concat(l.env, l.extra[service]), nil, args...)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.procs[service] = append(l.procs[service], p)
	return p
}

// processes gives those of a service so far; process the one that runs.
func (l *line) processes(service string) []*process {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.procs[service])
}

func (l *line) process(service string) *process {
	all := l.processes(service)
	return all[len(all)-1]
}

// all starts the five services and waits until each is ready.
func (l *line) all() {
	l.t.Helper()
	for _, s := range serviceNames {
		l.begin(s)
	}
	for _, s := range serviceNames {
		l.ready(s)
	}
}

// ready waits until a service says that it is.
func (l *line) ready(service string) {
	l.t.Helper()
	eventually(l.t, service+" to be ready", func() bool {
		if p := l.process(service); !p.running() {
			l.t.Fatalf("%s ended: %s", service, p.log())
		}
		code, _ := get(l.ports[service], "/readyz")
		return code == http.StatusOK
	})
}

// unready waits until a service says that it is not ready, and why.
func (l *line) unready(service, why string) {
	l.t.Helper()
	unready(l.t, l.ports[service], why)
}

func unready(t testing.TB, port int, why string) {
	t.Helper()
	last := ""
	for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) { // between two looks
		code, body := get(port, "/readyz")
		if code == http.StatusServiceUnavailable && strings.Contains(body, why) {
			return
		}
		last = fmt.Sprintf("%d %s", code, body)
		if time.Now().After(end) {
			t.Fatalf("/readyz does not say %q but %s", why, last)
		}
	}
}

// logged gives the lines with a message of a service, over all its processes.
func (l *line) logged(service, msg string) []logLine {
	var out []logLine
	for _, p := range l.processes(service) {
		out = append(out, p.linesOf(msg)...)
	}
	return out
}

// supervise starts a service again whenever it ends, until the test ends or
// stop is called. ends gives how often it did.
func (l *line) supervise(service string) (stop func() (ends int)) {
	quit, done, ends := make(chan struct{}), make(chan struct{}), 0
	go func() {
		defer close(done)
		for {
			select {
			case <-quit:
				return
			case <-l.process(service).done:
				ends++
				l.begin(service)
			}
		}
	}()
	var once sync.Once
	stop = func() int {
		once.Do(func() { close(quit) })
		<-done
		return ends
	}
	l.t.Cleanup(func() { stop() })
	return stop
}

// end stops the services as an operator does; each must say that it stopped.
func (l *line) end() {
	l.t.Helper()
	for _, s := range serviceNames {
		l.process(s).signal(syscall.SIGTERM)
	}
	for _, s := range serviceNames {
		if o := l.process(s).wait(); o.code != 0 {
			l.t.Errorf("%s: exit status %d after SIGTERM\n%s", s, o.code, o.tail(5))
		}
	}
}

// facts reads the log of the running broker.
func (l *line) facts() []streamed {
	l.t.Helper()
	nc, err := nats.Connect(l.broker.url("admin"))
	ok(l.t, err)
	defer nc.Close()
	return readStream(l.t, nc, "INGEST")
}
