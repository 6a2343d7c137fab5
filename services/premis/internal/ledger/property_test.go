package ledger_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/transparency-dev/merkle/compact"
	"github.com/transparency-dev/merkle/rfc6962"
	"golang.org/x/mod/sumdb/tlog"
	"pgregory.net/rapid"

	"colophon/shared/event"

	"colophon/services/premis/internal/facttest"
	"colophon/services/premis/internal/ledger"
	"colophon/services/premis/internal/record"
)

// drawFact draws one fact about a few slots and contents, so that they meet.
func drawFact(t *rapid.T) event.Fact {
	batch := rapid.SampledFrom([]event.Name{"a", "b"}).Draw(t, "batch")
	n := rapid.IntRange(1, 3).Draw(t, "frame")
	p := facttest.Page(batch, event.Name(fmt.Sprint(n)), n, rapid.SampledFrom([]string{"one", "two", "new"}).Draw(t, "bytes"))
	p.Profiles = rapid.SampledFrom([][]string{nil, {"jp2"}, {"jp2", "tiny"}}).Draw(t, "profiles")
	p.Revision = rapid.IntRange(1, 3).Draw(t, "revision")
	pass, attempt := rapid.IntRange(1, 2).Draw(t, "pass"), rapid.IntRange(0, 3).Draw(t, "attempt")
	op := rapid.SampledFrom([]event.Operation{event.Capture, event.Fixity, event.Derivative("jp2")}).Draw(t, "operation")
	switch rapid.IntRange(0, 8).Draw(t, "kind") {
	case 7:
		value := rapid.SampledFrom([]event.Digest{p.Digest, facttest.Digest("two"), ""}).Draw(t, "value")
		return facttest.Verified(p.Digest, value, rapid.SampledFrom([]string{"2026", "2027"}).Draw(t, "run"))
	case 8:
		note := fmt.Sprintf("o\n%d\nAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n\n", n)
		return event.OpFact{Schema: event.SchemaOp, Kind: event.OpCheckpoint, Service: "premis", Instance: "k", Counter: uint64(n), Detail: map[string]string{
			"note": base64.RawURLEncoding.EncodeToString([]byte(note)), "key": "a2V5",
		}}
	case 0:
		return facttest.Opened(batch, 3, p.Profiles...)
	case 1:
		return p.Captured(pass, attempt)
	case 2:
		f := p.Fixed(pass, attempt)
		if rapid.Bool().Draw(t, "unknown") {
			f.Fixed.Format = event.Format{}
		}
		return f
	case 3:
		f := p.Derived(pass, attempt)
		f.Derived.Profile = rapid.SampledFrom([]string{"jp2", "tiny"}).Draw(t, "profile")
		if rapid.IntRange(0, 9).Draw(t, "odd") == 0 {
			f.Derived.Outputs[0].Size++
		}
		return f
	case 4:
		class := rapid.SampledFrom([]string{"transient", "lost", "permanent"}).Draw(t, "class")
		code := rapid.SampledFrom([]string{"io-error", "digest-mismatch", "strip-truncated"}).Draw(t, "code")
		return p.Failed(op, facttest.Deriver, pass, max(attempt, 1), class, code, rapid.Bool().Draw(t, "dead"))
	case 5:
		state := rapid.SampledFrom([]string{event.CaseOpened, event.CaseReplayed, event.CaseDiscarded, event.CaseRescan, event.CaseResolved}).Draw(t, "state")
		return p.Case(op, pass, state, attempt+1)
	}
	return facttest.Converged(batch, pass, event.Totals{Declared: 3})
}

// TestLedgerIsAFunctionOfTheLog: whatever facts come, in whatever batches,
// names are unique, the tree is the tree of the records, and a ledger that
// reads the same log in other pieces, with a restart, has the same root.
func TestLedgerIsAFunctionOfTheLog(t *testing.T) {
	t.Parallel()
	rapid.Check(t, functionOfTheLog)
}

