package capture

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"colophon/shared/completed"
	"colophon/shared/event"
	"colophon/shared/testkit"
	"colophon/shared/topology"
)

// viewOnly is a service with nothing but its view.
func viewOnly(t *testing.T) *Service {
	t.Helper()
	v := testkit.Must(openView(vfs.NewMem(), "v", slog.New(slog.DiscardHandler)))(t)
	t.Cleanup(func() { testkit.OK(t, v.close()) })
	return &Service{view: v}
}

// hear feeds facts and frame messages to the view.
func (s *Service) hear(t *testing.T, messages ...any) {
	t.Helper()
	for _, m := range messages {
		stream, msg := event.StreamIngest, topology.Message{Data: testkit.JSON(t, m)}
		switch m := m.(type) {
		case event.FrameMessage:
			stream, msg.Subject = event.StreamCapture, event.CaptureSubject("frame", "gw", m.Batch)
		case event.Fact:
			msg.Subject = m.Subject()
		}
		pos, err := s.view.position(stream)
		testkit.OK(t, err)
		msg.Position = completed.Position{Sequence: pos.Sequence + 1, Stored: time.Now().UTC()}
		testkit.OK(t, s.view.handle(stream, []topology.Message{msg}))
	}
}

// put puts slots straight into the view.
func (s *Service) put(t *testing.T, frames ...event.Progress) {
	t.Helper()
	b := s.view.db.NewBatch()
	for _, p := range frames {
		testkit.OK(t, setJSON(b, viewSlot+p.Slot.String(), p))
		testkit.OK(t, b.Set([]byte(viewOrder+p.Batch.Encode()+"/"+orderKey("", &p)), []byte(p.Frame), nil))
	}
	testkit.OK(t, b.Commit(pebble.NoSync))
}

func ordinal(n int) event.Name { return event.Name(fmt.Sprintf("p%d.tif", n)) }

func message(n int) event.FrameMessage {
	return testkit.FrameMessage(event.Slot{Batch: "b", Frame: ordinal(n)}, n, fmt.Sprint(n))
}

func opened5(order string) event.BatchFact {
	return event.BatchFact{Schema: event.SchemaBatch, Batch: "b", State: "opened", Count: 5, Order: order, Profiles: []string{"jp2"}}
}

// Pages are read while the batch moves: what keeps its place comes once, in order.
func TestPaging(t *testing.T) {
	t.Parallel()
	s := viewOnly(t)
	s.hear(t, opened5(event.OrderSequence))
	for n := 10; n <= 300; n += 10 {
		s.hear(t, message(n))
	}
	var got []int
	in := event.BatchRequest{Batch: "b", Limit: 7}
	for n := 0; ; n++ {
		page, err := s.pageOfFrames(t.Context(), in)
		testkit.OK(t, err)
		if len(page.Frames) > 7 {
			t.Fatalf("a page has %d frames", len(page.Frames))
		}
		for _, f := range page.Frames {
			if f.Sequence%10 == 0 && f.Sequence <= 300 {
				got = append(got, f.Sequence)
			}
		}
		if page.Next == "" {
			break
		}
		in.After = page.Next
		w := event.Work{Schema: event.SchemaFrameCaptured, Slot: message(10 * (n + 1)).Slot, Sequence: 10 * (n + 1), Revision: 1, Digest: testkit.Digest("x"), Pass: 1}
		s.hear(t, message(1000+n), message(n+1), event.FrameCaptured{Work: w})
	}
	expect(t, "frames that kept their places", len(got), 30)
	for i, n := range got {
		expect(t, "place", n, 10*(i+1))
	}
}

