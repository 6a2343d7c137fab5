package verify

import (
	"encoding/binary"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
	"golang.org/x/mod/sumdb/tlog"
)

// tree builds the Merkle tree of RFC 6962 over the records as they come, and
// compares each node with the stored one, in one pass over both. The stored
// nodes lie in just the order in which they come to be.
type tree struct {
	it    *pebble.Iterator
	out   *reporter
	valid bool
	next  int64 // stored-hash number that comes next
	size  int64
	stack []node // roots of the complete subtrees, the largest first
}

// node is the root of a complete subtree. Where a record and its stored leaf
// disagree, nobody knows yet which of the two is damaged: then both hashes go
// on until a node above, or the root, tells.
type node struct {
	hash tlog.Hash // from the records
	alt  tlog.Hash // from the stored leaf, where doubt is set
	// doubt are the record and its name.
	doubt *doubt
}

type doubt struct {
	n    int64
	name string
}

func newTree(db *pebble.DB, out *reporter) (*tree, error) {
	it, err := db.NewIter(&pebble.IterOptions{LowerBound: keyNode, UpperBound: after(keyNode)})
	if err != nil {
		return nil, err
	}
	return &tree{it: it, out: out, valid: it.First()}, nil
}

func (t *tree) close() { _ = t.it.Close() } // only read from

// stored gives the next stored node.
func (t *tree) stored() (h tlog.Hash, ok bool) {
	want := t.next
	t.next++
	for t.valid && (len(t.it.Key()) != 9 || t.at() < want) {
		t.out.damage("tree-extra", fmt.Sprintf("node %x", t.it.Key()[1:]), "no node has this number")
		t.valid = t.it.Next()
	}
	if !t.valid || t.at() != want {
		return h, false
	}
	data, err := t.it.ValueAndErr()
	ok = err == nil && len(data) == tlog.HashSize
	if ok {
		h = tlog.Hash(data)
	}
	t.valid = t.it.Next()
	return h, ok
}

func (t *tree) at() int64 { return int64(binary.BigEndian.Uint64(t.it.Key()[1:])) }

// add takes the next record's leaf.
func (t *tree) add(n int64, name string, leaf tlog.Hash) {
	if n != t.size {
		return // beyond the end; told where the size is judged
	}
	now := node{hash: leaf}
	stored, ok := t.stored()
	switch {
	case !ok:
		t.out.damage("tree-missing", nodeObject(0, n), "the leaf of %s is missing", recordObject(n, name))
	case stored != leaf:
		now.alt, now.doubt = stored, &doubt{n, name}
	}
	t.push(now)
}

// skip takes the stored leaf of a record that is missing.
func (t *tree) skip(n int64) {
	if n != t.size {
		return
	}
	stored, _ := t.stored()
	t.push(node{hash: stored})
}

// push adds a leaf and closes the subtrees that it completes.
func (t *tree) push(now node) {
	level := 0
	for n := t.size; n&1 == 1; n >>= 1 {
		left := t.stack[len(t.stack)-1]
		t.stack = t.stack[:len(t.stack)-1]
		level++
		now = t.join(left, now, level, n>>1)
	}
	t.stack = append(t.stack, now)
	t.size++
}

// join makes a node of two and compares it with the stored one.
func (t *tree) join(left, right node, level int, n int64) node {
	stored, ok := t.stored()
	computed := tlog.NodeHash(left.hash, right.hash)
	if !ok {
		t.out.damage("tree-missing", nodeObject(level, n), "the node is missing")
		t.blame(left, false)
		t.blame(right, false)
		return node{hash: computed}
	}
	for _, l := range left.both() {
		for _, r := range right.both() {
			if tlog.NodeHash(l.hash, r.hash) == stored {
				t.blame(left, l.leafIsRight)
				t.blame(right, r.leafIsRight)
				return node{hash: stored}
			}
		}
	}
	t.blame(left, true)
	t.blame(right, true)
	t.out.damage("tree-node", nodeObject(level, n), "it is not what its children give")
	return node{hash: computed}
}

type candidate struct {
	hash        tlog.Hash
	leafIsRight bool // so the record is damaged
}

func (n node) both() []candidate {
	out := []candidate{{n.hash, false}}
	if n.doubt != nil {
		out = append(out, candidate{n.alt, true})
	}
	return out
}

// blame settles a doubt: the record is damaged, or its stored leaf is.
func (t *tree) blame(n node, record bool) {
	switch d := n.doubt; {
	case d == nil:
	case record:
		t.out.record("record-changed", d.n, d.name, "its bytes are not those that the tree holds")
	default:
		t.out.damage("tree-node", nodeObject(0, d.n), "it is not the hash of %s", recordObject(d.n, d.name))
	}
}

func nodeObject(level int, n int64) string { return fmt.Sprintf("node %d of level %d", n, level) }

// end compares the root and looks for nodes that no record has.
func (t *tree) end(h head) {
	for t.valid {
		t.out.damage("tree-extra", fmt.Sprintf("node %x", t.it.Key()[1:]), "no record has this node")
		t.valid = t.it.Next()
	}
	if err := t.it.Error(); err != nil {
		t.out.damage("ledger-unreadable", "tree", "the nodes cannot be read: %v", err)
	}
	if h.Size == 0 || t.size != h.Size {
		return
	}
	right := t.choose(h.Root)
	for _, n := range t.stack {
		t.blame(n, right)
	}
	if t.root(right) != h.Root {
		t.out.damage("tree-root", "root", "the records give %v, the head says %v", t.root(false), h.Root)
	}
}

// choose tells whether the stored leaves of doubted records give the root.
func (t *tree) choose(root tlog.Hash) bool { return t.root(false) != root }

// root folds the complete subtrees from the right.
func (t *tree) root(stored bool) tlog.Hash {
	pick := func(n node) tlog.Hash {
		if stored && n.doubt != nil {
			return n.alt
		}
		return n.hash
	}
	at := pick(t.stack[len(t.stack)-1])
	for i := len(t.stack) - 2; i >= 0; i-- {
		at = tlog.NodeHash(pick(t.stack[i]), at)
	}
	return at
}
