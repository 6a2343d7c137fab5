package quarantine

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"colophon/shared/event"
)

func TestReplay(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	q := w.run(t.TempDir())
	s := slotOf("b", "1.tif")
	origin := fixed(s, digest(1), 1, 1)
	w.fact(origin) // its id is in the broker's memory
	w.fail(s, digest(1), 1, 1)
	w.quiet(q)
	by := event.CaseRequest{ID: caseOf(s), Actor: "ann", Note: "encoder\nrepaired: /usr/bin/opj"}
	same(t, "first", get[event.CaseDecision](w, "quarantine.replay", by).Done, []string{caseOf(s)})
	second := get[event.CaseDecision](w, "quarantine.replay", by)
	same(t, "second", second.Refused, map[string]string{caseOf(s): "it was replayed already, into pass 2, by ann"})

	sent := w.messages(event.StreamIngest, event.SubjectFrameFixed)
	want, err := json.Marshal(origin)
	ok(t, err)
	if len(sent) != 2 || !bytes.Equal(sent[1].Data, want) {
		t.Fatalf("%d messages, the last with the body %s", len(sent), sent[len(sent)-1].Data)
	}
	h := sent[1].Header
	same(t, "headers", []string{h.Get(event.HeaderMsgID), h.Get(event.HeaderPass), h.Get(event.HeaderActor), h.Get(event.HeaderNote)},
		[]string{event.FixityKey(digest(1), s).MsgID(s, 2), "2", "ann", "encoder repaired: /usr/bin/opj"})
	c := get[event.Case](w, "quarantine.show", caseOf(s))
	same(t, "case", []any{c.State, c.NextPass, c.Actor, c.Note, c.Open}, []any{"replayed", 2, "ann", "encoder repaired: /usr/bin/opj", false})

	w.fail(s, digest(1), 2, 2) // it fails again, with new evidence
	w.quiet(q)
	same(t, "third", get[event.CaseDecision](w, "quarantine.replay", by).Done, []string{caseOf(s)})
	w.fact(derived(s, digest(1), 1, 3)) // the id of the fact was not taken by the replay
	w.quiet(q)
	same(t, "changes", w.changes(caseOf(s)), []string{"opened.1", "replayed.2", "opened.3", "replayed.4", "resolved.5"})
	same(t, "finished", get[event.CaseDecision](w, "quarantine.replay", by).Refused[caseOf(s)], "it is resolved: the work is finished")
	q.end()
}

func TestReplayOfCaptureAndFixity(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	q := w.run(t.TempDir())
	s := slotOf("b", "1")
	m := event.FrameMessage{Schema: event.SchemaCaptureFrame, Slot: s, Sequence: 1, Sources: []string{"file:1.tif"}}
	body, err := json.Marshal(m)
	ok(t, err)
	subject := event.CaptureSubject("frame", "gw", s.Batch)
	w.publish(&nats.Msg{Subject: subject, Header: nats.Header{event.HeaderMsgID: {m.MsgID()}}, Data: body})
	w.dead(dead{op: event.Capture, slot: s, pass: 1, service: "capture", code: "source-missing", subject: subject, body: body, n: 1})
	f := slotOf("b", "2")
	w.fact(captured(f, digest(2), 1, 1))
	w.dead(dead{op: event.Fixity, slot: f, digest: digest(2), revision: 1, pass: 1, service: "hasher", code: "digest-mismatch", origin: captured(f, digest(2), 1, 1), n: 2})
	w.quiet(q)
	by := event.CaseRequest{Batch: "b", Actor: "ann", Note: "again"}
	same(t, "done", len(get[event.CaseDecision](w, "quarantine.replay", by).Done), 2)
	sent := w.messages(event.StreamCapture, ">")
	same(t, "capture", []any{len(sent), sent[1].Header.Get(event.HeaderMsgID), string(sent[1].Data)}, []any{2, strings.Replace(m.MsgID(), "#1", "#2", 1), string(body)})
	fixity := w.messages(event.StreamIngest, event.SubjectFrameCaptured)
	same(t, "fixity", fixity[len(fixity)-1].Header.Get(event.HeaderMsgID), event.CaptureKey(digest(2), f).MsgID(f, 2))
	w.quiet(q)
	same(t, "changes", w.changes(event.CaseID(event.Fixity, f, "")), []string{"opened.1", "replayed.2"})
	q.end()
}

