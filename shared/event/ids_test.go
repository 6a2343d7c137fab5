package event_test

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"colophon/shared/event"
	"colophon/shared/testkit"
)

func TestMain(m *testing.M) {
	testkit.Children(map[string]func([]string){"ids": func([]string) {
		ids := goldenIDs()
		for _, k := range slices.Sorted(maps.Keys(ids)) {
			fmt.Println(ids[k])
		}
	}})
	os.Exit(m.Run())
}

// d1 is the SHA-256 of nothing.
const d1 = event.Digest("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855")

// goldenIDs are the message ids as the design's table writes them.
func goldenIDs() map[string]string {
	slot := event.Slot{Batch: "Box 7", Frame: "a/p1.tif"}
	w := event.Work{Slot: slot, Digest: d1, Pass: 2, Attempt: 3}
	frame := event.FrameMessage{Slot: slot, SHA256: d1, Pass: 2}
	unhashed := event.FrameMessage{Slot: slot, Source: event.SourceToken("file:///a", event.SourceStat{Size: 5, ModTime: time.Unix(1_700_000_000, 7)})}
	kase := event.CaseFact{Slot: slot, Operation: event.Fixity, Digest: d1, Pass: 2, State: event.CaseOpened, Number: 1}
	undecodable := event.CaseFact{Operation: event.Decode("hasher"), State: event.CaseOpened, Number: 1, Origin: "INGEST-7"}
	late := event.AttemptFailed{Work: w, Operation: event.Fixity, Late: true}
	batch := event.BatchFact{Batch: slot.Batch, State: "opened", Number: 0}
	derivative := event.DerivativeMade{Work: w, Derived: event.Derived{Profile: "jp2-lossless"}}
	key := event.DerivativeKey("jp2", d1)
	return map[string]string{
		"capture.frame":                  frame.MsgID(),
		"capture.frame without a digest": unhashed.MsgID(),
		"ingest.frame.captured":          event.FrameCaptured{Work: w}.MsgID(),
		"capture.batch":                  event.DeclarationID([]byte{}, slot.Batch, 0),
		"ingest.frame.fixed":             event.FrameFixed{Work: w}.MsgID(),
		derivative.Subject():             derivative.MsgID(),
		"ingest.attempt.failed":          event.AttemptFailed{Work: w, Operation: event.Fixity}.MsgID(),
		"late":                           late.MsgID(),
		"deadletter":                     event.DeadLetterID(event.Fixity, d1, slot, 2, "INGEST-7"),
		"deadletter undecodable":         event.DeadLetterID(event.Decode("hasher"), "", event.Slot{}, 1, "INGEST-7"),
		batch.Subject():                  batch.MsgID(),
		kase.Subject():                   kase.MsgID(),
		"case undecodable":               undecodable.MsgID(),
		"ingest.op.halted":               event.OpFact{Kind: event.OpHalted, Service: "hasher", Instance: "pod 1", Counter: 9}.MsgID(),
		"key of a slot's own work":       event.FixityKey(d1, slot).String(),
		"key of content":                 key.String(),
		"profile":                        event.ProfilePinned{Name: "jp2", Digest: d1}.MsgID(),
	}
}

func TestMessageIDsAreTheTable(t *testing.T) {
	t.Parallel()
	const slot = "Box%207/a%2Fp1%2Etif"
	want := map[string]string{
		"capture.frame":                  "capture:D@" + slot + "#2",
		"capture.frame without a digest": "capture:src-3421466302cfb2a336f004d5935233e0@" + slot + "#1",
		"ingest.frame.captured":          "capture:D@" + slot + "#2",
		"capture.batch":                  "batch:D@Box%207#0",
		"ingest.frame.fixed":             "fixity:D@" + slot + "#2",
		"ingest.derivative.jp2-lossless": "derivative:jp2-lossless:D@" + slot + "#2",
		"ingest.attempt.failed":          "attempt:fixity:D@" + slot + "#2.3",
		"late":                           "attempt:fixity:D@" + slot + "#2.3+late",
		"deadletter":                     "dead:fixity:D@" + slot + "#2.INGEST-7",
		"deadletter undecodable":         "dead:INGEST-7",
		"ingest.batch.opened":            "batch:opened@Box%207#0",
		"ingest.case.opened":             "case:fixity:D@" + slot + "#2.opened.1",
		"case undecodable":               "case:decode:hasher@INGEST-7.opened.1",
		"ingest.op.halted":               "op:halted:hasher:pod%201#9",
		"key of a slot's own work":       "fixity:D@" + slot,
		"key of content":                 "derivative:jp2:D",
		"profile":                        "profile:jp2:D",
	}
	got := goldenIDs()
	for what, id := range want {
		if id = strings.ReplaceAll(id, ":D", ":"+string(d1)); got[what] != id {
			t.Errorf("%s: %s, want %s", what, got[what], id)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d ids, want %d", len(got), len(want))
	}
}

// TestIDsAreTheSameInEveryProcess: two other processes print what this one makes.
func TestIDsAreTheSameInEveryProcess(t *testing.T) {
	t.Parallel()
	ids := goldenIDs()
	var want []string
	for _, k := range slices.Sorted(maps.Keys(ids)) {
		want = append(want, ids[k])
	}
	for range 2 {
		if got := testkit.StartChild(t, "ids").Wait(); !slices.Equal(got, want) {
			t.Errorf("another process says\n%q\nthis one\n%q", got, want)
		}
	}
}

func TestDecodeFactRefusesWhatItDoesNotKnow(t *testing.T) {
	t.Parallel()
	facts := []event.Fact{
		event.FrameCaptured{Work: event.Work{Schema: event.SchemaFrameCaptured, Slot: event.Slot{Batch: "b", Frame: "caf\xe9"}}},
		event.FrameFixed{Work: event.Work{Schema: event.SchemaFrameFixed}},
		event.DerivativeMade{Work: event.Work{Schema: event.SchemaDerivative}, Derived: event.Derived{Profile: "jp2"}},
		event.AttemptFailed{Work: event.Work{Schema: event.SchemaAttemptFailed}},
		event.BatchFact{Schema: event.SchemaBatch, State: "opened"},
		event.ProfilePinned{Schema: event.SchemaProfilePinned},
		event.CaseFact{Schema: event.SchemaCase, State: event.CaseOpened},
		event.OpFact{Schema: event.SchemaOp, Kind: event.OpHalted},
	}
	for _, f := range facts {
		data := testkit.JSON(t, f)
		back, err := event.DecodeFact(f.Subject(), data)
		if err != nil || back.MsgID() != f.MsgID() || back.Subject() != f.Subject() {
			t.Errorf("%s: %v, %v", f.Subject(), back, err)
		}
		for _, change := range []string{"/v1\"", "/v2\""} {
			other := strings.Replace(string(data), "/v1\"", change, 1)
			other = strings.Replace(other, `"schema":"colophon/`, `"schema":"colophonX/`, 1)
			if _, err := event.DecodeFact(f.Subject(), []byte(other)); !isUnknown(err) {
				t.Errorf("%s with another schema: %v", f.Subject(), err)
			}
		}
		if _, err := event.DecodeFact("ingest.new.thing", data); !isUnknown(err) {
			t.Errorf("%s under a new subject: %v", f.Subject(), err)
		}
		if _, err := event.DecodeFact(f.Subject(), data[:len(data)/2]); err == nil || isUnknown(err) {
			t.Errorf("half of %s: %v", f.Subject(), err)
		}
	}
}
