package verify

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestLedger: whatever is changed in the ledger is found, and the record
// named, also where the tree was made anew to cover it up.
func TestLedger(t *testing.T) {
	t.Parallel()
	const size = "event:message-digest-calculation:"
	swap := func(s string, was, now string) []byte { return []byte(strings.Replace(s, was, now, 1)) }
	var digest string // of the first page
	name := func(b *book, prefix string) int64 {
		for n, data := range b.records {
			if bytes.Contains(data, []byte(`"name":"`+prefix)) {
				return int64(n)
			}
		}
		panic("no record " + prefix)
	}
	digest = string(newPage("", "", 1, "first page").digest())
	base := built(t)
	for title, c := range map[string]struct {
		spoil  func(*world, *book)
		object string
		kinds  []string
	}{
		"a changed record": {func(_ *world, b *book) { b.records[7] = swap(string(b.records[7]), "happened", "h4ppened") }, "record 7 ", []string{"record-changed"}},
		"the last record": {func(_ *world, b *book) {
			n := len(b.records) - 1
			b.records[n] = swap(string(b.records[n]), "happened", "h4ppened")
		}, "record 38 ", []string{"record-changed"}},
		"a broken record": {
			func(_ *world, b *book) { b.records[7] = b.records[7][1:] }, "record 7", []string{"record-unreadable", "record-changed", "index-extra", "name-missing"},
		},
		"a leaf":          {func(_ *world, b *book) { b.nodes[0][3] ^= 1 }, "node 0 of level 0", []string{"tree-node"}},
		"an inner node":   {func(_ *world, b *book) { b.nodes[2][0] ^= 1 }, "node 0 of level 1", []string{"tree-node"}},
		"a missing node":  {func(_ *world, b *book) { b.nodes = b.nodes[:len(b.nodes)-1] }, "of level", []string{"tree-missing"}},
		"a surplus node":  {func(_ *world, b *book) { b.nodes = append(b.nodes, b.nodes[0]) }, "node ", []string{"tree-extra"}},
		"another root":    {func(_ *world, b *book) { b.head.Root[0] ^= 1 }, "root", []string{"tree-root"}},
		"a record gone":   {func(_ *world, b *book) { b.records[7] = nil }, "record 7", []string{"record-missing", "index-extra", "name-missing"}},
		"the end is gone": {func(_ *world, b *book) { b.records[38] = nil }, "record 38", []string{"record-missing", "index-extra", "name-missing"}},
		"a name gone":     {func(_ *world, b *book) { delete(b.names, size+digest) }, size + digest, []string{"index-missing", "premis-unknown-event"}},
		"a wrong number":  {func(_ *world, b *book) { b.names[size+digest]++ }, size + digest, []string{"index-wrong", "premis-unknown-event"}},
		"a surplus name":  {func(_ *world, b *book) { b.names["event:ingestion:x"] = 3 }, "event:ingestion:x", []string{"index-extra"}},
		"other records": {func(w *world, b *book) { // history rewritten, the tree made anew
			n := name(b, size+digest)
			b.records[n] = swap(string(b.records[n]), `"size":10`, `"size":11`)
			b.grow(w)
		}, size + digest, []string{"record-material"}},
		"another outcome": {func(w *world, b *book) {
			n := name(b, "event:accession:")
			b.records[n] = swap(string(b.records[n]), `"outcome":"success"`, `"outcome":"warning"`)
			b.grow(w)
		}, "event:accession:", []string{"record-material"}},
		"another time": {func(w *world, b *book) {
			b.records[7] = swap(string(b.records[7]), `"recorded":"2`, `"recorded":"1`)
			b.grow(w)
		}, "record 7 ", []string{"record-source"}},
		"another order": {func(w *world, b *book) {
			a, z := name(b, "event:ingestion-start:"), int64(len(b.records)-1)
			b.records[a], b.records[z] = b.records[z], b.records[a]
			for n, v := range maps.Clone(b.names) {
				switch v {
				case a:
					b.names[n] = z
				case z:
					b.names[n] = a
				}
			}
			b.grow(w)
		}, "record ", []string{"record-order", "premis-unknown-event"}},
		"an event too many": {func(w *world, b *book) {
			b.records = append(b.records, swap(string(b.records[name(b, "event:accession:")]), "event:accession:"+digest+"@", "event:accession:"+digest+"@another"))
			b.names["event:accession:"+digest+"@another"+newPage("vol 1", "a/0001.tif", 1, "").slot.String()] = int64(len(b.records) - 1)
			b.grow(w)
		}, "@another", []string{"name-extra", "record-order"}},
		"an event twice": {func(w *world, b *book) {
			b.records = append(b.records, b.records[len(b.records)-1])
			b.grow(w)
		}, "record 39 event:ingestion-end:", []string{"name-twice"}},
		"an event hidden": {func(w *world, b *book) {
			n := len(b.records) - 1
			b.records = b.records[:n]
			maps.DeleteFunc(b.names, func(_ string, v int64) bool { return v == int64(n) })
			b.grow(w)
		}, "event:ingestion-end:", []string{"name-missing", "premis-unknown-event"}},
		"a wrong reference": {func(w *world, b *book) {
			n := name(b, "event:retry:")
			b.records[n] = swap(string(b.records[n]), `"policy":"`, `"policy":"0`)
			b.grow(w)
		}, "event:retry:", []string{"record-wrong"}},
		"a wrong predecessor": {func(w *world, b *book) {
			n := name(b, "event:retry:fixity:"+string(newPage("", "", 1, "third page").digest())+"@vol%201/a%2F0003%2Etif#1.2")
			b.records[n] = swap(string(b.records[n]), `"previous":"`, `"previous":"0`)
			b.grow(w)
		}, "#1.2", []string{"chain-previous"}},
		"a wrong type": {func(w *world, b *book) {
			n := name(b, "event:capture:")
			b.records[n] = swap(string(b.records[n]), `"type":"capture"`, `"type":"creation"`)
			b.grow(w)
		}, "event:capture:", []string{"record-wrong"}},
		"ahead of the log":     {func(_ *world, b *book) { b.head.Position.Sequence++ }, "INGEST 22 ", []string{"ledger-position"}},
		"at another message":   {func(_ *world, b *book) { b.head.Position.MsgID = "x" }, "INGEST 21 x", []string{"ledger-position"}},
		"of a rolled-back log": {func(_ *world, b *book) { b.head.Position.Stored = start }, "INGEST 21 ", []string{"ledger-position"}},
		"of another origin":    {func(_ *world, b *book) { b.head.Origin = "elsewhere" }, "ledger", []string{"ledger-origin", "record-wrong", "chain-previous", "premis-identifier"}},
	} {
		t.Run(title, func(t *testing.T) {
			t.Parallel()
			w := base.copy(t)
			b := w.book()
			c.spoil(w, b)
			w.write(b)
			r := w.run()
			expectKinds(t, r, c.object, c.kinds...)
			if strings.HasPrefix(c.kinds[0], "record-c") && (r.FirstBad == nil || !strings.Contains(c.object, recordObject(r.FirstBad.Number, ""))) {
				t.Errorf("first bad record: %+v", r.FirstBad)
			}
		})
	}
}

