package capture

import (
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"colophon/shared/completed"
	"colophon/shared/event"
	"colophon/shared/fault"
	"colophon/shared/retry"
	"colophon/shared/stage"
	"colophon/shared/testkit"
)

// ledgerless is the declarations worker by itself.
func newDeclarations(t *testing.T) *declarations {
	t.Helper()
	set := testkit.Must(completed.Open(t.TempDir(), completed.Options{Logger: slog.New(slog.DiscardHandler)}))(t)
	t.Cleanup(func() { testkit.OK(t, set.Close()) })
	return &declarations{declared: declared{set, new(stage.News)}, policy: retry.Default(), defaults: []string{"jp2"}}
}

// decide is what a stage does with a declaration; raw is its body.
func (d *declarations) decide(t *testing.T, raw string) (event.BatchFact, *fault.Error) {
	t.Helper()
	in, err := d.Decode(event.CaptureSubject("batch", "gw", "b"), nil, []byte(raw))
	testkit.OK(t, err)
	var out event.BatchFact
	data, hit, err := d.set.Result(d.Key(in).String())
	testkit.OK(t, err)
	if hit {
		testkit.OK(t, json.Unmarshal(data, &out))
		return out, nil
	}
	out, err = d.Act(t.Context(), in, d.Work(in))
	if err != nil {
		return out, fault.Of(err)
	}
	f := d.Fact(in, out, event.Work{})
	testkit.OK(t, d.set.Record(completed.Completion{Tokens: d.Tokens(in, out), Result: testkit.JSON(t, out), Fact: completed.Fact{ID: f.MsgID(), Subject: f.Subject(), Data: testkit.JSON(t, f)}}))
	return out, nil
}

const declaration = `{"schema":"colophon/capture.batch/v1","batch":"b",`

func TestDeclarations(t *testing.T) {
	t.Parallel()
	d := newDeclarations(t)
	lower := `"policy":{"max_attempts":2}`
	for _, c := range []struct {
		what, body string
		code       fault.Code // of a refusal
		says       []string   // its message, or
		state      string
		number     int
		count      int
	}{
		{what: "unknown profiles", body: `"count":3,"profiles":["jp2","gif","bmp"]}`, code: fault.UnknownProfile, says: []string{`"gif"`, `"bmp"`}},
		{
			what: "everything wrong", body: `"count":3,"profiles":["gif"],"policy":{"max_attempts":0,"initial_delay":"-1s","exp_base":1,"retryable":["empty"]}}`,
			code: fault.BatchInvalid, says: []string{`"gif"`, "max_attempts", "initial_delay", "exp_base", `"empty"`},
		},
		{what: "a policy with a field nobody knows", body: `"count":3,"policy":{"attempts":1}}`, code: fault.BatchInvalid, says: []string{"attempts"}},
		{what: "a first one that corrects", body: `"count":3,"follows":0}`, code: fault.BatchInvalid, says: []string{"none stands"}},
		{what: "opened", body: `"count":3,"order":"natural","devices":["s1"],` + lower + `}`, state: "opened", count: 3},
		{what: "the same body", body: `"count":3,"order":"natural","devices":["s1"],` + lower + `}`, state: "opened", count: 3},
		{what: "the same in other words", body: `"count":3,"operator":"x"}`, state: "opened", count: 3},
		{what: "the same, following nothing that is", body: `"count":3,"follows":7}`, state: "opened", count: 3},
		{what: "another policy", body: `"count":3,"policy":{"max_attempts":3}}`, code: fault.PolicyConflict, says: []string{"pinned"}},
		{what: "a profile taken away", body: `"count":3,"profiles":["jp2-lossless"]}`, code: fault.BatchInvalid, says: []string{`"jp2"`}},
		{what: "the count corrected", body: `"count":4,"follows":0}`, state: "changed", number: 1, count: 4},
		{what: "one more that follows the first", body: `"count":5,"follows":0}`, code: fault.BatchInvalid, says: []string{"number 0", "number 1"}},
		{what: "that adds a profile beside", body: `"count":4,"follows":0,"profiles":["jp2","jp2-lossless"]}`, code: fault.BatchInvalid, says: []string{"number 1"}},
		{what: "a profile added", body: `"count":4,"profiles":["jp2-lossless","jp2","jp2"],"follows":1}`, state: "changed", number: 2, count: 4},
		{what: "the first body once more", body: `"count":3,"order":"natural","devices":["s1"],` + lower + `}`, state: "opened", count: 3},
		{what: "the count as it was, by a new body", body: `"count":3,"follows":2}`, state: "changed", number: 3, count: 3},
		{what: "the order", body: `"count":3,"order":"sequence"}`, state: "changed", number: 4, count: 3},
		{what: "other devices", body: `"count":3,"devices":["s2"]}`, state: "changed", number: 5, count: 3},
	} {
		f, err := d.decide(t, declaration+c.body)
		if c.code != "" {
			if err == nil || err.Code != c.code {
				t.Fatalf("%s: %+v, %v", c.what, f, err)
			}
			for _, s := range c.says {
				if !strings.Contains(err.Message, s) {
					t.Errorf("%s: %q does not speak of %s", c.what, err.Message, s)
				}
			}
			continue
		}
		if err != nil {
			t.Fatalf("%s: %v", c.what, err)
		}
		expect(t, c.what+": state", f.State, c.state)
		expect(t, c.what+": number", f.Number, c.number)
		expect(t, c.what+": count", f.Count, c.count)
	}
	now, _, err := d.get("b")
	testkit.OK(t, err)
	expect(t, "number that stands", now.Number, 5)
	expect(t, "order", now.Order, event.OrderSequence)
	expect(t, "profiles", strings.Join(now.Profiles, " "), "jp2 jp2-lossless")
	expect(t, "devices", strings.Join(now.Devices, " "), "s2")
	var policy retry.Policy
	testkit.OK(t, json.Unmarshal(now.Policy, &policy))
	expect(t, "policy", policy.MaxAttempts, 2)
}