func functionOfTheLog(t *rapid.T) {
	var log facttest.Log
	log.Add(rapid.SliceOfN(rapid.Custom(drawFact), 1, 25).Draw(t, "facts")...)
	one := openR(t, vfs.NewMem())
	defer one.Close()
	if _, err := one.Append(t.Context(), log.Entries); err != nil {
		t.Fatal(err)
	}
	checkModel(t, one)
	fs := vfs.NewMem()
	two := openR(t, fs)
	for e := log.Entries; len(e) > 0; {
		n := rapid.IntRange(1, len(e)).Draw(t, "piece")
		if _, err := two.Append(t.Context(), e[:n]); err != nil {
			t.Fatal(err)
		}
		if e = e[n:]; rapid.IntRange(0, 3).Draw(t, "restart") == 0 {
			two.Close()
			two = openR(t, fs)
		}
	}
	defer func() { two.Close() }()
	if one.Root() != two.Root() || one.Size() != two.Size() {
		t.Fatalf("%d and %d records, roots %v and %v", one.Size(), two.Size(), one.Root(), two.Root())
	}
	if err := two.Rewind(ledger.Position{}); err != nil {
		t.Fatal(err)
	}
	done, err := two.Append(t.Context(), log.Entries)
	if err != nil || two.Size() != one.Size() {
		t.Fatalf("read again: %+v %v, %d records, not %d", done, err, two.Size(), one.Size())
	}
}

func openR(t *rapid.T, fs vfs.FS) *ledger.Ledger {
	l, err := ledger.Open("ledger", ledger.Options{Origin: facttest.Origin, FS: fs})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// checkModel compares a ledger with a slice of records, a set of names and a
// tree made by somebody else's software.
func checkModel(t *rapid.T, l *ledger.Ledger) {
	names := map[string]bool{}
	outside := (&compact.RangeFactory{Hash: rfc6962.DefaultHasher.HashChildren}).NewEmptyRange(0)
	for n := range l.Size() {
		r, err := l.Get(n)
		if err != nil {
			t.Fatal(err)
		}
		if names[r.Name] {
			t.Fatalf("%s stands twice", r.Name)
		}
		names[r.Name] = true
		if found, ok, err := l.Number(r.Name); err != nil || !ok || found != n {
			t.Fatalf("%s is number %d, found %d %v %v", r.Name, n, found, ok, err)
		}
		checkRecord(t, r.Record)
		if r.Type == record.Ingestion.Label && !names[record.Name(record.MessageDigest, "", r.Digest)] {
			t.Fatalf("%s is ingested and was never hashed", r.Digest)
		}
		if err := outside.Append(rfc6962.DefaultHasher.HashLeaf(r.Bytes), nil); err != nil {
			t.Fatal(err)
		}
	}
	if l.Size() == 0 {
		return
	}
	root, err := outside.GetRootHash(nil)
	if err != nil || tlog.Hash(root) != l.Root() {
		t.Fatalf("root %v, transparency-dev/merkle says %x (%v)", l.Root(), root, err)
	}
}

func checkRecord(t *rapid.T, r *record.Record) {
	data, err := json.Marshal(r)
	if err != nil || len(data) > record.MaxBytes {
		t.Fatalf("%s: %d bytes, %v", r.Name, len(data), err)
	}
	if r.Type == record.Operational {
		return
	}
	if len(r.Objects) == 0 || len(r.Agents) == 0 {
		t.Fatalf("%s has %d objects and %d agents", r.Name, len(r.Objects), len(r.Agents))
	}
	if r.Outcome != record.Success && !record.Qualified(r.Name) {
		t.Fatalf("%s: %s without a qualifier", r.Name, r.Outcome)
	}
	if !strings.HasPrefix(r.Name, "event:") || !slices.ContainsFunc(record.Types(), func(t record.Type) bool { return t.Label == r.Type && t.URI() == r.URI }) {
		t.Fatalf("%s: type %q %s", r.Name, r.Type, r.URI)
	}
}
