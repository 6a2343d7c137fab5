package stage_test

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"colophon/shared/completed"
	"colophon/shared/event"
	"colophon/shared/fault"
	"colophon/shared/stage"
	"colophon/shared/testkit"
)

// breaks makes every act fail for good until repaired.
func (r *rig) breaks() (repair func()) {
	broken := make(chan struct{})
	r.worker.Script = func(context.Context, event.FrameFixed, event.Work) error {
		select {
		case <-broken:
			return nil
		default:
			return &fault.Error{Code: "truncated", Message: "the file ends early, after 3 % of it", Detail: "tiff: strip 7 missing"}
		}
	}
	return func() { close(broken) }
}

func TestADeadLetter(t *testing.T) {
	world(t, func(r *rig) {
		r.breaks()
		ack := r.send("ü 1.tif", "one", testkit.Policy(4, time.Second))
		r.start()
		r.once()
		r.expect("acts", len(r.worker.Acts()), 1)
		letters, orders := r.letters(), r.facts(event.SubjectFrameFixed)
		r.expect("letters", len(letters), 1)
		l := letters[0]
		r.expect("subject", l.Subject, "deadletter.deriver")
		if !bytes.Equal(l.Data, orders[0].Data) {
			r.Errorf("the payload was touched: %s", l.Data)
		}
		origin := fmt.Sprintf("INGEST-%d", ack.Sequence)
		digest := string(testkit.Digest("one"))
		for h, want := range map[string]string{
			event.HeaderMsgID:   "dead:derivative:jp2:" + digest + "@b/%C3%BC%201%2Etif#1." + origin,
			event.HeaderService: "deriver", event.HeaderOperation: "derivative:jp2", event.HeaderDigest: digest,
			event.HeaderBatch: "b", event.HeaderFrame: "%C3%BC%201%2Etif", event.HeaderSequence: "1", event.HeaderRevision: "1",
			event.HeaderPass: "1", event.HeaderAttempts: "1", event.HeaderClass: "permanent", event.HeaderCode: "truncated",
			event.HeaderOrigin: origin, event.HeaderOriginID: orders[0].ID(), event.HeaderOriginSub: event.SubjectFrameFixed,
			event.HeaderOriginAt: orders[0].Time.UTC().Format(time.RFC3339Nano), event.HeaderFoundBy: "",
		} {
			r.expect(h, l.Header.Get(h), want)
		}
		r.expect("sentence", stage.HeaderText(l.Header.Get(event.HeaderMessage)), "the file ends early, after 3 % of it")
		r.expect("evidence", stage.HeaderText(l.Header.Get(event.HeaderDetail)), "tiff: strip 7 missing")
		f := r.failed()
		r.expect("failed attempts", len(f), 1)
		r.expect("its end", []any{f[0].Attempt, f[0].Decision, f[0].Code, f[0].Class}, []any{1, event.DecisionDeadLetter, "truncated", "permanent"})
	})
}

func TestAFaultOfAnotherOperation(t *testing.T) {
	world(t, func(r *rig) {
		r.worker.Script = func(context.Context, event.FrameFixed, event.Work) error {
			return &fault.Error{Code: fault.SourceChanged, Message: "other bytes", Operation: string(event.SourceChanged)}
		}
		r.send("1.tif", "one", nil)
		r.start()
		r.once()
		h := r.letters()[0].Header
		r.expect("operations", []string{h.Get(event.HeaderOperation), h.Get(event.HeaderFoundBy)}, []string{"source-changed", "derivative:jp2"})
		for _, op := range []string{"source-changed", "derivative:jp2"} {
			pass, err := r.disk.Set.DeadPass(op, testkit.Slot("1.tif").String())
			testkit.OK(r, err)
			r.expect("dead pass of "+op, pass, 1)
		}
	})
}

// TestTheOriginOfADeadLetterIsFinished: delivered again, also to a stage that
// lost its disk, it gives the same letter and is acked without an act.
func TestTheOriginOfADeadLetterIsFinished(t *testing.T) {
	for _, how := range []string{"same disk", "lost disk", "past the window"} {
		t.Run(how, func(t *testing.T) {
			world(t, func(r *rig) {
				r.breaks()
				r.faults.Set(func(call string) error {
					if call == "ack" {
						return testkit.ErrInjected
					}
					return nil
				}, nil)
				r.send("1.tif", "one", nil)
				r.start()
				testkit.Eventually(r, "the letter", func() bool { return len(r.letters()) == 1 })
				r.crash()
				want := 1
				switch how {
				case "lost disk":
					r.disk.Close()
					r.disk = testkit.NewDisk(r)
				case "past the window":
					time.Sleep(2 * time.Hour)
					want = 2
				}
				r.start()
				r.once()
				letters := r.letters()
				r.expect("letters", len(letters), want)
				for _, l := range letters {
					r.expect("id", l.ID(), letters[0].ID())
					r.expect("headers", l.Header, letters[0].Header)
					r.expect("payload", string(l.Data), string(letters[0].Data))
				}
				r.expect("acts", len(r.worker.Acts()), 1)
				r.expect("failed attempts", len(r.failed()), 1)
			})
		})
	}
}

