package export

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"

	"colophon/shared/event"

	"colophon/services/premis/internal/facttest"
	"colophon/services/premis/internal/ledger"
	"colophon/services/premis/internal/premisxml"
)

type discard struct{ *bytes.Buffer }

func (discard) Close() error { return nil }

func TestBatchIsCutBetweenFrames(t *testing.T) {
	t.Parallel()
	l, err := ledger.Open(t.TempDir(), ledger.Options{Origin: facttest.Origin})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var log facttest.Log
	const frames = 40
	log.Add(facttest.Opened("b", frames, "jp2"))
	for i := range frames {
		p := facttest.Page("b", event.Name(fmt.Sprintf("%04d.tif", i)), i+1, fmt.Sprint(i%30)) // ten pages twice
		log.Add(p.Failed(event.Fixity, facttest.Hasher, 1, 1, "transient", "io-error", false), p.Fixed(1, 2), p.Derived(1, 1))
	}
	log.Add(facttest.Converged("b", 1, event.Totals{Declared: frames, Done: frames}))
	if _, err := l.Append(t.Context(), log.Entries); err != nil {
		t.Fatal(err)
	}
	s, err := l.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	x := New(s.View)
	x.most = 60
	var docs []*bytes.Buffer
	err = x.Batch(t.Context(), "b", func(name string) (io.WriteCloser, error) {
		docs = append(docs, &bytes.Buffer{})
		if want := fmt.Sprintf("premis-%04d.xml", len(docs)); name != want {
			t.Errorf("%s, not %s", name, want)
		}
		return discard{docs[len(docs)-1]}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(docs) < 6 {
		t.Fatalf("%d documents", len(docs))
	}
	accessions := 0
	for i, d := range docs {
		r, err := premisxml.Inspect(bytes.NewReader(d.Bytes()))
		if err != nil {
			t.Errorf("document %d: %v", i+1, err)
		}
		if r.Events > 60 {
			t.Errorf("document %d has %d events", i+1, r.Events)
		}
		accessions += strings.Count(d.String(), ">event:accession:")
		if got := strings.Contains(d.String(), ">event:ingestion-end:"); got != (i == 0) {
			t.Errorf("document %d holds the batch's end: %v", i+1, got)
		}
	}
	if accessions != frames {
		t.Errorf("%d accessions", accessions)
	}
}

// TestDate: only a day that exists becomes one: scanners write 0000:00:00.
func TestDate(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"2025:11:24 08:02:15": "2025-11-24", "2025:11:24": "2025-11-24", "0000:00:00 00:00:00": "", "2025:13:24": "", "2025:02:30 00:00:00": "",
		"    :  :     :  :  ": "", "2025": "", "0000:01:01 00:00:00": "",
	} {
		if got := date(text); got != want {
			t.Errorf("%q: %q, not %q", text, got, want)
		}
	}
}
