package event_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"colophon/shared/event"
	"colophon/shared/testkit"
)

func isUnknown(err error) bool { return errors.Is(err, event.ErrUnknownSchema) }

// apply reads a line of a story: a word, then key=value.
//
//	captured, fixed, jp2, lossless      a completion
//	fail:<operation>, dead:<operation>  a failed attempt, to be retried or not
//	discard:<op>, resolve:<op>, open:<op>  a case
//	request                             a pass that was asked for
//
// p= pass, r= revision, h= pass in a replay's header; "hit".
func apply(t interface{ Fatalf(string, ...any) }, p *event.Progress, seq uint64, line string) {
	w := event.Work{Slot: event.Slot{Batch: "b", Frame: "f"}, Sequence: 1, Revision: 1, Pass: 1, Attempt: 1, Profiles: []string{"jp2", "lossless"}}
	header := 0
	words := strings.Fields(line)
	for _, o := range words[1:] {
		switch k, v, _ := strings.Cut(o, "="); k {
		case "p":
			fmt.Sscan(v, &w.Pass)
		case "r":
			fmt.Sscan(v, &w.Revision)
		case "h":
			fmt.Sscan(v, &header)
		case "hit":
			w.Hit = true
		default:
			t.Fatalf("%q?", o)
		}
	}
	w.Digest = testkit.Digest(fmt.Sprint("revision ", w.Revision))
	what, op, _ := strings.Cut(words[0], ":")
	operation := map[string]event.Operation{"jp2": event.Derivative("jp2"), "lossless": event.Derivative("lossless")}[op]
	if operation == "" {
		operation = event.Operation(op)
	}
	var f event.Fact
	switch what {
	case "captured":
		f = event.FrameCaptured{Work: w}
	case "fixed":
		f = event.FrameFixed{Work: w}
	case "jp2", "lossless":
		f = event.DerivativeMade{Work: w, Derived: event.Derived{Profile: what}}
	case "fail", "dead":
		f = event.AttemptFailed{Work: w, Operation: operation, Code: "code", Decision: map[string]string{"fail": event.DecisionRetry, "dead": event.DecisionDeadLetter}[what]}
	case "discard", "resolve", "open":
		f = event.CaseFact{Slot: w.Slot, Operation: operation, Pass: w.Pass, State: map[string]string{"discard": event.CaseDiscarded, "resolve": event.CaseResolved, "open": event.CaseOpened}[what]}
	case "request":
		p.Request(event.FrameMessage{Slot: w.Slot, Sequence: 1}, w.Pass, seq)
		return
	default:
		t.Fatalf("%q?", line)
	}
	if !p.Apply(f, seq, header) {
		t.Fatalf("%q does not speak of a slot", line)
	}
}

