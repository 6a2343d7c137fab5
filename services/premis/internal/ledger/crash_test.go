package ledger_test

import (
	"math/rand/v2"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"golang.org/x/mod/sumdb/tlog"

	"colophon/services/premis/internal/facttest"
	"colophon/services/premis/internal/ledger"
)

// TestPowerCuts cuts the power between and during commits. Whatever survives,
// position, records and tree belong together, nothing acknowledged is lost,
// and reading the log on from the position gives the undisturbed root.
func TestPowerCuts(t *testing.T) {
	t.Parallel()
	entries := line(16).Entries
	whole := open(t, vfs.NewMem())
	defer whole.Close()
	roots := map[uint64]tlog.Hash{0: {}}
	sizes := map[uint64]int64{0: 0}
	for _, e := range entries {
		appendAll(t, whole, []ledger.Entry{e})
		roots[e.Sequence], sizes[e.Sequence] = whole.Root(), whole.Size()
	}
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(1, seed))
		fs := vfs.NewCrashableMem()
		l := open(t, fs)
		var image *vfs.MemFS
		acked := uint64(0) // highest position whose commit added records
		stop := 1 + rng.IntN(len(entries))
		for at := 0; at < stop; {
			n := min(1+rng.IntN(7), len(entries)-at)
			before := l.Size()
			appendAll(t, l, entries[at:at+n])
			at += n
			if l.Size() > before {
				acked = entries[at-1].Sequence
			}
		}
		image = fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rng.IntN(101), RNG: rng})
		l.Close()
		again, err := ledger.Open("ledger", ledger.Options{Origin: facttest.Origin, FS: image})
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		at := again.Position().Sequence
		if at < acked {
			t.Errorf("seed %d: position %d, acknowledged %d", seed, at, acked)
		}
		if again.Size() != sizes[at] || at > 0 && again.Root() != roots[at] {
			t.Errorf("seed %d: at %d: %d records, not %d", seed, at, again.Size(), sizes[at])
		}
		appendAll(t, again, entries)
		if again.Root() != whole.Root() {
			t.Errorf("seed %d: other root after reading on", seed)
		}
		again.Close()
	}
}

// TestPowerCutWithinCommits takes the image while another goroutine appends.
func TestPowerCutWithinCommits(t *testing.T) {
	t.Parallel()
	entries := line(16).Entries
	whole := open(t, vfs.NewMem())
	defer whole.Close()
	appendAll(t, whole, entries)
	for seed := range uint64(12) {
		rng := rand.New(rand.NewPCG(2, seed))
		fs := vfs.NewCrashableMem()
		l := open(t, fs)
		go func(stop uint64) {
			for _, e := range entries {
				if _, err := l.Append(t.Context(), []ledger.Entry{e}); err != nil || e.Sequence == stop {
					return
				}
			}
		}(entries[len(entries)-1].Sequence)
		if err := l.Await(t.Context(), uint64(1+rng.IntN(len(entries)-1))); err != nil {
			t.Fatal(err)
		}
		image := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rng.IntN(101), RNG: rng})
		if err := l.Await(t.Context(), entries[len(entries)-1].Sequence); err != nil {
			t.Fatal(err)
		}
		l.Close()
		again, err := ledger.Open("ledger", ledger.Options{Origin: facttest.Origin, FS: image})
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		appendAll(t, again, entries)
		if again.Root() != whole.Root() {
			t.Errorf("seed %d: other root after reading on", seed)
		}
		again.Close()
	}
}
