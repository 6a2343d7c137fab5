// Package completed is a service's durable memory on Pebble: the set of
// finished keys with what was made of each, the facts that said so, the
// attempts of unfinished work, dead letters seen, and positions in streams.
// It knows neither NATS nor what results and facts contain.
package completed

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
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
)

// Options of [Open]. The zero value is what a service uses.
type Options struct {
	FS     vfs.FS // nil: the disk
	Logger *slog.Logger
}

// Set is safe for concurrent use. Every method that changes it returns after
// its commit is synced to disk; concurrent commits share a sync.
type Set struct{ db *pebble.DB }

// Open opens or creates the set in a folder. One process at a time holds it.
func Open(dir string, o Options) (*Set, error) {
	opts := &pebble.Options{FS: o.FS, Logger: Logger(o.Logger)}
	db, err := pebble.Open(dir, opts)
	if err != nil {
		return nil, fmt.Errorf("completed: open: %w", err)
	}
	return &Set{db}, nil
}

// Close flushes and releases the folder.
func (s *Set) Close() error { return s.db.Close() }

// Checkpoint writes a consistent copy for readers into a new folder.
func (s *Set) Checkpoint(dir string) error {
	return s.db.Checkpoint(dir, pebble.WithFlushedWAL())
}

func (s *Set) get(key string) ([]byte, bool, error) {
	v, closer, err := s.db.Get([]byte(key))
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

// Completion is finished work: the tokens it is known by, what was made, and
// the fact that said so.
type Completion struct {
	Tokens []string
	Result []byte
	Fact   Fact
}

// Record stores a completion, synced, in one commit.
func (s *Set) Record(c Completion) error {
	b := s.db.NewBatch()
	defer b.Close() //nolint:errcheck // a committed or abandoned batch has nothing to report
	if err := c.put(b); err != nil {
		return err
	}
	return commit(b, pebble.Sync)
}

func (c Completion) put(b *pebble.Batch) error {
	for _, t := range c.Tokens {
		if err := b.Set([]byte(prefixKey+t), c.Result, nil); err != nil {
			return err
		}
	}
	if c.Fact.ID == "" {
		return nil
	}
	return b.Set([]byte(prefixFact+c.Fact.ID), fmt.Appendf(nil, "%s\x00%s", c.Fact.Subject, c.Fact.Data), nil)
}

func commit(b *pebble.Batch, o *pebble.WriteOptions) error {
	if err := b.Commit(o); err != nil {
		return fmt.Errorf("completed: commit: %w", err)
	}
	return nil
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
	b := s.db.NewBatch()
	defer b.Close() //nolint:errcheck // see Record
	for _, c := range done {
		if err := c.put(b); err != nil {
			return err
		}
	}
	for _, d := range dead {
		if err := s.putDead(b, d); err != nil {
			return err
		}
	}
	if err := setJSON(b, prefixPos+follower, pos); err != nil {
		return err
	}
	return commit(b, pebble.NoSync)
}

// Next gives the next number under a name, from 1, never the same twice.
func (s *Set) Next(name string) (uint64, error) {
	var n uint64
	if _, err := s.getJSON(prefixCounter+name, &n); err != nil {
		return 0, err
	}
	n++
	b := s.db.NewBatch()
	defer b.Close() //nolint:errcheck // see Record
	if err := setJSON(b, prefixCounter+name, n); err != nil {
		return 0, err
	}
	return n, commit(b, pebble.Sync)
}

func (s *Set) getJSON(key string, v any) (bool, error) {
	data, ok, err := s.get(key)
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
