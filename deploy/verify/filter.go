package verify

import (
	"hash/maphash"
	"sync/atomic"
)

// filter is a Bloom filter over the keys of the scratch database: most of what
// a sound archive's judge looks up is new, and need not be looked for on disk.
// It is made for the length of the log and never larger than 16 MiB, good for
// ten million keys (a million facts); beyond that it only saves less. Safe for
// concurrent use.
type filter struct {
	seed maphash.Seed
	bits []atomic.Uint64
}

const (
	minWords     = 1 << 12 // 32 KiB
	maxWords     = 1 << 21 // 16 MiB
	filterProbes = 4
)

// newFilter makes one for a log of so many facts, about ten keys each.
func newFilter(facts uint64) *filter {
	words := uint64(minWords)
	for words < 2*facts && words < maxWords {
		words *= 2
	}
	return &filter{maphash.MakeSeed(), make([]atomic.Uint64, words)}
}

// probes calls each for the bits of a key until it says false.
func (f *filter) probes(kind, key string, each func(word *atomic.Uint64, bit uint64) bool) bool {
	var h maphash.Hash
	h.SetSeed(f.seed)
	_, _ = h.WriteString(kind) // never fails
	_, _ = h.WriteString(key)
	sum := h.Sum64()
	step := sum>>33 | 1
	for range filterProbes {
		if !each(&f.bits[sum/64%uint64(len(f.bits))], 1<<(sum%64)) {
			return false
		}
		sum += step
	}
	return true
}

func (f *filter) add(kind, key string) {
	f.probes(kind, key, func(word *atomic.Uint64, bit uint64) bool {
		word.Or(bit)
		return true
	})
}

// may reports false only for a key that was never added.
func (f *filter) may(kind, key string) bool {
	return f.probes(kind, key, func(word *atomic.Uint64, bit uint64) bool { return word.Load()&bit != 0 })
}
