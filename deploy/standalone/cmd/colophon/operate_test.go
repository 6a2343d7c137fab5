package main

import (
	"testing"
	"time"

	"colophon/shared/event"
)

// TestStatusWords: what status says of a frame that a device owes, or that was stuck.
func TestStatusWords(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 30, 12, 0, 0, 0, time.Local)
	for want, got := range map[string]string{
		"": asked(nil) + stuck(nil),
		"; asked of left again since 2026-11-30 12:00:00 (pass 2)":               asked(&event.RescanStatus{Device: "left", Since: at, Pass: 2}),
		`; asked of "a\x1b" again since 2026-11-30 12:00:00 (pass 3)`:            asked(&event.RescanStatus{Device: "a\x1b", Since: at, Pass: 3}),
		"; to be scanned again since 2026-11-30 12:00:00: nobody can":            asked(&event.RescanStatus{Since: at, Problem: "nobody can"}),
		"; was stuck at fixity, sent again 2026-11-30 12:00:00":                  stuck(&event.StuckStatus{Operation: event.Fixity, Since: at}),
		"; stuck since 2026-11-30 12:00:00: nothing holds what the message said": stuck(&event.StuckStatus{Since: at, Problem: "nothing holds what the message said"}),
	} {
		if got != want {
			t.Errorf("status says %q, not %q", got, want)
		}
	}
}
