// Package nats tests the operators' page: every command on it runs against a
// real line, with the real nats program, and its effect is looked at.
package nats

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// natscli is the tested version.
const natscli = "github.com/nats-io/natscli/nats@v0.5.0"

// page is a shell session on the page: what one block exports the next sees.
type page struct {
	t    *testing.T
	dir  string
	env  []string
	todo []string // blocks of the page not yet run
}

// run runs the next block and gives what it printed.
func (p *page) run(first string) string {
	p.t.Helper()
	if len(p.todo) == 0 {
		p.t.Fatalf("no block is left for %q", first)
	}
	block := p.todo[0]
	p.todo = p.todo[1:]
	if !strings.HasPrefix(block, first) {
		p.t.Fatalf("the next block begins\n%s\nnot %q", block, first)
	}
	// the session's variables outlive the block
	script := "set -euo pipefail\n[ ! -f .session ] || . ./.session\n" + block + "\nexport -p > .session\n"
	cmd := exec.Command("bash", "-c", script)
	cmd.Dir, cmd.Env = p.dir, p.env
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		p.t.Fatalf("%s\n%v\n%s%s", block, err, out, stderr.String())
	}
	return string(out)
}

func blocks(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile("OPERATING.md")
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, m := range regexp.MustCompile("(?s)```sh\n(.*?)\n```").FindAllStringSubmatch(string(text), -1) {
		out = append(out, m[1])
	}
	return out
}

