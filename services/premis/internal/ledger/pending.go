package ledger

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"slices"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"golang.org/x/mod/sumdb/tlog"

	"colophon/shared/event"

	"colophon/services/premis/internal/mapping"
)

// pending is what a commit under way adds, kept beside the store until all of
// it is known: a fact sees the records of those before it without an indexed
// batch, and each key is written once.
type pending struct {
	before   int64 // records in the store
	names    map[string]int64
	records  []encoded
	nodes    []tlog.Hash
	slots    map[string]*slot          // by batch/frame; those only read too
	enough   map[event.Digest]*require // by digest
	chains   map[string][]byte         // by their keys
	warned   map[string]int64          // by mark
	discards map[string]int64          // by their keys
	lists    map[string][]int64        // numbers by index prefix
	signed   map[int64]sighting        // checkpoints, by size
}

// slot is what is held of a frame, and how the store has it.
type slot struct {
	batch, frame string
	now          mapping.Frame
	known        bool // there is something to say
	dirty        bool
	ordered      int  // sequence in the store's order
	inOrder      bool // the store has it
}

// sighting is a checkpoint's record, and where the log tells of it.
type sighting struct {
	record int64
	at     Position
}

type require struct {
	sets  [][]string
	dirty bool
}

func newPending(size int64) *pending {
	return &pending{
		before: size, names: map[string]int64{}, slots: map[string]*slot{}, enough: map[event.Digest]*require{},
		chains: map[string][]byte{}, warned: map[string]int64{}, discards: map[string]int64{}, lists: map[string][]int64{},
		signed: map[int64]sighting{},
	}
}

// touched reports whether the commit changes what a key of the store says.
func (p *pending) touched(key string) bool {
	var ok bool
	switch rest := key[1:]; key[0] {
	case kindName:
		_, ok = p.names[rest]
	case kindSlot:
		s := p.slots[rest]
		ok = s != nil && s.dirty
	case kindChain:
		_, ok = p.chains[key]
	case kindWarned:
		_, ok = p.warned[rest]
	case kindRequire:
		r := p.enough[event.Digest(rest)]
		ok = r != nil && r.dirty
	default: // a list of keys: it is read again
		ok = true
	}
	return ok
}

// write puts everything into a batch: records and nodes in their order, so
// that the store takes them at its tail.
func (p *pending) write(b *pebble.Batch) error {
	var key, value []byte
	set := func(err error) error {
		if err != nil {
			return err
		}
		return b.Set(key, value, nil)
	}
	var err error
	for i, r := range p.records {
		key, value = numbered(append(key[:0], kindRecord), uint64(p.before)+uint64(i)), r.data
		err = set(err)
	}
	at := uint64(tlog.StoredHashCount(p.before))
	for i, node := range p.nodes {
		key, value = numbered(append(key[:0], kindHash), at+uint64(i)), node[:]
		err = set(err)
	}
	for _, name := range sortedKeys(p.names) {
		key, value = append(append(key[:0], kindName), name...), binary.BigEndian.AppendUint64(nil, uint64(p.names[name]))
		err = set(err)
	}
	for _, prefix := range sortedKeys(p.lists) {
		key, value = packed(append(key[:0], prefix...), p.lists[prefix])
		err = set(err)
	}
	for k, data := range p.chains {
		key, value = append(key[:0], k...), data
		err = set(err)
	}
	for mark, n := range p.warned {
		key, value = append(append(key[:0], kindWarned), mark...), binary.BigEndian.AppendUint64(nil, uint64(n))
		err = set(err)
	}
	for size, s := range p.signed {
		var at []byte
		at, err = json.Marshal(s.at)
		key, value = signedKey(size), append(binary.BigEndian.AppendUint64(nil, uint64(s.record)), at...)
		err = set(err)
	}
	for k, n := range p.discards {
		key, value = append(key[:0], k...), binary.BigEndian.AppendUint64(nil, uint64(n))
		err = set(err)
	}
	return errors.Join(err, p.writeSlots(b), p.writeEnough(b))
}

func (p *pending) writeSlots(b *pebble.Batch) error {
	for _, id := range sortedKeys(p.slots) {
		s := p.slots[id]
		if !s.dirty {
			continue
		}
		data, err := json.Marshal(s.now)
		if err != nil {
			return err
		}
		if err := b.Set(slotKey(s.batch, s.frame), data, nil); err != nil {
			return err
		}
		if s.inOrder && s.ordered == s.now.Sequence {
			continue
		}
		if s.inOrder {
			if err := b.Delete(orderKey(s.batch, s.ordered, s.frame), nil); err != nil {
				return err
			}
		}
		if err := b.Set(orderKey(s.batch, s.now.Sequence, s.frame), nil, nil); err != nil {
			return err
		}
	}
	return nil
}

func (p *pending) writeEnough(b *pebble.Batch) error {
	for d, r := range p.enough {
		if !r.dirty {
			continue
		}
		data, err := json.Marshal(r.sets)
		if err != nil {
			return err
		}
		if err := b.Set(requiredKey(d), data, nil); err != nil {
			return err
		}
	}
	return nil
}

// packed is one key of an index: the first number behind the prefix, and the
// distances of those that follow it.
func packed(prefix []byte, numbers []int64) (key, value []byte) {
	key = numbered(prefix, uint64(numbers[0]))
	for i, n := range numbers[1:] {
		value = binary.AppendUvarint(value, uint64(n-numbers[i]))
	}
	return key, value
}

// discardsOf lists the keys of a batch's discards that are not stored yet.
func (p *pending) discardsOf(prefix []byte) []string {
	var out []string
	for k := range p.discards {
		if strings.HasPrefix(k, string(prefix)) {
			out = append(out, k)
		}
	}
	return out
}

func sortedKeys[V any](m map[string]V) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}
