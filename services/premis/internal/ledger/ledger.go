// Package ledger is MAPPING section 6 on Pebble: one record per event name,
// the nodes of a Merkle tree over the records, and the position in the log, in
// one synced batch. It is a function of the log: the same facts in the same
// order give the same root, whatever was appended together.
package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/vfs"
	"golang.org/x/mod/sumdb/tlog"

	"colophon/services/premis/internal/record"
)

// Format is the version of what the keys and records mean.
const Format = 1

// MaxBatch is how many facts one commit takes.
const MaxBatch = 1024

// Errors of a ledger that must not be written to.
var (
	ErrDamaged  = errors.New("the ledger is damaged")
	ErrOrigin   = errors.New("the ledger belongs to another origin")
	ErrReadOnly = errors.New("the ledger is open for reading only")
	ErrOrder    = errors.New("entries are not in log order")
)

// Position is where in the log the ledger stands: the last fact it took in.
// Zero is the log's beginning.
type Position struct {
	Sequence uint64    `json:"sequence"`
	Stored   time.Time `json:"stored,omitzero"`
	MsgID    string    `json:"msg_id,omitempty"`
}

// Head is the ledger's state: stored under one key in the same batch as what
// it speaks of.
type Head struct {
	Format   int       `json:"format"`
	Origin   string    `json:"origin"`
	Size     int64     `json:"size"` // records
	Root     tlog.Hash `json:"root"` // of the tree over them; not signed
	Position Position  `json:"position"`
}

// Options of a ledger.
type Options struct {
	Origin string // chosen once per installation; kept with the first open
	FS     vfs.FS // nil: the machine's
	Cache  int64  // bytes of blocks kept in memory; 0: 64 MiB. Names are looked up at random
	Logger *slog.Logger
}

const defaultCache = 64 << 20

// Ledger is an open ledger. One goroutine appends at a time; any number read.
type Ledger struct {
	View
	db       *pebble.DB
	log      *slog.Logger
	space    record.Namespace
	readOnly bool

	writing sync.Mutex    // held by Append and Rewind
	edge    *edge         // with which the next record is hashed
	mu      sync.Mutex    // guards what follows
	head    Head          // as committed
	changed chan struct{} // closed when head changes
	broken  error         // a commit whose outcome is unknown
}

// Open opens or creates the ledger in dir. It recomputes every node of the
// tree and refuses with [ErrDamaged] where that does not give the stored root.
func Open(dir string, o Options) (*Ledger, error) { return open(dir, o, false) }

// OpenReadOnly opens a checkpoint for reading, with the same checks.
func OpenReadOnly(dir string, o Options) (*Ledger, error) { return open(dir, o, true) }

func open(dir string, o Options, readOnly bool) (*Ledger, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Cache == 0 {
		o.Cache = defaultCache
	}
	db, err := pebble.Open(dir, options(o, readOnly))
	if err != nil {
		return nil, fmt.Errorf("ledger: open: %w", err)
	}
	l := &Ledger{View: View{r: db}, db: db, log: o.Logger, readOnly: readOnly, changed: make(chan struct{})}
	if err := l.load(o.Origin); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return l, nil
}

func options(o Options, readOnly bool) *pebble.Options {
	opts := &pebble.Options{
		FS: o.FS, ReadOnly: readOnly, ErrorIfNotExists: readOnly, FormatMajorVersion: pebble.FormatNewest,
		MemTableSize: 16 << 20, Logger: storeLog{o.Logger}, CacheSize: o.Cache,
	}
	for i := range opts.Levels { // most names looked up are new
		opts.Levels[i].FilterPolicy = bloom.FilterPolicy(10)
	}
	return opts
}

// load reads the head and proves it against the nodes.
func (l *Ledger) load(origin string) error {
	head, found, err := l.View.storedHead()
	switch {
	case err != nil:
		return err
	case !found:
		head = Head{Format: Format, Origin: origin}
	case head.Format != Format:
		return fmt.Errorf("ledger: format %d, this build reads %d", head.Format, Format)
	case origin != "" && origin != head.Origin:
		return fmt.Errorf("ledger: %w: %q, not %q", ErrOrigin, head.Origin, origin)
	}
	if head.Origin == "" {
		return errors.New("ledger: no origin is set")
	}
	if l.edge, err = l.View.prove(head); err != nil {
		return err
	}
	l.head, l.space = head, record.NamespaceOf(head.Origin)
	return nil
}

// Close closes the store. A position that was moved without a record is
// flushed first.
func (l *Ledger) Close() error {
	l.writing.Lock()
	defer l.writing.Unlock()
	if err := l.db.Close(); err != nil {
		return fmt.Errorf("ledger: close: %w", err)
	}
	return nil
}

// Head gives the committed state.
func (l *Ledger) Head() Head {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.head
}

// At is [Ledger.Head]: the live view is always at the committed state.
func (l *Ledger) At() Head { return l.Head() }

// Size is the number of records.
func (l *Ledger) Size() int64 { return l.Head().Size }

// Root is the tree's root over all records.
func (l *Ledger) Root() tlog.Hash { return l.Head().Root }

// Position is the last fact taken in.
func (l *Ledger) Position() Position { return l.Head().Position }

// Await returns when the position has reached seq, or with ctx's error.
func (l *Ledger) Await(ctx context.Context, seq uint64) error {
	for {
		l.mu.Lock()
		at, changed := l.head.Position.Sequence, l.changed
		l.mu.Unlock()
		if at >= seq {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("ledger: at %d, waiting for %d: %w", at, seq, ctx.Err())
		case <-changed:
		}
	}
}

// Rewind sets the position back, so that facts behind it are read again; the
// records stay. Reading them again adds what is missing and nothing else.
func (l *Ledger) Rewind(p Position) error {
	l.writing.Lock()
	defer l.writing.Unlock()
	if l.readOnly {
		return ErrReadOnly
	}
	head := l.Head()
	head.Position = p
	if err := l.db.Set(keyHead, encodeHead(head), pebble.Sync); err != nil {
		return l.fail(fmt.Errorf("ledger: rewind: %w", err))
	}
	l.advance(head)
	return nil
}

// Checkpoint makes a consistent copy of the store in dir, which must not
// exist, for readers: [OpenReadOnly].
func (l *Ledger) Checkpoint(dir string) error {
	if err := l.db.Checkpoint(dir, pebble.WithFlushedWAL()); err != nil {
		return fmt.Errorf("ledger: checkpoint: %w", err)
	}
	return nil
}

func (l *Ledger) advance(h Head) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.head = h
	close(l.changed)
	l.changed = make(chan struct{})
}

// fail remembers that what is on disk is unknown: only a new open, which
// reads it back, may append again.
func (l *Ledger) fail(err error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.broken = err
	return err
}

func encodeHead(h Head) []byte {
	data, err := json.Marshal(h)
	if err != nil {
		panic("ledger: a head is plain values: " + err.Error())
	}
	return data
}

// storeLog passes the store's own words on; what it cannot survive ends the
// process, as Pebble expects: the log is read again at the next start.
type storeLog struct{ log *slog.Logger }

func (s storeLog) Infof(format string, args ...any) {
	s.log.Debug("store", slog.String("message", fmt.Sprintf(format, args...)))
}

func (s storeLog) Errorf(format string, args ...any) {
	s.log.Error("store", slog.String("message", fmt.Sprintf(format, args...)))
}

func (s storeLog) Fatalf(format string, args ...any) {
	message := fmt.Sprintf(format, args...)
	s.log.Error("store_fatal", slog.String("message", message))
	panic("ledger: the store cannot go on: " + message)
}
