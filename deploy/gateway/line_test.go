package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"colophon/shared/event"
	"colophon/shared/profile"
	"colophon/shared/testkit"
)

// binDir holds the line's programs, built anew for each test run.
var binDir string

func TestMain(m *testing.M) {
	testkit.Children(map[string]func([]string){"hotfolder": hotFolderProgram, "broker": testkit.BrokerProgram})
	flag.Parse()
	dir, err := os.MkdirTemp("", "colophon-gateway-")
	if err != nil {
		panic(err)
	}
	binDir = dir
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

var builds sync.Map // program: func() error

// program builds a program of the line, once.
func program(t testing.TB, name, pkg string) string {
	t.Helper()
	build, _ := builds.LoadOrStore(name, sync.OnceValue(func() error {
		cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-X colophon/shared/daemon.Version=e2e", "-o", filepath.Join(binDir, name), pkg)
		cmd.Dir = filepath.Join("..", "..")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%w\n%s", err, out)
		}
		return nil
	}))
	testkit.OK(t, build.(func() error)())
	return filepath.Join(binDir, name)
}

// line is a real line on an archive of its own.
type line struct {
	testing.TB
	dir    string // of everything
	url    string
	broker *testkit.Broker // nil where the line brings its own
	nc     *nats.Conn
	js     jetstream.JetStream
	log    *testkit.Logbook
	procs  []*exec.Cmd
}

func (l *line) start(name, pkg string, args ...string) {
	l.Helper()
	cmd := exec.Command(program(l, name, pkg), args...)
	cmd.Stdout, cmd.Stderr = l.log, l.log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	testkit.OK(l, cmd.Start())
	l.procs = append(l.procs, cmd)
}

func newLine(t testing.TB) *line {
	l := &line{TB: t, dir: testkit.TempDir(t), log: &testkit.Logbook{}}
	t.Cleanup(func() {
		if l.nc != nil {
			l.nc.Close()
		}
		for _, c := range l.procs {
			_ = c.Process.Kill()
			_ = c.Wait()
		}
		if t.Failed() {
			lines := strings.Split(l.log.String(), "\n")
			t.Log(strings.Join(lines[max(0, len(lines)-60):], "\n"))
		}
	})
	return l
}

// front is the part of the line that a gateway speaks to: a broker, capture and
// hasher, each a program of its own.
func front(t testing.TB, roots ...string) *line {
	t.Helper()
	l := newLine(t)
	testkit.OK(t, os.Mkdir(filepath.Join(l.dir, "jetstream"), 0o700))
	l.broker = testkit.StartChildBroker(t, filepath.Join(l.dir, "jetstream"))
	t.Cleanup(l.broker.Stop)
	l.url = l.broker.URL()
	l.broker.Provision(profile.Names()...)
	l.nc, l.js = l.broker.Connect()
	for _, s := range []string{"capture", "hasher"} {
		state := filepath.Join(l.dir, s)
		testkit.OK(t, os.MkdirAll(state, 0o700))
		args := []string{"--nats", l.url, "--archive", filepath.Join(l.dir, "archive"), "--state", state, "--low-water-mib", "1", "--http", ""}
		if s == "capture" {
			for _, r := range roots {
				args = append(args, "--root", r)
			}
		}
		testkit.OK(t, os.MkdirAll(filepath.Join(l.dir, "archive"), 0o755))
		l.start(s, "./services/"+s+"/cmd/"+s, args...)
	}
	return l
}

// whole is the whole line in one process, as users run it.
func whole(t testing.TB, args ...string) *line {
	t.Helper()
	l := newLine(t)
	archive := filepath.Join(l.dir, "archive")
	l.start("colophon", "./deploy/standalone/cmd/colophon", append([]string{"--archive", archive, "serve", "--listen", "127.0.0.1:0", "--http", ""}, args...)...)
	testkit.Eventually(t, "the line listens", func() bool {
		data, err := os.ReadFile(filepath.Join(archive, "state", "broker.json"))
		var access struct{ URL string }
		if err != nil || json.Unmarshal(data, &access) != nil {
			return false
		}
		l.url = access.URL
		l.nc, err = nats.Connect(l.url, nats.MaxReconnects(-1))
		return err == nil
	})
	var err error
	l.js, err = jetstream.New(l.nc)
	testkit.OK(t, err)
	return l
}

// known asks the line until it answers.
func (l *line) known(b event.Name) (k Known) {
	l.Helper()
	g := &Gateway{Config: Config{NC: l.nc}}
	testkit.Eventually(l, "the line answers", func() bool {
		var err error
		k, err = g.Known(context.Background(), b)
		return err == nil
	})
	return k
}

