package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// marked are pages that a script finds by their mark.
func marked(mark string, from, n int) (out []frame) {
	for i := range n {
		out = append(out, frame{pageName(from + i), markedPage(uint64(from+i)+5000, mark)})
	}
	return out
}

// onceEach demands that no fact stands twice in a log.
func onceEach(t testing.TB, facts []streamed) {
	t.Helper()
	seen := map[string]int{}
	for _, m := range facts {
		id := m.header.Get("Nats-Msg-Id")
		if seen[id]++; seen[id] == 2 {
			t.Errorf("the log holds %s twice", id)
		}
	}
}

// TestBrokerKilled kills nats-server under load, again and again: the services
// say so, come back by themselves, and nothing is lost or stands twice.
func TestBrokerKilled(t *testing.T) {
	t.Parallel()
	x := newTools(t)
	x.encoder("PAGE", "sleep 0.02") // slow enough to be met at work
	dir := filepath.Join(tempDir(t), "vol")
	frames := marked("PAGE", 0, 40)
	putAll(t, dir, frames)
	l := newLine(t, dir)
	l.env = []string{x.env()}
	l.all()
	run := l.startIngest(dir)
	for n := range 3 {
		eventually(t, "some pages to be done", func() bool { return len(l.process("deriver").recorded("deriver")) > 8*n || !run.running() })
		if !run.running() {
			t.Fatalf("the batch was done before the broker was killed %d times: %s", n, run.wait().stdout)
		}
		l.broker.proc.kill()
		for _, s := range serviceNames {
			l.unready(s, "not connected")
		}
		l.broker.start()
		for _, s := range serviceNames {
			l.ready(s)
		}
	}
	run.wait().parsed().converged(40).counts(40, 40, 0, 0)
	facts := l.facts()
	onceEach(t, facts)
	unspent(t, facts)
	l.judge("vol", frames)
	l.end()
}

// TestBrokerDenies: a service that may not publish or read what it must says so
// within seconds, and goes on once it may.
func TestBrokerDenies(t *testing.T) {
	t.Parallel()
	dir := pages(t, 3)
	l := newLine(t, dir)
	for _, c := range []struct{ service, denied string }{
		{"capture", `publish: { deny: "ingest.frame.captured" }`},
		{"hasher", `publish: { deny: "$JS.API.CONSUMER.MSG.NEXT.INGEST.>" }`},
		{"deriver", `subscribe: { deny: "_INBOX_deriver.>" }`},
	} {
		t.Run(c.service, func(t *testing.T) {
			l.t, l.procs = t, map[string][]*process{}
			l.broker.users = users(c.service, c.denied)
			l.broker.stop()
			l.broker.start()
			l.nats = l.broker.url("admin")
			for _, s := range serviceNames {
				l.begin(s)
			}
			run := l.startIngest(dir, "--batch", "denied-"+c.service)
			begun := time.Now()
			if !l.process(c.service).waitFor(func(line logLine) bool {
				return line.msg() == "broker_error" && strings.Contains(strings.ToLower(line.str("error")), "permissions violation")
			}) {
				t.Fatal(l.process(c.service).log())
			}
			l.unready(c.service, "ermissions violation")
			if took := time.Since(begun); took > 20*time.Second {
				t.Errorf("it took %v to say so", took)
			}
			if !run.running() {
				t.Fatalf("nothing was denied: %s", run.wait().stdout)
			}
			l.broker.users = users("", "")
			l.broker.configure()
			l.broker.proc.signal(syscall.SIGHUP)
			if c.service == "deriver" { // a refused subscription is not asked for again before the next connection
				l.process(c.service).kill()
				l.begin(c.service)
			}
			run.wait().parsed().converged(3)
			l.end()
		})
	}
}

// users is a configuration with a user for each service; one of them may less.
func users(service, denied string) string {
	var b strings.Builder
	b.WriteString("authorization { users: [ {user: admin, password: admin}\n")
	for _, s := range serviceNames {
		may := ""
		if s == service {
			may = ", permissions: { " + denied + " }"
		}
		fmt.Fprintf(&b, "{user: %s, password: %s%s}\n", s, s, may)
	}
	b.WriteString("] }")
	return b.String()
}

// TestBrokerRolledBack puts an older copy of the streams under running
// services: they notice, tell the log again what it lacks, and the archive is
// sound.
func TestBrokerRolledBack(t *testing.T) {
	t.Parallel()
	base := tempDir(t)
	old, late := filepath.Join(base, "old"), filepath.Join(base, "late")
	var frames []frame
	for i := range 6 {
		frames = append(frames, frame{pageName(i), tiffPage(uint64(i) + 100)})
	}
	putAll(t, old, frames[:3])
	putAll(t, late, frames)
	l := newLine(t, base)
	l.all()
	l.ingest(old).converged(3)
	l.broker.stop()
	copyOf := filepath.Join(tempDir(t), "copy")
	ok(t, os.CopyFS(copyOf, os.DirFS(l.broker.store())))
	l.broker.start()
	l.ingest(late).converged(6)
	before := l.facts()

	l.broker.stop()
	ok(t, os.RemoveAll(l.broker.store()))
	ok(t, os.CopyFS(l.broker.store(), os.DirFS(copyOf)))
	l.broker.start()
	for _, s := range []string{"capture", "hasher", "deriver"} {
		if !l.process(s).waitFor(message("log_rolled_back", "")) {
			t.Fatal(l.process(s).log())
		}
	}
	l.ingest(late).converged(6)
	l.ingest(old).converged(3).counts(0, 0, 3, 0)
	var facts []streamed
	eventually(t, "the log to tell all it told before", func() bool { // each service heals at its own pace
		facts = l.facts()
		return len(lacking(t, facts, before)) == 0
	})
	if len(ops(t, facts, "rolled-back")) == 0 {
		t.Error("the log does not tell that it was rolled back")
	}
	l.bag("late")
	l.sha256sum()
	l.noStrays()
	// The ledger took its records from a log that is no more, and each service
	// told the new one again by itself: verify holds the two against each other by
	// the set of events, and says so.
	o := l.run("verify", "--json")
	var report struct {
		Findings []struct{ Kind, Object, Message, Severity string }
	}
	if o.last(&report); o.code != 0 || !strings.Contains(o.stdout, "log-healed") {
		t.Errorf("verify: exit status %d: %+v", o.code, report.Findings)
	}
	l.end()
}

