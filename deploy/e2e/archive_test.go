package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
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

// archive is one archive folder, and how to run colophon on it.
type archive struct {
	t    testing.TB
	dir  string
	bin  string
	nats string   // an outside broker
	env  []string // of the children, beside a bare one
	attr *syscall.SysProcAttr
}

func newArchive(t testing.TB) *archive {
	t.Helper()
	return &archive{t: t, dir: filepath.Join(tempDir(t), "archive"), bin: program("colophon")}
}

// tempDir is a folder that other users can reach into. It goes with the test.
func tempDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "e2e-")
	ok(t, err)
	ok(t, os.Chmod(dir, 0o755))
	t.Cleanup(func() {
		if t.Failed() && os.Getenv("COLOPHON_E2E_KEEP") != "" {
			t.Logf("kept: %s", dir)
			return
		}
		_ = os.RemoveAll(dir)
	})
	return dir
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eventually looks again and again until a condition holds.
func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !holds(); {
		if time.Now().After(end) {
			t.Fatalf("waited %v for: %s", patience, what)
		}
		time.Sleep(2 * time.Millisecond) // between two looks; the condition decides
	}
}

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

// start begins a command on the archive.
func (a *archive) start(args ...string) *process {
	a.t.Helper()
	return a.startIn("", args...)
}

func (a *archive) startIn(dir string, args ...string) *process {
	a.t.Helper()
	full := []string{"--archive", a.dir}
	if a.nats != "" {
		full = append(full, "--nats", a.nats)
	}
	return startProcess(a.t, a.bin, dir, a.env, a.attr, append(full, args...)...)
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

// outcome is what a finished command came to.
type outcome struct {
	t      testing.TB
	args   []string
	code   int // -1: ended by a signal
	signal syscall.Signal
	stdout string
	text   string // of stderr, for people
	lines  []logLine
	took   time.Duration
	cpu    time.Duration // of the process, whatever else the machine does
	json   result
}

// result is the object that ingest prints.
type result struct {
	Batch      any         `json:"batch"`
	Pass       int         `json:"pass"`
	Frames     int         `json:"frames"`
	Dispatched int         `json:"dispatched"`
	Processed  int         `json:"processed"`
	Skipped    int         `json:"skipped"`
	Failed     int         `json:"failed"`
	Pending    int         `json:"pending"`
	Ignored    int         `json:"ignored"`
	Converged  bool        `json:"converged"`
	Cases      []caseShort `json:"cases"`
}

type caseShort struct {
	Frame     any    `json:"frame"` // a string, or {"percent_encoded": …}
	Operation string `json:"operation"`
	Code      string `json:"code"`
	Reason    string `json:"reason"`
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

// run runs a command to its end.
func (a *archive) run(args ...string) outcome {
	a.t.Helper()
	return a.start(args...).wait()
}

// ingest runs `ingest --json` and reads its object.
func (a *archive) ingest(dir string, args ...string) outcome {
	a.t.Helper()
	return a.startIngest(dir, args...).wait().parsed()
}

func (a *archive) startIngest(dir string, args ...string) *process {
	a.t.Helper()
	return a.start(append([]string{"--json", "ingest", dir}, args...)...)
}

// last decodes the object on the last line of standard output.
func (o outcome) last(into any) {
	o.t.Helper()
	lines := strings.Split(strings.TrimRight(o.stdout, "\n"), "\n")
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), into); err != nil {
		o.t.Fatalf("%v: the last line of stdout is no JSON object: %v\nstatus %d\nstdout: %s\nstderr: %s", o.args, err, o.code, o.stdout, o.text)
	}
}

func (o outcome) parsed() outcome {
	o.t.Helper()
	if o.code == 0 || o.code == 3 {
		o.last(&o.json)
	}
	return o
}

// status demands an exit status.
func (o outcome) status(want int) outcome {
	o.t.Helper()
	if o.code != want {
		o.t.Fatalf("%v: exit status %d (signal %v), want %d\nstdout: %s\nstderr: %s\n%s", o.args, o.code, o.signal, want, o.stdout, o.text, o.tail(15))
	}
	return o
}

// tail gives the last lines of the log.
func (o outcome) tail(n int) string {
	var b strings.Builder
	for _, l := range o.lines[max(0, len(o.lines)-n):] {
		data, _ := json.Marshal(l)
		b.Write(data)
		b.WriteByte('\n')
	}
	return b.String()
}

// counts demands the numbers of the JSON object.
func (o outcome) counts(dispatched, processed, skipped, failed int) outcome {
	o.t.Helper()
	j := o.json
	if j.Dispatched != dispatched || j.Processed != processed || j.Skipped != skipped || j.Failed != failed || j.Pending != 0 {
		o.t.Fatalf("%v: dispatched %d, processed %d, skipped %d, failed %d, pending %d; want %d, %d, %d, %d, 0\n%s\n%s",
			o.args, j.Dispatched, j.Processed, j.Skipped, j.Failed, j.Pending, dispatched, processed, skipped, failed, o.stdout, o.tail(10))
	}
	return o
}

// converged demands that all n frames are done.
func (o outcome) converged(n int) outcome {
	o.t.Helper()
	o.status(0)
	if !o.json.Converged || o.json.Frames != n || len(o.json.Cases) != 0 {
		o.t.Fatalf("%v: not converged with %d frames: %s", o.args, n, o.stdout)
	}
	return o
}

// frameName gives a frame's own bytes from JSON.
func frameName(t testing.TB, v any) string {
	t.Helper()
	switch v := v.(type) {
	case string:
		return v
	case map[string]any:
		s, err := decodePercent(v["percent_encoded"].(string))
		ok(t, err)
		return s
	}
	t.Fatalf("a frame called %v", v)
	return ""
}

func decodePercent(s string) (string, error) {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '%' {
			b.WriteByte(s[i])
			continue
		}
		if i+2 >= len(s) {
			return "", errors.New("percent-encoding is cut off")
		}
		var v int
		for _, c := range []byte(s[i+1 : i+3]) {
			d := strings.IndexByte("0123456789ABCDEF", c)
			if d < 0 {
				return "", errors.New("not percent-encoded in upper case")
			}
			v = v<<4 | d
		}
		b.WriteByte(byte(v))
		i += 2
	}
	return b.String(), nil
}

// encode is the one encoding of ids, written a second time.
func encode(s string) string {
	var b strings.Builder
	for i := range len(s) {
		switch c := s[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '_', c == '-':
			b.WriteByte(c)
		default:
			b.Write([]byte{'%', "0123456789ABCDEF"[c>>4], "0123456789ABCDEF"[c&15]})
		}
	}
	return b.String()
}

// cases gives the code of each case, by "frame operation".
func (o outcome) cases() map[string]string {
	o.t.Helper()
	out := map[string]string{}
	for _, c := range o.json.Cases {
		key := frameName(o.t, c.Frame) + " " + c.Operation
		if _, twice := out[key]; twice {
			o.t.Errorf("two cases of %s", key)
		}
		if c.Reason == "" {
			o.t.Errorf("the case of %s gives no reason", key)
		}
		out[key] = c.Code
	}
	return out
}

// logged gives the log lines with a message.
func (o outcome) logged(msg string) []logLine {
	var out []logLine
	for _, l := range o.lines {
		if l.msg() == msg {
			out = append(out, l)
		}
	}
	return out
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
