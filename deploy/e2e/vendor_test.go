package e2e

import (
	"encoding/json"
	"fmt"
	"net/url"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// gateway speaks to a running line as a scanner's gateway does: by publishing.
type gateway struct {
	t  testing.TB
	nc *nats.Conn
	js jetstream.JetStream
}

func (a *archive) gateway() *gateway {
	t := a.t
	t.Helper()
	var access struct{ URL string }
	ok(t, json.Unmarshal([]byte(readFile(t, a.path("state", "broker.json"))), &access))
	nc, err := nats.Connect(access.URL)
	ok(t, err)
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	ok(t, err)
	return &gateway{t, nc, js}
}

func (g *gateway) publish(kind, batch, id string, body any) {
	g.t.Helper()
	data, err := json.Marshal(body)
	ok(g.t, err)
	m := nats.NewMsg(fmt.Sprintf("capture.%s.test.%s", kind, encode(batch)))
	m.Data = data
	if id == "" {
		id = fmt.Sprintf("batch:%s@%s#0", sum(data), encode(batch))
	}
	m.Header.Set("Nats-Msg-Id", id)
	_, err = g.js.PublishMsg(g.t.Context(), m)
	ok(g.t, err)
}

func (g *gateway) declare(batch string, count int) {
	g.t.Helper()
	g.publish("batch", batch, "", map[string]any{"schema": "colophon/capture.batch/v1", "batch": batch, "count": count})
}

func (g *gateway) frame(batch, frame string, sequence int, path, digest string) {
	g.t.Helper()
	u := url.URL{Scheme: "file", Path: path}
	g.publish("frame", batch, fmt.Sprintf("capture:%s@%s/%s#1", digest, encode(batch), encode(frame)), map[string]any{
		"schema": "colophon/capture.frame/v1", "batch": batch, "frame": frame, "sequence": sequence, "sources": []string{u.String()},
		"sha256": digest, "declared_by": "vendor list", "pass": 1,
	})
}

// settledIs waits until a batch is settled, and gives its exit status.
func (a *archive) settledIs(batch string) int {
	a.t.Helper()
	code := -1
	eventually(a.t, batch+" to settle", func() bool {
		o := a.run("--json", "status", batch)
		var st struct {
			Settled, Converged bool
			Convergence, Bag   int
		}
		if o.code == 2 { // not declared yet
			return false
		}
		o.last(&st)
		code = o.code
		return st.Settled && (!st.Converged || st.Bag >= st.Convergence)
	})
	return code
}

// TestVendorList: a list declares one digest for two different files. The
// claim is no hit: the second file is read, and refused.
func TestVendorList(t *testing.T) {
	t.Parallel()
	a := newArchive(t)
	dir := tempDir(t)
	one, two := put(t, dir, "1.tif", tiffPage(1)), put(t, dir, "2.tif", tiffPage(2))
	p := a.serve("--root", dir)
	g := a.gateway()
	digest := sum(tiffPage(1))
	g.declare("vendor", 2)
	g.frame("vendor", "p1", 1, one, digest)
	if !p.waitFor(message("idempotent_recorded", "deriver", "frame_id", "p1")) {
		t.Fatal(p.wait().text)
	}
	g.frame("vendor", "p2", 2, two, digest)
	if code := a.settledIs("vendor"); code != 3 {
		t.Errorf("status ends with %d", code)
	}
	var list caseList
	eventually(t, "the case", func() bool {
		a.run("--json", "case", "list").status(0).last(&list)
		return list.Total == 1
	})
	c := list.Cases[0]
	if c.Code != "digest-mismatch" || c.Service != "hasher" || c.Operation != "fixity" || c.Frame != "p2" {
		t.Errorf("the case is %+v", c)
	}
	acts := 0
	for _, l := range p.linesOf("idempotent_execute") {
		if l.str("service") == "capture" && l.str("frame_id") == "p2" {
			acts++
		}
	}
	if acts != 1 {
		t.Errorf("the second file was read %d times", acts)
	}
	p.signal(syscall.SIGTERM)
	p.wait().status(0)
	if n := len(a.files("masters")); n != 1 {
		t.Errorf("%d masters: the refused bytes were promoted", n)
	}
	for _, e := range a.events("vendor") {
		if e.kind == "fixity check" && e.frame == "vendor/p2" && e.outcome != "fail" {
			t.Errorf("the fixity check of the refused page: %+v", e)
		}
	}
	a.verify(0)
}

type caseList struct {
	Cases []struct {
		ID, State, Code, Service, Operation string
		Frame                               any
		Open                                bool
		Pass                                int
	}
	Total int
}

func (p *process) linesOf(msg string) []logLine {
	p.mu.Lock()
	defer p.mu.Unlock()
	return outcome{lines: p.lines}.logged(msg)
}

// TestHasherDeadLetterCrash ends the process behind hasher's dead letter: the
// next one finds it, and the page has one case.
func TestHasherDeadLetterCrash(t *testing.T) {
	t.Parallel()
	a := newArchive(t)
	a.bin, a.env = crashProgram(t), []string{"COLOPHON_CRASH_AT=hasher.after-dead-letter"}
	dir := tempDir(t)
	one := put(t, dir, "1.tif", tiffPage(1))
	p := a.serve("--root", dir)
	g := a.gateway()
	g.declare("vendor", 1)
	g.frame("vendor", "p1", 1, one, sum(tiffPage(2)))
	if o := p.wait(); o.signal != syscall.SIGKILL {
		t.Fatalf("the process was not killed: status %d", o.code)
	}
	a.env = nil
	p = a.serve("--root", dir)
	a.settledIs("vendor")
	again := time.Now().Add(7 * time.Second) // the broker delivers again after five
	eventually(t, "the redelivery", func() bool {
		return len(p.linesOf("dead_letter")) > 0 || time.Now().After(again)
	})
	var list caseList
	a.run("--json", "case", "list", "--all").status(0).last(&list)
	if list.Total != 1 || !list.Cases[0].Open || list.Cases[0].Pass != 1 {
		t.Errorf("the cases are %+v", list)
	}
	p.signal(syscall.SIGTERM)
	p.wait().status(0)
	if n := len(a.stream("DEADLETTER")); n != 1 {
		t.Errorf("%d dead letters", n)
	}
	a.verify(0)
}
