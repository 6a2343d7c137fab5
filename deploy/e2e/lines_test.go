package e2e

import (
	"slices"
	"strings"
	"testing"
)

// frameFields stand on every line about a frame.
var frameFields = []string{"batch_id", "frame_id", "content_hash", "key", "attempt", "decision"}

// frameMessages are the lines about a frame's work.
var frameMessages = []string{"idempotent_skip", "idempotent_execute", "idempotent_recorded", "idempotent_failed"}

// checkLines judges the log of one ingest: each line about a frame tells which
// one, and the summary agrees with the JSON object.
func checkLines(t testing.TB, o outcome) {
	t.Helper()
	checkFields(t, o.lines)
	sums := o.logged("batch_retry_summary")
	if len(sums) != 1 {
		t.Fatalf("%d lines batch_retry_summary", len(sums))
	}
	s := sums[0]
	for _, f := range []string{"processed", "skipped", "failed", "dispatched", "pending"} {
		if _, there := s[f]; !there {
			t.Errorf("the summary lacks %s", f)
		}
	}
	j := o.json
	if s.num("processed") != j.Processed || s.num("skipped") != j.Skipped || s.num("failed") != j.Failed || s.num("dispatched") != j.Dispatched {
		t.Errorf("the summary says %v, the object %+v", s, j)
	}
}

// checkFields demands of each line about a frame that it says all it must.
func checkFields(t testing.TB, lines []logLine) {
	t.Helper()
	for _, l := range lines {
		if strings.HasPrefix(l.msg(), "idempotent_") && !slices.Contains(frameMessages, l.msg()) {
			t.Errorf("a line called %s", l.msg())
		}
		_, about := l["frame_id"]
		if !about && !slices.Contains(frameMessages, l.msg()) {
			continue
		}
		for _, f := range frameFields {
			if _, there := l[f]; !there {
				t.Errorf("a line about a frame lacks %s: %v", f, l)
			}
		}
		if l.str("batch_id") == "" || l.str("key") == "" || l.str("decision") == "" {
			t.Errorf("a line about a frame does not say which: %v", l)
		}
		if l.str("frame_id") == "" && !strings.HasPrefix(l.str("key"), "batch-invalid:") { // a declaration is of no frame
			t.Errorf("a line about a frame does not say which: %v", l)
		}
	}
}
