package verify

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/cockroachdb/pebble/v2"
)

// judgeNames goes through three lists that are in the order of the names: the
// ledger's index, its records, and the events that the log demands. Each name
// must be in all three, once.
func (j *judge) judgeNames(ctx context.Context) error {
	m, err := j.openMerge()
	if err != nil {
		return err
	}
	defer m.close()
	for m.next() {
		if err := m.judge(); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	if err := m.index.Error(); err != nil {
		j.out.damage("ledger-unreadable", "index", "the index cannot be read behind %q: %v", m.name, err)
		return nil
	}
	if err := m.fault(); err != nil {
		return err
	}
	return j.judgeConflicts()
}

// merge walks the three lists together.
type merge struct {
	j                      *judge
	index, records, wanted *pebble.Iterator
	name                   string // at hand
}

func (j *judge) openMerge() (*merge, error) {
	m := &merge{j: j}
	var err error
	open := func(db *pebble.DB, prefix string) *pebble.Iterator {
		if err != nil {
			return nil
		}
		var it *pebble.Iterator
		it, err = db.NewIter(&pebble.IterOptions{LowerBound: []byte(prefix), UpperBound: after([]byte(prefix))})
		if err == nil {
			it.First()
		}
		return it
	}
	m.records, m.wanted = open(j.mem.db, memRecord), open(j.mem.db, memName)
	m.index = open(j.ledger.db, string(keyName))
	if err != nil {
		m.close()
		return nil, fmt.Errorf("names: %w", err)
	}
	return m, nil
}

func (m *merge) close() {
	for _, it := range []*pebble.Iterator{m.index, m.records, m.wanted} {
		if it != nil {
			_ = it.Close() // read by fault, where it matters
		}
	}
}

func (m *merge) fault() error {
	for _, it := range []*pebble.Iterator{m.records, m.wanted} {
		if err := it.Error(); err != nil {
			return fmt.Errorf("scratch: %w", err)
		}
	}
	return nil
}

// next finds the smallest name that any list has now.
func (m *merge) next() bool {
	found := false
	least := func(name string, ok bool) {
		if ok && (!found || name < m.name) {
			m.name, found = name, true
		}
	}
	least(m.indexed())
	least(m.recorded())
	least(m.expected())
	return found
}

func (m *merge) indexed() (string, bool) {
	if !m.index.Valid() {
		return "", false
	}
	return string(m.index.Key()[len(keyName):]), true
}

func (m *merge) recorded() (string, bool) {
	if !m.records.Valid() {
		return "", false
	}
	name, _, ok := numbered(m.records.Key()[len(memRecord):])
	return name, ok
}

func (m *merge) expected() (string, bool) {
	if !m.wanted.Valid() {
		return "", false
	}
	return string(m.wanted.Key()[len(memName):]), true
}

// judge takes everything of the name at hand.
func (m *merge) judge() error {
	out := m.j.out
	first, n, err := m.takeRecords()
	if err != nil {
		return err
	}
	if name, ok := m.indexed(); ok && name == m.name {
		m.judgeIndex(first != nil, n)
		m.index.Next()
	} else if first != nil {
		out.record("index-missing", n, m.name, "the index does not have its name")
	}
	name, ok := m.expected()
	if !ok || name != m.name {
		if first == nil || first.Conflict != "" {
			return nil
		}
		if other, err := m.otherFrame(); err != nil || other {
			return err
		}
		out.record("name-extra", n, m.name, "the log up to %d demands no such event", m.j.limits.ledger)
		return nil
	}
	defer m.wanted.Next()
	var want expectation
	if err := json.Unmarshal(m.wanted.Value(), &want); err != nil {
		return fmt.Errorf("scratch: %w", err)
	}
	if first == nil {
		if other, err := m.otherFrame(); err != nil || other {
			return err
		}
		out.damage("name-missing", m.name, "fact %d (%s) demands this event, and the ledger does not have it", want.Seq, want.MsgID)
		return nil
	}
	m.compare(*first, n, want)
	return nil
}

// takeRecords takes the records of the name at hand: one, or damage.
func (m *merge) takeRecords() (first *brief, number int64, err error) {
	for m.records.Valid() {
		name, n, ok := numbered(m.records.Key()[len(memRecord):])
		if ok && name != m.name {
			break
		}
		if ok && first == nil {
			first, number = new(brief), n
			if err := json.Unmarshal(m.records.Value(), first); err != nil {
				return nil, 0, fmt.Errorf("scratch: %w", err)
			}
		} else if ok {
			m.j.out.record("name-twice", n, m.name, "record %d has this name already", number)
		}
		m.records.Next()
	}
	return first, number, nil
}

func (m *merge) judgeIndex(known bool, n int64) {
	value, err := m.index.ValueAndErr()
	switch {
	case err != nil || len(value) != 8:
		m.j.out.damage("index-wrong", m.name, "the index holds no record number: %x", value)
	case !known:
		m.j.out.damage("index-extra", m.name, "the index says record %d, and no record has this name", binary.BigEndian.Uint64(value))
	case int64(binary.BigEndian.Uint64(value)) != n:
		m.j.out.record("index-wrong", n, m.name, "the index says record %d", binary.BigEndian.Uint64(value))
	}
}

// compare holds a record against the fact that demands it.
func (m *merge) compare(b brief, n int64, want expectation) {
	if !b.Material.equal(want.Material, !b.Short) {
		m.j.out.record("record-material", n, m.name, "record and fact %d disagree: %s", want.Seq, b.Material.differs(want.Material))
	}
	if b.Seq == want.Seq && b.MsgID == want.MsgID && b.Recorded.Equal(want.Stored) {
		return
	}
	if m.j.healing.moved++; !m.j.healed() {
		m.j.out.drift("record-source", recordObject(n, m.name), "it says fact %d %s of %v; the log tells it first by fact %d %s of %v",
			b.Seq, b.MsgID, b.Recorded, want.Seq, want.MsgID, want.Stored)
	}
}

// judgeConflicts reports the events that the log tells in two ways, and holds
// them against the conflicts that the ledger recorded.
func (j *judge) judgeConflicts() error {
	told, err := j.count(memTold)
	if err != nil {
		return err
	}
	for p, err := range j.mem.each(memOther, "") {
		if err != nil {
			return err
		}
		name, _, _ := strings.Cut(string(p.key), "\x00")
		j.out.drift("conflict", name, "the log tells this event in two ways; the first stands: %s", p.value)
		if told[name]--; told[name] < 0 {
			j.out.damage("conflict-missing", name, "the ledger has no record of this conflict")
		}
	}
	for name, n := range told {
		if n > 0 {
			j.out.damage("conflict-extra", name, "the ledger has %d conflicts recorded that the log does not tell", n)
		}
	}
	return nil
}

// count counts the entries of a kind by name. Conflicts are few; they are the
// one thing here that is held in memory.
func (j *judge) count(kind string) (map[string]int, error) {
	out := map[string]int{}
	for p, err := range j.mem.each(kind, "") {
		if err != nil {
			return nil, err
		}
		name, _, _ := strings.Cut(string(p.key), "\x00")
		out[name]++
	}
	return out, nil
}
