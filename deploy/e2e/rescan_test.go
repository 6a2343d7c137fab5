package e2e

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// dispatch is what the line asks of a device.
type dispatch struct {
	Batch, Frame, Device, Replaces, Actor, Note string
	Sequence, Pass, Number                      int

	id, subject string
}

// asked waits for the n-th dispatch of the line.
func (g *gateway) asked(n int) (d dispatch) {
	g.t.Helper()
	eventually(g.t, fmt.Sprintf("dispatch %d", n), func() bool {
		all := readStream(g.t, g.nc, "DISPATCH")
		if len(all) < n {
			return false
		}
		m := all[n-1]
		ok(g.t, json.Unmarshal(m.data, &d))
		d.id, d.subject = m.header.Get("Nats-Msg-Id"), m.subject
		return true
	})
	return d
}

// scanned publishes a page of the device "left": the first one, or the answer
// to a dispatch.
func (g *gateway) scanned(batch, frame string, sequence int, path string, d dispatch) {
	g.t.Helper()
	digest, pass := sumFile(g.t, path), max(d.Pass, 1)
	body := map[string]any{
		"schema": "colophon/capture.frame/v1", "batch": batch, "frame": frame, "sequence": sequence, "sources": []string{"file://" + path},
		"sha256": digest, "device": "left", "pass": pass,
	}
	if d.id != "" {
		body["answers"], body["replaces"] = d.id, d.Replaces
	}
	g.publish("frame", batch, fmt.Sprintf("capture:%s@%s/%s#%d", digest, encode(batch), encode(frame), pass), body)
}

// change is one line of a case's history.
type change struct {
	State, Actor, Note string
	NextPass           int `json:"next_pass"`
}

func (a *archive) history(id string) (out []string) {
	a.t.Helper()
	var k struct{ History []change }
	a.run("--json", "case", "show", id).status(0).last(&k)
	for _, h := range k.History {
		out = append(out, strings.TrimSpace(h.State+" "+h.Actor))
	}
	return out
}

// TestRescan: a page that a device damaged is asked for again by the policy;
// the device sends the same bytes, then an operator asks, and it sends a whole
// page: the case is resolved, and whoever asked stands in the record.
func TestRescan(t *testing.T) {
	t.Parallel()
	a := newArchive(t)
	dir := tempDir(t)
	whole := tiffPage(7)
	one, cut := put(t, dir, "1.tif", tiffPage(1)), put(t, dir, "2.tif", whole[:len(whole)*6/10])
	p := a.serve("--root", dir)
	g := a.gateway()
	g.publish("batch", "scan", "", map[string]any{
		"schema": "colophon/capture.batch/v1", "batch": "scan", "count": 2, "devices": []string{"left"}, "policy": map[string]any{"max_attempts": 2},
	})
	g.scanned("scan", "p1", 1, one, dispatch{})
	g.scanned("scan", "p2", 2, cut, dispatch{})

	d := g.asked(1)
	if d.subject != "gateway.dispatch.left" || d.Device != "left" || d.Frame != "p2" || d.Sequence != 2 || d.Pass != 2 || d.Number != 1 || d.Replaces != sumFile(t, cut) || d.Actor != "policy" {
		t.Errorf("the policy asks for %+v", d)
	}
	l := a.cases()
	if l.Total != 1 || l.Cases[0].Code != "truncated" || l.Cases[0].State != "rescan-requested" {
		t.Fatalf("the cases are %+v", l)
	}
	id := l.Cases[0].ID
	if text := a.run("status", "scan").status(3).stdout; !strings.Contains(text, "asked of left again since 2") {
		t.Errorf("status does not say what the device owes:\n%s", text)
	}
	g.scanned("scan", "p2", 2, cut, d) // it saw the same
	eventuallyCase(t, a, id, 2)
	want := []string{"opened", "rescan-requested policy", "replayed policy", "opened"} // and asks no more
	if got := a.history(id); !slices.Equal(got, want) {
		t.Errorf("the history is %q, not %q", got, want)
	}
	if text := a.run("status", "scan").status(3).stdout; strings.Contains(text, "asked of") {
		t.Errorf("an answered dispatch is shown as owed:\n%s", text)
	}

	a.run("--json", "case", "rescan", "--actor", "ann", "--note", "the corner is folded", id).status(0)
	d = g.asked(2)
	if d.Pass != 3 || d.Number != 1 || d.Replaces != sumFile(t, cut) || d.Actor != "ann" || d.Note != "the corner is folded" {
		t.Errorf("the operator asks for %+v", d)
	}
	g.scanned("scan", "p2", 2, put(t, dir, "2-again.tif", whole), d)
	eventually(t, "the case is resolved", func() bool { return a.cases().Total == 0 })
	if code := a.settledIs("scan"); code != 0 {
		t.Errorf("status ends with %d", code)
	}
	want = append(want, "rescan-requested ann", "replayed ann", "resolved")
	if got := a.history(id); !slices.Equal(got, want) {
		t.Errorf("the history is %q, not %q", got, want)
	}
	p.signal(syscall.SIGTERM)
	p.wait().status(0)

	if n := len(a.stream("DISPATCH")); n != 2 {
		t.Errorf("%d dispatches", n)
	}
	for _, m := range a.stream("INGEST", "ingest.frame.fixed") {
		var f struct {
			Frame, Digest  string
			Revision, Pass int
			Requested      struct{ Actor, Note string }
		}
		ok(t, json.Unmarshal(m.data, &f))
		if by := map[int]string{2: "policy", 3: "ann"}[f.Pass]; f.Requested.Actor != by || f.Pass == 3 && (f.Revision != 2 || f.Digest != sum(whole)) {
			t.Errorf("fixed: %+v", f)
		}
	}
	var released []string
	gone := 0
	for _, e := range a.events("scan") {
		switch e.kind {
		case "unquarantine":
			released = append(released, e.agent)
		case "deaccession":
			gone++
			if e.digest != sumFile(t, cut) {
				t.Errorf("what went: %+v", e)
			}
		}
	}
	if len(released) != 2 || strings.Contains(released[0], "unknown") || !strings.Contains(released[1], "ann") || gone != 1 {
		t.Errorf("released by %q, %d deaccessions", released, gone)
	}
	a.verify(0)
}
