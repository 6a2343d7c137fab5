package e2e

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestFiveServices runs the five programs against one broker, and feeds them
// by the command line as a gateway.
func TestFiveServices(t *testing.T) {
	t.Parallel()
	if err := services(); err != nil {
		t.Fatal(err)
	}
	a := newArchive(t)
	ok(t, os.MkdirAll(a.dir, 0o755))
	state := tempDir(t)
	srv := startServer(t, filepath.Join(state, "broker"), -1)
	a.nats = srv.ClientURL()
	a.run("provision", "--check").status(3)
	a.run("provision").status(0)
	a.run("provision", "--check").status(0)

	dir := filepath.Join(tempDir(t), "mixed")
	frames := mixed()
	putAll(t, dir, frames)
	own := map[string][]string{
		"capture": {"--archive", a.dir, "--root", dir}, "hasher": {"--archive", a.dir}, "deriver": {"--archive", a.dir, "--scratch", filepath.Join(state, "scratch")},
		"premis": {"--origin", "localhost/colophon"}, "quarantine": nil,
	}
	var running []*process
	ports := map[string]int{}
	for _, s := range serviceNames {
		ports[s] = freePort(t)
		args := append([]string{"--nats", a.nats, "--http", fmt.Sprintf("127.0.0.1:%d", ports[s]), "--state", filepath.Join(state, s)}, own[s]...)
		running = append(running, startProcess(t, program(s), "", nil, nil, args...))
	}
	for i, s := range serviceNames {
		eventually(t, s+" to be ready", func() bool {
			if !running[i].running() {
				t.Fatalf("%s ended: %s", s, running[i].log())
			}
			code, _ := get(ports[s], "/readyz")
			return code == http.StatusOK
		})
		if code, body := get(ports[s], "/livez"); code != http.StatusOK || body != "ok\n" {
			t.Errorf("%s: /livez answers %d %q", s, code, body)
		}
		if code, body := get(ports[s], "/metrics"); code != http.StatusOK || !strings.Contains(body, "ingest_build_info{") {
			t.Errorf("%s: /metrics answers %d", s, code)
		}
	}
	o := a.ingest(dir).converged(len(frames)).counts(len(frames), len(frames), 0, 0)
	if len(o.logged("idempotent_execute")) != 0 {
		t.Error("the command line did the work itself")
	}
	a.ingest(dir).converged(len(frames)).counts(0, 0, len(frames), 0)
	put(t, dir, "cut.tif", tiffPage(1)[:700])
	a.ingest(dir).status(3).counts(1, 0, len(frames), 1)
	if n := a.cases().Total; n != 1 {
		t.Errorf("%d cases", n)
	}
	put(t, dir, "cut.tif", tiffPage(70))
	a.ingest(dir).converged(len(frames) + 1)
	a.bag("mixed")
	a.sha256sum()
	a.ledger("mixed")
	a.noStrays()

	for i, s := range serviceNames {
		running[i].signal(syscall.SIGTERM)
		end := running[i].wait()
		if end.code != 0 {
			t.Errorf("%s: exit status %d after SIGTERM\n%s", s, end.code, end.tail(5))
		}
		if len(end.logged("stopped")) != 1 {
			t.Errorf("%s does not say that it stopped", s)
		}
	}
}

func get(port int, path string) (int, string) {
	r, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d%s", port, path))
	if err != nil {
		return 0, err.Error()
	}
	defer r.Body.Close() //nolint:errcheck // only read
	body, _ := io.ReadAll(r.Body)
	return r.StatusCode, string(body)
}

// TestServiceUsage: a service program refuses wrong settings, all at once.
func TestServiceUsage(t *testing.T) {
	t.Parallel()
	if err := services(); err != nil {
		t.Fatal(err)
	}
	for _, s := range serviceNames {
		if o := startProcess(t, program(s), "", nil, nil, "--help").wait(); o.code != 0 || !strings.Contains(o.stdout, "--nats") {
			t.Errorf("%s --help: status %d", s, o.code)
		}
		for _, args := range [][]string{{}, {"--bogus"}} {
			if o := startProcess(t, program(s), "", nil, nil, args...).wait(); o.code != 2 || o.text == "" {
				t.Errorf("%s %v: status %d, %q", s, args, o.code, o.text)
			}
		}
	}
	o := startProcess(t, program("capture"), "", nil, nil, "--archive", "/x", "--state", "/y", "--root", "/nonexistent", "--concurrency", "0").wait()
	if o.code != 2 || !strings.Contains(o.text, "--concurrency") || !strings.Contains(o.text, "--root") {
		t.Errorf("capture with two faults: status %d, %q", o.code, o.text)
	}
}
