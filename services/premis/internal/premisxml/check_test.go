package premisxml_test

import (
	"bytes"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"colophon/shared/event"

	"colophon/services/premis/internal/premisxml"
	"colophon/services/premis/internal/record"
)

const origin = "archive.example.org/colophon"

var (
	space  = record.NamespaceOf(origin)
	master = event.Digest(strings.Repeat("ab", 32))
	slot   = record.Slot{Batch: "b", Frame: "f", Sequence: 7}
	start  = time.Date(2025, 11, 24, 8, 0, 0, 0, time.UTC)
)

func hasher(role string) record.Agent {
	return record.Agent{ID: "hasher/1", Name: "hasher", Type: record.Software, Version: "1", Role: role}
}

func accession() premisxml.Event {
	name := record.Name(record.Accession, "", master) + "@b/f"
	return premisxml.Event{Number: 3, Record: &record.Record{
		Name: name, Type: record.Accession.Label, Time: start, Recorded: start, Slot: &slot, Outcome: record.Success,
		Objects: []record.Object{{Kind: record.KindFrame, Role: record.Source}, {Kind: record.KindFile, Digest: master, Role: record.Source}},
		Agents:  []record.Agent{hasher(record.Implementer)}, Detail: "Frame f entered.",
	}}
}

func retry(pass, number int, status string) premisxml.Event {
	e := accession()
	r := *e.Record
	r.Name = record.Name(record.Retry, "fixity", master) + "@b/f" + record.Try(pass, number)
	r.Type, r.Outcome = record.Retry.Label, record.Fail
	r.Data.Attempt = &record.Attempt{Operation: event.Fixity, Type: record.MessageDigest.Label, URI: record.MessageDigest.URI(), Pass: pass, Number: number}
	r.Data.Resolution = &record.Resolution{Status: status}
	return premisxml.Event{Record: &r, Number: int64(10*pass + number)}
}