// until waits until the line says something of a batch.
func (l *line) until(what string, b event.Name, holds func(Known) bool) (k Known) {
	l.Helper()
	testkit.EventuallyWithin(l, 3*time.Minute, what, func() bool {
		k = l.known(b)
		if !holds(k) {
			time.Sleep(50 * time.Millisecond) // not to crowd the line
			return false
		}
		return true
	})
	return k
}

// facts lists the facts of one subject.
func (l *line) facts(subject string) (out []event.Fact) {
	l.Helper()
	for _, m := range testkit.ReadAll(l, l.js, event.StreamIngest, subject) {
		out = append(out, m.Fact(l))
	}
	return out
}

// gateway makes one that speaks to the line.
func (l *line) gateway(name string) *Gateway {
	l.Helper()
	nc, err := nats.Connect(l.url, nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond), nats.RetryOnFailedConnect(true))
	testkit.OK(l, err)
	g, err := New(Config{Name: name, NC: nc, Spool: filepath.Join(l.dir, "spool-"+name), Log: l.log.Logger()})
	testkit.OK(l, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = g.Run(ctx)
	}()
	l.Cleanup(func() {
		cancel()
		<-ended
		nc.Close()
	})
	return g
}

// write makes a file, as a program that writes in one go.
func write(t testing.TB, path string, data []byte) {
	t.Helper()
	testkit.OK(t, os.MkdirAll(filepath.Dir(path), 0o755))
	testkit.OK(t, os.WriteFile(path, data, 0o644))
}

// files lists what is below a folder, by path, with its bytes.
func files(t testing.TB, dir string) map[string][]byte {
	t.Helper()
	out := map[string][]byte{}
	err := filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			if errors.Is(err, os.ErrNotExist) {
				return nil
			}
			return err
		}
		data, err := os.ReadFile(p)
		rel, _ := filepath.Rel(dir, p)
		out[rel] = data
		return err
	})
	testkit.OK(t, err)
	return out
}

// exactlyOnce holds a batch against what should be in it: every file once, whole,
// in the log and in done/, and nothing else.
func (l *line) exactlyOnce(hot string, b event.Name, want map[string][]byte) {
	l.Helper()
	fixed, captured := map[event.Name][]event.Digest{}, map[event.Name]int{}
	for _, f := range l.facts(event.SubjectFrameFixed) {
		if f := f.(event.FrameFixed); f.Batch == b {
			fixed[f.Frame] = append(fixed[f.Frame], f.Fixed.StoredDigest)
		}
	}
	for _, f := range l.facts(event.SubjectFrameCaptured) {
		if f := f.(event.FrameCaptured); f.Batch == b && !f.Hit {
			captured[f.Frame]++
		}
	}
	done := files(l, filepath.Join(hot, doneFolder, string(b)))
	masters := 0
	for name, data := range want {
		if !bytes.Equal(done[name], data) {
			l.Errorf("%s: done/ holds %d bytes of it, not %d", name, len(done[name]), len(data))
		}
		if !strings.HasSuffix(name, ".tif") {
			continue
		}
		masters++
		if d := fixed[event.Name(name)]; len(d) != 1 || d[0] != testkit.Digest(string(data)) {
			l.Errorf("%s was fixed as %v, want once as %s", name, d, testkit.Digest(string(data)))
		}
		if captured[event.Name(name)] != 1 {
			l.Errorf("%s was captured %d times", name, captured[event.Name(name)])
		}
	}
	if len(done) != len(want) || len(fixed) != masters {
		l.Errorf("%d files in done/ and %d frames, want %d and %d", len(done), len(fixed), len(want), masters)
	}
	if left := files(l, filepath.Join(hot, string(b))); len(left) != 0 {
		l.Errorf("%d files are left in the hot folder", len(left))
	}
	if k := l.known(b); k.Count != masters {
		l.Errorf("%d frames are declared, want %d", k.Count, masters)
	}
}

// hotFolderProgram is a hot folder as a process that can be killed: broker,
// folder, where its state is.
func hotFolderProgram(args []string) {
	nc, err := nats.Connect(args[0], nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond), nats.RetryOnFailedConnect(true))
	if err != nil {
		panic(err)
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	g, err := New(Config{Name: "hot", NC: nc, Spool: filepath.Join(args[2], "spool"), Log: log})
	if err != nil {
		panic(err)
	}
	go func() { _ = g.Run(context.Background()) }()
	h := hot(g, args[1], filepath.Join(args[2], "journal"), log)
	if _, err := h.Run(context.Background(), false); err != nil {
		panic(err)
	}
}

// hot is a quick hot folder.
func hot(g *Gateway, dir, journal string, log *slog.Logger) *HotFolder {
	return &HotFolder{Gateway: g, Dir: dir, Journal: journal, Settle: 300 * time.Millisecond, Rescan: 50 * time.Millisecond, Log: log}
}
