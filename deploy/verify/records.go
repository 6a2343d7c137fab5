package verify

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"golang.org/x/mod/sumdb/tlog"
)

// judgeRecords reads every record and every node of the tree once.
func (j *judge) judgeRecords(ctx context.Context) error {
	it, err := j.ledger.db.NewIter(&pebble.IterOptions{LowerBound: keyRecord, UpperBound: after(keyRecord)})
	if err != nil {
		j.out.damage("ledger-unreadable", "records", "%v", err)
		return nil
	}
	defer it.Close() //nolint:errcheck // only read from
	t, err := newTree(j.ledger.db, j.out)
	if err != nil {
		j.out.damage("ledger-unreadable", "tree", "%v", err)
		return nil
	}
	defer t.close()
	r := &recordReader{judge: j, tree: t}
	j.signed.begin()
	for ok := it.First(); ok; ok = it.Next() {
		if len(it.Key()) != 9 {
			j.out.damage("record-key", fmt.Sprintf("%x", it.Key()), "no record number")
			continue
		}
		data, err := it.ValueAndErr()
		if err != nil {
			break // told below
		}
		if err := r.take(int64(binary.BigEndian.Uint64(it.Key()[1:])), data); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	if err := it.Error(); err != nil {
		j.out.record("ledger-unreadable", r.next, "", "the records cannot be read from here on: %v", err)
		return nil
	}
	r.end()
	return nil
}

// recordReader judges the records one by one.
type recordReader struct {
	*judge
	tree *tree
	next int64  // number that must come
	seq  uint64 // of the record before
}

// brief is what the judging by name needs of a record.
type brief struct {
	Seq      uint64    `json:"s"`
	Recorded time.Time `json:"t"`
	MsgID    string    `json:"i"`
	Material material  `json:"m"`
	Short    bool      `json:"h,omitempty"` // its lists may have been shortened
	Conflict string    `json:"c,omitempty"` // name of the record it disagrees with
}

func (r *recordReader) take(n int64, data []byte) error {
	r.missing(n)
	r.next = n + 1
	r.out.checked.Records++
	e, err := decodeEntry(data)
	name := ""
	if e != nil {
		name = e.Name
	}
	r.tree.add(n, name, tlog.RecordHash(data))
	r.reached(r.tree)
	if err != nil {
		r.out.record("record-unreadable", n, name, "%v", err)
		return nil
	}
	for _, f := range e.faults(r.ledger.space) {
		r.out.record("record-wrong", n, name, "%s", f)
	}
	if e.Sequence < r.seq && !r.healed() {
		r.out.drift("record-order", recordObject(n, name), "fact %d stands behind fact %d: the ledger is not in log order", e.Sequence, r.seq)
	}
	if e.Sequence > r.ledger.head.Position.Sequence && !r.healed() {
		r.out.record("record-beyond", n, name, "fact %d is beyond the ledger's position %d", e.Sequence, r.ledger.head.Position.Sequence)
	}
	r.seq = max(r.seq, e.Sequence)
	return r.keep(n, e)
}

// missing reports the records missing before n, and lets the tree go on with
// their stored leaves.
func (r *recordReader) missing(n int64) {
	const few = 1000
	for r.next < n && n-r.next <= few {
		r.out.record("record-missing", r.next, "", "there is no such record")
		r.tree.skip(r.next)
		r.next++
	}
	if r.next < n {
		r.out.record("record-missing", r.next, "", "%d records are missing from here on", n-r.next)
		for r.next < min(n, r.ledger.head.Size) {
			r.tree.skip(r.next)
			r.next++
		}
	}
}

// keep notes a record under its name, and an attempt in its chain.
func (r *recordReader) keep(n int64, e *entry) error {
	b := brief{Seq: e.Sequence, Recorded: e.Recorded, MsgID: e.MsgID, Material: e.material(), Short: e.Truncated}
	if c := e.Data.Conflict; c != nil {
		b.Conflict = c.Name
		if err := r.mem.set(memTold, c.Name+"\x00"+number(n), nil); err != nil {
			return err
		}
	}
	if err := r.mem.setJSON(memRecord, e.Name+"\x00"+number(n), b); err != nil {
		return err
	}
	a, s := e.Data.Attempt, e.Data.Resolution
	if a == nil || s == nil || e.Slot == nil || s.Late {
		return nil
	}
	return r.mem.setJSON(memChain, chainKey(a.Operation, e.Slot.Batch+"/"+e.Slot.Frame, a.Pass, a.Number),
		link{Name: e.Name, Number: n, Operation: a.Operation, Status: s.Status, Previous: a.Previous})
}

func (r *recordReader) end() {
	r.missing(r.ledger.head.Size)
	if r.next > r.ledger.head.Size {
		r.out.record("ledger-size", r.ledger.head.Size, "", "%d records, and the head says %d", r.next, r.ledger.head.Size)
	}
	r.tree.end(r.ledger.head)
	r.beyond()
}
