package mapping_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"colophon/shared/event"

	"colophon/services/premis/internal/facttest"
	"colophon/services/premis/internal/ledger"
	"colophon/services/premis/internal/record"
)

// records appends facts one after the other and gives what the last came to.
func records(t *testing.T, facts ...event.Fact) []*record.Record {
	t.Helper()
	l, err := ledger.Open(t.TempDir(), ledger.Options{Origin: facttest.Origin})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var log facttest.Log
	log.Add(facts...)
	n := len(log.Entries) - 1
	if _, err := l.Append(t.Context(), log.Entries[:n]); err != nil {
		t.Fatal(err)
	}
	before := l.Size()
	if _, err := l.Append(t.Context(), log.Entries[n:]); err != nil {
		t.Fatal(err)
	}
	var out []*record.Record
	for i := before; i < l.Size(); i++ {
		r, err := l.Get(i)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, r.Record)
	}
	return out
}

// told is a record in one line: outcome and name, digests by their first four
// digits.
func told(rs []*record.Record) []string {
	var out []string
	for _, r := range rs {
		name := r.Name
		for _, d := range []string{"one", "two", "new"} {
			full := string(facttest.Digest(d))
			name = strings.ReplaceAll(name, string(facttest.Digest("jp2 of "+full)), "<jp2 of "+d+">")
			name = strings.ReplaceAll(name, full, "<"+d+">")
		}
		out = append(out, strings.TrimSpace(r.Outcome+" "+name))
	}
	return out
}

const (
	batchB = event.Name("b")
	frameF = event.Name("0001")
)

func page() facttest.Frame { return facttest.Page(batchB, frameF, 1, "one") }