func TestCrashBetweenReplayAndRecord(t *testing.T) {
	t.Parallel()
	w, state := newWorld(t), t.TempDir()
	a, b := slotOf("b", "a"), slotOf("b", "b")
	q := w.run(state)
	w.fail(a, digest(1), 1, 1)
	w.fail(b, digest(2), 1, 2)
	w.quiet(q)
	q.end()
	by := event.CaseRequest{Batch: "b", Actor: "ann", Note: "again"}
	body, err := json.Marshal(by)
	ok(t, err)
	q = w.runCut(state, event.SubjectFrameFixed, 2)
	q.wait("ready", func() bool { return q.Ready() == nil })
	ok(t, w.nc.Publish("quarantine.replay", body))
	q.ends()
	same(t, "a", w.changes(caseOf(a)), []string{"opened.1", "replayed.2"})
	same(t, "b", w.changes(caseOf(b)), []string{"opened.1"})
	same(t, "sent", len(w.messages(event.StreamIngest, event.SubjectFrameFixed)), 2)

	q = w.run(state)
	same(t, "again", get[event.CaseDecision](w, "quarantine.replay", by).Done, []string{caseOf(b)})
	same(t, "sent", len(w.messages(event.StreamIngest, event.SubjectFrameFixed)), 2)
	q.end()

	// Instead of the same request, the work of the new pass may come first.
	c := slotOf("b", "c")
	q = w.runCut(state, event.SubjectFrameFixed, 1)
	q.wait("ready", func() bool { return q.Ready() == nil })
	w.fail(c, digest(3), 1, 3)
	w.quiet(q)
	ok(t, w.nc.Publish("quarantine.replay", body))
	q.ends()
	d := derived(c, digest(3), 1, 2)
	d.Requested = &event.Request{Actor: "ann", Note: "again"}
	w.fact(d)
	q = w.run(state)
	w.quiet(q)
	same(t, "c", w.changes(caseOf(c)), []string{"opened.1", "replayed.2", "resolved.3"})
	same(t, "released by", get[event.Case](w, "quarantine.show", caseOf(c)).History[1].Actor, "ann")
	q.end()
}

func TestDecisionsAreRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	q := w.run(t.TempDir())
	s, gone := slotOf("b", "1"), slotOf("b", "2")
	w.fail(s, digest(1), 1, 1)
	w.fail(gone, digest(2), 1, 2)
	w.quiet(q)
	letters, err := w.js.Stream(t.Context(), event.StreamDeadLetter)
	ok(t, err)
	ok(t, letters.DeleteMsg(t.Context(), 2))
	for body, want := range map[string]string{
		`{"id":"x"}`: "400", `{"id":"x","actor":"a"}`: "400", `{"id":"x","actor":"a","note":" \n"}`: "400", `{"id":"x","actor":"a","note":"n"}`: "404",
		`{"actor":"a","note":"n"}`: "400", `{"actor":"a","note":"n","bacth":"b"}`: "400", `{"id":"77","actor":"a","note":"n"}`: "404", `{`: "400", `{"limit":-1}`: "400",
	} {
		for _, subject := range []string{"quarantine.replay", "quarantine.discard"} {
			_, code := w.ask(subject, body)
			same(t, subject+" "+body, code, want)
		}
	}
	for body, want := range map[string]string{"": "400", "99": "404", `"nobody"`: "404", "nobody": "404"} {
		_, code := w.ask("quarantine.show", body)
		same(t, "show "+body, code, want)
	}
	dry := get[event.CaseDecision](w, "quarantine.replay", event.CaseRequest{Batch: "b", DryRun: true})
	same(t, "dry run", []any{dry.Eligible, dry.Refused, dry.Done}, []any{1, map[string]string{caseOf(gone): "its dead letter 2 is gone"}, []string{}})
	same(t, "the log", w.changes(caseOf(s)), []string{"opened.1"})
	by := event.CaseRequest{Batch: "b", Actor: "a", Note: "n"}
	same(t, "discarded", len(get[event.CaseDecision](w, "quarantine.discard", by).Done), 2)
	by.ID = caseOf(s)
	same(t, "twice", get[event.CaseDecision](w, "quarantine.discard", by).Refused[caseOf(s)], "it was discarded already, by a")
	w.fact(derived(s, digest(1), 1, 2)) // a settled case is not moved by facts
	w.quiet(q)
	same(t, "changes", w.changes(caseOf(s)), []string{"opened.1", "discarded.2"})
	q.end()
}

