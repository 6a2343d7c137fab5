package ledger

import (
	"context"
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
	Ends      int // ends of batches among the new
}

func (a *Appended) add(b Appended) {
	a.New, a.Known, a.Conflicts, a.Skipped, a.Ends = a.New+b.New, a.Known+b.Known, a.Conflicts+b.Conflicts, a.Skipped+b.Skipped, a.Ends+b.Ends
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
	t, stopped := l.build(head, entries)
	if stopped != nil && !errors.Is(stopped, event.ErrUnknownSchema) {
		return Appended{}, stopped
	}
	if t.head.Position == head.Position {
		return t.done, stopped
	}
	b := l.db.NewBatch()
	defer b.Close()
	if err := t.seal(b); err != nil {
		return Appended{}, err
	}
	// Crash before: the log is read again from the old position. Crash after:
	// names, records, nodes and position are all there.
	if err := b.Commit(t.durability()); err != nil {
		return Appended{}, l.fail(fmt.Errorf("ledger: commit: %w", err))
	}
	*l.edge = t.edge
	l.advance(t.head)
	return t.done, stopped
}

// build maps entries and says what they add. With an error, t holds what comes
// before the entry at fault.
func (l *Ledger) build(head Head, entries []Entry) (t *txn, stopped error) {
	t = &txn{head: head, before: head.Size, edge: *l.edge, over: newPending(head.Size), log: l.log}
	t.state = &state{View: l.View, space: l.space, over: t.over}
	return t, t.take(entries)
}

// txn is one commit under way.
type txn struct {
	head   Head
	before int64 // records
	edge   edge
	over   *pending
	state  *state // the store, and over
	done   Appended
	log    *slog.Logger
	buf    []tlog.Hash
}

func (t *txn) take(entries []Entry) error {
	for i, e := range entries {
		if i > 0 && e.Sequence <= entries[i-1].Sequence {
			return fmt.Errorf("ledger: %w: %d after %d", ErrOrder, e.Sequence, entries[i-1].Sequence)
		}
	}
	for len(entries) > 0 && entries[0].Sequence <= t.head.Position.Sequence {
		t.done.Skipped++
		entries = entries[1:]
	}
	for p := range t.prepare(entries) {
		if err := t.fact(p); err != nil {
			return fmt.Errorf("ledger: fact %d (%.200s): %w", p.Sequence, p.MsgID, err)
		}
		t.head.Position = Position{p.Sequence, p.Stored.UTC(), p.MsgID}
	}
	return nil
}

func (t *txn) meta(e Entry) mapping.Meta {
	return mapping.Meta{Origin: t.head.Origin, Space: t.state.space, Sequence: e.Sequence, Stored: e.Stored, MsgID: e.MsgID}
}

func (t *txn) fact(p prepared) (err error) {
	switch {
	case errors.Is(p.err, event.ErrUnknownSchema):
		return p.err
	case p.err != nil:
		t.log.Error("fact_unreadable", slog.Uint64("sequence", p.Sequence), slog.Any("error", p.err))
		p.records, err = t.encode([]*record.Record{mapping.Unreadable(p.Subject, p.Data, p.err, t.meta(p.Entry))})
	case t.stale(p):
		var records []*record.Record
		if records, err = mapping.Map(p.fact, t.meta(p.Entry), t.state); err == nil {
			p.records, err = t.encode(records)
		}
	}
	if err != nil {
		return err
	}
	if err := t.addAll(p.records); err != nil || p.err != nil {
		return err
	}
	if f, ok := p.fact.(event.OpFact); ok {
		return t.sighted(f, p.Entry)
	}
	more, err := mapping.Complete(p.fact, t.meta(p.Entry), t.state)
	if err != nil || len(more) == 0 {
		return err
	}
	last, err := t.encode(more)
	if err != nil {
		return err
	}
	return t.addAll(last)
}

func (t *txn) addAll(records []encoded) error {
	for _, r := range records {
		if err := t.add(r); err != nil {
			return err
		}
	}
	return nil
}

// add is the uniqueness rule: a name is appended once.
func (t *txn) add(r encoded) error {
	n, known := t.over.names[r.Name]
	if !known {
		n, known = r.number, r.known
	}
	if !known {
		t.done.New++
		return t.put(r)
	}
	first, err := t.state.at(n)
	if err != nil {
		return err
	}
	second, err := record.Decode(r.data) // as it would have been stored
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
	made, err := t.encode([]*record.Record{c})
	if err != nil {
		return err
	}
	return t.put(made[0])
}

// put adds one record: name, bytes, nodes and index entries.
func (t *txn) put(r encoded) error {
	if r.Truncated {
		t.log.Warn("record_truncated", slog.String("name", r.Name))
	}
	if r.Type == record.IngestionEnd.Label {
		t.done.Ends++
	}
	n := t.head.Size
	t.buf = t.edge.grow(n, r.leaf, t.buf)
	t.over.nodes = append(t.over.nodes, t.buf...)
	t.over.records = append(t.over.records, r)
	t.over.names[r.Name] = n
	t.head.Size++
	return t.index(r.Record, n)
}

// seal computes the root and puts the head behind all records.
func (t *txn) seal(b *pebble.Batch) error {
	if t.head.Size > t.before {
		t.head.Root = t.edge.root(t.head.Size)
	}
	if err := t.over.write(b); err != nil {
		return fmt.Errorf("ledger: %w", err)
	}
	return b.Set(keyHead, encodeHead(t.head), nil)
}

// durability: a batch without a record only moves the position, and the facts
// it passed can be read again.
func (t *txn) durability() *pebble.WriteOptions {
	if t.head.Size == t.before {
		return pebble.NoSync
	}
	return pebble.Sync
}
