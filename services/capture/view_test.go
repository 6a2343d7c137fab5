package capture

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"pgregory.net/rapid"

	"colophon/shared/event"
	"colophon/shared/topology"
)

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
		m.slot(f.Frame).Request(f, pass, s.Sequence)
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
	for _, prefix := range []string{viewBatch, viewSlot, viewOrder, viewAsked, viewPos, viewMade, viewUnstage, viewOld, viewRescan, viewHole} {
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
