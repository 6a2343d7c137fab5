package ledger

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"golang.org/x/mod/sumdb/tlog"

	"colophon/shared/event"

	"colophon/services/premis/internal/mapping"
	"colophon/services/premis/internal/record"
)

// Entry is one message of the log.
type Entry struct {
	Sequence uint64
	Stored   time.Time // by the broker
	MsgID    string
	Subject  string
	Data     []byte
}

// Appended counts what entries came to.
type Appended struct {
	New       int // records added, conflicts among them
	Known     int // names that were there and agree
	Conflicts int // names that were there and disagree
	Skipped   int // entries at or below the position
}

func (a *Appended) add(b Appended) {
	a.New, a.Known, a.Conflicts, a.Skipped = a.New+b.New, a.Known+b.Known, a.Conflicts+b.Conflicts, a.Skipped+b.Skipped
}

// Append maps entries to records and adds those whose names are new, in log
// order: on return they and the position are durable (a position that moves
// over facts without a record may be read again after a crash). Entries at or
// below the position are skipped, so it is safe to repeat. A fact of a schema
// this build does not know is [event.ErrUnknownSchema]: what came before it is
// appended, and nothing behind it. A message that is no fact at all becomes a
// record that says so.
func (l *Ledger) Append(ctx context.Context, entries []Entry) (Appended, error) {
	l.writing.Lock()
	defer l.writing.Unlock()
	var total Appended
	if l.readOnly {
		return total, ErrReadOnly
	}
	for len(entries) > 0 {
		if err := ctx.Err(); err != nil {
			return total, err
		}
		n := min(len(entries), MaxBatch)
		done, err := l.commit(entries[:n])
		total.add(done)
		if err != nil {
			return total, err
		}
		entries = entries[n:]
	}
	return total, nil
}

// commit is one batch. Nothing of it is visible, in memory or on disk, unless
// all of it is.
func (l *Ledger) commit(entries []Entry) (Appended, error) {
	l.mu.Lock()
	head, broken := l.head, l.broken
	l.mu.Unlock()
	if broken != nil {
		return Appended{}, fmt.Errorf("ledger: an earlier commit failed: %w", broken)
	}
	b := l.db.NewIndexedBatch()
	defer b.Close()
	t := &txn{
		batch: b, state: state{View{r: b}, l.space}, head: head, before: head.Size, log: l.log,
		nodes: hashes{view: View{r: b}, memory: l.edge},
	}
	stopped := t.take(entries)
	if stopped != nil && !errors.Is(stopped, event.ErrUnknownSchema) {
		return Appended{}, stopped
	}
	if t.head.Position == head.Position {
		return t.done, stopped
	}
	if err := t.seal(); err != nil {
		return Appended{}, err
	}
	// Crash before: the log is read again from the old position. Crash after:
	// names, records, nodes and position are all there.
	if err := b.Commit(t.durability()); err != nil {
		return Appended{}, l.fail(fmt.Errorf("ledger: commit: %w", err))
	}
	l.edge = t.nodes.memory
	l.advance(t.head)
	return t.done, stopped
}

// txn is one commit under way.
type txn struct {
	batch  *pebble.Batch
	state  state
	head   Head
	before int64 // records
	nodes  hashes
	done   Appended
	log    *slog.Logger
}

func (t *txn) take(entries []Entry) error {
	last := uint64(0)
	for _, e := range entries {
		if e.Sequence <= last && last != 0 {
			return fmt.Errorf("ledger: %w: %d after %d", ErrOrder, e.Sequence, last)
		}
		last = e.Sequence
		if e.Sequence <= t.head.Position.Sequence {
			t.done.Skipped++
			continue
		}
		if err := t.fact(e); err != nil {
			return fmt.Errorf("ledger: fact %d (%.200s): %w", e.Sequence, e.MsgID, err)
		}
		t.head.Position = Position{e.Sequence, e.Stored.UTC(), e.MsgID}
	}
	return nil
}

