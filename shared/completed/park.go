package completed

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// Parked is a message that waits in the set instead of in memory and in the
// broker: its broker may forget it, the set may not.
type Parked struct {
	Queue  string    `json:"queue"`  // the consumer it came by
	Name   string    `json:"name"`   // what it waits for
	Number uint64    `json:"number"` // its place; given by Park, growing
	Origin string    `json:"origin"` // <stream>-<sequence>
	Stored time.Time `json:"stored"` // by the broker
	MsgID  string    `json:"msg_id,omitempty"`
	Since  time.Time `json:"since"` // when it began to wait, for whatever

	Subject string              `json:"subject"`
	Header  map[string][]string `json:"header,omitempty"`
	Data    []byte              `json:"-"`
}

// key is w/<queue>/<name>/<number>, each length-prefixed so that no name runs
// into another.
func (p Parked) key() []byte {
	return fmt.Appendf(parkedPrefix(p.Queue, p.Name), "%020d", p.Number)
}

func parkedPrefix(queue, name string) []byte {
	return fmt.Appendf(parkedQueue(queue), "%08d/%s/", len(name), name)
}

func parkedQueue(queue string) []byte {
	return fmt.Appendf(nil, "%s%08d/%s/", prefixParked, len(queue), queue)
}

// place is where a message is found by its origin.
type place struct {
	Key    []byte    `json:"key"`
	Stored time.Time `json:"stored"`
	MsgID  string    `json:"msg_id,omitempty"`
}

func placeKey(queue, origin string) []byte {
	return []byte(prefixPlace + queue + "/" + origin)
}

// Park stores a message whole, synced, behind all that are parked under its
// name; a message that is parked already, under whatever name, moves there.
func (s *Set) Park(p Parked) error {
	return s.change(true, func(b *pebble.Batch) error {
		if old, ok, err := findPlace(b, p); err != nil {
			return err
		} else if ok {
			if err := b.Delete(old.Key, nil); err != nil {
				return err
			}
		}
		var n uint64
		if _, err := getJSON(b, prefixCounter+"parked", &n); err != nil {
			return err
		}
		p.Number = n + 1
		if err := setJSON(b, prefixCounter+"parked", p.Number); err != nil {
			return err
		}
		head, err := json.Marshal(p)
		if err != nil {
			return err
		}
		if err := b.Set(p.key(), append(append(head, 0), p.Data...), nil); err != nil {
			return err
		}
		return setJSON(b, string(placeKey(p.Queue, p.Origin)), place{p.key(), p.Stored, p.MsgID})
	})
}

// Unpark removes a message, synced; one that is not there is no fault.
func (s *Set) Unpark(p Parked) error {
	return s.change(true, func(b *pebble.Batch) error {
		if err := b.Delete(p.key(), nil); err != nil { // its place may be another message's, after a rollback
			return err
		}
		at, ok, err := findPlace(b, p)
		if err != nil || !ok {
			return err
		}
		if err := b.Delete(at.Key, nil); err != nil {
			return err
		}
		return b.Delete(placeKey(p.Queue, p.Origin), nil)
	})
}

// IsParked reports whether a message is parked: origin, stored time and id
// must match, since after a rollback a sequence names another one.
func (s *Set) IsParked(queue, origin string, stored time.Time, msgID string) (bool, error) {
	_, ok, err := findPlace(s.db, Parked{Queue: queue, Origin: origin, Stored: stored, MsgID: msgID})
	return ok, err
}

// ParkedAt is [Set.IsParked] for who knows no more of the message than where it
// stood.
func (s *Set) ParkedAt(queue, origin string) (bool, error) {
	_, ok, err := s.get(string(placeKey(queue, origin)))
	return ok, err
}

func findPlace(r pebble.Reader, p Parked) (place, bool, error) {
	var at place
	ok, err := getJSON(r, string(placeKey(p.Queue, p.Origin)), &at)
	if err != nil || !ok || !at.Stored.Equal(p.Stored) || at.MsgID != p.MsgID {
		return place{}, false, err
	}
	return at, true, nil
}

// Parked gives up to n messages of a queue that wait for something, behind a
// place, first come first.
func (s *Set) Parked(queue, name string, after uint64, n int) ([]Parked, error) {
	prefix := parkedPrefix(queue, name)
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: Parked{Queue: queue, Name: name, Number: after + 1}.key(), UpperBound: beyond(prefix)})
	if err != nil {
		return nil, fmt.Errorf("completed: parked: %w", err)
	}
	var out []Parked
	for it.First(); it.Valid() && len(out) < n; it.Next() {
		p, err := readParked(it)
		if err != nil {
			return nil, errors.Join(err, it.Close())
		}
		out = append(out, p)
	}
	return out, it.Close()
}

// ParkedFor lists up to n names that messages of a queue wait for, behind a
// name.
func (s *Set) ParkedFor(queue, after string, n int) ([]string, error) {
	all := parkedQueue(queue)
	lower := all
	if after != "" {
		lower = beyond(parkedPrefix(queue, after))
	}
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: beyond(all)})
	if err != nil {
		return nil, fmt.Errorf("completed: parked: %w", err)
	}
	var out []string
	for ok := it.First(); ok && len(out) < n; {
		p, err := readParked(it)
		if err != nil {
			return nil, errors.Join(err, it.Close())
		}
		out = append(out, p.Name)
		ok = it.SeekGE(beyond(parkedPrefix(queue, p.Name)))
	}
	return out, it.Close()
}

// CountParked counts the messages of a queue.
func (s *Set) CountParked(queue string) (n int, err error) {
	all := parkedQueue(queue)
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: all, UpperBound: beyond(all)})
	if err != nil {
		return 0, fmt.Errorf("completed: parked: %w", err)
	}
	for it.First(); it.Valid(); it.Next() {
		n++
	}
	return n, it.Close()
}

func readParked(it *pebble.Iterator) (p Parked, err error) {
	v, err := it.ValueAndErr()
	if err != nil {
		return p, fmt.Errorf("completed: parked: %w", err)
	}
	head, data, _ := bytes.Cut(v, []byte{0})
	if err := json.Unmarshal(head, &p); err != nil {
		return p, fmt.Errorf("completed: parked: %w", err)
	}
	p.Data = bytes.Clone(data)
	return p, nil
}

// beyond is the first key behind all that begin with a prefix, which ends in a
// slash.
func beyond(prefix []byte) []byte {
	out := bytes.Clone(prefix)
	out[len(out)-1]++
	return out
}
