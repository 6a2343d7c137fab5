package export_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"colophon/shared/event"

	"colophon/services/premis/internal/export"
	"colophon/services/premis/internal/facttest"
)

const storied = event.Name("vol. 142 (<Smith> & 'Co')")

// TestStory: each record of a batch stands in its story once, in the ledger's
// order, with the reaction to each failure and the policy behind it.
func TestStory(t *testing.T) {
	t.Parallel()
	l := open(t, story().Entries)
	x := exporter(t, l)
	var steps []export.Step
	for s, err := range x.Story(t.Context(), storied) {
		if err != nil {
			t.Fatal(err)
		}
		if n := len(steps); n > 0 && s.Number <= steps[n-1].Number {
			t.Errorf("record %d behind record %d", s.Number, steps[n-1].Number)
		}
		if s.Happened == "" || s.Time.IsZero() {
			t.Errorf("%+v", s)
		}
		steps = append(steps, s)
	}
	records := 0
	for range l.View.ByBatch(storied) {
		records++
	}
	if len(steps) != records {
		t.Errorf("%d steps of %d records", len(steps), records)
	}
	policy, found, err := l.View.ByName("event:policy-assignment:@" + storied.Encode())
	if err != nil || !found {
		t.Fatal(err)
	}
	var hard []string // the reactions of the page on which everything happened
	for _, s := range steps {
		if s.Frame != "0002.tif" || s.Pass == 0 {
			continue
		}
		reaction, _, _ := strings.Cut(s.Decided, ",")
		line := strings.Join([]string{s.Type, s.Operation, string(rune('0' + s.Pass)), string(rune('0' + s.Attempt)), reaction}, " ")
		hard = append(hard, line)
		if byPolicy := s.Type == "retry" && s.Decided != ""; byPolicy != (s.Policy == string(policy.Data.Policy.SHA256)) {
			t.Errorf("policy %q of %+v", s.Policy, s)
		}
	}
	want := []string{
		"retry fixity 1 1 try again", "retry fixity 1 2 ",
		"retry derivative:jp2 1 1 try again", "retry derivative:jp2 1 2 try again", "retry derivative:jp2 1 3 give up: to quarantine",
		"quarantine derivative:jp2 1 0 ", "unquarantine derivative:jp2 1 0 replay by 9a41: Memory limit of the encoder raised",
		"retry derivative:jp2 2 1 ",
	}
	got := strings.Join(hard, "\n")
	for _, w := range want {
		before, rest, ok := strings.Cut(got, w)
		if !ok || strings.TrimSpace(before) != "" && !strings.HasSuffix(before, "\n") {
			t.Fatalf("no %q in this order in:\n%s", w, strings.Join(hard, "\n"))
		}
		got = rest
	}
	for _, err := range x.Story(t.Context(), "another") {
		if !errors.Is(err, export.ErrNothing) {
			t.Errorf("a batch that is not there: %v", err)
		}
	}
}

// TestFailedExport: an export that fails leaves no file that was called whole,
// whatever it was of.
func TestFailedExport(t *testing.T) {
	t.Parallel()
	x := exporter(t, open(t, story().Entries))
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for what, do := range map[string]func(context.Context, export.Sink) error{
		"master": func(ctx context.Context, s export.Sink) error { return x.Master(ctx, facttest.Digest("one"), s) },
		"batch":  func(ctx context.Context, s export.Sink) error { return x.Batch(ctx, storied, s) },
		"events": func(ctx context.Context, s export.Sink) error { return x.BatchTSV(ctx, storied, s) },
		"frames": func(ctx context.Context, s export.Sink) error { return x.FramesTSV(ctx, storied, s) },
	} {
		var whole files
		if err := do(t.Context(), whole.sink); err != nil || len(whole.whole) == 0 {
			t.Errorf("%s: %v, %d files", what, err, len(whole.whole))
		}
		for fault, c := range map[string]struct {
			ctx  context.Context
			full bool
		}{"ended": {gone, false}, "disk full": {t.Context(), true}} {
			var f files
			err := do(c.ctx, func(name string) (io.WriteCloser, error) {
				out, err := f.sink(name)
				if c.full {
					out = fullDisk{out}
				}
				return out, err
			})
			if err == nil || len(f.whole) > 0 {
				t.Errorf("%s, %s: %v, and %d files called whole", what, fault, err, len(f.whole))
			}
		}
	}
}

type fullDisk struct{ io.WriteCloser }

func (fullDisk) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }
