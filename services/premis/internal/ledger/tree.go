package ledger

import (
	"encoding/binary"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
	"golang.org/x/mod/sumdb/tlog"
)

// edge is the right edge of a tree of so many records: at each level whose bit
// is set in the size, the root of the last complete subtree of that level.
type edge [64]tlog.Hash

// grow adds the leaf of record n and gives the nodes that become complete with
// it, the leaf first, as [tlog.StoredHashes] does; buf is reused.
func (e *edge) grow(n int64, leaf tlog.Hash, buf []tlog.Hash) []tlog.Hash {
	buf = append(buf[:0], leaf)
	level := 0
	for ; n>>level&1 == 1; level++ {
		leaf = tlog.NodeHash(e[level], leaf)
		buf = append(buf, leaf)
	}
	e[level] = leaf
	return buf
}

// root is the root over the first size records.
func (e *edge) root(size int64) (root tlog.Hash) {
	first := true
	for level := range e {
		switch {
		case size>>level&1 == 0:
		case first:
			root, first = e[level], false
		default:
			root = tlog.NodeHash(e[level], root)
		}
	}
	return root
}

// ReadHashes implements [tlog.HashReader] over the stored nodes: for proofs.
func (v View) ReadHashes(indexes []int64) ([]tlog.Hash, error) {
	out := make([]tlog.Hash, len(indexes))
	for i, n := range indexes {
		data, found, err := v.get(hashKey(n))
		if err != nil {
			return nil, err
		}
		if !found || len(data) != tlog.HashSize {
			return nil, fmt.Errorf("%w: node %d is missing", ErrDamaged, n)
		}
		out[i] = tlog.Hash(data)
	}
	return out, nil
}

// prove recomputes each inner node from the leaves' nodes, and the root, and
// compares them with what is stored. It reads all nodes once, in order.
func (v View) prove(head Head) (*edge, error) {
	it, err := v.r.NewIter(&pebble.IterOptions{LowerBound: []byte{kindHash}, UpperBound: []byte{kindHash + 1}})
	if err != nil {
		return nil, fmt.Errorf("ledger: nodes: %w", err)
	}
	defer it.Close()
	e := new(edge)
	var buf []tlog.Hash
	ok, next := it.First(), int64(0) // record and node
	for n := range head.Size {
		for i := 0; i == 0 || i < len(buf); i++ {
			if !ok || len(it.Key()) != 9 || int64(binary.BigEndian.Uint64(it.Key()[1:])) != next || len(it.Value()) != tlog.HashSize {
				return nil, fmt.Errorf("ledger: %w: node %d of record %d is missing", ErrDamaged, next, n)
			}
			node := tlog.Hash(it.Value())
			if i == 0 {
				buf = e.grow(n, node, buf)
			} else if buf[i] != node {
				return nil, fmt.Errorf("ledger: %w: node %d of record %d is not what its children say", ErrDamaged, next, n)
			}
			next++
			ok = it.Next()
		}
	}
	if err := it.Error(); err != nil {
		return nil, fmt.Errorf("ledger: nodes: %w", err)
	}
	if ok {
		return nil, fmt.Errorf("ledger: %w: nodes behind the last of %d records", ErrDamaged, head.Size)
	}
	return e, v.proveEnd(head, e.root(head.Size))
}

func (v View) proveEnd(head Head, root tlog.Hash) error {
	if head.Size > 0 && root != head.Root {
		return fmt.Errorf("ledger: %w: root is %v, the head says %v", ErrDamaged, root, head.Root)
	}
	if head.Size > 0 {
		if _, found, err := v.get(recordKey(head.Size - 1)); err != nil || !found {
			return fmt.Errorf("ledger: %w: record %d is missing: %v", ErrDamaged, head.Size-1, err)
		}
	}
	if _, found, err := v.get(recordKey(head.Size)); err != nil || found {
		return fmt.Errorf("ledger: %w: a record stands behind the last: %v", ErrDamaged, err)
	}
	return nil
}

// LeafHash is the hash of a record's stored bytes, as the tree holds it.
func LeafHash(data []byte) tlog.Hash { return tlog.RecordHash(data) }

// RootAt is the root over the first size records, from the stored nodes.
func (v View) RootAt(size int64) (tlog.Hash, error) {
	if size == 0 {
		return tlog.Hash{}, nil
	}
	return tlog.TreeHash(size, v)
}