func TestRows(t *testing.T) {
	t.Parallel()
	p, jp2 := page(), event.Derivative("jp2")
	twin := facttest.Page(batchB, "0002", 2, "one")
	other := facttest.Page(batchB, "0002", 2, "two")
	other.Digest = facttest.Digest("one")
	revised := facttest.Page(batchB, frameF, 1, "new")
	revised.Revision = 2
	nothing := facttest.Page(batchB, frameF, 1, "")
	nothing.Digest = "src-00"
	noProfiles := p
	noProfiles.Profiles = nil
	unknown := p.Fixed(1, 1)
	unknown.Fixed.Format = event.Format{PUID: "UNKNOWN"}
	unknownTwin := twin.Fixed(1, 1)
	unknownTwin.Fixed.Format = unknown.Fixed.Format
	undeclared := p.Fixed(1, 1)
	undeclared.Captured.Declared = ""
	mismatched := p.Fixed(1, 1)
	mismatched.Captured.Declared = facttest.Digest("other")
	warned := p.Derived(1, 1)
	warned.Derived.Findings = []event.Finding{{Code: "icc-ignored", Message: "m"}}
	warnedTwin := twin.Derived(1, 0)
	warnedTwin.Hit, warnedTwin.Derived = true, warned.Derived
	hit := twin.Derived(1, 0)
	hit.Hit = true
	mismatch := p.Failed(event.Capture, facttest.Capture, 1, 1, "permanent", "digest-mismatch", true)
	mismatch.Declared = facttest.Digest("other")
	late := p.Failed(event.Fixity, facttest.Hasher, 1, 1, "transient", "io-error", false)
	lost := p.Failed(event.Fixity, facttest.Hasher, 1, 1, "lost", "worker-lost", false)
	reported := nothing.Failed(event.Capture, facttest.Capture, 0, 1, "transient", "device-jam", false)
	reported.Device = "scanner-03"
	replicated := facttest.Verified(p.Digest, p.Digest, "")
	replicated.Kind, replicated.Detail["store"] = event.OpReplicated, "store-b"
	deleted := event.OpFact{Schema: event.SchemaOp, Kind: event.OpDeleted, Service: "capture", Instance: "i", Counter: 1, Detail: map[string]string{
		"batch": "b", "frame": "0001", "revision": "1", "digest": string(p.Digest), "operation": "fixity", "pass": "1", "actor": "9a41",
	}}
	invalid := event.CaseFact{Schema: event.SchemaCase, Slot: event.Slot{Batch: batchB}, Operation: event.BatchInvalid, Pass: 1, State: event.CaseOpened, Number: 1, Code: "batch-invalid", Agent: facttest.Capture}
	undecodable := event.CaseFact{Schema: event.SchemaCase, Operation: event.Decode("hasher"), State: event.CaseOpened, Number: 1, Origin: "INGEST-9", Code: "malformed", Agent: facttest.Quarantine}
	content := []string{
		"success event:capture:<one>", "success event:message-digest-calculation:<one>", "success event:fixity-check:<one>",
		"success event:format-identification:<one>", "success event:accession:<one>@b/0001",
	}
	made := []string{
		"success event:validation:jp2:<one>", "success event:migration:derivative:jp2:<one>",
		"success event:message-digest-calculation:<jp2 of one>", "success event:ingestion:<one>",
	}
	for _, c := range []struct {
		what  string
		facts []event.Fact
		want  []string
	}{
		{"batch declared", []event.Fact{facttest.Opened(batchB, 2)}, []string{"success event:ingestion-start:@b", "success event:policy-assignment:@b"}},
		{"batch converged", []event.Fact{facttest.Converged(batchB, 1, event.Totals{})}, []string{"success event:ingestion-end:@b"}},
		{"batch converged again", []event.Fact{facttest.Converged(batchB, 2, event.Totals{})}, []string{"success event:ingestion-end:@b#2"}},
		{"captured at once", []event.Fact{p.Captured(1, 1)}, nil},
		{"captured at the second try", []event.Fact{p.Captured(1, 2)}, []string{"success event:retry:capture:<one>@b/0001#1.2"}},
		{"fixed", []event.Fact{p.Fixed(1, 1)}, content},
		{"fixed in pass 2", []event.Fact{p.Fixed(2, 1)}, append([]string{"success event:retry:fixity:<one>@b/0001#2.1"}, content...)},
		{"fixed, no derivative wanted", []event.Fact{noProfiles.Fixed(1, 1)}, append(slices.Clone(content), "success event:ingestion:<one>")},
		{"fixed, nobody declared a digest", []event.Fact{undeclared}, slices.Concat(content[:2], content[3:])},
		{
			"fixed, declared otherwise",
			[]event.Fact{mismatched},
			slices.Concat(content[:2], []string{"fail event:fixity-check:<one>@b/0001#1"}, content[3:]),
		},
		{
			"fixed, format unknown",
			[]event.Fact{unknown},
			slices.Concat(content[:3], []string{"warning event:format-identification:<one>@b/0001#1"}, content[4:]),
		},
		{"equal page, format unknown", []event.Fact{unknown, unknownTwin}, []string{"success event:accession:<one>@b/0002"}},
		{"equal page fixed", []event.Fact{p.Fixed(1, 1), twin.Fixed(1, 1)}, []string{"success event:accession:<one>@b/0002"}},
		{"equal page, derivative a hit", []event.Fact{p.Fixed(1, 1), p.Derived(1, 1), twin.Fixed(1, 1), hit}, nil},
		{"derived", []event.Fact{p.Fixed(1, 1), p.Derived(1, 1)}, made},
		{
			"derived at the third try",
			[]event.Fact{p.Fixed(1, 1), p.Derived(1, 3)},
			append([]string{"success event:retry:derivative:jp2:<one>@b/0001#1.3"}, made...),
		},
		{
			"derived with a warning",
			[]event.Fact{p.Fixed(1, 1), warned},
			append([]string{"warning event:validation:jp2:<one>@b/0001#1"}, made[1:]...),
		},
		{"equal page, hit with the same warning", []event.Fact{p.Fixed(1, 1), warned, twin.Fixed(1, 1), warnedTwin}, nil},
		{"derived before it was fixed", []event.Fact{p.Derived(1, 1)}, made[:3]},
		{"fixed after it was derived", []event.Fact{p.Derived(1, 1), p.Fixed(1, 1)}, append(slices.Clone(content), "success event:ingestion:<one>")},
		{
			"revision",
			[]event.Fact{p.Fixed(1, 1), revised.Fixed(2, 1)},
			[]string{
				"success event:retry:fixity:<new>@b/0001#2.1", "success event:capture:<new>", "success event:message-digest-calculation:<new>",
				"success event:fixity-check:<new>", "success event:format-identification:<new>", "success event:accession:<new>@b/0001+r2",
				"success event:deaccession:<one>@b/0001+r2",
			},
		},
		{"attempt failed", []event.Fact{late}, []string{"fail event:retry:fixity:<one>@b/0001#1.1"}},
		{"attempt failed, nothing hashed", []event.Fact{nothing.Failed(event.Capture, facttest.Capture, 1, 1, "transient", "timeout", false)}, []string{"fail event:retry:capture:@b/0001#1.1"}},
		{"attempt lost", []event.Fact{lost}, []string{"fail event:retry:fixity:<one>@b/0001#1.1"}},
		{"outcome after its lost", []event.Fact{lost, late}, []string{"fail event:retry:fixity:<one>@b/0001#1.1+late"}},
		{"completion after its lost", []event.Fact{lost, p.Captured(1, 1), p.Fixed(1, 1)}, content},
		{"digest mismatch", []event.Fact{mismatch}, []string{"fail event:retry:capture:<one>@b/0001#1.1", "fail event:fixity-check:<one>@b/0001#1"}},
		{
			"image fault",
			[]event.Fact{p.Fixed(1, 1), p.Failed(jp2, facttest.Deriver, 1, 1, "permanent", "strip-truncated", true)},
			[]string{"fail event:retry:derivative:jp2:<one>@b/0001#1.1", "fail event:validation:jp2:<one>@b/0001#1"},
		},
		{
			"permanent, but not the image's",
			[]event.Fact{p.Fixed(1, 1), p.Failed(jp2, facttest.Deriver, 1, 1, "permanent", "master-damaged", true)},
			[]string{"fail event:retry:derivative:jp2:<one>@b/0001#1.1"},
		},
		{"case opened", []event.Fact{p.Case(jp2, 1, event.CaseOpened, 1)}, []string{"success event:quarantine:derivative:jp2:<one>@b/0001#1"}},
		{"case opened, nothing hashed", []event.Fact{nothing.Case(event.Capture, 1, event.CaseOpened, 1)}, []string{"success event:quarantine:capture:@b/0001#1"}},
		{"case replayed", []event.Fact{p.Case(jp2, 1, event.CaseReplayed, 2)}, []string{"success event:unquarantine:derivative:jp2:<one>@b/0001#1"}},
		{"rescan", []event.Fact{p.Case(event.Fixity, 1, event.CaseRescan, 2)}, []string{"success event:appraisal:fixity:<one>@b/0001#1+2"}},
		{
			"derivative waived",
			[]event.Fact{p.Fixed(1, 1), p.Case(jp2, 1, event.CaseOpened, 1), p.Case(jp2, 1, event.CaseDiscarded, 2)},
			[]string{"success event:appraisal:derivative:jp2:<one>@b/0001#1", "success event:ingestion:<one>"},
		},
		{"case resolved", []event.Fact{p.Case(jp2, 1, event.CaseResolved, 2)}, []string{"op:case:derivative:jp2:<one>@b/0001#1.resolved.2"}},
		{"case of a batch", []event.Fact{invalid}, []string{"success event:quarantine:batch-invalid:@b#1"}},
		{"case of no batch", []event.Fact{undecodable}, []string{"op:case:decode:hasher@INGEST-9.opened.1"}},
		{"halt", []event.Fact{event.OpFact{Schema: event.SchemaOp, Kind: "halted", Service: "hasher", Instance: "a b", Counter: 7}}, []string{"op:halted:hasher:a%20b#7"}},
		{"breaker", []event.Fact{event.OpFact{Schema: event.SchemaOp, Kind: event.OpBreakerOpened, Service: "capture", Instance: "i", Counter: 2, Detail: map[string]string{"dependency": "device/x"}}}, []string{"op:breaker-opened:capture:i#2"}},
		{"released", []event.Fact{event.OpFact{Schema: event.SchemaOp, Kind: event.OpReleased, Service: "hasher", Instance: "i", Counter: 3}}, []string{"op:released:hasher:i#3"}},
		{"a device's own attempt", []event.Fact{reported}, []string{"fail event:retry:capture:@b/0001#0.1"}},
		{"scheduled check", []event.Fact{p.Fixed(1, 1), facttest.Verified(p.Digest, p.Digest, "2027-annual")}, []string{"success event:fixity-check:<one>+2027-annual"}},
		{"scheduled check, other bytes", []event.Fact{p.Fixed(1, 1), facttest.Verified(p.Digest, facttest.Digest("two"), "2027-annual")}, []string{"fail event:fixity-check:<one>+2027-annual"}},
		{"scheduled check, file gone", []event.Fact{p.Fixed(1, 1), facttest.Verified(p.Digest, "", "a b")}, []string{"fail event:fixity-check:<one>+a%20b"}},
		{"the same run again", []event.Fact{p.Fixed(1, 1), facttest.Verified(p.Digest, p.Digest, "r"), facttest.Verified(p.Digest, p.Digest, "r")}, nil},
		{"scheduled check of no known file", []event.Fact{facttest.Verified(p.Digest, p.Digest, "r")}, []string{"success event:fixity-check:<one>+r"}},
		{"copy elsewhere", []event.Fact{p.Fixed(1, 1), replicated}, []string{"success event:replication:<one>+store-b"}},
		{"staged bytes removed", []event.Fact{deleted}, []string{"success event:deletion:<one>@b/0001+r1"}},
		{"removal of nothing named", []event.Fact{event.OpFact{Schema: event.SchemaOp, Kind: event.OpDeleted, Service: "capture", Instance: "i", Counter: 4}}, []string{"op:deleted:capture:i#4"}},
		{"profile pinned", []event.Fact{event.ProfilePinned{Schema: event.SchemaProfilePinned, Name: "jp2", Digest: facttest.Digest("one"), Recipe: json.RawMessage(`{}`)}}, []string{"op:profile:jp2:<one>"}},
	} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			if got := told(records(t, c.facts...)); !slices.Equal(got, c.want) {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(c.want, "\n"))
			}
		})
	}
}

