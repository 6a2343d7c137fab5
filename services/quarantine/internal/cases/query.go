package cases

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"colophon/shared/event"
)

// summary is what filters look at; the indexes carry it, so that no case is
// decoded only to be left out.
type summary struct {
	opened                                 time.Time
	state, code, service, operation, batch string
}

func summarise(r Record) summary {
	return summary{r.OpenedAt, r.State, r.Code, r.Service, string(r.Operation), string(r.Batch)}
}

func (m summary) encode() []byte {
	opened := m.opened.UTC().Format(time.RFC3339Nano)
	return []byte(strings.Join([]string{opened, m.state, m.code, m.service, m.operation, m.batch}, "\x00"))
}

func decodeSummary(data []byte) (summary, error) {
	t := strings.SplitN(string(data), "\x00", 6) // a batch's name may hold anything: it stands last
	if len(t) < 6 {
		return summary{}, fmt.Errorf("cases: index value %q", data)
	}
	opened, err := time.Parse(time.RFC3339Nano, t[0])
	if err != nil {
		return summary{}, fmt.Errorf("cases: index value %q: %w", data, err)
	}
	return summary{opened, t[1], t[2], t[3], t[4], t[5]}, nil
}

// Query is a request at a moment: ages are counted to it.
type Query struct {
	event.CaseRequest
	Now time.Time
}

// Each calls yield with the id of every case that a request selects, in the
// order of ids, behind the request's cursor. It stops when yield says so. Open
// cases only, unless the request names a state or asks for all.
func (s *Store) Each(q Query, yield func(id string) (more bool, err error)) error {
	return each(s.db, index(q.CaseRequest), q.After, func(id string, value []byte) (bool, error) {
		m, err := decodeSummary(value)
		if err != nil || !matches(q, id, m) {
			return err == nil, err
		}
		return yield(id)
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
	return prefixAll
}

func onlyOpen(q event.CaseRequest) bool { return q.State == "" && !q.All }

func matches(q Query, id string, m summary) bool {
	age := event.Duration(q.Now.Sub(m.opened))
	switch {
	case q.ID != "" && q.ID != id,
		q.Batch != "" && string(q.Batch) != m.batch,
		q.Code != "" && q.Code != m.code,
		q.Service != "" && q.Service != m.service,
		q.Operation != "" && string(q.Operation) != m.operation,
		q.State != "" && q.State != m.state,
		q.OlderThan != 0 && age < q.OlderThan,
		q.NewerThan != 0 && age >= q.NewerThan,
		onlyOpen(q.CaseRequest) && !isOpen(m.state):
		return false
	}
	return true
}

// Count gives how many cases a request selects, whatever its cursor.
func (s *Store) Count(q Query) (int, error) {
	q.After = ""
	n := 0
	err := s.Each(q, func(string) (bool, error) {
		n++
		return true, nil
	})
	return n, err
}

// Unsettled gives the ids of all cases that a fact may still move.
func (s *Store) Unsettled() ([]string, error) {
	var out []string
	err := each(s.db, prefixAll, "", func(id string, value []byte) (bool, error) {
		m, err := decodeSummary(value)
		if err == nil && !isSettled(m.state) {
			out = append(out, id)
		}
		return err == nil, err
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