func write(t *testing.T, events ...premisxml.Event) string {
	t.Helper()
	var b bytes.Buffer
	err := premisxml.Write(&b, premisxml.Document{
		Origin: origin, Known: map[string]bool{},
		Files:   []*premisxml.File{{Digest: master, Size: 7, Keys: []string{"masters/x"}, Originator: "hasher/1"}},
		Frames:  []premisxml.Frame{{Slot: event.Slot{Batch: "b", Frame: "f"}, Sequence: 7, File: master}},
		Batches: []event.Name{"b"},
		Events: func(yield func(premisxml.Event, error) bool) {
			for _, e := range events {
				if !yield(e, nil) {
					return
				}
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestASoundDocument(t *testing.T) {
	t.Parallel()
	r, err := premisxml.Inspect(strings.NewReader(write(t, accession())))
	if err != nil || r.Objects != 3 || r.Events != 1 || r.Agents != 1 {
		t.Errorf("%+v %v", r, err)
	}
}

// Each fault is found, by the check that is there for it.
func TestEachCheckFinds(t *testing.T) {
	t.Parallel()
	sound := write(t, accession())
	id := space.Event(accession().Name)
	dirty := accession()
	dirty.Detail = "open /srv/scans/0001.tif failed"
	secret := accession()
	secret.Note = "fetched from https://bob:pw@store/x"
	for _, c := range []struct {
		check int
		text  string
	}{
		{1, strings.Replace(sound, `version="3.0"`, `version="2.2"`, 1)},
		{1, strings.Replace(sound, "</premis:premis>", `<premis:object xsi:type="premis:file"/></premis:premis>`, 1)},
		{2, strings.Replace(sound, "linkingObjectIdentifierValue>"+space.File(master), "linkingObjectIdentifierValue>"+space.File("none"), 1)},
		{2, strings.Replace(sound, "linkingAgentIdentifierValue>hasher/1", "linkingAgentIdentifierValue>hasher/2", 1)},
		{2, strings.Replace(sound, "relatedObjectIdentifierValue>"+space.Batch("b"), "relatedObjectIdentifierValue>"+space.Batch("c"), 1)},
		{3, strings.Replace(sound, "eventIdentifierValue>"+id, "eventIdentifierValue>"+space.Event("other"), 1)},
		{3, write(t, accession(), accession())},
		{4, strings.Replace(sound, "eventDateTime>2025-11-24T08:00:00.000Z", "eventDateTime>yesterday", 1)},
		{4, strings.Replace(sound, "eventDateTime>2025-11-24T08:00:00.000Z", "eventDateTime>2025-11-24T08:00:00.000+01:00", 1)},
		{4, strings.Replace(sound, `recordedAt="2025-11-24T08:00:00.000Z"`, `recordedAt="2025-13-24T08:00:00.000Z"`, 1)},
		{5, strings.Replace(sound, "/eventType/acc", "/eventType/accession", 1)},
		{5, strings.Replace(sound, ">implementer<", ">doer<", 1)},
		{6, strings.Replace(sound, ">Frame f entered.<", "><", 1)},
		{7, regexp.MustCompile(`(?s)<premis:linkingAgentIdentifier>.*</premis:linkingAgentIdentifier>`).ReplaceAllString(sound, "")},
		{8, write(t, accession(), unqualified(1), unqualified(2))},
		{9, write(t, retry(1, 1, record.StatusPending), retry(1, 3, record.StatusQuarantined))},
		{9, write(t, retry(1, 1, record.StatusQuarantined), retry(1, 2, record.StatusPending))},
		{9, write(t, retry(1, 1, record.StatusPending), retry(2, 1, record.StatusSuccess))},
		{10, write(t, dirty)},
		{10, write(t, secret)},
	} {
		err := premisxml.Check(strings.NewReader(c.text))
		if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("check %d:", c.check)) {
			t.Errorf("check %d: got %v", c.check, err)
		}
	}
}

func unqualified(n int64) premisxml.Event {
	e := accession()
	r := *e.Record
	r.Name, r.Type = record.Name(record.Capture, "", master), record.Capture.Label
	return premisxml.Event{Record: &r, Number: n}
}

func TestAnOpenChainIsToldAndNoFault(t *testing.T) {
	t.Parallel()
	r, err := premisxml.Inspect(strings.NewReader(write(t, retry(1, 1, record.StatusPending))))
	if err != nil || len(r.Open) != 1 || r.Open[0] != "fixity@b/f" {
		t.Errorf("%v %v", r.Open, err)
	}
	r, err = premisxml.Inspect(strings.NewReader(write(t, retry(1, 1, record.StatusPending), accession())))
	if err != nil || len(r.Open) != 0 {
		t.Errorf("with its completion: %v %v", r.Open, err)
	}
}

func TestNotADocument(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "<a/>", write(t, accession())[:2000]} {
		if err := premisxml.Check(strings.NewReader(text)); err == nil {
			t.Errorf("%.20q passed", text)
		}
	}
}

// Our terms are those of the published lists, where these lie beside the
// project.
func TestTermsAreInThePublishedLists(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("../../../../../shared/premis/vocabularies.tsv")
	if err != nil {
		t.Logf("NOT COMPARED with the published lists: %v", err)
		return
	}
	published := map[string]bool{}
	for _, line := range strings.Split(string(data), "\n") {
		if cells := strings.Split(line, "\t"); len(cells) > 4 {
			published[strings.Join(cells[:4], "\t")] = true
		}
	}
	for _, term := range premisxml.Terms() {
		if term.Code == "" {
			continue
		}
		uri := record.LoC + term.List + "/" + term.Code
		if !published[strings.Join([]string{term.List, term.Code, term.Label, uri}, "\t")] {
			t.Errorf("%+v is not published", term)
		}
	}
}

func TestReadable(t *testing.T) {
	t.Parallel()
	for in, want := range map[event.Name]string{
		"plain.tif": "plain.tif", "a\tb\nc": "a\tb\nc", "a\x00b": "a%00b", "caf\xe9": "caf%E9", "عربي 📚": "عربي 📚", "\ufffe": "%EF%BF%BE",
	} {
		if got := premisxml.Readable(in); got != want {
			t.Errorf("%q: %q", in, got)
		}
	}
}
