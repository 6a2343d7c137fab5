package event_test

import (
	"fmt"
	"strings"
	"testing"

	"colophon/shared/event"
)

func told(t *testing.T, story string) (p event.Progress) {
	t.Helper()
	for i, line := range strings.Split(story, ", ") {
		apply(t, &p, uint64(i+1), line)
	}
	return p
}

// TestWaits: what a pending slot waits for is the first of the line that has
// not answered its last order, in whatever pass.
func TestWaits(t *testing.T) {
	t.Parallel()
	const failed = "request, captured, fixed, jp2, dead:lossless, request p=2"
	for _, tc := range []struct{ story, waits string }{
		{"request", "capture"},
		{"request, fail:capture", "capture"},
		{"request, dead:capture", ""},
		{"request, dead:capture, request p=2", "capture"},
		{"request, captured", "fixity"},
		{"request, captured, fail:fixity", "fixity"},
		{"request, captured, fixed", "derivative:jp2 derivative:lossless"},
		{"request, captured, fixed, jp2", "derivative:lossless"},
		{"request, captured, fixed, dead:jp2, discard:jp2", "derivative:lossless"},
		{"request, captured, fixed, jp2, lossless", ""},
		{"request, captured, fixed, jp2, lossless, request p=2", ""}, // done: nothing holds the batch
		{"request, captured, fixed, jp2, dead:lossless", ""},
		{failed, "capture"},
		{failed + ", captured p=2 hit", "fixity"},
		{failed + ", captured p=2 hit, fixed p=2 hit", "derivative:lossless"},
		{"request, captured, dead:fixity, captured h=2", "fixity"},
		{"request, captured, dead:fixity, captured", "fixity"}, // by hand, as it was
		{"request, captured, dead:fixity, captured, fixed p=2", "derivative:jp2 derivative:lossless"},
		{"request, captured, fixed, captured r=2", "fixity"}, // other bytes, in the same pass
		{"request, captured, fixed, captured r=2, fixed r=1", "fixity"},
		{"request, captured, fixed, captured r=2, fixed r=2", "derivative:jp2 derivative:lossless"},
	} {
		p := told(t, tc.story)
		if got := strings.Trim(fmt.Sprint(p.Waits([]string{"jp2", "lossless"})), "[]"); got != tc.waits {
			t.Errorf("%s: waits for %q, want %q", tc.story, got, tc.waits)
		}
	}
}

func TestOrders(t *testing.T) {
	t.Parallel()
	jp2 := event.Derivative("jp2")
	for _, tc := range []struct {
		story  string
		of     event.Operation
		orders string
	}{
		{"request", event.Capture, "[{capture 1}]"},
		{"request, request", event.Capture, "[{capture 2}]"},
		{"request, captured", event.Fixity, "[{capture 1} {fixity 2}]"},
		{"captured", event.Fixity, "[{capture 0} {fixity 1}]"},
		{"request, captured, fixed, captured p=2 hit", jp2, "[{capture 1} {fixity 4} {derivative:jp2 3}]"},
		{"request, captured, fixed, captured r=2", jp2, "[{capture 1} {fixity 4} {derivative:jp2 0}]"},
	} {
		p := told(t, tc.story)
		if got := fmt.Sprint(p.Orders(tc.of)); got != tc.orders {
			t.Errorf("%s: orders of %s are %s, want %s", tc.story, tc.of, got, tc.orders)
		}
	}
}

// TestRescans: a decision stands until the case's next change, also where it is
// told once more behind that.
func TestRescans(t *testing.T) {
	t.Parallel()
	var p event.Progress
	slot := event.Slot{Batch: "b", Frame: "f"}
	decide := func(state string, number, pass int) event.Rescan {
		p.Apply(event.CaseFact{Slot: slot, Operation: event.Fixity, State: state, Number: number, Pass: pass, Actor: "anna"}, 1, 0)
		if r := p.Rescans[event.Fixity]; r != nil {
			return *r
		}
		return event.Rescan{}
	}
	if r := decide(event.CaseOpened, 1, 1); r.Number != 0 {
		t.Errorf("an opened case asks for %+v", r)
	}
	if r := decide(event.CaseRescan, 2, 1); r.Pass != 2 || r.Actor != "anna" || r.Decision == "" {
		t.Errorf("asked for %+v", r)
	}
	first := p.Rescans[event.Fixity].Decision
	if r := decide(event.CaseRescan, 3, 1); r.Pass != 2 || r.Decision == first {
		t.Errorf("asked again for %+v", r)
	}
	if r := decide(event.CaseReplayed, 4, 1); r.Pass != 0 {
		t.Errorf("after another decision: %+v", r)
	}
	if r := decide(event.CaseRescan, 3, 1); r.Pass != 0 {
		t.Errorf("told once more: %+v", r)
	}
}

// TestAnswers: what no dispatch of the slot can be called is not kept, however
// often somebody says so.
func TestAnswers(t *testing.T) {
	t.Parallel()
	var p event.Progress
	slot := event.Slot{Batch: "b", Frame: "f"}
	seq := uint64(0)
	say := func(answers string) {
		seq++
		p.Request(event.FrameMessage{Slot: slot, Sequence: 1, Answers: answers}, 2, seq)
	}
	id := event.Dispatch{Slot: slot, Device: strings.Repeat("é", event.MaxDeviceLen/2), Pass: 2, Number: 1}.MsgID()
	long := strings.Repeat("x", 1<<10)
	for _, a := range []string{"", "x", id, id, "dispatch:s:b/g#2.1", "dispatch:" + long + ":b/f#2.1", "dispatch:s:b/f#" + long, "s:b/f#2.1"} {
		say(a)
	}
	if len(p.Answers) != 1 || p.Answers[0] != id {
		t.Errorf("answers %q", p.Answers)
	}
	for n := range 1000 {
		say(fmt.Sprintf("dispatch:s:b/f#2.%d", n))
	}
	if n := len(p.Answers); n > 100 || p.Answers[n-1] != "dispatch:s:b/f#2.999" {
		t.Errorf("%d answers are kept", n)
	}
}
