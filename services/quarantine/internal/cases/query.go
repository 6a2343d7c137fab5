package cases

import (
	"encoding/json"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"colophon/shared/event"
)

// Each calls yield for every case that a request selects, in the order of ids,
// behind the request's cursor. It stops when yield says so. Open cases only,
// unless the request names a state or asks for all.
func (s *Store) Each(q event.CaseRequest, yield func(Record) (more bool, err error)) error {
	return eachKey(s.db, index(q), q.After, func(id string) (bool, error) {
		r, ok, err := s.Case(id)
		if err != nil || !ok || !matches(q, r) {
			return err == nil, err
		}
		return yield(r)
	})
}

// index picks the keys to walk: the fewest that hold all that is asked for.
func index(q event.CaseRequest) string {
	switch {
	case q.Batch != "":
		return prefixBatch + q.Batch.Encode() + "\x00"
	case onlyOpen(q):
		return prefixOpen
	}
	return prefixCase
}

func onlyOpen(q event.CaseRequest) bool { return q.State == "" && !q.All }

func matches(q event.CaseRequest, r Record) bool {
	switch {
	case q.ID != "" && q.ID != r.ID,
		q.Batch != "" && q.Batch != r.Batch,
		q.Code != "" && q.Code != r.Code,
		q.Service != "" && q.Service != r.Service,
		q.Operation != "" && q.Operation != r.Operation,
		q.State != "" && q.State != r.State,
		onlyOpen(q) && !r.Open():
		return false
	}
	return true
}

// Count gives how many cases a request selects, whatever its cursor.
func (s *Store) Count(q event.CaseRequest) (int, error) {
	q.After = ""
	n := 0
	err := s.Each(q, func(Record) (bool, error) {
		n++
		return true, nil
	})
	return n, err
}

// Unsettled gives the ids of all cases that a fact may still move.
func (s *Store) Unsettled() ([]string, error) {
	var out []string
	err := s.Each(event.CaseRequest{All: true}, func(r Record) (bool, error) {
		if !r.Settled() {
			out = append(out, r.ID)
		}
		return true, nil
	})
	return out, err
}

// History gives all changes of a case, the first first.
func (s *Store) History(id string) ([]event.CaseFact, error) {
	var out []event.CaseFact
	err := each(s.db, prefixHistory+id+"\x00", "", func(_ string, value []byte) (bool, error) {
		var h stored
		var f event.CaseFact
		if err := json.Unmarshal(value, &h); err != nil {
			return false, fmt.Errorf("cases: history of %s: %w", id, err)
		}
		if err := json.Unmarshal(h.Data, &f); err != nil {
			return false, fmt.Errorf("cases: history of %s: %w", id, err)
		}
		out = append(out, f)
		return true, nil
	})
	return out, err
}

func eachKey(r pebble.Reader, prefix, after string, yield func(rest string) (bool, error)) error {
	return each(r, prefix, after, func(rest string, _ []byte) (bool, error) { return yield(rest) })
}

// each walks the keys below a prefix, behind one of them.
func each(r pebble.Reader, prefix, after string, yield func(rest string, value []byte) (bool, error)) (err error) {
	lower := []byte(prefix)
	if after != "" {
		lower = []byte(prefix + after + "\x00")
	}
	it, err := r.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: end(prefix)})
	if err != nil {
		return fmt.Errorf("cases: walk: %w", err)
	}
	defer func() {
		if e := it.Close(); err == nil && e != nil {
			err = fmt.Errorf("cases: walk: %w", e)
		}
	}()
	for ok := it.First(); ok; ok = it.Next() {
		more, err := yield(string(it.Key()[len(prefix):]), it.Value())
		if err != nil || !more {
			return err
		}
	}
	return nil
}

// end is the first key behind all that begin with a prefix.
func end(prefix string) []byte {
	b := []byte(prefix)
	b[len(b)-1]++ // a separator: never 0xff
	return b
}