// tools builds the two programs; the second build of each is a cache hit.
func tools(t *testing.T) string {
	t.Helper()
	bin := t.TempDir()
	for _, args := range [][]string{
		{"build", "-o", filepath.Join(bin, "colophon"), "../standalone/cmd/colophon"},
		{"install", natscli},
	} {
		cmd := exec.Command("go", args...)
		cmd.Env = append(os.Environ(), "GOBIN="+bin)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	return bin
}

// helpers is a folder with the programs that the line needs, and nothing else:
// one of them can be taken away.
func helpers(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"opj_compress", "opj_decompress", "djpeg"} {
		path, err := exec.LookPath(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(path, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// serve starts the line on an archive and returns once it answers.
func serve(t *testing.T, bin, helpers, archive, root string) {
	t.Helper()
	cmd := exec.Command(filepath.Join(bin, "colophon"), "--archive", archive, "serve", "--root", root, "--listen", "127.0.0.1:0", "--http", "")
	cmd.Env = append(os.Environ(), "PATH="+helpers)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		if err := cmd.Wait(); err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	ready := make(chan struct{})
	go func() {
		for s := bufio.NewScanner(stderr); s.Scan(); {
			if strings.Contains(s.Text(), `"quarantine_ready"`) {
				close(ready)
				break
			}
		}
		for s := bufio.NewScanner(stderr); s.Scan(); {
		}
	}()
	select {
	case <-ready:
	case <-time.After(time.Minute):
		t.Fatal("the line was not ready within a minute")
	}
}

func TestOperatorsPage(t *testing.T) {
	bin, dir := tools(t), t.TempDir()
	archive, demo := filepath.Join(dir, "archive"), filepath.Join(dir, "demo")
	colophon := func(want int, args ...string) {
		t.Helper()
		out, err := exec.Command(filepath.Join(bin, "colophon"), append([]string{"--archive", archive}, args...)...).CombinedOutput()
		code := 0
		if err != nil {
			code = err.(*exec.ExitError).ExitCode()
		}
		if code != want {
			t.Fatalf("colophon %v: status %d, want %d\n%s", args, code, want, out)
		}
	}
	colophon(0, "demo", demo)
	colophon(3, "ingest", demo, "--batch", "demo") // the damaged page waits
	programs := helpers(t)
	serve(t, bin, programs, archive, demo)
	p := &page{t: t, dir: dir, todo: blocks(t), env: append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "HOME="+dir, "ARCHIVE="+archive)}

	p.run("export NATS_URL")
	has(t, p.run("nats stream ls"), "CAPTURE", "INGEST", "DEADLETTER", "DISPATCH", "deadletter.deriver")
	has(t, p.run("nats stream get DEADLETTER 1"), "Colophon-Code: truncated", "Colophon-Operation: derivative:jp2", "page%200005%2Etif", `"seq"`)
	has(t, p.run("nats micro ls"), "quarantine", "premis", "capture", "quarantine.replay")

	list := p.run("nats req quarantine.list")
	has(t, list, `"code":"truncated"`, `"state":"opened"`, `"total":1`, `"history"`)
	has(t, p.run(`nats req quarantine.list '{"state":"opened"`), `"total":1`, `"total":0`, "there is no state")
	pages := strings.SplitN(p.run(`nats req quarantine.list '{"all":true`), "\n", 2)
	has(t, pages[0], `"frame":"page 0005.tif"`, `"total":1`)
	has(t, pages[1], `"cases":[]`, `"total":1`) // nothing stands behind the only one
	has(t, p.run("nats req quarantine.replay"), `"eligible":1`, `"dry_run":true`)
	has(t, p.state(), `"state":"opened"`, `"pass":1`)

	// the master is damaged still: the replay fails again, with new evidence
	has(t, p.run("nats req quarantine.replay"), `"done":["derivative:jp2@demo/page%200005%2Etif"]`)
	p.until(`"state":"opened"`, `"pass":2`, `"actor":"op-7"`)
	p.run("letter=$(nats stream info DEADLETTER")
	p.until(`"state":"opened"`, `"pass":3`, `"actor":"unknown"`)

	has(t, p.run("nats req quarantine.rescan"), `"dry_run":true`, `"done":["derivative:jp2@demo/page%200005%2Etif"]`, `"state":"rescan-requested"`)
	p.until(`"state":"rescan-requested"`, `"pass":3`, `"next_pass":4`, `"note":"the page was folded"`)
	colophon(0, "case", "rescan", "--code", "truncated", "--newer", "24h", "--note", "once more", "--dry-run")
	colophon(0, "case", "rescan", "--state", "rescan-requested", "--note", "once more")
	p.until(`"number":7`, `"note":"once more"`)
	colophon(0, "case", "list", "--state", "rescan-requested", "--older", "1ns")
	colophon(1, "case", "rescan", "no such case", "--note", "once more")
	colophon(2, "case", "rescan", "--note", "of what?")
	colophon(2, "case", "list", "--older", "-1h")
	colophon(2, "case", "list", "--state", "shut")
	has(t, p.run("nats req batch.frames"), `"frame":"page 0005.tif"`, `"state":"failed"`, `"operation":"derivative:jp2"`)

	has(t, p.run("nats req quarantine.discard"), `"done":["derivative:jp2@demo/page%200005%2Etif"]`)
	p.until(`"state":"discarded"`)
	colophon(3, "case", "rescan", "derivative:jp2@demo/page%200005%2Etif", "--note", "too late")
	out := p.run("nats req batch.list")
	has(t, out, `"batch":"demo"`, `"dispatched":0`)
	p.halts(programs)
	colophon(0, "verify") // all that was decided stands in the ledger, once
	if len(p.todo) > 0 {
		t.Errorf("blocks of the page that no test runs:\n%s", strings.Join(p.todo, "\n---\n"))
	}
}

// halts takes the encoder away and brings it back.
func (p *page) halts(programs string) {
	p.t.Helper()
	encoder := filepath.Join(programs, "opj_compress")
	if err := os.Rename(encoder, encoder+".away"); err != nil {
		p.t.Fatal(err)
	}
	has(p.t, p.run("nats sub ingest.op.halted"), `"kind":"halted"`, `"service":"deriver"`, `"code":"encoder-missing"`)
	if err := os.Rename(encoder+".away", encoder); err != nil {
		p.t.Fatal(err)
	}
	has(p.t, p.run("nats sub ingest.op.resumed"), `"kind":"resumed"`, `"service":"deriver"`)
	// What capture and a stage say of these, in their words.
	for n, kind := range []string{"breaker-opened", "stuck"} {
		p.shell(fmt.Sprintf(`nats pub ingest.op.%s '{"schema":"colophon/op/v1","kind":%q,"service":"capture","instance":"test","counter":%d,"reason":"by the test","agent":{"name":"test","version":"1"},"at":"2026-11-30T12:00:00Z"}' --jetstream`, kind, kind, n+1))
	}
	out := p.run("nats sub 'ingest.op.>'")
	has(p.t, out, `"deriver","halted","encoder-missing"`, `"deriver","resumed"`, `"kind":"breaker-opened"`, `"kind":"stuck"`)
	if n := strings.Count(out, `"by the test"`); n < 4 {
		p.t.Errorf("two facts are shown %d times by two commands:\n%s", n, out)
	}
}

// shell runs a command of the test's own in the page's session.
func (p *page) shell(command string) string {
	p.t.Helper()
	cmd := exec.Command("bash", "-c", ". ./.session; "+command)
	cmd.Dir, cmd.Env = p.dir, p.env
	out, err := cmd.Output()
	if err != nil {
		p.t.Fatalf("%s: %v", command, err)
	}
	return string(out)
}

// state gives the one case with its history.
func (p *page) state() string {
	p.t.Helper()
	return p.shell(`nats req quarantine.show '{"id":"derivative:jp2@demo/page%200005%2Etif"}' --raw`)
}

// until waits for the case to be in a state: its own fields first, then its
// history.
func (p *page) until(want ...string) {
	p.t.Helper()
	var last string
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); {
		last = p.state()
		var head map[string]json.RawMessage
		if err := json.Unmarshal([]byte(last), &head); err != nil {
			p.t.Fatalf("%v: %s", err, last)
		}
		history := string(head["history"])
		delete(head, "history")
		own, err := json.Marshal(head)
		if err != nil {
			p.t.Fatal(err)
		}
		met := true
		for _, w := range want {
			if !strings.Contains(string(own), w) && !(strings.HasPrefix(w, `"actor"`) && strings.Contains(history, w)) {
				met = false
			}
		}
		if met {
			return
		}
	}
	p.t.Fatalf("the case never had %v; it is %s", want, last)
}

func has(t *testing.T, out string, want ...string) {
	t.Helper()
	for _, w := range want {
		if !strings.Contains(out, w) {
			t.Errorf("%q is not in\n%s", w, out)
		}
	}
}