func TestRetryTellsItsChain(t *testing.T) {
	t.Parallel()
	p, jp2 := page(), event.Derivative("jp2")
	r := records(t, facttest.Opened(batchB, 1), p.Fixed(1, 1), p.Failed(jp2, facttest.Deriver, 1, 1, "transient", "encoder-failed", false),
		p.Failed(jp2, facttest.Deriver, 1, 2, "transient", "encoder-failed", true), p.Derived(2, 1))[0]
	ns := record.NamespaceOf(facttest.Origin)
	d := facttest.Digest("one")
	a := r.Data.Attempt
	if want := ns.Event(record.Name(record.Retry, string(jp2), d) + "@b/0001#1.2"); a.Previous != want {
		t.Errorf("previous %s, want %s", a.Previous, want)
	}
	if want := ns.Event("event:policy-assignment:@b"); a.Policy != want {
		t.Errorf("policy %s, want %s", a.Policy, want)
	}
	if r.Detail != "Attempt 1 of 3 at migration (jp2), pass 2." || r.Note != "Succeeded after 0.658 s. Resolution: Success." {
		t.Errorf("%q, %q", r.Detail, r.Note)
	}
}

func TestRetryTexts(t *testing.T) {
	t.Parallel()
	p := page()
	last := p.Failed(event.Fixity, facttest.Hasher, 1, 3, "transient", "io-error", true)
	last.Message = "open /srv/secret/scans/0001.tif: \x1b[31mbad\x00 https://user:pw@host/x?token=1 " + strings.Repeat("é", 3000)
	for _, c := range []struct {
		f     event.AttemptFailed
		note  string
		state string
	}{
		{
			p.Failed(event.Fixity, facttest.Hasher, 1, 1, "transient", "io-error", false),
			"Failed after 0.658 s with io-error: read: input/output error at byte 52428800. Resolution: Pending Retry.", "Pending Retry",
		},
		{
			p.Failed(event.Fixity, facttest.Hasher, 1, 2, "lost", "worker-lost", false),
			"The worker ended without a word; found when the message was delivered again. Resolution: Pending Retry.", "Pending Retry",
		},
		{last, "", "Quarantined"},
	} {
		r := records(t, c.f)[0]
		if r.Data.Resolution.Status != c.state || c.note != "" && r.Note != c.note {
			t.Errorf("%s: %q", r.Data.Resolution.Status, r.Note)
		}
		if m := r.Data.Resolution.Message; len(m) > 2048 || strings.ContainsAny(m, "\x00\x1b") || strings.Contains(m, "/srv") || strings.Contains(m, "pw@") {
			t.Errorf("message %q", m)
		}
		if c.f.Class == "lost" && (!r.Data.Attempt.Ended.IsZero() || !r.Time.Equal(r.Recorded)) {
			t.Errorf("a lost attempt ended at %v, event at %v", r.Data.Attempt.Ended, r.Time)
		}
	}
}

