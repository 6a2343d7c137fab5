package export_test

import (
	"strings"
	"testing"

	"colophon/services/premis/internal/facttest"
)

func TestTables(t *testing.T) {
	t.Parallel()
	x := exporter(t, open(t, story().Entries))
	var f files
	for _, err := range []error{
		x.BatchTSV(t.Context(), storyBatch, f.sink), x.FramesTSV(t.Context(), storyBatch, f.sink),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, b := range f.data {
		lines := strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
		if lines[0] != "number\ttime\ttype\toutcome\tstatus\tframe\tdigest\tagent\tnote" {
			t.Errorf("%s: %q", name, lines[0])
		}
		for _, l := range lines[1:] {
			if n := strings.Count(l, "\t"); n != 8 {
				t.Errorf("%s: %d tabs in %q", name, n, l)
			}
		}
	}
	states := map[string]string{}
	for _, l := range strings.Split(f.data["frames.tsv"].String(), "\n")[1:] {
		if cells := strings.Split(l, "\t"); len(cells) > 5 {
			states[cells[5][strings.IndexByte(cells[5], '/')+1:]] = cells[4]
		}
	}
	for frame, want := range map[string]string{
		"0001%2Etif": "ingested", "0002%2Etif": "ingested", "0003%2Etif": "ingested", "0004%2Etif": "discarded",
		"0005%2Etif": "ingested", "0006%2Etif": "quarantined", "0008%2Etif": "accessioned",
	} {
		if states[frame] != want {
			t.Errorf("%s is %q, not %q", frame, states[frame], want)
		}
	}
	var m files
	if err := x.MasterTSV(t.Context(), facttest.Digest("one"), m.sink); err != nil || strings.Count(m.data["events.tsv"].String(), "\taccession\t") != 3 {
		t.Errorf("%v", err)
	}
}
