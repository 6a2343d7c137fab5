package capture

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"pgregory.net/rapid"

	"colophon/shared/completed"
	"colophon/shared/event"
	"colophon/shared/testkit"
	"colophon/shared/topology"
)

// said is one stored message of a stream.
type said struct {
	stream string
	topology.Message
}

// story draws what is stored about one batch: every kind of fact, in an order
// that no line would keep, and capture messages.
func story(t *rapid.T) (out []said) {
	seq := map[string]uint64{}
	at := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	frames := frameNames[:rapid.IntRange(1, len(frameNames)).Draw(t, "frames")]
	for range rapid.IntRange(1, 60).Draw(t, "messages") {
		subject, body, header := sentence(t, frames)
		stream := event.StreamIngest
		if strings.HasPrefix(subject, "capture.") {
			stream = event.StreamCapture
		}
		seq[stream]++
		at = at.Add(time.Second)
		data, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, said{stream, topology.Message{
			Position: completed.Position{Sequence: seq[stream], Stored: at, MsgID: fmt.Sprint(stream, seq[stream])}, Subject: subject, Header: header, Data: data,
		}})
	}
	return out
}

var frameNames = []event.Name{"p1", "p2", "p10", "a/p3", "bad\xff"}

func sentence(t *rapid.T, frames []event.Name) (subject string, body any, header nats.Header) {
	slot := event.Slot{Batch: "b", Frame: rapid.SampledFrom(frames).Draw(t, "frame")}
	content := rapid.SampledFrom([]string{"x", "y"}).Draw(t, "content")
	w := event.Work{
		Slot: slot, Sequence: rapid.IntRange(1, 4).Draw(t, "sequence"), Revision: rapid.IntRange(1, 2).Draw(t, "revision"), Digest: testkit.Digest(content),
		Pass: rapid.IntRange(1, 3).Draw(t, "pass"), Attempt: 1, Hit: rapid.Bool().Draw(t, "hit"),
	}
	profile := rapid.SampledFrom([]string{"jp2", "jp2-lossless"}).Draw(t, "profile")
	op := rapid.SampledFrom([]event.Operation{event.Capture, event.Fixity, event.Derivative(profile), event.SourceChanged}).Draw(t, "operation")
	switch rapid.IntRange(0, 11).Draw(t, "kind") {
	case 0, 1:
		m := testkit.FrameMessage(slot, w.Sequence, content)
		m.Pass, m.Answers = w.Pass, rapid.SampledFrom([]string{"", "", "dispatch:s:b/x#2.1", "dispatch:s:b/x#2.2"}).Draw(t, "answers")
		if rapid.IntRange(0, 9).Draw(t, "broken") == 0 {
			m.Sequence = 0 // nobody can read it
		}
		if rapid.Bool().Draw(t, "replayed") {
			header = nats.Header{event.HeaderPass: {fmt.Sprint(w.Pass + 1)}}
		}
		return event.CaptureSubject("frame", "gw", "b"), m, header
	case 2:
		profiles := []string{"jp2"}
		if profile != "jp2" {
			profiles = []string{"jp2", profile}
		}
		number := rapid.IntRange(0, 3).Draw(t, "number")
		f := event.BatchFact{
			Schema: event.SchemaBatch, Batch: "b", State: map[bool]string{true: "opened", false: "changed"}[number == 0], Number: number, Profiles: profiles,
			Count: rapid.IntRange(1, 4).Draw(t, "count"), Order: rapid.SampledFrom([]string{event.OrderNatural, event.OrderSequence}).Draw(t, "order"),
		}
		return f.Subject(), f, nil
	case 3:
		f := event.BatchFact{Schema: event.SchemaBatch, Batch: "b", State: "converged", Number: rapid.IntRange(1, 3).Draw(t, "convergence"), Count: 1}
		return f.Subject(), f, nil
	case 4, 5:
		w.Schema = event.SchemaFrameCaptured
		f := event.FrameCaptured{Work: w, Captured: event.Captured{Source: "file:///in/" + content, Size: 1}}
		return f.Subject(), f, nil
	case 6, 7:
		f := testkit.Fixed(slot, content, nil)
		w.Schema = f.Schema
		f.Work = w
		return f.Subject(), f, nil
	case 8, 9:
		w.Schema = event.SchemaDerivative
		f := event.DerivativeMade{Work: w, Derived: event.Derived{Profile: profile}}
		return f.Subject(), f, nil
	case 10:
		w.Schema = event.SchemaAttemptFailed
		f := event.AttemptFailed{
			Work: w, Service: "x", Operation: op, Class: "permanent", Code: "empty", Decision: rapid.SampledFrom([]string{event.DecisionRetry, event.DecisionDeadLetter}).Draw(t, "decision"),
		}
		return f.Subject(), f, nil
	}
	f := event.CaseFact{
		Schema: event.SchemaCase, Slot: slot, Sequence: w.Sequence, Operation: op, Pass: w.Pass, Number: rapid.IntRange(1, 4).Draw(t, "change"),
		State: rapid.SampledFrom([]string{event.CaseOpened, event.CaseRescan, event.CaseDiscarded, event.CaseResolved}).Draw(t, "case"),
	}
	return f.Subject(), f, nil
}