func (t *txn) fact(e Entry) error {
	meta := mapping.Meta{Origin: t.head.Origin, Space: t.state.space, Sequence: e.Sequence, Stored: e.Stored, MsgID: e.MsgID}
	f, err := event.DecodeFact(e.Subject, e.Data)
	var records []*record.Record
	switch {
	case errors.Is(err, event.ErrUnknownSchema):
		return err
	case err != nil:
		t.log.Error("fact_unreadable", slog.Uint64("sequence", e.Sequence), slog.Any("error", err))
		records = []*record.Record{mapping.Unreadable(e.Subject, e.Data, err, meta)}
	default:
		if records, err = mapping.Map(f, meta, t.state); err != nil {
			return err
		}
	}
	for _, r := range records {
		if err := t.add(r); err != nil {
			return err
		}
	}
	return nil
}

// add is the uniqueness rule: a name is appended once.
func (t *txn) add(r *record.Record) error {
	first, found, err := t.state.ByName(r.Name)
	if err != nil {
		return err
	}
	if !found {
		t.done.New++
		return t.put(r)
	}
	data, err := r.Encode() // as it would have been stored
	if err != nil {
		return err
	}
	second, err := record.Decode(data)
	if err != nil {
		return err
	}
	if first.Material().Equal(second.Material()) {
		t.done.Known++
		return nil
	}
	return t.conflict(first, second)
}

func (t *txn) conflict(first Numbered, second *record.Record) error {
	c := record.ConflictOf(first.Record, second)
	told, err := t.state.Has(c.Name)
	if err != nil {
		return err
	}
	if told {
		t.done.Known++
		return nil
	}
	t.done.New++
	t.done.Conflicts++
	t.log.Error("ledger_conflict", slog.String("name", first.Name), slog.Int64("first", first.Number),
		slog.Uint64("sequence", second.Sequence), slog.String("first_fields", first.Material().String()),
		slog.String("other_fields", second.Material().String()))
	return t.put(c)
}

// put appends one record: name, bytes, nodes and index entries.
func (t *txn) put(r *record.Record) error {
	data, err := r.Encode()
	if err != nil {
		return err
	}
	if r.Truncated {
		t.log.Warn("record_truncated", slog.String("name", r.Name))
	}
	n := t.head.Size
	nodes, err := tlog.StoredHashesForRecordHash(n, tlog.RecordHash(data), t.nodes)
	if err != nil {
		return fmt.Errorf("tree: %w", err)
	}
	if n == t.before { // the memory of the last commit is not ours to change
		t.nodes.memory = clone(t.nodes.memory)
	}
	for i, node := range nodes {
		at := tlog.StoredHashIndex(0, n) + int64(i)
		t.nodes.memory[at] = node
		if err := t.batch.Set(hashKey(at), node[:], nil); err != nil {
			return err
		}
	}
	number := binary.BigEndian.AppendUint64(nil, uint64(n))
	if err := errors.Join(t.batch.Set(nameKey(r.Name), number, nil), t.batch.Set(recordKey(n), data, nil)); err != nil {
		return err
	}
	t.head.Size++
	return t.index(r, n)
}

func clone(in map[int64]tlog.Hash) map[int64]tlog.Hash {
	out := make(map[int64]tlog.Hash, len(in)+64)
	for k, v := range in {
		out[k] = v
	}
	return out
}

// seal computes the root and puts the head behind all records.
func (t *txn) seal() error {
	if t.head.Size > t.before {
		root, edge, err := t.nodes.root(t.head.Size)
		if err != nil {
			return fmt.Errorf("ledger: root: %w", err)
		}
		t.head.Root, t.nodes.memory = root, edge
	}
	return t.batch.Set(keyHead, encodeHead(t.head), nil)
}

// durability: a batch without a record only moves the position, and the facts
// it passed can be read again.
func (t *txn) durability() *pebble.WriteOptions {
	if t.head.Size == t.before {
		return pebble.NoSync
	}
	return pebble.Sync
}
