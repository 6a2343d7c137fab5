package quarantine

import (
	"fmt"
	"testing"
	"time"

	"colophon/shared/event"
)

func TestAges(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	for n, age := range []time.Duration{0, time.Hour - 1, time.Hour, time.Hour + 1, 25 * time.Hour} {
		s := slotOf("b", fmt.Sprint(n))
		w.fact(event.CaseFact{
			Schema: event.SchemaCase, ID: caseOf(s), Slot: s, Operation: jp2, Pass: 1, State: event.CaseOpened, Number: 1, Code: "truncated",
			Service: "deriver", Origin: "INGEST-1", At: now.Add(-age),
		})
	}
	q := w.run(t.TempDir(), func(c *Config) { c.Now = func() time.Time { return now } })
	w.quiet(q)
	for body, want := range map[string]string{
		`{"older_than":"1h"}`:                                   "[2 3 4]", // that old, or older
		`{"newer_than":"1h"}`:                                   "[0 1]",   // the others
		`{"older_than":"1h0m0.000000001s"}`:                     "[3 4]",
		`{"older_than":"1h","newer_than":"24h"}`:                "[2 3]",
		`{"older_than":"24h"}`:                                  "[4]",
		`{"older_than":"26h"}`:                                  "[]",
		`{"older_than":"1h","newer_than":"1h"}`:                 "[]",
		`{"older_than":"1h","batch":"b","code":"truncated"}`:    "[2 3 4]",
		`{"older_than":"1h","state":"rescan-requested"}`:        "[]",
		`{"older_than":"1h","after":"derivative:jp2@b/3"}`:      "[4]",
		`{"newer_than":"1h","all":true,"service":"deriver"}`:    "[0 1]",
		`{"older_than":"0s","newer_than":"1ns","batch":"none"}`: "[]",
	} {
		out := []event.Name{}
		for _, c := range get[event.CaseList](w, "quarantine.list", body).Cases {
			out = append(out, c.Frame)
		}
		same(t, body, fmt.Sprint(out), want)
	}
	for _, body := range []string{`{"older_than":"1 day"}`, `{"older_than":3600}`, `{"newer_than":"-1h"}`, `{"state":"rescan"}`, `{"older":"1h"}`} {
		_, code := w.ask("quarantine.list", body)
		same(t, body, code, "400")
	}
	// An age alone selects what is decided.
	d := get[event.CaseDecision](w, "quarantine.rescan", `{"older_than":"24h","actor":"ann","note":"n"}`)
	same(t, "decided", d.Done, []string{caseOf(slotOf("b", "4"))})
	q.end()
}
