package nats

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"colophon/shared/topology"
)

var bin string // folder of the programs

func TestMain(m *testing.M) {
	var err error
	if bin, err = os.MkdirTemp("", "colophon-nats-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	status := m.Run()
	_ = os.RemoveAll(bin) // of no further use
	os.Exit(status)
}

// built makes the line's programs and the operators' own, once.
var built = sync.OnceValue(func() error {
	pkgs := []string{"build", "-o", bin + "/", "./deploy/standalone/cmd/colophon"}
	for _, s := range topology.Services {
		pkgs = append(pkgs, "./services/"+s+"/cmd/"+s)
	}
	for _, args := range [][]string{pkgs, {"install", natscli}} {
		cmd := exec.Command("go", args...)
		cmd.Dir, cmd.Env = "../..", append(os.Environ(), "GOBIN="+bin)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("go %v: %w\n%s", args, err, out)
		}
	}
	return nil
})

// site is a line on a secured broker: five programs, each with a key of its
// own.
type site struct {
	*secured
	t       *testing.T
	archive string
	demo    string
}

// flags are how a client connects as an identity.
func (s *site) flags(identity string) []string {
	return []string{"--nats", s.url, "--nats-ca", s.ca, "--nats-nkey", filepath.Join(s.dir, identity+".nk")}
}

func (s *site) colophon(identity string, want int, args ...string) {
	s.t.Helper()
	if code, out := s.run(identity, args...); code != want {
		s.t.Fatalf("colophon %v as %s: status %d, want %d\n%s", args, identity, code, want, out)
	}
}

func (s *site) run(identity string, args ...string) (status int, out string) {
	s.t.Helper()
	cmd := exec.Command(filepath.Join(bin, "colophon"), append(append(s.flags(identity), "--archive", s.archive, "--actor", "tester"), args...)...)
	said, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		s.t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), string(said)
}