func TestFinishedMeanwhile(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	q := w.run(t.TempDir())
	s := slotOf("b", "1")
	w.fail(s, digest(1), 1, 1)
	w.quiet(q)
	q.deciding <- struct{}{} // the look at the completion waits for its turn
	w.fact(derived(s, digest(1), 1, 1))
	reply := make(chan event.CaseDecision, 1)
	go func() {
		reply <- get[event.CaseDecision](w, "quarantine.replay", event.CaseRequest{ID: caseOf(s), Actor: "a", Note: "n"})
	}()
	q.wait("the completion is read", func() bool { return q.read.Load() >= w.last(event.StreamIngest) })
	<-q.deciding
	d := <-reply
	if d.Eligible != 0 || !strings.Contains(d.Refused[caseOf(s)], "finished") {
		t.Errorf("the reply is %+v", d)
	}
	w.quiet(q)
	same(t, "sent", len(w.messages(event.StreamIngest, event.SubjectFrameFixed)), 0)
	same(t, "changes", w.changes(caseOf(s)), []string{"opened.1", "resolved.2"})
	q.end()
}

func TestListPagesAndFilters(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const n = 2500
	for i := range n { // straight into the log: cases are a function of it
		f := event.CaseFact{
			Schema: event.SchemaCase, Slot: slotOf(fmt.Sprintf("b%d", i%2), fmt.Sprintf("%04d.tif", i)), Operation: jp2, Pass: 1, State: event.CaseOpened, Number: 1,
			Service: []string{"hasher", "deriver"}[i%2], Code: []string{"empty", "truncated", "unsupported"}[i%3], Reason: strings.Repeat("r", 500), At: time.Unix(0, 0), Letter: uint64(i + 1),
		}
		f.ID = caseOf(f.Slot)
		data, err := json.Marshal(f)
		ok(t, err)
		const batch = 500 // stored as one, with one sync
		m := &nats.Msg{Subject: f.Subject(), Data: data, Header: nats.Header{"Nats-Batch-Id": {fmt.Sprint(i / batch)}, "Nats-Batch-Sequence": {fmt.Sprint(i%batch + 1)}}}
		if i%batch < batch-1 {
			ok(t, w.js.Conn().PublishMsg(m))
			continue
		}
		m.Header.Set("Nats-Batch-Commit", "1")
		_, err = w.js.PublishMsg(t.Context(), m)
		ok(t, err)
	}
	q := w.run(t.TempDir())
	walk := func(req event.CaseRequest, total int) []string {
		t.Helper()
		var ids []string
		for {
			page := get[event.CaseList](w, "quarantine.list", req)
			same(t, "total", page.Total, total)
			for _, c := range page.Cases {
				ids = append(ids, c.ID)
			}
			if req.After = page.Next; page.Next == "" {
				break
			}
		}
		same(t, "listed", len(ids), total)
		if !slices.IsSorted(ids) || len(slices.Compact(slices.Clone(ids))) != total {
			t.Error("the pages overlap or are out of order")
		}
		return ids
	}
	ids := walk(event.CaseRequest{}, n)
	same(t, "first page", len(get[event.CaseList](w, "quarantine.list", "").Cases), defaultPage)
	same(t, "a page of a thousand ends at the broker's limit", len(get[event.CaseList](w, "quarantine.list", event.CaseRequest{Limit: 5000}).Cases) < maxPage, true)
	walk(event.CaseRequest{Batch: "b1", Limit: 70}, n/2)
	walk(event.CaseRequest{Code: "truncated"}, 833)
	walk(event.CaseRequest{Service: "hasher", Code: "empty"}, 417)
	walk(event.CaseRequest{Operation: event.Fixity}, 0)
	total := func(req event.CaseRequest, want int) {
		t.Helper()
		req.Limit = 1
		same(t, fmt.Sprintf("%+v", req), get[event.CaseList](w, "quarantine.list", req).Total, want)
	}
	total(event.CaseRequest{Operation: jp2, State: event.CaseOpened, Batch: "b0"}, n/2)
	walk(event.CaseRequest{State: event.CaseDiscarded}, 0)
	walk(event.CaseRequest{ID: ids[0]}, 1)

	dry := get[event.CaseDecision](w, "quarantine.discard", event.CaseRequest{All: true, DryRun: true})
	same(t, "dry run over all", []any{dry.Eligible, dry.Next}, []any{n, ""})
	by := event.CaseRequest{Batch: "b0", Actor: "a", Note: "n", Limit: 100}
	d := get[event.CaseDecision](w, "quarantine.discard", by)
	same(t, "a page of decisions", []any{d.Eligible, d.Next}, []any{100, d.Done[99]})
	total(event.CaseRequest{}, n-100)
	walk(event.CaseRequest{State: event.CaseDiscarded}, 100)
	total(event.CaseRequest{All: true}, n)
	q.end()
}
