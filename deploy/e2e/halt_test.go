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

// quick is a retry policy that wastes no time.
func quick(t testing.TB, attempts int, delay time.Duration) string {
	t.Helper()
	path := filepath.Join(tempDir(t), "policy.json")
	ok(t, os.WriteFile(path, fmt.Appendf(nil, `{"max_attempts": %d, "initial_delay": %q, "max_delay": %q}`, attempts, delay, 10*delay), 0o600))
	return path
}

// op is a fact about a consumer.
type op struct {
	Kind, Service, Code string
	Detail              map[string]string
}

func ops(t testing.TB, facts []streamed, kinds ...string) (out []op) {
	t.Helper()
	for _, m := range facts {
		if !strings.HasPrefix(m.subject, "ingest.op.") {
			continue
		}
		var o op
		ok(t, json.Unmarshal(m.data, &o))
		if slices.Contains(kinds, o.Kind) {
			out = append(out, o)
		}
	}
	return out
}

// unspent demands of a log that nothing failed: no attempt but the first of
// each work, no case.
func unspent(t testing.TB, facts []streamed) {
	t.Helper()
	for _, m := range facts {
		if m.subject == "ingest.attempt.failed" || strings.HasPrefix(m.subject, "ingest.case.") {
			t.Errorf("the log holds %s: %s", m.subject, m.data)
		}
		var f struct{ Attempt int }
		if strings.HasPrefix(m.subject, "ingest.derivative.") || strings.HasPrefix(m.subject, "ingest.frame.") {
			ok(t, json.Unmarshal(m.data, &f))
			if f.Attempt > 1 {
				t.Errorf("%s was made by attempt %d: %s", m.subject, f.Attempt, m.data)
			}
		}
	}
}

// TestHaltLowWater: below the low-water mark the line stops before anything
// breaks, says so everywhere, spends nothing, and goes on by itself.
func TestHaltLowWater(t *testing.T) {
	t.Parallel()
	d := newDisk(t, 256)
	a := newArchive(t)
	a.dir = filepath.Join(d.dir, "archive")
	a.env = []string{fmt.Sprintf("COLOPHON_LOW_WATER_MIB=%d", d.mark)}
	dir := pages(t, 12)
	port := freePort(t)
	p := a.start("serve", "--listen", "127.0.0.1:0", "--http", fmt.Sprintf("127.0.0.1:%d", port), "--root", dir)
	eventually(t, "the line to be ready", func() bool { code, _ := get(port, "/readyz"); return code == 200 })
	halted := func(consumer, value string) {
		t.Helper()
		eventually(t, "the metric of "+consumer+" to be "+value, func() bool {
			_, text := get(port, "/metrics")
			return strings.Contains(text, fmt.Sprintf("ingest_consumer_halted{consumer=%q} %s\n", consumer, value))
		})
	}
	d.low()
	for _, service := range []string{"capture", "hasher", "deriver"} {
		if !p.waitFor(message("consumer_halted", service, "code", "store-full")) {
			t.Fatal(p.log())
		}
	}
	unready(t, port, "store-full")
	halted("capture-frame", "1")
	run := a.startIngest(dir)
	eventually(t, "the declaration to wait before the halted consumer", func() bool {
		_, text := get(port, "/metrics")
		return strings.Contains(text, "ingest_consumer_pending{consumer=\"capture-batch\"} 1\n") || strings.Contains(text, "ingest_consumer_ack_pending{consumer=\"capture-batch\"} 1\n")
	})
	if n := len(p.linesOf("idempotent_execute")); n != 0 {
		t.Errorf("%d attempts were begun below the mark", n)
	}
	d.relieve()
	run.wait().parsed().converged(12).counts(12, 12, 0, 0)
	halted("capture-frame", "0")
	eventually(t, "the line to be ready again", func() bool { code, _ := get(port, "/readyz"); return code == 200 })

	// While work is under way: what was begun ends, or is begun anew.
	more := filepath.Join(tempDir(t), "more")
	for i := range 40 {
		put(t, more, pageName(i), tiffPage(uint64(i)+2000))
	}
	run = a.startIngest(more)
	if !p.waitFor(message("idempotent_recorded", "deriver", "batch_id", "more")) {
		t.Fatal(p.log())
	}
	before := len(p.linesOf("consumer_halted"))
	d.low()
	eventually(t, "a consumer to halt", func() bool { return len(p.linesOf("consumer_halted")) > before || !run.running() })
	d.relieve()
	run.wait().parsed().converged(40).counts(40, 40, 0, 0)
	p.signal(syscall.SIGTERM)
	p.wait().status(0)
	facts := a.stream("INGEST")
	unspent(t, facts)
	if h, r := ops(t, facts, "halted"), ops(t, facts, "resumed"); len(h) < 3 || len(h) != len(r) || h[0].Code != "store-full" {
		t.Errorf("the log tells of halts %v, of resumptions %v", h, r)
	}
	a.noStrays()
	a.verify(0)
}