func TestCursors(t *testing.T) {
	t.Parallel()
	s := viewOnly(t)
	s.hear(t, opened5(event.OrderSequence), message(1), message(2), message(3))
	page, err := s.pageOfFrames(t.Context(), event.BatchRequest{Batch: "b", Limit: 1})
	testkit.OK(t, err)
	other := opened5(event.OrderNatural)
	other.State, other.Number = "changed", 1
	s.hear(t, other)
	for what, cursor := range map[string]string{"of another order": page.Next, "not base64": "%", "no cursor": "YWJj"} {
		_, err := s.pageOfFrames(t.Context(), event.BatchRequest{Batch: "b", After: cursor})
		var bad badRequest
		if !errors.As(err, &bad) {
			t.Errorf("a cursor %s: %v", what, err)
		}
	}
	none, err := s.pageOfFrames(t.Context(), event.BatchRequest{Batch: "nobody's"})
	testkit.OK(t, err)
	if none.Frames == nil || len(none.Frames) != 0 || none.Next != "" {
		t.Errorf("a batch nobody knows: %+v", none)
	}
}

// A reply fits into a message, whatever the frames are called.
func TestPageSize(t *testing.T) {
	t.Parallel()
	s := viewOnly(t)
	const frames = 45
	for n := range frames {
		name := event.Name(strings.Repeat("\x01", event.MaxFrameLen-8) + fmt.Sprintf("%08d", n))
		s.put(t, event.Progress{Slot: event.Slot{Batch: "b", Frame: name}, Sequence: n + 1, Ops: map[event.Operation]*event.OpProgress{
			event.Capture: {Dead: 1, Pass: 1, Code: "empty", Reason: strings.Repeat("<", 2048)},
		}})
	}
	in, seen, pages := event.BatchRequest{Batch: "b"}, 0, 0
	for {
		page, err := s.pageOfFrames(t.Context(), in)
		testkit.OK(t, err)
		if size := len(testkit.JSON(t, page)); size > 1<<20-4096 {
			t.Fatalf("a page has %d bytes", size)
		}
		seen, pages, in.After = seen+len(page.Frames), pages+1, page.Next
		if page.Next == "" {
			break
		}
	}
	expect(t, "frames", seen, frames)
	if pages < 3 {
		t.Errorf("%d pages hold them all: the size was not tried", pages)
	}
}

// Looking for what is not done through many that are is bounded too.
func TestUndonePages(t *testing.T) {
	t.Parallel()
	s := viewOnly(t)
	done := func(n int) event.Progress {
		return event.Progress{Slot: message(n).Slot, Sequence: n, Ops: map[event.Operation]*event.OpProgress{
			event.Capture: {Done: true}, event.Fixity: {Done: true}, event.Derivative("jp2"): {Done: true},
		}}
	}
	all := make([]event.Progress, 0, maxLooked+10)
	for n := 1; n <= maxLooked+10; n++ {
		all = append(all, done(n))
	}
	all[maxLooked+5].Ops[event.Fixity].Done = false
	s.put(t, all...)
	page, err := s.pageOfFrames(t.Context(), event.BatchRequest{Batch: "b", Undone: true})
	testkit.OK(t, err)
	if len(page.Frames) != 0 || page.Next == "" {
		t.Fatalf("the first page has %d frames, next %q", len(page.Frames), page.Next)
	}
	page, err = s.pageOfFrames(t.Context(), event.BatchRequest{Batch: "b", Undone: true, After: page.Next})
	testkit.OK(t, err)
	if len(page.Frames) != 1 || page.Frames[0].Sequence != maxLooked+6 || page.Frames[0].Stage != event.Fixity || page.Next != "" {
		t.Errorf("the second page is %+v", page)
	}
}

func TestBatchPages(t *testing.T) {
	t.Parallel()
	s := viewOnly(t)
	want := 0
	for _, b := range []event.Name{"a", "b", "b.1", "c d", "ü"} {
		f := opened5("")
		f.Batch = b
		s.hear(t, f)
		want++
	}
	var got []string
	in := event.BatchRequest{Limit: 2}
	for {
		page, err := s.list(t.Context(), in)
		testkit.OK(t, err)
		for _, b := range page.Batches {
			got = append(got, string(b.Batch))
		}
		if in.After = page.Next; page.Next == "" {
			break
		}
	}
	expect(t, "batches", len(got), want)
	expect(t, "in order", strings.Join(got, ","), "ü,a,b,b.1,c d")
}
