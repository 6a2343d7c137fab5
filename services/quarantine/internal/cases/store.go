// Package cases is quarantine's memory on Pebble: what the log says of every
// case and of every slot's operations, and the evidence of dead letters. All
// of it but the evidence is a pure function of the log (see [Store.Apply]);
// the evidence is one of the dead letters. So a lost store is read again, and
// comes out the same.
//
// It knows facts, not messages: neither NATS nor who publishes what.
package cases

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"colophon/shared/completed"
	"colophon/shared/event"
)

// Prefixes of the one key space. Parts of a key are joined by NUL, which no id
// holds.
const (
	prefixCase     = "c/" // case id -> Record
	prefixAll      = "a/" // case id -> summary
	prefixOpen     = "o/" // case id of an open case -> summary
	prefixBatch    = "b/" // batch NUL case id -> summary
	prefixHistory  = "h/" // case id NUL number -> change
	prefixEvidence = "e/" // case id NUL pass NUL origin -> Evidence
	prefixLetter   = "l/" // sequence in DEADLETTER -> case id
	prefixSlot     = "s/" // slot -> slot
	prefixDeclared = "t/" // batch -> Batch
	prefixPosition = "p/" // follower -> completed.Position
	prefixCounter  = "n/" // name -> number
)

// Followers whose positions a store keeps.
const (
	FollowLog     = "log"
	FollowLetters = "letters"
)

const (
	counterFormat     = "format"     // of the store
	counterGeneration = "generation" // times the log was read from its start
	counterHealed     = "healed"     // generation up to which the log was healed
)

// format changes when facts are read differently: a store of another format
// is thrown away and read again.
const format = 2

// Options of [Open]. The zero value is what the service uses.
type Options struct {
	FS     vfs.FS // nil: the disk
	Logger *slog.Logger
}

// Store is safe for concurrent use, with one caller of Apply at a time.
type Store struct{ db *pebble.DB }

// Open opens or creates the store in a folder. One process at a time holds it.
func Open(dir string, o Options) (*Store, error) {
	db, err := pebble.Open(dir, &pebble.Options{FS: o.FS, Logger: completed.Logger(o.Logger)})
	if err != nil {
		return nil, fmt.Errorf("cases: open: %w", err)
	}
	s := &Store{db}
	if err := s.adopt(); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return s, nil
}

// Close flushes and releases the folder.
func (s *Store) Close() error { return s.db.Close() }

// adopt empties a store of another format, but for its numbers.
func (s *Store) adopt() error {
	have, err := s.counter(counterFormat)
	if err != nil || have == format {
		return err
	}
	b := s.db.NewBatch()
	defer b.Close() //nolint:errcheck // a committed or abandoned batch has nothing to report
	for _, r := range [][2][]byte{{{0}, []byte(prefixCounter)}, {end(prefixCounter), {0xff}}} {
		if err := b.DeleteRange(r[0], r[1], nil); err != nil {
			return fmt.Errorf("cases: empty: %w", err)
		}
	}
	if err := setJSON(b, prefixCounter+counterFormat, format); err != nil {
		return err
	}
	return commit(b, pebble.Sync)
}

// Record is a case as its last change left it.
type Record struct {
	event.CaseFact
	OpenedAt time.Time `json:"opened_at"` // of its last opening
}

// Open reports whether the case waits for a decision.
func (r Record) Open() bool { return isOpen(r.State) }

func isOpen(state string) bool { return state == event.CaseOpened || state == event.CaseRescan }

// Settled reports whether no fact about the slot moves the case any more;
// only a dead letter of a later pass does.
func (r Record) Settled() bool { return isSettled(r.State) }

func isSettled(state string) bool { return state == event.CaseResolved || state == event.CaseDiscarded }

// Case gives a case by its id.
func (s *Store) Case(id string) (Record, bool, error) {
	var r Record
	ok, err := getJSON(s.db, prefixCase+id, &r)
	return r, ok, err
}

// OfLetter gives the id of the case that a dead letter belongs to.
func (s *Store) OfLetter(sequence uint64) (id string, ok bool, err error) {
	ok, err = getJSON(s.db, prefixLetter+number(sequence), &id)
	return id, ok, err
}

// Position gives where a follower stands; zero before its first commit.
func (s *Store) Position(follower string) (completed.Position, error) {
	var p completed.Position
	_, err := getJSON(s.db, prefixPosition+follower, &p)
	return p, err
}

// Next gives the next number under a name, from 1, never the same twice. It
// returns after the commit is synced.
func (s *Store) Next(name string) (uint64, error) {
	n, err := s.counter(name)
	if err != nil {
		return 0, err
	}
	return n + 1, s.setCounter(name, n+1)
}

func (s *Store) counter(name string) (uint64, error) {
	var n uint64
	_, err := getJSON(s.db, prefixCounter+name, &n)
	return n, err
}

func (s *Store) setCounter(name string, n uint64) error {
	b := s.db.NewBatch()
	defer b.Close() //nolint:errcheck // see adopt
	if err := setJSON(b, prefixCounter+name, n); err != nil {
		return err
	}
	return commit(b, pebble.Sync)
}

func getJSON(r pebble.Reader, key string, v any) (bool, error) {
	data, closer, err := r.Get([]byte(key))
	if errors.Is(err, pebble.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("cases: get: %w", err)
	}
	err = json.Unmarshal(data, v)
	if err := errors.Join(err, closer.Close()); err != nil {
		return false, fmt.Errorf("cases: %q: %w", key, err)
	}
	return true, nil
}

func setJSON(b *pebble.Batch, key string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("cases: %q: %w", key, err)
	}
	return b.Set([]byte(key), data, nil)
}

func commit(b *pebble.Batch, o *pebble.WriteOptions) error {
	if err := b.Commit(o); err != nil {
		return fmt.Errorf("cases: commit: %w", err)
	}
	return nil
}

// number spells n so that the order of keys is the order of numbers.
func number[N int | uint64](n N) string {
	return string(binary.BigEndian.AppendUint64(nil, uint64(n)))
}