func TestStates(t *testing.T) {
	t.Parallel()
	const changed = "dead:source-changed"
	for _, tc := range []struct{ story, states string }{ // the state after each line; profiles jp2 and lossless
		{"request", "pending"},
		{"captured, fixed, jp2, lossless", "pending pending pending done"},
		{"captured, fixed, lossless, jp2", "pending pending pending done"},
		{"fail:capture, fail:capture, captured", "pending pending pending"},
		{"dead:capture", "failed"},
		{"captured, dead:fixity", "pending failed"}, // nothing behind it can move
		{"captured, fixed, dead:jp2, lossless", "pending pending pending failed"},
		{"captured, fixed, lossless, dead:jp2", "pending pending pending failed"},
		{"captured, fixed, dead:jp2, dead:lossless", "pending pending pending failed"},
		// passes: a re-run, an endpoint replay, a raw replay
		{"dead:capture, request p=2, dead:capture p=2, request p=3, captured p=3", "failed pending failed pending pending"},
		{"captured, fixed, jp2, dead:lossless, request p=2, captured p=2 hit, fixed p=2 hit, jp2 p=2 hit, lossless p=2", "pending pending pending failed pending pending pending pending done"},
		{"captured, fixed, jp2, dead:lossless, fixed h=2, jp2 p=2 hit, dead:lossless p=2, fixed h=3, lossless p=3", "pending pending pending failed pending pending failed pending done"},
		{"captured, fixed, jp2, dead:lossless, fixed, jp2 hit, dead:lossless p=2, fixed, lossless p=3", "pending pending pending failed pending pending failed pending done"},
		{"captured, dead:fixity, captured, dead:fixity p=2, captured h=3, fixed p=3", "pending failed pending failed pending pending"},
		{"captured, fixed, jp2, dead:lossless, request p=2, dead:capture p=2", "pending pending pending failed pending failed"},
		{"captured, fixed, jp2, dead:lossless, lossless p=1", "pending pending pending failed done"}, // a replica had done it: any pass counts
		{"captured, fixed, jp2, lossless, fail:jp2 p=2, dead:jp2 p=2", "pending pending pending done done done"},
		// decisions
		{"dead:capture, discard:capture", "failed discarded"},
		{"captured, dead:fixity, discard:fixity, captured p=2", "pending failed discarded discarded"},
		{"captured, fixed, jp2, dead:lossless, open:lossless, discard:lossless", "pending pending pending failed failed done"},
		{"captured, fixed, dead:jp2, discard:jp2, dead:lossless, discard:lossless", "pending pending pending pending failed done"},
		// other bytes for a done slot
		{"captured, fixed, jp2, lossless, " + changed + ", discard:source-changed", "pending pending pending done failed done"},
		{"captured, fixed, jp2, lossless, " + changed + ", resolve:source-changed", "pending pending pending done failed done"},
		{"captured, fixed, jp2, lossless, " + changed + ", request p=2, captured p=2 r=2, fixed p=2 r=2, jp2 p=2 r=2, lossless p=2 r=2", "pending pending pending done failed failed pending pending pending done"},
		// revisions
		{"captured, fixed, jp2, lossless, captured p=2 r=2, jp2 p=2, fixed p=2 r=2, jp2 p=2 r=2, lossless p=2 r=2", "pending pending pending done pending pending pending pending done"},
		{"captured, dead:fixity, captured r=2, dead:fixity r=1, fixed r=2 p=2, jp2 r=2 p=2, lossless r=2 p=2", "pending failed pending pending pending pending done"},
		{"captured, fixed, dead:jp2, discard:jp2, lossless, captured r=2 p=2, fixed r=2 p=2, lossless r=2 p=2, jp2 r=2 p=2", "pending pending pending pending done pending pending pending done"},
		{"captured, fixed, lossless, captured r=2, fixed r=2, lossless r=2, jp2 r=1, jp2 r=2", "pending pending pending pending pending pending pending done"},
		{"captured r=2, captured r=1, fixed r=1, fixed r=2, jp2 r=2, lossless r=2", "pending pending pending pending pending done"},
		{"captured, fixed, dead:jp2, dead:lossless, captured r=2, fixed r=2, jp2 r=2 p=2, dead:lossless r=2 p=2", "pending pending pending failed pending pending pending failed"},
	} {
		var p event.Progress
		var got []string
		for i, line := range strings.Split(tc.story, ", ") {
			apply(t, &p, uint64(i+1), line)
			got = append(got, string(p.State([]string{"jp2", "lossless"})))
		}
		if strings.Join(got, " ") != tc.states {
			t.Errorf("%s\n got %s\nwant %s", tc.story, strings.Join(got, " "), tc.states)
		}
	}
}

func TestWhatElseTheViewTells(t *testing.T) {
	t.Parallel()
	story := func(lines ...string) (p event.Progress) {
		for i, l := range lines {
			apply(t, &p, uint64(i+1), l)
		}
		return p
	}
	p := story("captured", "fail:fixity")
	if tr := p.Troubles([]string{"jp2"}); len(tr) != 1 || tr[0].Operation != event.Fixity || tr[0].Code != "code" {
		t.Errorf("troubles: %+v", tr)
	}
	if o := p.Stage([]string{"jp2"}); o != event.Fixity {
		t.Errorf("waits at %s", o)
	}
	p = story("captured", "fail:fixity", "fixed", "jp2 hit", "jp2 hit")
	if tr := p.Troubles([]string{"jp2"}); len(tr) != 0 || p.Effect != 3 || p.Stage([]string{"jp2"}) != "" {
		t.Errorf("troubles %+v, effect %d", tr, p.Effect)
	}
	if p.Pinned != testkit.Digest("revision 1") || p.Digest != p.Pinned {
		t.Errorf("pinned %s", p.Pinned)
	}
	p = story("captured", "fixed", "dead:jp2", "request p=2", "fixed p=2", "fail:jp2 p=2", "dead:jp2")
	if tr := p.Troubles([]string{"jp2"}); len(tr) != 1 || tr[0].Pass != 2 {
		t.Errorf("an older pass told again past the window: %+v", tr)
	}
	p = story("captured", "fixed", "jp2", "dead:source-changed")
	if tr := p.Troubles([]string{"jp2"}); len(tr) != 1 || tr[0].Operation != event.SourceChanged {
		t.Errorf("troubles: %+v", tr)
	}
	p = story("captured", "fixed", "jp2")
	if p.State(nil) != event.StateDone || p.State([]string{"jp2"}) != event.StateDone || p.State([]string{"jp2", "new"}) != event.StatePending {
		t.Error("a profile added later asks for more, none for less")
	}
	if p.Apply(event.OpFact{}, 1, 0) || p.Apply(event.BatchFact{}, 1, 0) || p.Apply(event.CaseFact{}, 1, 0) {
		t.Error("a fact about no slot moved it")
	}
}

