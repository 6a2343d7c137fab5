package premisxml

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"colophon/shared/event"

	"colophon/services/premis/internal/record"
)

// detail is what stands in an event's eventDetailExtension.
func (s *session) detail(e Event) {
	s.text("d:eventName", e.Name)
	if e.Slot != nil && e.Slot.Frame != "" {
		s.only("d:frame", attr{"batch", e.Slot.Batch}, attr{"frame", e.Slot.Frame}, number("sequence", e.Slot.Sequence), number("revision", e.Slot.Revision))
	}
	d := e.Data
	if d.Batch != nil {
		s.only("d:declaration", count("frames", d.Batch.Declared), attr{"order", d.Batch.Order}, attr{"profiles", strings.Join(d.Batch.Profiles, " ")})
	}
	if d.Policy != nil {
		s.text("d:policyDocument", d.Policy.Document, attr{"mediaType", "application/json"}, attr{"sha256", string(d.Policy.SHA256)})
	}
	if d.Accession != nil {
		s.acquisition(d.Accession)
	}
	if d.Replaced != nil {
		s.only("d:replacedBy", attr{"sha256", string(d.Replaced.By)}, number("revision", d.Replaced.Revision))
	}
	if d.Attempt != nil {
		s.attempt(d.Attempt)
	}
	if d.Derivation != nil {
		s.derivation(d.Derivation)
	}
	if d.Case != nil {
		s.openCase(d.Case)
	}
	if d.Closing != nil {
		s.closing(d.Closing)
	}
	if d.Totals != nil {
		s.totals(d.Totals, d.Discarded)
	}
	if d.Conflict != nil {
		s.conflict(d.Conflict)
	}
	s.only("d:ledger", attr{"origin", s.Origin}, attr{"index", strconv.FormatInt(e.Number, 10)}, attr{"leafHash", e.leaf()}, attr{"recordedAt", instant(e.Recorded)})
}

// number is an attribute that is left out at 0.
func number(name string, n int) attr {
	if n <= 0 {
		return attr{name, ""}
	}
	return count(name, n)
}

func count(name string, n int) attr { return attr{name, strconv.Itoa(max(n, 0))} }

func truth(name string, b bool) attr {
	if !b {
		return attr{name, ""}
	}
	return attr{name, "true"}
}

func (s *session) acquisition(a *record.Inventory) {
	attrs := []attr{
		{"bytes", strconv.FormatInt(max(a.Size, 0), 10)}, {"newContent", strconv.FormatBool(a.New)}, {"device", a.Device},
		{"operator", a.Operator}, {"gateway", a.Gateway}, {"scannedAt", optional(a.ScannedAt)}, {"source", a.Source},
	}
	if len(a.Acquisition) == 0 {
		s.only("d:acquisition", attrs...)
		return
	}
	s.begin("d:acquisition", attrs...)
	for _, name := range slices.Sorted(maps.Keys(a.Acquisition)) {
		s.text("d:setting", a.Acquisition[name], attr{"name", name})
	}
	s.end()
}

// reference writes an event's identifier if the document holds that event.
func (s *session) reference(element, id string) {
	if s.Known[id] {
		s.text(element, id)
	}
}

func (s *session) attempt(a *record.Attempt) {
	s.begin("d:attempt", attr{"operation", string(a.Operation)}, count("pass", a.Pass), count("number", max(a.Number, 1)), number("limit", a.Limit))
	s.text("d:eventType", a.Type, attr{"valueURI", a.URI})
	s.text("d:started", optional(a.Started))
	s.text("d:ended", optional(a.Ended))
	if !a.Started.IsZero() && !a.Ended.IsZero() {
		s.text("d:elapsed", duration(a.Ended.Sub(a.Started)))
	}
	s.reference("d:policyEvent", a.Policy)
	s.reference("d:previousEvent", a.Previous)
	s.end()
}

// duration is ISO 8601, in seconds.
func duration(d time.Duration) string {
	text := strconv.FormatFloat(max(d, 0).Round(time.Millisecond).Seconds(), 'f', 3, 64)
	return "PT" + strings.TrimRight(strings.TrimRight(text, "0"), ".") + "S"
}

func (s *session) derivation(d *record.Derivation) {
	attrs := []attr{{"profile", d.Profile}, {"profileSha256", string(d.SHA256)}, count("pages", d.Pages)}
	if len(d.Arguments)+len(d.Outputs) == 0 {
		s.only("d:derivation", attrs...)
		return
	}
	s.begin("d:derivation", attrs...)
	for _, a := range d.Arguments {
		s.text("d:argument", a)
	}
	for _, o := range d.Outputs {
		psnr := ""
		if o.PSNR > 0 {
			psnr = strconv.FormatFloat(o.PSNR, 'f', 2, 64)
		}
		s.only("d:output", count("page", max(o.Page, 1)), attr{"sha256", string(o.Digest)},
			attr{"bytes", strconv.FormatInt(max(o.Size, 0), 10)}, truth("exact", o.Exact), attr{"psnr", psnr})
	}
	s.end()
}

func (s *session) openCase(c *record.Case) {
	s.begin("d:case", attr{"operation", string(c.Operation)}, count("pass", max(c.Pass, 1)))
	reason := c.Reason
	if reason == "" {
		reason = c.Code
	}
	s.text("d:reason", reason, attr{"code", c.Code})
	s.reference("d:causeEvent", c.Cause)
	s.end()
}

func (s *session) closing(c *record.Closing) {
	attrs := []attr{{"decision", c.Decision}, {"operation", string(c.Operation)}, count("pass", max(c.Pass, 1)), number("nextPass", c.NextPass)}
	if c.Note == "" && !s.Known[c.Quarantine] {
		s.only("d:closing", attrs...)
		return
	}
	s.begin("d:closing", attrs...)
	s.text("d:justification", c.Note)
	s.reference("d:quarantineEvent", c.Quarantine)
	s.end()
}

func (s *session) totals(t *event.Totals, gone []record.Discarded) {
	attrs := []attr{
		count("declared", t.Declared), count("done", t.Done), count("failed", t.Failed), count("pending", t.Pending),
		count("missing", t.Missing), count("discarded", t.Discarded),
	}
	if len(gone) == 0 {
		s.only("d:totals", attrs...)
		return
	}
	s.begin("d:totals", attrs...)
	for _, g := range gone {
		s.only("d:discardedFrame", attr{"frame", g.Frame}, attr{"operation", string(g.Operation)}, attr{"appraisal", g.Event})
	}
	s.end()
}

func (s *session) conflict(c *record.Conflicting) {
	s.begin("d:conflict", attr{"event", s.space.Event(c.Name)})
	s.text("d:recorded", c.First.String())
	s.text("d:reported", c.Other.String())
	s.end()
}
