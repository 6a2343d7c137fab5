package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// process is a child under way.
type process struct {
	t    testing.TB
	args []string
	cmd  *exec.Cmd
	done chan struct{}

	mu     sync.Mutex
	stdout bytes.Buffer
	lines  []logLine
	other  []string // of stderr, not JSON: messages for people
	watch  []*watcher
	began  time.Time
	took   time.Duration
}

type watcher struct {
	match func(logLine) bool
	seen  chan struct{}
	once  sync.Once
}

// logLine is one line of the log.
type logLine map[string]any

func (l logLine) str(k string) string {
	s, _ := l[k].(string)
	return s
}

func (l logLine) msg() string { return l.str("msg") }

func (l logLine) num(k string) int {
	f, _ := l[k].(float64)
	return int(f)
}

func startProcess(t testing.TB, bin, dir string, env []string, attr *syscall.SysProcAttr, args ...string) *process {
	t.Helper()
	p := &process{t: t, args: args, done: make(chan struct{}), began: time.Now()}
	p.cmd = exec.Command(bin, args...)
	p.cmd.Dir = dir
	p.cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", "TMPDIR=" + os.TempDir(), "TZ=UTC"}, env...)
	// a child that outlives a failed test would hold the archive
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if attr != nil {
		p.cmd.SysProcAttr = attr
	}
	out, err := p.cmd.StdoutPipe()
	ok(t, err)
	logs, err := p.cmd.StderrPipe()
	ok(t, err)
	ok(t, p.cmd.Start())
	var readers sync.WaitGroup
	readers.Go(func() {
		b, _ := io.ReadAll(out)
		p.mu.Lock()
		defer p.mu.Unlock()
		p.stdout.Write(b)
	})
	readers.Go(func() { p.read(logs) })
	go func() {
		readers.Wait()
		_ = p.cmd.Wait()
		p.took = time.Since(p.began)
		close(p.done)
	}()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() && os.Getenv("COLOPHON_E2E_LOG") != "" {
			t.Logf("%s\n%s", strings.Join(args, " "), p.log())
		}
	})
	return p
}

func (p *process) read(r io.Reader) {
	b := bufio.NewReader(r)
	for {
		line, err := b.ReadBytes('\n')
		if len(line) > 0 {
			p.line(line)
		}
		if err != nil {
			return
		}
	}
}

func (p *process) line(data []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var l logLine
	if json.Unmarshal(data, &l) != nil || l == nil {
		p.other = append(p.other, strings.TrimSuffix(string(data), "\n"))
		return
	}
	p.lines = append(p.lines, l)
	for _, w := range p.watch {
		if w.match(l) {
			w.once.Do(func() { close(w.seen) })
		}
	}
}

// when gives a channel that closes at the first line that matches, already
// written or still to come.
func (p *process) when(match func(logLine) bool) <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := &watcher{match: match, seen: make(chan struct{})}
	if slices.ContainsFunc(p.lines, match) {
		w.once.Do(func() { close(w.seen) })
	}
	p.watch = append(p.watch, w)
	return w.seen
}

// waitFor waits for a log line; false when the process ended without it.
func (p *process) waitFor(match func(logLine) bool) bool {
	p.t.Helper()
	seen := p.when(match)
	select {
	case <-seen:
		return true
	case <-p.done:
		select {
		case <-seen:
			return true
		default:
			return false
		}
	case <-time.After(patience):
		p.kill()
		p.t.Fatalf("waited %v for a log line of: %v\n%s", patience, p.args, p.log())
		return false
	}
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

func (p *process) signal(s os.Signal) { _ = p.cmd.Process.Signal(s) }

func (p *process) running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

func (p *process) log() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var b strings.Builder
	for _, l := range p.lines {
		data, _ := json.Marshal(l)
		b.Write(data)
		b.WriteByte('\n')
	}
	for _, o := range p.other {
		b.WriteString(o + "\n")
	}
	return b.String()
}

// wait waits for the process and reads what it left.
func (p *process) wait() outcome {
	p.t.Helper()
	return p.waitWithin(patience)
}

func (p *process) waitWithin(d time.Duration) outcome {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	select {
	case <-p.done:
	case <-ctx.Done():
		p.signal(syscall.SIGQUIT)
		select {
		case <-p.done:
		case <-time.After(5 * time.Second):
			p.kill()
		}
		full := filepath.Join(os.TempDir(), fmt.Sprintf("e2e-hung-%d.log", p.cmd.Process.Pid))
		_ = os.WriteFile(full, []byte(p.log()), 0o600)
		p.t.Fatalf("colophon %v did not end within %v; its log and stacks are in %s\n%s", p.args, d, full, outcome{lines: p.lines}.tail(12))
	}
	o := outcome{t: p.t, args: p.args, code: p.cmd.ProcessState.ExitCode(), stdout: p.stdout.String(), text: strings.Join(p.other, "\n"), lines: p.lines, took: p.took}
	o.cpu = p.cmd.ProcessState.UserTime() + p.cmd.ProcessState.SystemTime()
	if ws, isWait := p.cmd.ProcessState.Sys().(syscall.WaitStatus); isWait && ws.Signaled() {
		o.signal = ws.Signal()
	}
	return o
}

// message matches log lines.
func message(msg, service string, fields ...string) func(logLine) bool {
	return func(l logLine) bool {
		if l.msg() != msg || service != "" && l.str("service") != service {
			return false
		}
		for i := 0; i+1 < len(fields); i += 2 {
			if l.str(fields[i]) != fields[i+1] {
				return false
			}
		}
		return true
	}
}
