package cases

import (
	"encoding/json"
	"testing"
	"time"

	"pgregory.net/rapid"

	"colophon/shared/event"
)

// The batch view and quarantine agree on what is done: a case that one closes
// would else stay open in the other.
func TestDoneAgreesWithTheBatchView(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var view event.Progress
		var sl slot
		w := event.Work{Slot: event.Slot{Batch: "b", Frame: "f"}}
		for range rapid.IntRange(1, 20).Draw(t, "facts") {
			w.Revision, w.Pass = rapid.IntRange(1, 3).Draw(t, "revision"), rapid.IntRange(1, 6).Draw(t, "pass")
			w.Digest = event.Digest(string(rune('a' + w.Revision)))
			m := moment{pass: w.Pass, at: time.Unix(int64(w.Pass), 0)}
			switch rapid.IntRange(0, 4).Draw(t, "fact") {
			case 0:
				view.Apply(event.FrameCaptured{Work: w}, 0, 0)
				sl.captured(w, m)
			case 1: // later stages speak of revisions that were captured
				if w.Revision == view.Revision {
					view.Apply(event.FrameFixed{Work: w}, 0, 0)
					sl.completed(event.Fixity, w, m)
				}
			case 2:
				if w.Revision == view.Revision {
					view.Apply(event.DerivativeMade{Work: w, Derived: event.Derived{Profile: "jp2"}}, 0, 0)
					sl.completed(event.Derivative("jp2"), w, m)
				}
			default:
				op := rapid.SampledFrom([]event.Operation{event.Capture, event.Fixity, event.Derivative("jp2"), event.SourceChanged}).Draw(t, "operation")
				if op == event.SourceChanged { // a dead letter's pass is above the dead ones before it
					w.Pass = sl.get(op).Pass + 1
					m.pass = w.Pass
				}
				f := event.AttemptFailed{Work: w, Operation: op, Decision: event.DecisionDeadLetter, Code: "x"}
				view.Apply(f, 0, 0)
				sl.failed(f, m)
			}
			var again slot // what is stored is what is read back
			data, err := json.Marshal(sl)
			if err != nil || json.Unmarshal(data, &again) != nil {
				t.Fatal(err)
			}
			for _, op := range []event.Operation{event.Capture, event.Fixity, event.Derivative("jp2")} {
				done := view.Ops[op] != nil && view.Ops[op].Done
				if _, got := again.completeFor(op, view.Revision); got != done {
					t.Fatalf("%s: done is %v, the batch view says %v", op, got, done)
				}
			}
			if changed := sl.Ops[event.SourceChanged]; changed != nil && (view.Changed > 0) == changed.Done {
				t.Fatalf("source-changed: done is %v, the batch view holds it at %d", changed.Done, view.Changed)
			}
		}
	})
}