// TestARawReplay: the body sent to its subject again, with no id or with its
// own, runs under the pass after the highest dead one, inside the window.
func TestARawReplay(t *testing.T) {
	world(t, func(r *rig) {
		repair := r.breaks()
		order := testkit.Fixed(testkit.Slot("1.tif"), "one", testkit.Policy(2, time.Second))
		order.Requested = &event.Request{Actor: "anna", Note: "the first pass"}
		testkit.Publish(r, r.js, order)
		r.start()
		r.settled()
		r.expect("who asked for the first pass", r.failed()[0].Requested, order.Requested)
		for pass := 2; pass <= 3; pass++ {
			testkit.PublishRaw(r, r.js, order.Subject(), nil, testkit.JSON(r, order))
			r.settled()
			r.expect("letters", len(r.letters()), pass)
			r.expect("pass of the letter", r.letters()[pass-1].Header.Get(event.HeaderPass), pass)
			r.expect("attempt", r.failed()[pass-1].Attempt, 1)
		}
		repair()
		testkit.PublishRaw(r, r.js, order.Subject(), nil, testkit.JSON(r, order))
		r.once("1.tif")
		f := r.made()[0].Fact(r).(event.DerivativeMade)
		r.expect("pass that did it", f.Pass, 4)
		r.expect("who asked for it", f.Requested, (*event.Request)(nil))
	})
}

func TestAReplayThroughTheEndpoint(t *testing.T) {
	world(t, func(r *rig) {
		repair := r.breaks()
		order := testkit.Fixed(testkit.Slot("1.tif"), "one", nil)
		testkit.Publish(r, r.js, order)
		r.start()
		r.settled()
		repair()
		testkit.PublishRaw(r, r.js, order.Subject(), nats.Header{
			event.HeaderMsgID: {"replay"}, event.HeaderPass: {"7"}, event.HeaderActor: {"anna"}, event.HeaderNote: {"disk repaired"},
		}, testkit.JSON(r, order))
		r.once("1.tif")
		f := r.made()[0].Fact(r).(event.DerivativeMade)
		r.expect("pass", f.Pass, 7)
		r.expect("who asked", *f.Requested, event.Request{Actor: "anna", Note: "disk repaired"})
	})
}

func TestWhatCannotBeRead(t *testing.T) {
	body := testkit.JSON(t, testkit.Fixed(testkit.Slot("1.tif"), "one", nil))
	for name, tc := range map[string]struct {
		header nats.Header
		body   []byte
		code   fault.Code
		says   string
	}{
		"no JSON":            {nil, []byte("{"), fault.Malformed, "# is not JSON: it ends early"},
		"a newer schema":     {nil, bytes.Replace(body, []byte("frame.fixed/v1"), []byte("frame.fixed/v9"), 1), fault.UnknownSchema, `"colophon/frame.fixed/v9"`},
		"no slot":            {nil, bytes.Replace(body, []byte(`"1.tif"`), []byte(`""`), 1), fault.Malformed, "#/frame is shorter than 1 characters"},
		"a pass of nonsense": {nats.Header{event.HeaderPass: {"two"}}, body, fault.Malformed, `"two" is not a pass`},
	} {
		t.Run(name, func(t *testing.T) {
			world(t, func(r *rig) {
				ack := testkit.PublishRaw(r, r.js, event.SubjectFrameFixed, tc.header, tc.body)
				r.send("2.tif", "two", nil)
				r.start()
				r.once("2.tif")
				letters := r.letters()
				r.expect("letters", len(letters), 1)
				h := letters[0].Header
				r.expect("code", h.Get(event.HeaderCode), tc.code)
				if m := stage.HeaderText(h.Get(event.HeaderMessage)); !strings.Contains(m, tc.says) {
					r.Errorf("the letter says %q, not %q", m, tc.says)
				}
				r.expect("operation", h.Get(event.HeaderOperation), "decode:deriver")
				r.expect("id", letters[0].ID(), "dead:INGEST-"+strconv.FormatUint(ack.Sequence, 10))
				r.expect("slot", h.Get(event.HeaderBatch)+h.Get(event.HeaderFrame), "")
				r.expect("payload", string(letters[0].Data), string(tc.body))
			})
		})
	}
}

