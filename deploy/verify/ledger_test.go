package verify

import (
	"encoding/binary"
	"encoding/json"
	"path/filepath"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"golang.org/x/mod/sumdb/tlog"

	"colophon/shared/event"
)

// event is a record of a PREMIS event, of the fact that is published with it.
func (w *world) event(name, code string, s event.Slot, d event.Digest, data map[string]any) map[string]any {
	typ := strings.ReplaceAll(strings.SplitN(strings.TrimPrefix(name, "event:"), ":", 2)[0], "-", " ")
	uri := vocabularies + "eventType/" + code
	if code == "" {
		uri = "urn:uuid:348b9874-cd2f-4d04-9855-863c98d529b1#" + typ
	}
	object := map[string]any{"kind": "batch", "role": "source"}
	slot := map[string]any{"batch": s.Batch.Encode()}
	if s.Frame != "" {
		slot["frame"] = s.Frame.Encode()
		object["kind"] = "frame"
	}
	r := map[string]any{
		"name": name, "type": typ, "uri": uri, "time": start, "slot": slot, "objects": []any{object}, "outcome": "success", "detail": "It happened.",
		"agents": []any{map[string]any{"id": "worker/1.0.0", "name": "worker", "type": "software", "role": "implementer"}}, "data": data,
	}
	if d != "" {
		r["digest"] = d
		r["objects"] = []any{object, map[string]any{"kind": "file", "digest": d, "role": "source"}}
	}
	return r
}

// op is a record that is no event about an object.
func (w *world) op(name string, data map[string]any) map[string]any {
	return map[string]any{"name": name, "type": "op", "time": start, "detail": "It happened.", "data": data}
}

// book is a ledger as it is written: what a test may spoil on its way.
type book struct {
	records [][]byte
	names   map[string]int64
	nodes   []tlog.Hash
	head    head
}

func (w *world) book() *book {
	b := &book{names: map[string]int64{}}
	for i, r := range w.records {
		data, err := json.Marshal(r)
		w.ok(err)
		b.records = append(b.records, data)
		b.names[r["name"].(string)] = int64(i)
	}
	b.head.Format, b.head.Origin = ledgerFormat, origin
	b.head.Position.Sequence, b.head.Position.Stored, b.head.Position.MsgID = w.last.seq, w.last.stored, w.last.id
	b.grow(w)
	return b
}

// grow makes the tree of the records as they are.
func (b *book) grow(w *world) {
	b.nodes = nil
	read := tlog.HashReaderFunc(func(at []int64) ([]tlog.Hash, error) {
		out := make([]tlog.Hash, len(at))
		for i, n := range at {
			out[i] = b.nodes[n]
		}
		return out, nil
	})
	for n, data := range b.records {
		h, err := tlog.StoredHashes(int64(n), data, read)
		w.ok(err)
		b.nodes = append(b.nodes, h...)
	}
	b.head.Size = int64(len(b.records))
	root, err := tlog.TreeHash(b.head.Size, read)
	w.ok(err)
	b.head.Root = root
}

// write writes the ledger, after MAPPING section 6.
func (w *world) write(b *book) {
	db, err := pebble.Open(filepath.Join(w.dir, "ledger"), &pebble.Options{Logger: quiet{}})
	w.ok(err)
	set := func(key string, value []byte) { w.ok(db.Set([]byte(key), value, pebble.NoSync)) }
	for n, data := range b.records {
		if data != nil {
			set("e"+number(int64(n)), data)
		}
	}
	for name, n := range b.names {
		set("k"+name, binary.BigEndian.AppendUint64(nil, uint64(n)))
	}
	for n, h := range b.nodes {
		set("h"+number(int64(n)), h[:])
	}
	data, err := json.Marshal(b.head)
	w.ok(err)
	set("m", data)
	w.ok(db.Flush())
	w.ok(db.Close())
}

// find gives the number of the record with a name.
func (b *book) find(name string) int64 { return b.names[name] }
