package record_test

import (
	"fmt"
	"strings"
	"testing"

	"colophon/shared/event"

	"colophon/services/premis/internal/record"
)

func digest(n int) event.Digest { return event.Digest(fmt.Sprintf("%064x", n)) }

// A record is at most 65,535 bytes, whatever it is asked to hold, and keeps
// its name, outcome and first objects.
func TestLongRecordsAreCut(t *testing.T) {
	t.Parallel()
	long := &record.Record{Name: "event:migration:derivative:jp2:" + string(digest(1)), Type: record.Migration.Label, Outcome: record.Success}
	long.Data.Derivation = &record.Derivation{Profile: "jp2", Pages: 2000, Set: digest(9)}
	for i := range 2000 {
		long.Objects = append(long.Objects, record.Object{Kind: record.KindFile, Digest: digest(i), Role: record.Outcome})
		long.Data.Derivation.Outputs = append(long.Data.Derivation.Outputs, record.Output{Page: i + 1, Digest: digest(i), Size: 1, Key: strings.Repeat("k", 80)})
		long.Data.Findings = append(long.Data.Findings, event.Finding{Code: "x", Message: strings.Repeat("m", 200)})
	}
	policy := &record.Record{Name: "event:policy-assignment:@b", Data: record.Data{Policy: &record.Policy{Document: strings.Repeat(`{"a":1}`, 20_000), SHA256: digest(3)}}}
	odd := &record.Record{Name: "event:x:@" + strings.Repeat("%01", 4096+255), MsgID: strings.Repeat("%01", 4096+255), Slot: &record.Slot{Batch: strings.Repeat("%01", 255), Frame: strings.Repeat("%01", 4096)}}
	for _, r := range []*record.Record{long, policy, odd} {
		before := r.Material()
		data, err := r.Encode()
		if err != nil || len(data) > record.MaxBytes {
			t.Fatalf("%.40s: %d bytes, %v", r.Name, len(data), err)
		}
		back, err := record.Decode(data)
		if err != nil {
			t.Fatal(err)
		}
		if back.Name != r.Name || back.Truncated != r.Truncated || back.Material().Digest != before.Digest {
			t.Errorf("%.40s: truncated %v, %+v", r.Name, back.Truncated, back.Material())
		}
		again, err := back.Encode()
		if err != nil || string(again) != string(data) {
			t.Errorf("%.40s: the stored form changes when it is written again", r.Name)
		}
	}
	if !long.Truncated || !policy.Truncated || odd.Truncated {
		t.Errorf("truncated: %v %v %v", long.Truncated, policy.Truncated, odd.Truncated)
	}
}

func TestShortRecordsStayAsTheyAre(t *testing.T) {
	t.Parallel()
	r := &record.Record{Name: "n", Detail: `<"&'> ` + "\u2028"}
	data, err := r.Encode()
	if err != nil || r.Truncated || strings.Contains(string(data), "u003c") {
		t.Errorf("%s %v", data, err)
	}
}