// lacking gives the ids of the completions that a log told before and does not
// tell now.
func lacking(t testing.TB, now, before []streamed) (out []string) {
	t.Helper()
	ids := map[string]bool{}
	for _, m := range now {
		ids[m.header.Get("Nats-Msg-Id")] = true
	}
	for _, m := range before {
		id := m.header.Get("Nats-Msg-Id")
		frame := strings.HasPrefix(m.subject, "ingest.frame.") || strings.HasPrefix(m.subject, "ingest.derivative.")
		if frame && !ids[id] && !slices.ContainsFunc(now, func(f streamed) bool { return again(t, f, m) }) {
			out = append(out, id)
		}
	}
	return out
}

// again reports whether a fact says of a slot what another one said.
func again(t testing.TB, a, b streamed) bool {
	t.Helper()
	type slot struct{ Batch, Frame, Digest string }
	var x, y slot
	ok(t, json.Unmarshal(a.data, &x))
	ok(t, json.Unmarshal(b.data, &y))
	return a.subject == b.subject && x == y
}

// TestBrokerFull fills the file system of the embedded broker to the last byte:
// its streams are mute from then on, whatever space there is. The line says so,
// waits for space, starts the broker again, and goes on.
func TestBrokerFull(t *testing.T) {
	t.Parallel()
	d := newDisk(t, 64)
	if !d.small {
		return // newDisk has said so
	}
	x := newTools(t)
	x.encoder("PAGE", "sleep 0.05")
	dir := filepath.Join(tempDir(t), "vol")
	frames := marked("PAGE", 0, 40)
	putAll(t, dir, frames)
	a := newArchive(t)
	ok(t, os.MkdirAll(a.dir, 0o755))
	ok(t, os.Symlink(d.dir, a.path("jetstream")))
	a.env = []string{x.env()}
	port := freePort(t)
	p := a.start("serve", "--listen", "127.0.0.1:0", "--http", fmt.Sprintf("127.0.0.1:%d", port), "--root", dir)
	eventually(t, "the line to be ready", func() bool { code, _ := get(port, "/readyz"); return code == 200 })
	run := a.startIngest(dir)
	eventually(t, "a page to be done", func() bool { return len(p.recorded("deriver")) > 0 })
	d.full()
	if !p.waitFor(message("broker_failed", "")) || !p.waitFor(message("broker_waits_for_space", "")) {
		t.Fatal(p.log())
	}
	unready(t, port, "write error")
	if len(p.linesOf("broker_restarted")) != 0 {
		t.Error("the broker was started again on a full disk")
	}
	done := len(p.recorded("deriver"))
	if done == 40 {
		t.Error("the disk was full too late")
	}
	d.relieve()
	if !p.waitFor(message("broker_restarted", "")) {
		t.Fatal(p.log())
	}
	run.wait().parsed().converged(40)
	eventually(t, "the line to be ready again", func() bool { code, _ := get(port, "/readyz"); return code == 200 })
	p.signal(syscall.SIGTERM)
	p.wait().status(0)
	facts := a.stream("INGEST")
	onceEach(t, facts)
	unspent(t, facts)
	a.judge("vol", frames)
	a.ingest(dir).converged(40).counts(0, 0, 40, 0)
}

// TestDiskFull fills the disk of everything in one moment, past every mark:
// whatever ends by that, what was stored is sound and the rest goes on.
func TestDiskFull(t *testing.T) {
	t.Parallel()
	d := newDisk(t, 128)
	if !d.small {
		return // newDisk has said so
	}
	x := newTools(t)
	x.encoder("PAGE", "sleep 0.05")
	dir := filepath.Join(tempDir(t), "vol")
	frames := marked("PAGE", 0, 30)
	putAll(t, dir, frames)
	a := newArchive(t)
	a.dir = filepath.Join(d.dir, "archive")
	a.env = []string{x.env(), "COLOPHON_LOW_WATER_MIB=1"}
	p := a.startIngest(dir)
	eventually(t, "a page to be done", func() bool { return len(p.recorded("deriver")) > 0 || !p.running() })
	d.full()
	select { // it ends, or is halted
	case <-p.done:
	case <-p.when(message("consumer_halted", "")):
	}
	d.relieve()
	if o := p.wait(); o.code == 0 {
		o.parsed().converged(30)
	}
	a.ingest(dir).converged(30)
	a.judge("vol", frames, "retry")
}
