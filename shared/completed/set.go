// Package completed is a service's durable memory on Pebble: the set of
// finished keys with what was made of each, the facts that said so, the
// attempts of unfinished work, dead letters seen, and positions in streams.
// It knows neither NATS nor what results and facts contain.
package completed

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// Prefixes of the one key space.
const (
	prefixKey     = "k/" // token of a key -> content result
	prefixFact    = "f/" // message id -> subject, NUL, body
	prefixAttempt = "a/" // operation@slot#pass -> Attempt
	prefixDead    = "d/" // operation@slot -> highest dead pass
	prefixOrigin  = "o/" // stream-sequence of a dead letter's origin -> Origin
	prefixPos     = "p/" // follower -> Position
	prefixCounter = "n/" // name -> last number given
	prefixParked  = "w/" // queue, what it waits for, place -> Parked, NUL, body
	prefixPlace   = "q/" // queue/stream-sequence -> where it is parked
)

// Options of [Open]. The zero value is what a service uses.
type Options struct {
	FS     vfs.FS // nil: the disk
	Logger *slog.Logger
}

// Set is safe for concurrent use. Every method that changes it returns after
// its commit is synced to disk; concurrent commits share a sync.
type Set struct {
	db *pebble.DB
	// mu orders changes that read first: numbers given, attempts and dead
	// passes that only grow. It is not held during a sync.
	mu sync.Mutex
}

// Open opens or creates the set in a folder. One process at a time holds it.
func Open(dir string, o Options) (*Set, error) {
	// The newest table format that every Pebble v2 reads. (The default is the
	// oldest one, whose writer pools channels, which no synctest bubble allows.)
	opts := &pebble.Options{FS: o.FS, Logger: Logger(o.Logger), FormatMajorVersion: pebble.FormatColumnarBlocks}
	db, err := pebble.Open(dir, opts)
	if err != nil {
		return nil, fmt.Errorf("completed: open: %w", err)
	}
	return &Set{db: db}, nil
}

// Close flushes and releases the folder.
func (s *Set) Close() error { return s.db.Close() }

// Checkpoint writes a consistent copy for readers into a new folder.
func (s *Set) Checkpoint(dir string) error {
	return s.db.Checkpoint(dir, pebble.WithFlushedWAL())
}

func (s *Set) get(key string) ([]byte, bool, error) { return get(s.db, key) }

func get(r pebble.Reader, key string) ([]byte, bool, error) {
	v, closer, err := r.Get([]byte(key))
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("completed: get: %w", err)
	}
	out := append([]byte(nil), v...)
	return out, true, closer.Close()
}

// Result gives what was made for a key, if it is finished.
func (s *Set) Result(token string) ([]byte, bool, error) { return s.get(prefixKey + token) }

// Fact is a published fact as it went to the broker.
type Fact struct {
	ID      string
	Subject string
	Data    []byte
}

// HasFact reports whether the fact with this message id is stored.
func (s *Set) HasFact(id string) (bool, error) {
	_, ok, err := s.get(prefixFact + id)
	return ok, err
}

// Fact gives the stored fact with a message id: as this service published it,
// or as it read it in the log.
func (s *Set) Fact(id string) (Fact, bool, error) {
	v, ok, err := s.get(prefixFact + id)
	if err != nil || !ok {
		return Fact{}, false, err
	}
	return factOf(id, v), true, nil
}

func factOf(id string, v []byte) Fact {
	subject, data, _ := strings.Cut(string(v), "\x00")
	return Fact{ID: id, Subject: subject, Data: []byte(data)}
}

// Completion is what a fact tells: finished work, with the tokens it is known
// by and what was made; or, without tokens, only how an attempt ended.
type Completion struct {
	Tokens  []string
	Result  []byte
	Fact    Fact
	Attempt Ended // the attempt that the fact ends, where it ends one
}

// Record stores a completion, synced, in one commit.
func (s *Set) Record(c Completion) error {
	return s.change(true, func(b *pebble.Batch) error { return s.put(b, c) })
}

// change commits what put writes, alone among the changes that read first;
// concurrent changes still share a sync.
func (s *Set) change(sync bool, put func(*pebble.Batch) error) error {
	b := s.db.NewIndexedBatch() // what it wrote already is what it reads
	defer b.Close()             //nolint:errcheck // a committed or abandoned batch has nothing to report
	s.mu.Lock()
	err := put(b)
	if err == nil {
		if sync {
			err = s.db.ApplyNoSyncWait(b, pebble.Sync)
		} else {
			err = s.db.Apply(b, pebble.NoSync)
		}
	}
	s.mu.Unlock()
	if err == nil && sync {
		err = b.SyncWait()
	}
	if err != nil {
		return fmt.Errorf("completed: commit: %w", err)
	}
	return nil
}

