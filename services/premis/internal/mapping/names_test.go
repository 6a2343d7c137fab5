package mapping_test

import (
	"testing"

	"colophon/shared/event"

	"colophon/services/premis/internal/record"
)

// The examples of MAPPING section 2 and of its complete sample: identifiers
// never change.
func TestIdentifiersAreGolden(t *testing.T) {
	t.Parallel()
	ns := record.NamespaceOf("archive.example.org/colophon")
	const (
		d1 = "d65e7d407c6bbb8c6898c19c96cb6cf80d7233db734ac8e575e30feeb3d7a006"
		d2 = "dde8f306f89d034e6dfdf5f2d609c829e876dad32fd09a25920c2fc99dae8e8d"
	)
	s := event.Slot{Batch: "vol-0142", Frame: "0007"}
	b := event.Slot{Batch: "vol-0142"}
	jp2 := "derivative:jp2"
	for _, c := range []struct{ got, want string }{
		{ns.String(), "05830102-8341-5da6-9801-0932bba35391"},
		{ns.Batch("vol-0142"), "cd78e1d2-2e43-5add-94ef-a5870bd01144"},
		{ns.Frame(s), "9c0f4262-331f-5c58-b778-e3c6ff270ab6"},
		{ns.File(d1), "1570ce7a-f865-512d-9e1d-c68d8a141baf"},
		{ns.File(d2), "843d8e35-b57d-5980-a513-754be0ab7587"},
		{ns.Event("event:ingestion-start:@vol-0142"), "3c50f09e-7f94-57a2-8ddc-127383a41fcd"},
		{ns.Event(record.Name(record.IngestionStart, "", "") + record.At(b)), "3c50f09e-7f94-57a2-8ddc-127383a41fcd"},
		{ns.Event(record.Name(record.PolicyAssignment, "", "") + record.At(b)), "d215f065-bd33-5071-b59c-0b78f0a8f649"},
		{ns.Event(record.Name(record.Retry, "fixity", d1) + record.At(s) + record.Try(1, 1)), "52afcbaf-0dad-5a65-8e0d-863831006210"},
		{ns.Event(record.Name(record.Retry, jp2, d1) + record.At(s) + record.Try(2, 1)), "d813df10-e3e0-51b7-80a1-f6ab252cab4b"},
		{ns.Event(record.Name(record.Capture, "", d1)), "6d99d6d0-d776-5a4b-ad3f-ee8ce3eabae0"},
		{ns.Event(record.Name(record.MessageDigest, "", d1)), "513069a2-6396-53a7-bc68-a2568a0d9a28"},
		{ns.Event(record.Name(record.FixityCheck, "", d1)), "2eeb2836-0917-562c-8fd4-e957fe50c401"},
		{ns.Event(record.Name(record.FormatIdentification, "", d1)), "9a880bd1-3279-55e6-ae96-2a0a3900372a"},
		{ns.Event(record.Name(record.Accession, "", d1) + record.At(s)), "86231bb0-fbd5-5577-8049-573e2b118e1e"},
		{ns.Event(record.Name(record.Quarantine, jp2, d1) + record.At(s) + record.Pass(1)), "b7252779-02ca-5f8b-bd3a-9ce698f121d9"},
		{ns.Event(record.Name(record.Unquarantine, jp2, d1) + record.At(s) + record.Pass(1)), "2ee6bb19-9d39-568d-948e-5f5ae37a0eb1"},
		{ns.Event(record.Name(record.Migration, jp2, d1)), "f312756f-cbe0-5057-848a-e102248899dc"},
		{ns.Event(record.Name(record.MessageDigest, "", d2)), "2dee3a12-fd15-52c9-8f9d-d2d7b3b96f8d"},
		{ns.Event(record.Name(record.Ingestion, "", d1)), "c2a8169e-7fb7-5d78-8a33-9c9030426095"},
		{ns.Event(record.Name(record.IngestionEnd, "", "") + record.At(b)), "3bab567a-d39b-511b-8925-dda2f90f6b73"},
	} {
		if c.got != c.want {
			t.Errorf("got %s, want %s", c.got, c.want)
		}
	}
}

func TestNamesOfOddIds(t *testing.T) {
	t.Parallel()
	got := record.Name(record.Accession, "", "d") + record.At(event.Slot{Batch: "Vol. 142 (Smith)", Frame: "a/caf\xe9\n.tif"}) + record.Run("r2")
	if want := "event:accession:d@Vol%2E%20142%20%28Smith%29/a%2Fcaf%E9%0A%2Etif+r2"; got != want {
		t.Errorf("got %s", got)
	}
}
