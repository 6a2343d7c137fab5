package ledger

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"iter"

	"github.com/cockroachdb/pebble/v2"

	"colophon/shared/event"

	"colophon/services/premis/internal/mapping"
	"colophon/services/premis/internal/record"
)

// View reads a ledger: the live one, a [Ledger.Snapshot] or a commit under way.
type View struct {
	r    pebble.Reader
	head Head
}

// Snapshot is a view that stays as it is while the ledger grows.
type Snapshot struct {
	View
	s *pebble.Snapshot
}

// Snapshot takes a view of what is committed. It must be closed.
func (l *Ledger) Snapshot() (*Snapshot, error) {
	s := l.db.NewSnapshot()
	v := View{r: s}
	head, found, err := v.storedHead()
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	if !found {
		head = l.Head()
	}
	v.head = head
	return &Snapshot{View: v, s: s}, nil
}

// Close ends the snapshot.
func (s *Snapshot) Close() error { return s.s.Close() }

// At gives the head the view was taken at.
func (v View) At() Head { return v.head }

func (v View) get(key []byte) ([]byte, bool, error) {
	data, closer, err := v.r.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("ledger: get: %w", err)
	}
	out := append([]byte(nil), data...)
	return out, true, closer.Close()
}

func (v View) storedHead() (h Head, found bool, err error) {
	data, found, err := v.get(keyHead)
	if err != nil || !found {
		return h, found, err
	}
	if err := json.Unmarshal(data, &h); err != nil {
		return h, false, fmt.Errorf("ledger: %w: head: %w", ErrDamaged, err)
	}
	return h, true, nil
}

// Numbered is a record with its place in the ledger and its stored bytes.
type Numbered struct {
	*record.Record
	Number int64
	Bytes  []byte // as stored: the leaf of the tree
}

// ErrNoRecord is the answer to a number behind the last record.
var ErrNoRecord = errors.New("no such record")

// Get reads a record by number.
func (v View) Get(n int64) (Numbered, error) {
	data, found, err := v.get(recordKey(n))
	if err != nil {
		return Numbered{}, err
	}
	if !found {
		return Numbered{}, fmt.Errorf("ledger: record %d: %w", n, ErrNoRecord)
	}
	r, err := record.Decode(data)
	if err != nil {
		return Numbered{}, fmt.Errorf("ledger: %w: number %d: %w", ErrDamaged, n, err)
	}
	return Numbered{r, n, data}, nil
}

// Number finds a name's record number.
func (v View) Number(name string) (n int64, found bool, err error) {
	data, found, err := v.get(nameKey(name))
	if err != nil || !found {
		return 0, false, err
	}
	if len(data) != 8 {
		return 0, false, fmt.Errorf("ledger: %w: number of %.200s", ErrDamaged, name)
	}
	return int64(binary.BigEndian.Uint64(data)), true, nil
}

// ByName reads a record by name; found is false where there is none.
func (v View) ByName(name string) (r Numbered, found bool, err error) {
	n, found, err := v.Number(name)
	if err != nil || !found {
		return Numbered{}, false, err
	}
	r, err = v.Get(n)
	return r, err == nil, err
}

// Names gives the names that begin with prefix, in their order.
func (v View) Names(prefix string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for key, err := range v.keys(nameKey(prefix)) {
			if err != nil || !yield(string(key[1:]), nil) {
				if err != nil {
					yield("", err)
				}
				return
			}
		}
	}
}

// ByBatch gives the numbers of a batch's records, in ledger order.
func (v View) ByBatch(b event.Name) iter.Seq2[int64, error] { return v.numbers(batchKeys(b.Encode())) }

// ByFrame gives the numbers of a frame's records, in ledger order; with an
// empty frame those of the batch itself. Ids are encoded.
func (v View) ByFrame(batch, frame string) iter.Seq2[int64, error] {
	return v.numbers(frameKeys(batch, frame))
}

// ByDigest gives the numbers of the records about a file or linking to it, in
// ledger order.
func (v View) ByDigest(d event.Digest) iter.Seq2[int64, error] { return v.numbers(digestKeys(d)) }

// Warning finds the record of a warning about content by its mark, the
// warning's name without its qualifiers.
func (v View) Warning(mark string) (n int64, found bool, err error) {
	data, found, err := v.get(warnedKey(mark))
	if err != nil || !found || len(data) != 8 {
		return 0, false, err
	}
	return int64(binary.BigEndian.Uint64(data)), true, nil
}