// TestLedgerStore: what damages the store below the ledger is found as well.
func TestLedgerStore(t *testing.T) {
	t.Parallel()
	base := built(t)
	base.write(base.book())
	for title, spoil := range map[string]func(*world){
		"no ledger": func(w *world) { w.ok(os.RemoveAll(w.path("ledger"))) },
		"an empty folder": func(w *world) {
			w.ok(os.RemoveAll(w.path("ledger")))
			w.ok(os.Mkdir(w.path("ledger"), 0o755))
		},
		"a bit of a table": func(w *world) {
			tables, err := filepath.Glob(w.path("ledger/*.sst"))
			w.ok(err)
			slices.Sort(tables)
			w.flip("ledger/"+filepath.Base(tables[0]), 200)
		},
		"the start of a table": func(w *world) {
			tables, err := filepath.Glob(w.path("ledger/*.sst"))
			w.ok(err)
			w.flip("ledger/"+filepath.Base(tables[0]), -1)
		},
	} {
		t.Run(title, func(t *testing.T) {
			t.Parallel()
			w := base.copy(t)
			spoil(w)
			r := w.run()
			if !r.Damaged() || r.Counts["ledger-missing"]+r.Counts["ledger-unreadable"]+r.Counts["ledger-head"] == 0 {
				t.Errorf("%+v", r)
			}
		})
	}
}