// A message that names its slot and still cannot be worked on ends the slot's
// pass: as a failed attempt in the log and as the slot's own case, so that the
// slot does not stay pending for ever.
func TestAForeignPolicyEndsThePass(t *testing.T) {
	body := bytes.Replace(testkit.JSON(t, testkit.Fixed(testkit.Slot("1.tif"), "one", nil)), []byte(`"pass":1`), []byte(`"pass":1,"policy":{"tries":3}`), 1)
	world(t, func(r *rig) {
		testkit.PublishRaw(r, r.js, event.SubjectFrameFixed, nil, body)
		r.send("2.tif", "two", nil)
		r.start()
		r.once("2.tif")
		letters := r.letters()
		r.expect("letters", len(letters), 1)
		h := letters[0].Header
		r.expect("code", h.Get(event.HeaderCode), fault.Malformed)
		r.expect("operation", h.Get(event.HeaderOperation), "derivative:jp2")
		r.expect("slot", h.Get(event.HeaderFrame), event.Encode("1.tif"))
		r.expect("attempts", h.Get(event.HeaderAttempts), "1")
		r.expect("payload", string(letters[0].Data), string(body))
	})
}

// The process dies between a message's stored outcome and its dead letter; a
// pass that was asked for meanwhile dies first. The message still gets its own
// letter, of its own pass, and is not tried under a pass nobody asked for.
func TestALetterThatIsOwedComesFirst(t *testing.T) {
	world(t, func(r *rig) {
		r.breaks()
		crashed := r.crashAt("publish deadletter.deriver", false)
		r.send("1.tif", "one", nil)
		r.start()
		testkit.Closed(r, "the crash", crashed)
		r.crash()
		testkit.OK(r, r.disk.Set.SetDead(completed.Dead{ // what a worker of pass 2 left
			Origin:     completed.Origin{Name: "INGEST-99", MsgID: "another"},
			Operations: []string{"derivative:jp2"}, Slot: testkit.Slot("1.tif").String(), Pass: 2,
		}))
		r.start()
		r.settled()
		letters := r.letters()
		r.expect("letters", len(letters), 1)
		r.expect("pass", letters[0].Header.Get(event.HeaderPass), "1")
		r.expect("acts", len(r.worker.Acts()), 1)
	})
}

// A pass that ends outside an attempt ends under a number of its own: that of
// an attempt which failed before says how that one failed.
func TestAPassThatEndsBetweenTwoAttempts(t *testing.T) {
	world(t, func(r *rig) {
		r.failTimes(1)
		r.send("1.tif", "one", testkit.Policy(4, time.Minute))
		r.start()
		testkit.Eventually(r, "the first attempt", func() bool { return len(r.failed()) == 1 })
		r.stop()
		r.worker.On = func(event.FrameFixed) string { panic("no such device") }
		r.start()
		r.once()
		var got []any
		for _, f := range r.failed() {
			got = append(got, f.Attempt, f.Code, f.Decision)
		}
		r.expect("failed attempts", got, []any{1, "timeout", "retry", 2, "malformed", "dead-letter"})
		r.expect("attempts in the letter", r.letters()[0].Header.Get(event.HeaderAttempts), 2)
	})
}

func TestAPanicIsContained(t *testing.T) {
	world(t, func(r *rig) {
		r.worker.Script = func(_ context.Context, in event.FrameFixed, _ event.Work) error {
			if in.Frame == "1.tif" {
				panic("index out of range")
			}
			return nil
		}
		r.worker.Finished = func(in event.FrameFixed) error {
			if in.Frame == "3.tif" {
				panic("so late")
			}
			return nil
		}
		for _, s := range []string{"1", "2", "3"} {
			r.send(s+".tif", s, nil)
		}
		r.start()
		r.once("2.tif", "3.tif")
		codes := map[string]int{}
		for _, l := range r.letters() {
			codes[l.Header.Get(event.HeaderCode)]++
		}
		r.expect("letters", codes, map[string]int{"panic": 1, "malformed": 1})
		r.expect("stacks logged", r.log.Count("panic_contained"), 2)
	})
}