func (s *Set) put(b *pebble.Batch, c Completion) error {
	if err := s.endAttempt(b, c.Attempt); err != nil {
		return err
	}
	for _, t := range c.Tokens {
		if err := b.Set([]byte(prefixKey+t), c.Result, nil); err != nil {
			return err
		}
	}
	return putFact(b, c.Fact)
}

func putFact(b *pebble.Batch, f Fact) error {
	if f.ID == "" {
		return nil
	}
	return b.Set([]byte(prefixFact+f.ID), fmt.Appendf(nil, "%s\x00%s", f.Subject, f.Data), nil)
}

// Facts calls yield with every stored fact, in the order of their ids, until
// it fails: what a log that was rolled back may lack.
func (s *Set) Facts(yield func(Fact) error) error {
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: []byte(prefixFact), UpperBound: []byte("f0")})
	if err != nil {
		return fmt.Errorf("completed: facts: %w", err)
	}
	defer it.Close() //nolint:errcheck // its error is reported below
	for it.First(); it.Valid(); it.Next() {
		v, err := it.ValueAndErr()
		if err != nil {
			return fmt.Errorf("completed: facts: %w", err)
		}
		if err := yield(factOf(string(it.Key()[len(prefixFact):]), v)); err != nil {
			return err
		}
	}
	return it.Error()
}

// Position of a follower in a stream: a sequence alone would not show that a
// restored disk rolled the log back.
type Position struct {
	Sequence uint64    `json:"sequence"`
	Stored   time.Time `json:"stored"`
	MsgID    string    `json:"msg_id"`
}

// Position gives where a follower stands; zero before its first commit.
func (s *Set) Position(name string) (Position, error) {
	var p Position
	_, err := s.getJSON(prefixPos+name, &p)
	return p, err
}

// Learn stores what a follower read: completions of this service, its own or
// a replica's, and the position behind them, in one commit. What it stores can
// be read from the log again, so the commit is not synced.
func (s *Set) Learn(follower string, done []Completion, dead []Dead, pos Position) error {
	return s.change(false, func(b *pebble.Batch) error {
		for _, c := range done {
			if err := s.put(b, c); err != nil {
				return err
			}
		}
		for _, d := range dead {
			if err := s.putDead(b, d); err != nil {
				return err
			}
		}
		return setJSON(b, prefixPos+follower, pos)
	})
}

// Next gives the next number under a name, from 1, never the same twice.
func (s *Set) Next(name string) (uint64, error) {
	var n uint64
	err := s.change(true, func(b *pebble.Batch) error {
		if _, err := getJSON(b, prefixCounter+name, &n); err != nil {
			return err
		}
		n++
		return setJSON(b, prefixCounter+name, n)
	})
	return n, err
}

// Incarnation names this set for good: a set that replaces a lost one has
// another name, and its numbers are others.
func (s *Set) Incarnation() (string, error) {
	var name string
	if ok, err := s.getJSON(prefixCounter+"incarnation", &name); ok || err != nil {
		return name, err
	}
	err := s.change(true, func(b *pebble.Batch) error {
		if ok, err := getJSON(b, prefixCounter+"incarnation", &name); ok || err != nil {
			return err
		}
		name = strings.ToLower(rand.Text()[:10])
		return setJSON(b, prefixCounter+"incarnation", name)
	})
	return name, err
}

func (s *Set) getJSON(key string, v any) (bool, error) { return getJSON(s.db, key, v) }

func getJSON(r pebble.Reader, key string, v any) (bool, error) {
	data, ok, err := get(r, key)
	if err != nil || !ok {
		return false, err
	}
	if err := json.Unmarshal(data, v); err != nil {
		return false, fmt.Errorf("completed: %s: %w", key, err)
	}
	return true, nil
}

func setJSON(b *pebble.Batch, key string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("completed: %s: %w", key, err)
	}
	return b.Set([]byte(key), data, nil)
}

// Logger passes Pebble's words to slog. Fatalf ends the process: Pebble calls
// it when it cannot keep a promise any more (a failed log sync), and a service
// that went on would acknowledge what is not stored.
func Logger(l *slog.Logger) pebble.Logger {
	if l == nil {
		l = slog.New(slog.DiscardHandler)
	}
	return pebbleLog{l}
}

type pebbleLog struct{ l *slog.Logger }

func (p pebbleLog) Infof(format string, args ...any) {
	p.l.Debug("pebble", slog.String("message", fmt.Sprintf(format, args...)))
}

func (p pebbleLog) Errorf(format string, args ...any) {
	p.l.Error("pebble", slog.String("message", fmt.Sprintf(format, args...)))
}

func (p pebbleLog) Fatalf(format string, args ...any) {
	p.l.Error("pebble_fatal", slog.String("message", fmt.Sprintf(format, args...)))
	panic(fmt.Sprintf("pebble: "+format, args...))
}