// Signed is a checkpoint among the records.
type Signed struct {
	record.Checkpoint
	At Position // of the message that tells of it
}

// Signed gives the checkpoints that the records hold, the latest first. Who
// signed them is the caller's to check.
func (v View) Signed() iter.Seq2[Signed, error] {
	return func(yield func(Signed, error) bool) {
		it, err := v.r.NewIter(&pebble.IterOptions{LowerBound: []byte{kindSigned}, UpperBound: []byte{kindSigned + 1}})
		if err != nil {
			yield(Signed{}, fmt.Errorf("ledger: checkpoints: %w", err))
			return
		}
		defer it.Close()
		for ok := it.Last(); ok; ok = it.Prev() {
			c, err := v.signed(it.Value())
			if !yield(c, err) || err != nil {
				return
			}
		}
		if err := it.Error(); err != nil {
			yield(Signed{}, fmt.Errorf("ledger: checkpoints: %w", err))
		}
	}
}

func (v View) signed(value []byte) (s Signed, err error) {
	if len(value) < 8 || json.Unmarshal(value[8:], &s.At) != nil {
		return s, fmt.Errorf("ledger: %w: the index of checkpoints", ErrDamaged)
	}
	r, err := v.Get(int64(binary.BigEndian.Uint64(value)))
	if err != nil {
		return s, err
	}
	if r.Data.Checkpoint == nil {
		return s, fmt.Errorf("ledger: %w: record %d is no checkpoint", ErrDamaged, r.Number)
	}
	s.Checkpoint = *r.Data.Checkpoint
	return s, nil
}

func (v View) numbers(prefix []byte) iter.Seq2[int64, error] {
	return func(yield func(int64, error) bool) {
		for p, err := range v.pairs(prefix) {
			if err != nil {
				yield(0, err)
				return
			}
			n := int64(binary.BigEndian.Uint64(p.key[len(prefix):]))
			for rest := p.value; yield(n, nil); {
				if len(rest) == 0 {
					n = -1
					break
				}
				d, size := binary.Uvarint(rest)
				if size <= 0 {
					yield(0, fmt.Errorf("ledger: %w: an index", ErrDamaged))
					return
				}
				n, rest = n+int64(d), rest[size:]
			}
			if n != -1 { // the reader has enough
				return
			}
		}
	}
}

type pair struct{ key, value []byte }

// pairs gives the keys that begin with prefix; each is valid until the next.
func (v View) pairs(prefix []byte) iter.Seq2[pair, error] {
	return func(yield func(pair, error) bool) {
		it, err := v.r.NewIter(&pebble.IterOptions{LowerBound: prefix, UpperBound: after(prefix)})
		if err != nil {
			yield(pair{}, fmt.Errorf("ledger: index: %w", err))
			return
		}
		defer it.Close()
		for ok := it.First(); ok; ok = it.Next() {
			if !yield(pair{it.Key(), it.Value()}, nil) {
				return
			}
		}
		if err := it.Error(); err != nil {
			yield(pair{}, fmt.Errorf("ledger: index: %w", err))
		}
	}
}

func (v View) keys(prefix []byte) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		for p, err := range v.pairs(prefix) {
			if !yield(p.key, err) {
				return
			}
		}
	}
}

// Frames gives the frames of a batch in the batch's order, encoded.
func (v View) Frames(b event.Name) iter.Seq2[string, error] {
	prefix := orderKeys(b.Encode())
	return func(yield func(string, error) bool) {
		for key, err := range v.keys(prefix) {
			if err != nil {
				yield("", err)
				return
			}
			if !yield(string(key[len(prefix)+8:]), nil) {
				return
			}
		}
	}
}

// Slot tells what is held of a frame; nil where nothing is. Ids are encoded.
func (v View) Slot(batch, frame string) (*mapping.Frame, error) {
	data, found, err := v.get(slotKey(batch, frame))
	if err != nil || !found {
		return nil, err
	}
	f := new(mapping.Frame)
	if err := json.Unmarshal(data, f); err != nil {
		return nil, fmt.Errorf("ledger: %w: slot %.200s/%.200s: %w", ErrDamaged, batch, frame, err)
	}
	return f, nil
}