// TestTheOrderOfIndependentFacts: facts of two profiles, and what quarantine
// says, come in any order that keeps each source's own; the view is the same.
func TestTheOrderOfIndependentFacts(t *testing.T) {
	t.Parallel()
	chains := []string{"X", "fail:X, X", "fail:X, dead:X", "dead:X, open:X", "dead:X, open:X, discard:X", "fail:X, fail:X, fail:X, dead:X", ""}
	rapid.Check(t, func(t *rapid.T) {
		a := strings.ReplaceAll(rapid.SampledFrom(chains).Draw(t, "jp2"), "X", "jp2")
		b := strings.ReplaceAll(rapid.SampledFrom(chains).Draw(t, "lossless"), "X", "lossless")
		one := append(strings.FieldsFunc(a, comma), strings.FieldsFunc(b, comma)...)
		other := interleave(t, strings.FieldsFunc(a, comma), strings.FieldsFunc(b, comma))
		var p, q event.Progress
		for i, line := range slices.Concat([]string{"captured", "fixed"}, one) {
			apply(t, &p, uint64(i), line)
		}
		for i, line := range slices.Concat([]string{"captured", "fixed"}, other) {
			apply(t, &q, uint64(i), line)
		}
		for _, profiles := range [][]string{nil, {"jp2"}, {"lossless"}, {"jp2", "lossless"}} {
			if p.State(profiles) != q.State(profiles) || fmt.Sprint(p.Troubles(profiles)) != fmt.Sprint(q.Troubles(profiles)) {
				t.Fatalf("%v: %s\n%v: %s", one, p.State(profiles), other, q.State(profiles))
			}
		}
	})
}

func comma(r rune) bool { return r == ',' }

func interleave(t *rapid.T, a, b []string) (out []string) {
	for len(a)+len(b) > 0 {
		if len(b) == 0 || len(a) > 0 && rapid.Bool().Draw(t, "a") {
			out, a = append(out, a[0]), a[1:]
		} else {
			out, b = append(out, b[0]), b[1:]
		}
	}
	return out
}

func TestTotals(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		states             string
		declared           int
		settled, converged bool
		missing, surplus   int
	}{
		{"done done", 2, true, true, 0, 0}, {"done discarded", 2, true, true, 0, 0}, {"done failed", 2, true, false, 0, 0}, {"done pending", 2, false, false, 0, 0},
		{"done", 2, true, false, 1, 0}, {"done done done", 2, true, false, 0, 1}, {"", 0, false, false, 0, 0}, {"done", 0, false, false, 0, 1},
	} {
		var n event.Totals
		for _, s := range strings.Fields(tc.states) {
			n.Count(event.State(s), 1)
		}
		n.Declare(tc.declared)
		if n.Settled() != tc.settled || n.Converged() != tc.converged || n.Missing != tc.missing || n.Surplus != tc.surplus {
			t.Errorf("%q of %d: %+v settled %v converged %v", tc.states, tc.declared, n, n.Settled(), n.Converged())
		}
		if sum := n.Done + n.Failed + n.Pending + n.Missing + n.Discarded; tc.surplus == 0 && sum != n.Declared {
			t.Errorf("%q: %d counted, %d declared", tc.states, sum, n.Declared)
		}
	}
}