func TestDeclarationMessages(t *testing.T) {
	t.Parallel()
	d := newDeclarations(t)
	subject := event.CaptureSubject("batch", "gw", "b")
	for what, body := range map[string]string{
		"another batch": `{"schema":"colophon/capture.batch/v1","batch":"c","count":1}`,
		"no count":      declaration + `"count":0}`,
		"an order":      declaration + `"count":1,"order":"random"}`,
		"a schema":      `{"schema":"colophon/capture.batch/v7","batch":"b","count":1}`,
		"no JSON":       `x`,
	} {
		if _, err := d.Decode(subject, nil, []byte(body)); err == nil {
			t.Errorf("%s was read", what)
		}
	}
	if tokens, _, ok := d.Learn(event.BatchFact{State: "converged"}); !ok || len(tokens) > 0 {
		t.Error("a convergence was learned as a declaration, or not kept for a log that loses it")
	}
}

// An old declaration that is told once more, behind its correction, changes
// nothing; and an empty disk learns the same from the log.
func TestDeclarationsOfAnEmptyDisk(t *testing.T) {
	r := newRig(t)
	r.start()
	first := event.BatchDeclaration{Count: 3, Policy: testkit.Policy(2, time.Millisecond)}
	r.declare(first)
	one := 0
	r.declare(event.BatchDeclaration{Count: 4, Follows: &one})
	st := r.status("the correction stands", func(st event.BatchStatus) bool { return st.Number == 1 })
	expect(t, "count", st.Count, 4)
	facts := testkit.ReadAll(t, r.js, event.StreamIngest, event.SubjectBatchOpened, event.SubjectBatchChanged)
	expect(t, "facts", len(facts), 2)
	// As behind the broker's memory for ids: the first fact is there twice.
	testkit.PublishRaw(t, r.js, facts[0].Subject, nil, facts[0].Data)
	r.read()
	r.stop()
	testkit.OK(t, os.RemoveAll(r.state))
	r.start()
	c := r.take(r.message("a", r.source("a.tif", "aaa")))
	expect(t, "the frame knows its profiles", strings.Join(c.Profiles, " "), "jp2")
	expect(t, "the count that stands", r.status("the view is back", func(st event.BatchStatus) bool { return st.Known }).Count, 4)
	now, _, err := declared{r.svc.set, nil}.get("b")
	testkit.OK(t, err)
	expect(t, "the declaration that stands", now.Number, 1)
	r.declare(event.BatchDeclaration{Count: 5, Follows: &now.Number})
	expect(t, "the next number", r.status("corrected", func(st event.BatchStatus) bool { return st.Count == 5 }).Number, 2)
}

func TestUndeclared(t *testing.T) {
	r := newRig(t)
	r.start()
	r.send(r.message("a", r.source("a.tif", "aaa")))
	r.status("the frame is asked for", func(st event.BatchStatus) bool { return st.Totals.Pending == 1 })
	testkit.Eventually(t, "it is delivered", func() bool {
		c, err := r.js.Consumer(t.Context(), event.StreamCapture, "capture-frame")
		testkit.OK(t, err)
		return c.CachedInfo().NumAckPending == 1
	})
	expect(t, "taken undeclared", len(r.captured()), 0)
	r.opened(1, 1)
	r.settled()
	all := r.captured()
	expect(t, "taken once declared", len(all), 1)
	expect(t, "profiles", strings.Join(all[0].Profiles, " "), "jp2")
}

// A declaration that another replica accepted is learned from the log: the
// frames that wait for it go on.
func TestDeclaredElsewhere(t *testing.T) {
	r := newRig(t)
	r.start()
	r.send(r.message("a", r.source("a.tif", "aaa")))
	r.status("the frame is asked for", func(st event.BatchStatus) bool { return st.Totals.Pending == 1 })
	d := newDeclarations(t)
	f, ferr := d.decide(t, declaration+`"count":1}`)
	if ferr != nil {
		t.Fatal(ferr)
	}
	testkit.Publish(t, r.js, f)
	r.settled()
	expect(t, "taken", len(r.captured()), 1)
}

// The news of it comes before it can be read.
func TestNewsBeforeTheDeclaration(t *testing.T) {
	t.Parallel()
	d := newDeclarations(t)
	got := make(chan error, 1)
	go func() {
		_, err := d.wait(t.Context(), "b", 0, time.Now())
		got <- err
	}()
	waits := func() bool {
		return d.now.Awaited()
	}
	testkit.Eventually(t, "it waits", waits)
	d.now.Spread()
	testkit.Eventually(t, "it has looked and waits again", waits)
	if _, ferr := d.decide(t, declaration+`"count":1}`); ferr != nil { // stored, without a word
		t.Fatal(ferr)
	}
	testkit.OK(t, <-got)
}

func TestUndeclaredForGood(t *testing.T) {
	t.Parallel()
	d := newDeclarations(t)
	late := make(chan error, 1)
	inBubble(t, func() {
		_, err := d.wait(context.Background(), "b", 0, time.Now())
		late <- err
	})
	expect(t, "code", fault.Of(<-late).Code, fault.BatchUndeclared)
}
