package verify

import (
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"golang.org/x/mod/sumdb/tlog"
)

// TestTree: of every size of a tree, each record and each node that is changed
// is named, and nothing else is.
func TestTree(t *testing.T) {
	t.Parallel()
	for size := int64(1); size <= 21; size++ {
		var records [][]byte
		var nodes []tlog.Hash
		read := tlog.HashReaderFunc(func(at []int64) ([]tlog.Hash, error) {
			out := make([]tlog.Hash, len(at))
			for i, n := range at {
				out[i] = nodes[n]
			}
			return out, nil
		})
		for n := range size {
			records = append(records, fmt.Appendf(nil, "record %d", n))
			h, err := tlog.StoredHashes(n, records[n], read)
			if err != nil {
				t.Fatal(err)
			}
			nodes = append(nodes, h...)
		}
		root, err := tlog.TreeHash(size, read)
		if err != nil {
			t.Fatal(err)
		}
		h := head{Size: size, Root: root}
		if got := judgeTree(t, records, nodes, h); len(got) != 0 {
			t.Fatalf("size %d: %v", size, got)
		}
		for n := range size {
			records[n][0] ^= 1
			got := judgeTree(t, records, nodes, h)
			records[n][0] ^= 1
			if len(got) != 1 || got[0].Kind != "record-changed" || got[0].Object != fmt.Sprintf("record %d", n) {
				t.Errorf("size %d, record %d: %v", size, n, got)
			}
		}
		for n := range nodes {
			level, at := tlog.SplitStoredHashIndex(int64(n))
			nodes[n][5] ^= 1
			got := judgeTree(t, records, nodes, h)
			nodes[n][5] ^= 1
			if len(got) != 1 || got[0].Kind != "tree-node" || got[0].Object != nodeObject(level, at) {
				t.Errorf("size %d, node %d of level %d: %v", size, at, level, got)
			}
		}
	}
}

func judgeTree(t *testing.T, records [][]byte, nodes []tlog.Hash, h head) []Finding {
	t.Helper()
	db, err := pebble.Open("", &pebble.Options{FS: vfs.NewMem(), Logger: quiet{}})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close() //nolint:errcheck // a test
	for n, node := range nodes {
		if err := db.Set(append([]byte{'h'}, number(int64(n))...), node[:], pebble.NoSync); err != nil {
			t.Fatal(err)
		}
	}
	out := newReporter()
	tr, err := newTree(db, out)
	if err != nil {
		t.Fatal(err)
	}
	defer tr.close()
	for n, data := range records {
		tr.add(int64(n), "", tlog.RecordHash(data))
	}
	tr.end(h)
	return out.findings()
}

// TestFilter: what was added may be there; most of what was not, may not. The
// filter's seed is new each time, so the number is a random one: with 4 probes
// and 2^21 bits for 100,000 keys, (1-e^(-4/21))^4 of a key, 91 of 100,000 with
// a standard deviation of 9.5. The bound is six of them away.
func TestFilter(t *testing.T) {
	t.Parallel()
	f := newFilter(10_000)
	const n = 100_000
	for i := range n {
		f.add("n/", fmt.Sprint("event ", i))
	}
	wrong := 0
	for i := range n {
		if !f.may("n/", fmt.Sprint("event ", i)) {
			t.Fatalf("%d is lost", i)
		}
		if f.may("m/", fmt.Sprint("event ", i)) {
			wrong++
		}
	}
	if wrong > 150 {
		t.Errorf("%d of %d taken for known", wrong, n)
	}
}
