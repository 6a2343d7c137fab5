package verify

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"os"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
)

// What the scratch database remembers, by the first two bytes of its keys.
// Ids are encoded and hold neither slash nor zero byte.
const (
	memID       = "i/" // message id -> sighting
	memRevision = "r/" // slot#revision -> digest
	memMaster   = "m/" // digest -> stored (by frame.fixed)
	memOutput   = "o/" // store key -> stored (by derivative.<profile>)
	memContent  = "d/" // digest/slot -> "" (by frame.captured)
	memStaged   = "g/" // store key -> slot (by frame.captured)
	memRecipe   = "p/" // profile -> digest of its recipe
	memEarly    = "a/" // sequence or recipe/profile -> early
	memSlot     = "s/" // slot -> event.Progress
	memBatch    = "b/" // batch -> batchState
	memName     = "n/" // event name -> expectation
	memOther    = "x/" // event name NUL hash -> "" (another telling of it in the log)
	memWarned   = "w/" // event name without qualifier -> ""
	memHeld     = "h/" // slot -> held
	memWanted   = "W/" // slot/digest -> content
	memEnough   = "E/" // digest -> sets of profiles, one of which is enough for it
	memRecord   = "R/" // event name NUL number -> brief (of the ledger)
	memTold     = "X/" // event name NUL number -> "" (its conflict in the ledger)
	memChain    = "c/" // operation@slot NUL pass number -> link
	memFirst    = "t/" // operation@slot -> "" (its first try of pass 1 succeeded)
	memCase     = "C/" // case id -> highest pass opened (of the log)
	memLetter   = "L/" // case id -> highest pass given up (of DEADLETTER)
	memInode    = "I/" // device, inode -> digest verified in this run
	memSeen     = "e/" // store key -> "" (already queued for hashing)
	memOrder    = "f/" // order key of the batch at hand -> frame
	memPayload  = "P/" // path in the bag at hand -> digest
	memTelling  = "D/" // event name -> "" (in the PREMIS of the bag at hand)
	memPath     = "N/" // frame NUL profile NUL path in the bag at hand -> ""
)

// scratch is a temporary Pebble: what one run must remember, on disk, so that
// memory does not grow with the archive. Safe for concurrent use. Nothing in
// it has to survive.
type scratch struct {
	db   *pebble.DB
	dir  string
	keys *filter
}

// openScratch makes one below a folder, for a log of so many facts.
func openScratch(parent string, facts uint64) (*scratch, error) {
	dir, err := os.MkdirTemp(parent, "colophon-verify-")
	if err != nil {
		return nil, fmt.Errorf("verify: scratch: %w", err)
	}
	opts := &pebble.Options{DisableWAL: true, MemTableSize: 16 << 20, CacheSize: 32 << 20, Logger: quiet{}, FormatMajorVersion: pebble.FormatNewest}
	for i := range opts.Levels { // most keys looked up are new
		opts.Levels[i].FilterPolicy = bloom.FilterPolicy(10)
	}
	db, err := pebble.Open(dir, opts)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("verify: scratch: %w", err), os.RemoveAll(dir))
	}
	return &scratch{db, dir, newFilter(facts)}, nil
}

func (s *scratch) close() error {
	if err := errors.Join(s.db.Close(), os.RemoveAll(s.dir)); err != nil {
		return fmt.Errorf("verify: scratch: %w", err)
	}
	return nil
}

// get reads what is kept under a key; nil where there is nothing.
func (s *scratch) get(kind, key string) ([]byte, error) {
	if !s.keys.may(kind, key) {
		return nil, nil
	}
	v, closer, err := s.db.Get([]byte(kind + key))
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("scratch: %w", err)
	}
	out := append(make([]byte, 0, len(v)+1), v...)
	return out, closer.Close()
}

func (s *scratch) has(kind, key string) (bool, error) {
	v, err := s.get(kind, key)
	return v != nil, err
}

func (s *scratch) set(kind, key string, value []byte) error {
	s.keys.add(kind, key)
	if err := s.db.Set([]byte(kind+key), value, pebble.NoSync); err != nil {
		return fmt.Errorf("scratch: %w", err)
	}
	return nil
}

// getJSON reports whether there is anything under a key, and reads it.
func (s *scratch) getJSON(kind, key string, v any) (bool, error) {
	data, err := s.get(kind, key)
	if err != nil || data == nil {
		return false, err
	}
	if err := json.Unmarshal(data, v); err != nil {
		return false, fmt.Errorf("scratch: %s%s: %w", kind, key, err)
	}
	return true, nil
}

func (s *scratch) setJSON(kind, key string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("scratch: %s%s: %w", kind, key, err)
	}
	return s.set(kind, key, data)
}

// clear forgets all of a kind.
func (s *scratch) clear(kinds ...string) error {
	for _, kind := range kinds {
		if err := s.db.DeleteRange([]byte(kind), after([]byte(kind)), pebble.NoSync); err != nil {
			return fmt.Errorf("scratch: %w", err)
		}
	}
	return nil
}

// pair is one entry; its bytes are valid until the next.
type pair struct{ key, value []byte }

// each gives the entries of a kind whose keys begin with prefix, in order, the
// kind and prefix cut off. It reads one state, whatever is written meanwhile.
func (s *scratch) each(kind, prefix string) iter.Seq2[pair, error] {
	start := []byte(kind + prefix)
	return func(yield func(pair, error) bool) {
		it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: start, UpperBound: after(start)})
		if err != nil {
			yield(pair{}, fmt.Errorf("scratch: %w", err))
			return
		}
		defer it.Close() //nolint:errcheck // its error is read below
		for ok := it.First(); ok; ok = it.Next() {
			if !yield(pair{bytes.TrimPrefix(it.Key(), start), it.Value()}, nil) {
				return
			}
		}
		if err := it.Error(); err != nil {
			yield(pair{}, fmt.Errorf("scratch: %w", err))
		}
	}
}

// after is the first key behind all that begin with prefix.
func after(prefix []byte) []byte {
	end := bytes.Clone(prefix)
	for i := len(end) - 1; i >= 0; i-- {
		if end[i]++; end[i] != 0 {
			return end[:i+1]
		}
	}
	return nil
}

// number is n as key bytes that sort as numbers do.
func number(n int64) string { return string(binary.BigEndian.AppendUint64(nil, uint64(n))) }

// numbered cuts the number off that ends a key behind a zero byte.
func numbered(key []byte) (name string, n int64, ok bool) {
	if len(key) < 9 || key[len(key)-9] != 0 {
		return "", 0, false
	}
	return string(key[:len(key)-9]), int64(binary.BigEndian.Uint64(key[len(key)-8:])), true
}

// quiet drops what Pebble has to say, but for what it cannot survive.
type quiet struct{}

func (quiet) Infof(string, ...any)  {}
func (quiet) Errorf(string, ...any) {}

// Fatalf is what Pebble calls when it cannot go on.
func (quiet) Fatalf(format string, args ...any) {
	panic(fatalStore{fmt.Errorf("the store cannot go on: "+format, args...)})
}

type fatalStore struct{ error }

func (f fatalStore) Unwrap() error { return f.error }