func TestObjectsAndAgents(t *testing.T) {
	t.Parallel()
	p := page()
	rs := records(t, facttest.Opened(batchB, 1), p.Fixed(1, 2))
	retry, capture := rs[0], rs[1]
	want := []record.Object{{Kind: "frame", Role: "source"}, {Kind: "file", Digest: p.Digest, Role: "source"}}
	if !slices.Equal(retry.Objects, want) {
		t.Errorf("retry links %v", retry.Objects)
	}
	var ids []string
	for _, a := range capture.Agents {
		ids = append(ids, a.ID+" "+a.Role)
	}
	if got := strings.Join(ids, ", "); got != "device/scanner-03 implementer, operator/7f3a implementer, capture/1.4.2 executing program" {
		t.Errorf("agents %s", got)
	}
	if !capture.Time.Equal(facttest.Start.Add(-time.Hour)) {
		t.Errorf("captured at %v", capture.Time)
	}
	if src := capture.Data.Accession.Source; src != "file:0001" {
		t.Errorf("source %q", src)
	}
	released := records(t, p.Case(event.Fixity, 1, event.CaseReplayed, 2))[0]
	if released.Agents[0].ID != "operator/9a41" || released.Agents[0].Role != "authorizer" {
		t.Errorf("released by %v", released.Agents)
	}
}
