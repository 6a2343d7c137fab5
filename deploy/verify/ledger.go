package verify

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"golang.org/x/mod/sumdb/tlog"

	"colophon/shared/event"
)

// Keys of the ledger, MAPPING section 6. Other keys are indexes that the
// service can make again, and are not judged.
var (
	keyName   = []byte{'k'} // + name -> number
	keyRecord = []byte{'e'} // + number -> record
	keyNode   = []byte{'h'} // + stored-hash number -> node
	keyHead   = []byte{'m'}
)

// ledgerFormat is the version this judge reads.
const ledgerFormat = 1

// head is what the ledger says of itself.
type head struct {
	Format   int       `json:"format"`
	Origin   string    `json:"origin"`
	Size     int64     `json:"size"`
	Root     tlog.Hash `json:"root"`
	Position struct {
		Sequence uint64    `json:"sequence"`
		Stored   time.Time `json:"stored"`
		MsgID    string    `json:"msg_id"`
	} `json:"position"`
}

// ledger is an open ledger.
type ledger struct {
	db    *pebble.DB
	head  head
	space namespace
}

// openLedger opens the ledger for reading. One that cannot be opened is a
// finding; the rest of the archive is judged all the same.
func (j *judge) openLedger() {
	if j.Ledger == "" {
		return
	}
	if _, err := os.Stat(j.Ledger); errors.Is(err, os.ErrNotExist) {
		j.out.damage("ledger-missing", "ledger", "there is no ledger")
		return
	}
	db, err := pebble.Open(j.Ledger, &pebble.Options{
		ReadOnly: true, ErrorIfNotExists: true, Logger: quiet{}, CacheSize: 16 << 20,
		// The default ends the process; here the error comes back to the reader.
		EventListener: &pebble.EventListener{DataCorruption: func(pebble.DataCorruptionInfo) {}},
	})
	if err != nil {
		j.out.damage("ledger-unreadable", "ledger", "it cannot be opened: %v", err)
		return
	}
	l := &ledger{db: db}
	if err := l.readHead(); err != nil {
		j.out.damage("ledger-head", "ledger", "%v", err)
		_ = db.Close() // only read from
		return
	}
	j.ledger = l
	l.space = namespaceOf(l.head.Origin)
	if j.Origin != "" && l.head.Origin != j.Origin {
		j.out.damage("ledger-origin", "ledger", "it belongs to %q, not to %q", l.head.Origin, j.Origin)
	}
}

func (j *judge) closeLedger() {
	if j.ledger != nil {
		_ = j.ledger.db.Close() // only read from
	}
}

func (l *ledger) readHead() error {
	data, closer, err := l.db.Get(keyHead)
	if errors.Is(err, pebble.ErrNotFound) {
		return errors.New("it has no head")
	}
	if err != nil {
		return fmt.Errorf("the head cannot be read: %w", err)
	}
	defer closer.Close() //nolint:errcheck // only read from
	if err := json.Unmarshal(data, &l.head); err != nil {
		return fmt.Errorf("the head cannot be read: %w", err)
	}
	if l.head.Format != ledgerFormat || l.head.Size < 0 {
		return fmt.Errorf("format %d with %d records; this judge reads format %d", l.head.Format, l.head.Size, ledgerFormat)
	}
	return nil
}

// judgePosition compares the ledger's position with the log.
func (j *judge) judgePosition(r *logReader) {
	l := j.ledger
	if l == nil {
		return
	}
	p := l.head.Position
	at := fmt.Sprintf("INGEST %d %s", p.Sequence, p.MsgID)
	switch {
	case p.Sequence > j.limits.last:
		j.out.damage("ledger-position", at, "the ledger has read up to here, and the log ends at %d: the log was rolled back", j.limits.last)
	case p.Sequence > 0 && r.at == nil:
		j.out.damage("ledger-position", at, "the ledger has read up to here, and the log has no such message")
	case p.Sequence > 0 && (!r.at.stored.Equal(p.Stored) || r.at.id != p.MsgID):
		j.out.damage("ledger-position", at, "the log holds %s there, stored %v and not %v", r.at.id, r.at.stored, p.Stored)
	case p.Sequence < j.limits.last:
		j.out.note("ledger-behind", at, "the ledger has %d facts still to read", j.limits.last-p.Sequence)
	}
}

// judgeLedger judges records and tree in the order of the records, then names
// against index and mapping in the order of the names, then the chains.
func (j *judge) judgeLedger(ctx context.Context) error {
	if j.ledger == nil {
		return nil
	}
	if err := j.judgeRecords(ctx); err != nil {
		return err
	}
	if err := j.judgeNames(ctx); err != nil {
		return err
	}
	j.judgeHealing()
	return j.judgeChains(ctx)
}

// lookup reads the number under a name of the ledger's index.
func (l *ledger) lookup(name string) (n int64, found bool, err error) {
	data, closer, err := l.db.Get(append([]byte{'k'}, name...))
	if errors.Is(err, pebble.ErrNotFound) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, err
	}
	defer closer.Close() //nolint:errcheck // only read from
	if len(data) != 8 {
		return 0, false, nil
	}
	return int64(binary.BigEndian.Uint64(data)), true, nil
}

// accession names the event by which a slot's content entered the inventory.
func accession(p *event.Progress) string {
	name := eventName(tAccession, "", p.Digest) + at(p.Slot)
	if p.Revision > 1 {
		name += revision(p.Revision)
	}
	return name
}
