package cases

import (
	"encoding/json"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"colophon/shared/completed"
)

// Forget makes the followers begin again: the log no longer holds what was
// read. Nothing that is known is dropped, the store is never trimmed to match
// a shorter log. It returns after the commit is synced.
func (s *Store) Forget() error {
	gen, err := s.counter(counterGeneration)
	if err != nil {
		return err
	}
	b := s.db.NewBatch()
	defer b.Close() //nolint:errcheck // see adopt
	if err := setJSON(b, prefixCounter+counterGeneration, gen+1); err != nil {
		return err
	}
	for _, follower := range []string{FollowLog, FollowLetters} {
		if err := setJSON(b, prefixPosition+follower, completed.Position{}); err != nil {
			return err
		}
	}
	return commit(b, pebble.Sync)
}

// Lost gives the changes of cases that the log no longer holds, in order,
// once all of it was read again: publish them, then call [Store.Healed].
func (s *Store) Lost() ([]completed.Fact, error) {
	gen, err := s.counter(counterGeneration)
	if err != nil {
		return nil, err
	}
	if healed, err := s.counter(counterHealed); err != nil || healed == gen {
		return nil, err
	}
	var out []completed.Fact
	err = each(s.db, prefixHistory, "", func(_ string, value []byte) (bool, error) {
		var h stored
		if err := json.Unmarshal(value, &h); err != nil {
			return false, fmt.Errorf("cases: history: %w", err)
		}
		if h.Generation < gen {
			out = append(out, completed.Fact{ID: h.ID, Subject: h.Subject, Data: h.Data})
		}
		return true, nil
	})
	return out, err
}

// Healed remembers that the log holds again what [Store.Lost] gave.
func (s *Store) Healed() error {
	gen, err := s.counter(counterGeneration)
	if err != nil {
		return err
	}
	return s.setCounter(counterHealed, gen)
}

// ForgetLetters makes the follower of dead letters begin again.
func (s *Store) ForgetLetters() error {
	b := s.db.NewBatch()
	defer b.Close() //nolint:errcheck // see adopt
	if err := setJSON(b, prefixPosition+FollowLetters, completed.Position{}); err != nil {
		return err
	}
	return commit(b, pebble.Sync)
}
