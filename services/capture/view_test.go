package capture

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
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
		m.Pass = w.Pass
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
		Schema: event.SchemaCase, Slot: slot, Sequence: w.Sequence, Operation: op, Pass: w.Pass,
		State: rapid.SampledFrom([]string{event.CaseOpened, event.CaseDiscarded, event.CaseResolved}).Draw(t, "case"),
	}
	return f.Subject(), f, nil
}

// model is the batch view as its rules say it, without any economy.
type model struct {
	fact      event.BatchFact
	known     bool
	slots     map[event.Name]*event.Progress
	number    int
	converged bool
}

func (m *model) totals() (t event.Totals) {
	for _, p := range m.slots {
		t.Count(p.State(m.fact.Profiles), 1)
	}
	t.Declare(m.fact.Count)
	return t
}

func (m *model) slot(f event.Name) *event.Progress {
	if m.slots[f] == nil {
		m.slots[f] = &event.Progress{Slot: event.Slot{Batch: "b", Frame: f}}
	}
	return m.slots[f]
}

func (m *model) apply(s said) {
	if s.stream == event.StreamCapture {
		var f event.FrameMessage
		if json.Unmarshal(s.Data, &f) != nil || f.Validate() != nil {
			return
		}
		pass, _ := event.PassOf(s.Header.Get(event.HeaderPass), f.Pass)
		m.slot(f.Frame).Request(f, pass)
	} else {
		f, _ := event.DecodeFact(s.Subject, s.Data)
		if slot, ok := slotOf(f); ok {
			m.slot(slot.Frame).Apply(f, s.Sequence, 0)
		}
		if b, ok := f.(event.BatchFact); ok {
			switch {
			case b.State == "converged" && b.Number > m.number:
				m.number, m.converged = b.Number, true
			case b.State != "converged" && (!m.known || b.Number >= m.fact.Number):
				m.fact, m.known = b, true
			}
		}
	}
	m.converged = m.converged && m.totals().Converged()
}

func (m *model) order() (out []event.Name) {
	for f := range m.slots {
		out = append(out, f)
	}
	slices.SortFunc(out, func(a, b event.Name) int {
		if m.fact.Order != event.OrderNatural {
			if d := m.slots[a].Sequence - m.slots[b].Sequence; d != 0 {
				return d
			}
		}
		return slices.Compare(event.NaturalKey(string(a)), event.NaturalKey(string(b)))
	})
	return out
}

// feed gives a view the messages, each stream in commits of drawn sizes, and
// closes and opens it between some of them.
func feed(t *rapid.T, fs vfs.FS, dir string, messages []said) *view {
	open := func() *view {
		v, err := openView(fs, dir, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	v := open()
	for len(messages) > 0 {
		n := 1
		for n < len(messages) && messages[n].stream == messages[0].stream && rapid.IntRange(0, 3).Draw(t, "more") > 0 {
			n++
		}
		var batch []topology.Message
		for _, m := range messages[:n] {
			batch = append(batch, m.Message)
		}
		if err := v.handle(messages[0].stream, batch); err != nil {
			t.Fatal(err)
		}
		messages = messages[n:]
		if rapid.IntRange(0, 15).Draw(t, "reopen") == 0 {
			if err := v.close(); err != nil {
				t.Fatal(err)
			}
			v = open()
		}
	}
	return v
}

// dump is everything that a view holds.
func dump(t *rapid.T, v *view) string {
	var b strings.Builder
	for _, prefix := range []string{viewBatch, viewSlot, viewOrder, viewAsked, viewPos, viewMade, viewUnstage} {
		if err := v.each(prefix, "", func(k string, val []byte) error {
			_, err := fmt.Fprintf(&b, "%q %s\n", k, val)
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	return b.String()
}

func TestViewIsAFunctionOfTheStreams(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		messages := story(t)
		v := feed(t, vfs.NewMem(), "v", messages)
		defer v.close() //nolint:errcheck // in memory
		m := &model{slots: map[event.Name]*event.Progress{}}
		for _, s := range messages {
			m.apply(s)
		}
		compare(t, v, m)
		// Other commits, and the streams beside each other in another way.
		for name, other := range map[string][]said{"in other commits": messages, "in another mixture": mixed(t, messages)} {
			w := feed(t, vfs.NewMem(), "w", other)
			if got, want := dump(t, w), dump(t, v); got != want {
				t.Fatalf("%s the view is\n%s", name, differing(got, want))
			}
			_ = w.close()
		}
	})
}

// differing shows the lines that two dumps do not share.
func differing(got, want string) string {
	var b strings.Builder
	for _, d := range []struct{ sign, a, b string }{{"+", got, want}, {"-", want, got}} {
		for line := range strings.Lines(d.a) {
			if !strings.Contains(d.b, line) {
				b.WriteString(d.sign + line)
			}
		}
	}
	return b.String()
}

func mixed(t *rapid.T, messages []said) (out []said) {
	streams := map[string][]said{}
	for _, m := range messages {
		streams[m.stream] = append(streams[m.stream], m)
	}
	a, b := streams[event.StreamIngest], streams[event.StreamCapture]
	for len(a)+len(b) > 0 {
		if len(b) == 0 || len(a) > 0 && rapid.Bool().Draw(t, "ingest") {
			out, a = append(out, a[0]), a[1:]
		} else {
			out, b = append(out, b[0]), b[1:]
		}
	}
	return out
}

func compare(t *rapid.T, v *view, m *model) {
	r, err := v.batch("b")
	if err != nil {
		t.Fatal(err)
	}
	if r.Totals != m.totals() || r.Converged != m.converged || r.Convergence != m.number || r.Known != m.known || r.Number != m.fact.Number {
		t.Fatalf("the batch is %+v; the model has %+v, %+v", r, m.totals(), m)
	}
	var order []event.Name
	for f, err := range v.frames("b", "") {
		if err != nil {
			t.Fatal(err)
		}
		order = append(order, f.Frame)
		got, _ := json.Marshal(f.Progress)
		want, _ := json.Marshal(m.slots[f.Frame])
		if string(got) != string(want) {
			t.Fatalf("slot %q is\n%s\nthe model has\n%s", f.Frame, got, want)
		}
	}
	if !slices.Equal(order, m.order()) {
		t.Fatalf("the order is %q, the model's %q", order, m.order())
	}
}
