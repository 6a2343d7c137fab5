package completed

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// States of an attempt.
const (
	AttemptBegun    = "begun"    // stored before it is made; found at a start, its worker was lost
	AttemptReleased = "released" // a halt or stop let go of it: its number is used again
	AttemptFailed   = "failed"
	AttemptDone     = "done" // the work is complete; a later try of the same pass counts from there
)

// Attempt is the latest try of an operation on a slot in a pass.
type Attempt struct {
	Number    int       `json:"number"`  // from 1
	Counted   int       `json:"counted"` // how many count against max_attempts
	State     string    `json:"state"`
	Alone     bool      `json:"alone,omitempty"`   // nothing else of the consumer ran beside it
	Suspect   bool      `json:"suspect,omitempty"` // an earlier one ended its worker: work it alone
	Started   time.Time `json:"started"`
	NotBefore time.Time `json:"not_before,omitzero"`
	Dead      bool      `json:"dead,omitempty"`   // the decision was a dead letter
	Origin    string    `json:"origin,omitempty"` // of the message whose letter it is, where Dead
	Fact      Fact      `json:"fact,omitzero"`    // that says how it failed; published again after a crash
}

// AttemptKey names the attempts of an operation on a slot in a pass.
func AttemptKey(operation, slot string, pass int) string {
	return fmt.Sprintf("%s@%s#%d", operation, slot, pass)
}

// Attempt gives the latest attempt under a key; zero when there was none.
func (s *Set) Attempt(key string) (Attempt, error) {
	var a Attempt
	_, err := s.getJSON(prefixAttempt+key, &a)
	return a, err
}

// SetAttempt stores an attempt, synced; with it the fact of how it failed,
// under its message id.
func (s *Set) SetAttempt(key string, a Attempt) error {
	return s.change(true, func(b *pebble.Batch) error {
		if err := putFact(b, a.Fact); err != nil {
			return err
		}
		return setJSON(b, prefixAttempt+key, a)
	})
}

// Ended is how an attempt ended, under its key.
type Ended struct {
	Key     string
	Attempt Attempt
	Decided bool // it holds against an end of the same attempt that is known
}

// endAttempt stores how an attempt ended, or was let go, unless a later attempt
// is known; the end that an attempt has already stays as it is, and so does an
// attempt of this process that another one says it let go. To be let go is no
// end. Work that ended a worker is a suspect until it is done, whoever makes
// the next attempt.
func (s *Set) endAttempt(b *pebble.Batch, e Ended) error {
	if e.Key == "" {
		return nil
	}
	var known Attempt
	if _, err := getJSON(b, prefixAttempt+e.Key, &known); err != nil {
		return err
	}
	ended := known.State != AttemptReleased && e.Attempt.State != AttemptDone && !e.Decided
	if e.Attempt.Number < known.Number || e.Attempt.Number == known.Number && ended {
		return nil
	}
	if e.Attempt.State != AttemptDone {
		e.Attempt.Suspect = e.Attempt.Suspect || known.Suspect
	}
	return setJSON(b, prefixAttempt+e.Key, e.Attempt)
}

// Origin is the message that a dead letter is about. All of it must match: a
// sequence alone may be another message after a rollback.
type Origin struct {
	Name     string    `json:"name"` // <stream>-<sequence>
	Stored   time.Time `json:"stored"`
	MsgID    string    `json:"msg_id"`
	LetterID string    `json:"letter_id"`
	Header   []byte    `json:"header"` // of the dead letter, as the caller encodes it
	Letter   uint64    `json:"letter"` // its sequence, where it was stored last
}

// Dead is a dead letter: its origin is finished, and later messages of the
// same operations and slot run under a higher pass.
type Dead struct {
	Origin     Origin
	Operations []string // the one that failed, and the one it was found by
	Slot       string   // encoded; empty for an undecodable message
	Pass       int
}

// SetDead stores a dead letter, synced.
func (s *Set) SetDead(d Dead) error {
	return s.change(true, func(b *pebble.Batch) error { return s.putDead(b, d) })
}

func (s *Set) putDead(b *pebble.Batch, d Dead) error {
	if err := setJSON(b, prefixOrigin+d.Origin.Name, d.Origin); err != nil {
		return err
	}
	if d.Slot == "" {
		return nil
	}
	for _, op := range d.Operations {
		var known int // dead passes only grow, in whatever order letters are read
		if _, err := getJSON(b, prefixDead+op+"@"+d.Slot, &known); err != nil {
			return err
		}
		if d.Pass <= known {
			continue
		}
		if err := setJSON(b, prefixDead+op+"@"+d.Slot, d.Pass); err != nil {
			return err
		}
	}
	return nil
}

// Letters calls yield with every dead letter, by the names of their origins,
// until it fails.
func (s *Set) Letters(yield func(Origin) error) error {
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: []byte(prefixOrigin), UpperBound: []byte("o0")})
	if err != nil {
		return fmt.Errorf("completed: letters: %w", err)
	}
	defer it.Close() //nolint:errcheck // its error is reported below
	for it.First(); it.Valid(); it.Next() {
		var o Origin
		v, err := it.ValueAndErr()
		if err == nil {
			err = json.Unmarshal(v, &o)
		}
		if err != nil {
			return fmt.Errorf("completed: letters: %w", err)
		}
		if err := yield(o); err != nil {
			return err
		}
	}
	return it.Error()
}

// DeadOrigin gives the dead letter whose origin a message is, if there is one.
func (s *Set) DeadOrigin(name string, stored time.Time, msgID string) (Origin, bool, error) {
	var o Origin
	ok, err := s.getJSON(prefixOrigin+name, &o)
	if err != nil || !ok || !o.Stored.Equal(stored) || o.MsgID != msgID {
		return Origin{}, false, err
	}
	return o, true, nil
}

// DeadPass gives the highest pass of an operation on a slot that ended in a
// dead letter; 0 when none did.
func (s *Set) DeadPass(operation, slot string) (int, error) {
	var p int
	_, err := s.getJSON(prefixDead+operation+"@"+slot, &p)
	return p, err
}
