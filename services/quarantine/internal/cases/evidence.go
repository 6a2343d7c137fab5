package cases

import (
	"time"

	"github.com/cockroachdb/pebble/v2"

	"colophon/shared/completed"
	"colophon/shared/event"
)

// Evidence is what a dead letter knows beyond the facts.
type Evidence struct {
	Case   string    `json:"case"`
	Pass   int       `json:"pass"`
	Origin string    `json:"origin"`
	Letter uint64    `json:"letter"` // sequence in DEADLETTER
	Stored time.Time `json:"stored"`
	Detail string    `json:"detail,omitempty"` // the tail of a helper's stderr
}

// SetEvidence stores a dead letter's evidence and that the letter is dealt
// with. It returns after the commit is synced.
func (s *Store) SetEvidence(e Evidence, pos completed.Position) error {
	return s.evidence(e, pos, pebble.Sync)
}

// LearnEvidence is [Store.SetEvidence] for a letter whose case the log holds
// already: not synced, since evidence and position, lost together, are read
// from the dead letters again.
func (s *Store) LearnEvidence(e Evidence, pos completed.Position) error {
	return s.evidence(e, pos, pebble.NoSync)
}

func (s *Store) evidence(e Evidence, pos completed.Position, o *pebble.WriteOptions) error {
	b := s.db.NewBatch()
	defer b.Close() //nolint:errcheck // see adopt
	if err := setJSON(b, evidenceKey(e.Case, e.Pass, e.Origin), e); err != nil {
		return err
	}
	if err := setJSON(b, prefixLetter+number(e.Letter), e.Case); err != nil {
		return err
	}
	have, err := s.Position(FollowLetters)
	if err != nil {
		return err
	}
	if pos.Sequence > have.Sequence { // an older letter may come late; it is still unacked
		if err := setJSON(b, prefixPosition+FollowLetters, pos); err != nil {
			return err
		}
	}
	return commit(b, o)
}

// Evidence gives the evidence of a case's last failure, if it is known.
func (s *Store) Evidence(r Record) (Evidence, bool, error) {
	var e Evidence
	ok, err := getJSON(s.db, evidenceKey(r.ID, r.Pass, r.Origin), &e)
	return e, ok, err
}

func evidenceKey(id string, pass int, origin string) string {
	return prefixEvidence + id + "\x00" + number(pass) + "\x00" + origin
}

// Declared gives the digest that the last failure of an operation on a slot
// found declared, where that is what failed.
func (s *Store) Declared(sl event.Slot, o event.Operation) (event.Digest, error) {
	var t slot
	_, err := getJSON(s.db, prefixSlot+sl.String(), &t)
	return t.get(o).Declared, err
}