// nats runs the operators' program.
func (s *site) nats(args ...string) (string, error) {
	operator := topology.Identity{Name: "operator"}
	cmd := exec.Command(filepath.Join(bin, "nats"), append([]string{
		"--server", s.url, "--nkey", SeedFile(s.dir, operator), "--tlsca", s.ca, "--inbox-prefix", operator.Inbox(), "--timeout", "3s",
	}, args...)...)
	cmd.Env = append(os.Environ(), "HOME="+s.dir)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// program is one running service.
type program struct {
	cmd  *exec.Cmd
	http string
	log  string // file
}

func (s *site) start(service string, args ...string) *program {
	s.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	ok(s.t, err)
	p := &program{http: l.Addr().String(), log: filepath.Join(s.t.TempDir(), service+".log")}
	ok(s.t, l.Close())
	log, err := os.Create(p.log)
	ok(s.t, err)
	p.cmd = exec.Command(filepath.Join(bin, service), append(args, "--http", p.http, "--state", filepath.Join(s.t.TempDir(), "state"))...)
	p.cmd.Stderr = log
	ok(s.t, p.cmd.Start())
	ok(s.t, log.Close())
	s.t.Cleanup(func() {
		p.stop(s.t)
		if s.t.Failed() {
			lines := p.lines(s.t)
			for _, l := range lines[max(0, len(lines)-12):] {
				s.t.Log(service, l)
			}
		}
	})
	return p
}

func (p *program) stop(t *testing.T) {
	if p.cmd.ProcessState != nil {
		return
	}
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	if err := p.cmd.Wait(); err != nil {
		t.Errorf("%s: %v", p.cmd.Path, err)
	}
}

func (p *program) get(path string) (int, string) {
	r, err := http.Get("http://" + p.http + path)
	if err != nil {
		return 0, err.Error()
	}
	defer r.Body.Close() //nolint:errcheck // only read
	body, _ := io.ReadAll(r.Body)
	return r.StatusCode, string(body)
}

// lines reads what a program logged so far.
func (p *program) lines(t *testing.T) (out []map[string]any) {
	t.Helper()
	f, err := os.Open(p.log)
	ok(t, err)
	defer f.Close() //nolint:errcheck // only read
	s := bufio.NewScanner(f)
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		var line map[string]any
		if json.Unmarshal(s.Bytes(), &line) == nil {
			out = append(out, line)
		}
	}
	return out
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); !condition(); {
		if time.Now().After(deadline) {
			t.Fatalf("%s did not come", what)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// own are the settings that each service needs besides.
func (s *site) own(service string) []string {
	switch service {
	case "capture":
		return []string{"--archive", s.archive, "--root", s.demo}
	case "hasher":
		return []string{"--archive", s.archive}
	case "deriver":
		return []string{"--archive", s.archive, "--scratch", filepath.Join(s.t.TempDir(), "scratch")}
	case "premis":
		return []string{"--origin", "test.example/colophon"}
	}
	return nil
}

// TestTheLineUnderItsGrants runs five programs, the command line as gateway and
// as operator, and the operators' own tool, each under its own key: nothing of
// the line's work is denied, and everything else is.
func TestTheLineUnderItsGrants(t *testing.T) {
	t.Parallel()
	ok(t, built())
	s := &site{secured: startSecured(t, Example()), t: t, archive: filepath.Join(t.TempDir(), "archive")}
	s.demo = filepath.Join(t.TempDir(), "demo")
	ok(t, os.MkdirAll(s.archive, 0o755))
	s.colophon("provision", 3, "provision", "--check")
	s.colophon("provision", 0, "provision")
	s.colophon("operator", 0, "provision", "--check")
	s.colophon("cli", 0, "demo", s.demo)

	line := map[string]*program{}
	for _, service := range topology.Services {
		line[service] = s.start(service, append(s.flags(service), s.own(service)...)...)
	}
	for service, p := range line {
		eventually(t, service+" to be ready", func() bool {
			code, body := p.get("/readyz")
			if strings.Contains(body, "ermission") {
				t.Fatalf("%s is denied: %s", service, body)
			}
			return code == http.StatusOK
		})
	}
	s.colophon("cli", 3, "ingest", s.demo, "--batch", "demo") // the damaged page waits
	s.operate()
	eventually(t, "the bag", func() bool { // made with what premis exports to capture
		status, _ := s.run("operator", "status", "demo")
		return status == 0
	})
	s.colophon("operator", 0, "case", "list", "--all")
	s.stories(line)
	s.colophon("operator", 0, "export", "premis", "demo", "--out", filepath.Join(t.TempDir(), "premis"))
	for service, p := range line {
		_, metrics := p.get("/metrics")
		if !strings.Contains(metrics, "ingest_permission_errors_total 0\n") {
			t.Errorf("%s was denied something: %v", service, p.denials(t))
		}
		p.stop(t)
	}
}

func (p *program) denials(t *testing.T) (out []string) {
	for _, l := range p.lines(t) {
		if l["msg"] == "broker_error" {
			out = append(out, fmt.Sprint(l["error"]))
		}
	}
	return out
}

// stories reads, from the log lines of all services and nothing else, what
// became of two pages: one that went through, and the damaged one.
func (s *site) stories(line map[string]*program) {
	s.t.Helper()
	var all []map[string]any
	for _, p := range line {
		all = append(all, p.lines(s.t)...)
	}
	// Services are on machines of their own: the time of each line orders them.
	slices.SortStableFunc(all, func(a, b map[string]any) int { return strings.Compare(fmt.Sprint(a["time"]), fmt.Sprint(b["time"])) })
	told := map[string][]string{}
	content := map[string]map[string]bool{}
	for _, l := range all {
		frame, ok := l["frame_id"].(string)
		if !ok || l["batch_id"] != "demo" {
			continue
		}
		told[frame] = append(told[frame], fmt.Sprintf("%v %v#%v", l["service"], l["msg"], l["pass"]))
		if h, _ := l["content_hash"].(string); h != "" {
			if content[frame] == nil {
				content[frame] = map[string]bool{}
			}
			content[frame][h] = true
		}
	}
	// A service may tell of its fact after the next one took it up: what one
	// service says is in order, and so are the beginnings.
	for frame, chains := range map[string][][]string{
		"page 0001.tif": {
			{"capture idempotent_execute#1", "hasher idempotent_execute#1", "deriver idempotent_execute#1", "deriver idempotent_recorded#1"},
			{"capture idempotent_execute#1", "capture idempotent_recorded#1"}, {"hasher idempotent_execute#1", "hasher idempotent_recorded#1"},
		},
		"page 0005.tif": {
			{"capture idempotent_execute#1", "hasher idempotent_execute#1", "deriver idempotent_execute#1", "quarantine case_opened#1"},
			{"deriver idempotent_execute#1", "deriver dead_letter#1", "deriver idempotent_execute#2", "deriver dead_letter#2", "deriver dead_letter#3"},
			{"quarantine case_opened#1", "quarantine case_replayed#1", "quarantine case_opened#2", "quarantine case_opened#3", "quarantine case_discarded#3"},
		},
	} {
		for _, left := range chains {
			for _, event := range told[frame] {
				if len(left) > 0 && event == left[0] {
					left = left[1:]
				}
			}
			if len(left) > 0 {
				s.t.Errorf("the logs do not tell %q of %s, in this order; they tell\n%s", left, frame, strings.Join(told[frame], "\n"))
			}
		}
		if len(content[frame]) != 1 {
			s.t.Errorf("the logs know %s by %d digests", frame, len(content[frame]))
		}
	}
}

// operate is what an operator does with the nats program, and what it may not.
func (s *site) operate() {
	t := s.t
	t.Helper()
	do := func(args ...string) string {
		t.Helper()
		out, err := s.nats(args...)
		if err != nil {
			t.Fatalf("nats %v: %v\n%s", args, err, out)
		}
		return out
	}
	has(t, do("stream", "ls"), "CAPTURE", "INGEST", "DEADLETTER", "DISPATCH")
	has(t, do("stream", "info", "DEADLETTER"), "deadletter.*")
	has(t, do("stream", "get", "DEADLETTER", "1"), "Colophon-Code: truncated")
	has(t, do("consumer", "ls", "INGEST"), "hasher", "premis")
	has(t, do("micro", "ls"), "quarantine", "premis", "capture")
	has(t, do("req", "quarantine.list", "{}", "--raw"), `"code":"truncated"`, `"total":1`)
	has(t, do("req", "quarantine.replay", `{"code":"truncated","actor":"op-7","note":"again"}`, "--raw"), `"done":[`)
	again := func(pass string) {
		t.Helper()
		eventually(t, "pass "+pass+" to fail", func() bool {
			out := do("req", "quarantine.list", `{"state":"opened"}`, "--raw")
			return strings.Contains(out, `"pass":`+pass)
		})
	}
	again("2")
	// the raw replay: body and subject of the letter, nothing else
	var letter struct {
		Data []byte `json:"data"`
	}
	ok(t, json.Unmarshal([]byte(do("stream", "get", "DEADLETTER", "1", "--json")), &letter))
	has(t, do("pub", "ingest.frame.fixed", string(letter.Data), "--no-templates", "--jetstream"), "Stored in Stream: INGEST")
	again("3")
	has(t, do("req", "quarantine.discard", `{"code":"truncated","actor":"op-7","note":"blank"}`, "--raw"), `"done":[`)

	var denied sync.WaitGroup
	for _, args := range [][]string{
		{"stream", "rm", "INGEST", "-f"}, {"stream", "purge", "DEADLETTER", "-f"}, {"stream", "edit", "CAPTURE", "--max-age", "1s", "-f"},
		{"stream", "rmm", "DEADLETTER", "1", "-f"}, {"consumer", "rm", "INGEST", "hasher", "-f"}, {"consumer", "next", "INGEST", "premis"},
		{"pub", "ingest.case.opened", "{}", "--jetstream"}, {"pub", "deadletter.hasher", "{}", "--jetstream"}, {"sub", "ingest.>", "--count", "1", "--wait", "2s"},
	} {
		denied.Go(func() {
			if out, err := s.nats(args...); err == nil && !strings.Contains(strings.ToLower(out), "permissions violation") {
				t.Errorf("nats %v is let through:\n%s", args, out)
			}
		})
	}
	denied.Wait()
	has(t, do("stream", "ls"), "CAPTURE", "INGEST", "DEADLETTER", "DISPATCH")
	has(t, do("stream", "get", "DEADLETTER", "1"), "Colophon-Code: truncated")
	has(t, do("consumer", "ls", "INGEST"), "hasher")
}

// TestADenialIsTold: a service that runs under another's key says so within
// seconds, in its log, its readiness and its metrics, and goes on living.
func TestADenialIsTold(t *testing.T) {
	t.Parallel()
	ok(t, built())
	s := &site{secured: startSecured(t, Example()), t: t, archive: filepath.Join(t.TempDir(), "archive")}
	ok(t, os.MkdirAll(s.archive, 0o755))
	s.colophon("provision", 0, "provision")
	began := time.Now()
	p := s.start("hasher", append(s.flags("cli"), s.own("hasher")...)...)
	eventually(t, "the failed readiness", func() bool {
		code, body := p.get("/readyz")
		return code == http.StatusServiceUnavailable && strings.Contains(body, "ermissions Violation for Publish")
	})
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("it took %v to tell", took)
	}
	if _, metrics := p.get("/metrics"); strings.Contains(metrics, "ingest_permission_errors_total 0\n") {
		t.Error("the metric counts nothing")
	}
	if len(p.denials(t)) == 0 {
		t.Error("the log does not say so")
	}
	if code, _ := p.get("/livez"); code != http.StatusOK {
		t.Errorf("it does not live: %d", code)
	}
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}
