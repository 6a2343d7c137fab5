package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestUsage: what is asked wrongly ends with 2, says why, and creates nothing.
func TestUsage(t *testing.T) {
	t.Parallel()
	a := newArchive(t)
	for _, args := range [][]string{
		{}, {"bogus"}, {"ingest"}, {"ingest", "x", "y"}, {"ingest", "--bogus", "x"}, {"case"}, {"case", "bogus"}, {"export"}, {"export", "xml", "b"},
		{"status", "nosuch"}, {"case", "list"}, {"case", "show", "x"}, {"case", "discard", "--note", "x", "y"}, {"retry", "nosuch"}, {"retry"}, {"provision", "--check"},
		{"export", "tsv", "nosuch"}, {"ingest", "--batch", strings.Repeat("b", 256), "."}, {"--log-level=LOUD", "status"},
	} {
		o := a.run(append([]string{"--json"}, args...)...).status(2)
		if o.text == "" {
			t.Errorf("%v: nothing says what is wrong", args)
		}
		if o.stdout != "" && json.Valid([]byte(o.stdout)) {
			t.Errorf("%v: %s", args, o.stdout)
		}
	}
	if _, err := os.Stat(a.dir); err == nil {
		t.Error("an archive was created")
	}
	for _, args := range [][]string{{"--help"}, {"--version"}, {"ingest", "--help"}, {"case", "--help"}} {
		a.run(args...).status(0)
	}
}

// TestOneObject: with --json the last line of standard output is one object,
// and standard error holds the log.
func TestOneObject(t *testing.T) {
	t.Parallel()
	a := newArchive(t)
	dir := filepath.Join(tempDir(t), "vol")
	putAll(t, dir, good)
	put(t, dir, "p.tif", nil)
	put(t, dir, "ignored.txt", []byte("x"))
	for _, c := range []struct {
		code int
		args []string
		keys []string
	}{
		{3, []string{"ingest", dir}, []string{"batch", "pass", "frames", "dispatched", "processed", "skipped", "failed", "pending", "ignored", "converged", "cases"}},
		{3, []string{"status", "vol"}, []string{"totals", "converged", "frames"}},
		{0, []string{"status"}, []string{"batches"}},
		{0, []string{"case", "list"}, []string{"cases", "total"}},
		{3, []string{"retry", "vol"}, []string{"dispatched", "converged"}},
		{0, []string{"export", "tsv", "vol", "--out", t.TempDir()}, []string{"files"}},
		{0, []string{"export", "premis", sum(good[0].data), "--out", t.TempDir()}, []string{"files"}},
		{0, []string{"provision", "--check"}, []string{"drift"}},
		{0, []string{"verify"}, []string{"findings"}},
	} {
		if c.args[0] == "verify" && !hasVerify() {
			continue
		}
		o := a.run(append([]string{"--json"}, c.args...)...).status(c.code)
		if strings.Count(o.stdout, "\n") != 1 {
			t.Errorf("%v prints %q", c.args, o.stdout)
		}
		var got map[string]json.RawMessage
		o.last(&got)
		for _, k := range c.keys {
			if _, there := got[k]; !there {
				t.Errorf("%v: the object lacks %s: %s", c.args, k, o.stdout)
			}
		}
		if o.text != "" {
			t.Errorf("%v: stderr holds more than the log: %q", c.args, o.text)
		}
	}
	// An archive of one batch says the same without --json, to people.
	if text := a.run("ingest", dir).status(3).stdout; !strings.Contains(text, "p.tif") || !strings.Contains(text, "colophon") {
		t.Errorf("ingest tells people %q", text)
	}
}

// TestStopped: an interrupted ingest stops gracefully, and goes on at the next
// run.
func TestStopped(t *testing.T) {
	t.Parallel()
	a := newArchive(t)
	dir := pages(t, 20)
	p := a.startIngest(dir)
	p.waitFor(message("idempotent_recorded", "deriver"))
	p.signal(syscall.SIGINT)
	if o := p.wait(); o.code != 1 || !strings.Contains(o.text, "goes on at the next run") {
		t.Errorf("status %d, %q", o.code, o.text)
	}
	o := a.ingest(dir).converged(20)
	for _, l := range o.logged("idempotent_failed") {
		t.Errorf("a graceful stop cost an attempt: %v", l)
	}
	var frames []frame
	for i := range 20 {
		frames = append(frames, frame{pageName(i), tiffPage(uint64(i) + 1000)})
	}
	a.judge("vol", frames)
}

// TestKeys: two processes on two archives name the same file the same way, and
// as the contract says.
func TestKeys(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(tempDir(t), "Vol. 142 (Smith)")
	page := tiffPage(1)
	put(t, dir, "sub/page 1.tif", page)
	// of the painted page; a change of the painter changes it
	const digest = "e647edf15e6a872646e1bfd3f1cc7506c5e84b0684a534f5a7f9ca39b9e7ffc9"
	if got := sum(page); got != digest {
		t.Fatalf("the page's digest is %s", got)
	}
	const slot = "Vol%2E%20142%20%28Smith%29/sub%2Fpage%201%2Etif"
	var logs []map[string]string
	for range 2 {
		a := newArchive(t)
		o := a.ingest(dir).converged(1)
		keys := map[string]string{}
		for _, l := range o.logged("idempotent_execute") {
			keys[l.str("service")+" "+strings.SplitN(l.str("key"), ":", 2)[0]] = l.str("key")
		}
		for _, m := range a.stream("INGEST") {
			if strings.HasPrefix(m.subject, "ingest.op.") { // of an installation, not of a page
				continue
			}
			keys[m.subject] = m.header.Get("Nats-Msg-Id")
		}
		for id := range a.ledger("Vol. 142 (Smith)") {
			keys["event "+id] = id
		}
		logs = append(logs, keys)
	}
	same(t, "keys, message ids and events of two processes", logs[0], logs[1])
	for where, want := range map[string]string{
		"hasher fixity":            "fixity:" + digest + "@" + slot,
		"deriver derivative":       "derivative:jp2:" + digest,
		"ingest.frame.captured":    "capture:" + digest + "@" + slot + "#1",
		"ingest.frame.fixed":       "fixity:" + digest + "@" + slot + "#1",
		"ingest.derivative.jp2":    "derivative:jp2:" + digest + "@" + slot + "#1",
		"ingest.batch.converged":   "batch:converged@Vol%2E%20142%20%28Smith%29#1",
		"ingest.batch.opened":      "batch:opened@Vol%2E%20142%20%28Smith%29#0",
		"event " + accessionGolden: accessionGolden,
	} {
		if got := logs[0][where]; got != want {
			t.Errorf("%s is %s, should be %s", where, got, want)
		}
	}
	if got := eventID("event:accession:" + digest + "@" + slot); got != accessionGolden {
		t.Errorf("the accession's identifier is %s", got)
	}
}

// accessionGolden is the identifier of TestKeys' accession, made once with Python:
// uuid5(uuid5(NAMESPACE_URL, "localhost/colophon"), "event:accession:…").
const accessionGolden = "ac9a03f7-a946-5bee-9549-a7f6236aaccb"
