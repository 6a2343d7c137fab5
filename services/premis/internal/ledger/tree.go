package ledger

import (
	"encoding/binary"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
	"golang.org/x/mod/sumdb/tlog"
)

// hashes reads nodes, first from memory: what a commit under way adds, and
// the right edge of the tree.
type hashes struct {
	view   View
	memory map[int64]tlog.Hash
	used   map[int64]tlog.Hash // nil: not kept
}

// ReadHashes implements [tlog.HashReader].
func (h hashes) ReadHashes(indexes []int64) ([]tlog.Hash, error) {
	out := make([]tlog.Hash, len(indexes))
	for i, n := range indexes {
		node, ok := h.memory[n]
		if !ok {
			data, found, err := h.view.get(hashKey(n))
			if err != nil {
				return nil, err
			}
			if !found || len(data) != tlog.HashSize {
				return nil, fmt.Errorf("%w: node %d is missing", ErrDamaged, n)
			}
			node = tlog.Hash(data)
		}
		out[i] = node
		if h.used != nil {
			h.used[n] = node
		}
	}
	return out, nil
}

// root gives the root of the first size records, and the nodes it was made
// from: the right edge, with which the next record is hashed.
func (h hashes) root(size int64) (tlog.Hash, map[int64]tlog.Hash, error) {
	h.used = map[int64]tlog.Hash{}
	root, err := tlog.TreeHash(size, h)
	return root, h.used, err
}

// prove recomputes each inner node from the leaves' nodes, and the root, and
// compares them with what is stored. It reads all nodes once, in order.
func (v View) prove(head Head) (map[int64]tlog.Hash, error) {
	it, err := v.r.NewIter(&pebble.IterOptions{LowerBound: []byte{kindHash}, UpperBound: []byte{kindHash + 1}})
	if err != nil {
		return nil, fmt.Errorf("ledger: nodes: %w", err)
	}
	defer it.Close()
	var stack []tlog.Hash // the last left and right node of each level
	var next int64
	for ok := it.First(); ok; ok = it.Next() {
		n := int64(binary.BigEndian.Uint64(it.Key()[1:]))
		if n != next || len(it.Value()) != tlog.HashSize {
			return nil, fmt.Errorf("ledger: %w: node %d is missing", ErrDamaged, next)
		}
		next++
		if stack, err = grow(stack, n, tlog.Hash(it.Value())); err != nil {
			return nil, err
		}
	}
	if err := it.Error(); err != nil {
		return nil, fmt.Errorf("ledger: nodes: %w", err)
	}
	if want := tlog.StoredHashCount(head.Size); next != want {
		return nil, fmt.Errorf("ledger: %w: %d nodes for %d records, not %d", ErrDamaged, next, head.Size, want)
	}
	return v.proveEdge(head)
}

// grow checks one node against its children and keeps it.
func grow(stack []tlog.Hash, n int64, node tlog.Hash) ([]tlog.Hash, error) {
	level, k := tlog.SplitStoredHashIndex(n)
	for len(stack) < 2*(level+1) {
		stack = append(stack, tlog.Hash{})
	}
	if level > 0 {
		if tlog.NodeHash(stack[2*(level-1)], stack[2*(level-1)+1]) != node {
			return nil, fmt.Errorf("ledger: %w: node %d of level %d is not what its children say", ErrDamaged, k, level)
		}
	}
	stack[2*level+int(k&1)] = node // left or right of its pair
	return stack, nil
}

func (v View) proveEdge(head Head) (map[int64]tlog.Hash, error) {
	root, edge, err := hashes{view: v}.root(head.Size)
	if err != nil {
		return nil, fmt.Errorf("ledger: root: %w", err)
	}
	if head.Size > 0 && root != head.Root {
		return nil, fmt.Errorf("ledger: %w: root is %v, the head says %v", ErrDamaged, root, head.Root)
	}
	if head.Size > 0 {
		if _, found, err := v.get(recordKey(head.Size - 1)); err != nil || !found {
			return nil, fmt.Errorf("ledger: %w: record %d is missing: %v", ErrDamaged, head.Size-1, err)
		}
	}
	if _, found, err := v.get(recordKey(head.Size)); err != nil || found {
		return nil, fmt.Errorf("ledger: %w: a record stands behind the last: %v", ErrDamaged, err)
	}
	return edge, nil
}

// LeafHash is the hash of a record's stored bytes, as the tree holds it.
func LeafHash(data []byte) tlog.Hash { return tlog.RecordHash(data) }
