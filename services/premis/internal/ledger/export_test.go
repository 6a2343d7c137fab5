package ledger

import (
	"context"
	"encoding/binary"
	"log/slog"
	"math/bits"

	"github.com/cockroachdb/pebble/v2"
)

// Pairs are the keys and values of one commit.
type Pairs [][2][]byte

// AppendPairs appends entries in one commit and gives what it wrote.
func (l *Ledger) AppendPairs(entries []Entry) (Pairs, error) {
	t, err := l.build(l.Head(), entries)
	if err != nil {
		return nil, err
	}
	b := l.db.NewBatch()
	defer b.Close()
	if err := t.seal(b); err != nil {
		return nil, err
	}
	var out Pairs
	for r := b.Reader(); ; {
		_, key, value, ok, err := r.Next()
		if err != nil {
			return nil, err
		}
		if !ok {
			break
		}
		out = append(out, [2][]byte{append([]byte(nil), key...), append([]byte(nil), value...)})
	}
	_, err = l.Append(context.Background(), entries)
	return out, err
}

// OpenFloor opens a store as a ledger's is opened.
func OpenFloor(dir string) (*pebble.DB, error) {
	o := Options{Logger: slog.New(slog.DiscardHandler), Cache: defaultCache}
	return pebble.Open(dir, options(o, false))
}

// Section6 keeps what MAPPING section 6 asks for, in the order of the records.
func (p Pairs) Section6() Pairs {
	names, nodes := map[uint64][2][]byte{}, [][2][]byte{}
	var records, out Pairs
	var head [2][]byte
	for _, kv := range p {
		switch kv[0][0] {
		case kindName:
			names[binary.BigEndian.Uint64(kv[1])] = kv
		case kindRecord:
			records = append(records, kv)
		case kindHash:
			nodes = append(nodes, kv)
		case keyHead[0]:
			head = kv
		}
	}
	for _, r := range records {
		n := binary.BigEndian.Uint64(r[0][1:])
		count := bits.TrailingZeros64(n+1) + 1 // nodes that become complete with it
		out = append(append(out, names[n], r), nodes[:count]...)
		nodes = nodes[count:]
	}
	return append(out, head)
}