// TestHaltStore: an archive that is gone, or read-only, halts whoever writes
// there; what was under way goes on when it is back.
func TestHaltStore(t *testing.T) {
	t.Parallel()
	d := newDisk(t, 64)
	x := newTools(t)
	x.encoder("PAGE", "sleep 0.05") // slow enough to be met at work
	dir := filepath.Join(tempDir(t), "vol")
	var frames []frame
	for i := range 24 {
		frames = append(frames, frame{pageName(i), markedPage(uint64(i), "PAGE")})
	}
	putAll(t, dir, frames)
	l := newLine(t, dir)
	l.dir = filepath.Join(d.dir, "archive")
	l.env = []string{"COLOPHON_LOW_WATER_MIB=1", x.env()}
	l.all()
	run := l.startIngest(dir)
	trouble := func(code string, begin, end func()) {
		t.Helper()
		if !l.process("deriver").waitFor(message("idempotent_recorded", "deriver")) {
			t.Fatal(l.process("deriver").log())
		}
		begin()
		if !l.process("deriver").waitFor(message("consumer_halted", "deriver", "code", code)) {
			t.Fatal(l.process("deriver").log())
		}
		l.unready("deriver", code)
		if !run.running() {
			t.Fatalf("the batch was done before the archive was away: %s", run.wait().stdout)
		}
		end()
		l.ready("deriver")
	}
	away := l.dir + " away"
	trouble("store-unavailable", func() { ok(t, os.Rename(l.dir, away)) }, func() { ok(t, os.Rename(away, l.dir)) })
	if d.small {
		trouble("store-read-only", func() { d.readOnly(true) }, func() { d.readOnly(false) })
	}
	run.wait().parsed().converged(24).counts(24, 24, 0, 0)
	for _, s := range serviceNames {
		l.ready(s)
	}
	facts := l.facts()
	unspent(t, facts)
	if h, r := ops(t, facts, "halted"), ops(t, facts, "resumed"); len(h) == 0 || len(h) != len(r) {
		t.Errorf("the log tells of halts %v, of resumptions %v", h, r)
	}
	l.judge("vol", frames)
	l.end()
}

// TestHaltEncoder: without its encoder the deriver takes nothing; the stages
// before it go on, and an installed encoder is found without a word.
func TestHaltEncoder(t *testing.T) {
	t.Parallel()
	x := newTools(t)
	x.remove("opj_compress")
	a := newArchive(t)
	a.env = []string{x.env()}
	dir := pages(t, 8)
	p := a.startIngest(dir)
	if !p.waitFor(message("consumer_halted", "deriver", "consumer", "deriver-jp2", "code", "encoder-missing")) {
		t.Fatal(p.log())
	}
	eventually(t, "the stages before to finish", func() bool { return len(p.recorded("hasher")) == 8 })
	for _, l := range p.linesOf("consumer_halted") {
		if c := l.str("consumer"); !strings.HasPrefix(c, "deriver-") || c == "deriver-thumb" { // a JPEG needs no such encoder
			t.Errorf("another halted: %v", l)
		}
	}
	if n := len(p.recorded("deriver")); n != 0 {
		t.Errorf("%d pages were derived without an encoder", n)
	}
	x.install("opj_compress")
	p.wait().parsed().converged(8).counts(8, 8, 0, 0)
	a.env = nil
	unspent(t, a.stream("INGEST"))
	a.verify(0)
}

// recorded gives the lines of what a service has finished.
func (p *process) recorded(service string) (out []logLine) {
	for _, l := range p.linesOf("idempotent_recorded") {
		if l.str("service") == service && l.str("frame_id") != "" {
			out = append(out, l)
		}
	}
	return out
}
