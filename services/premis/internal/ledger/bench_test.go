package ledger_test

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"colophon/shared/event"

	"colophon/services/premis/internal/facttest"
	"colophon/services/premis/internal/ledger"
)

// benchLog is the log of so many frames: three facts and nine records each.
func benchLog(first, frames int) []ledger.Entry {
	var log facttest.Log
	for i := first; i < first+frames; i++ {
		p := facttest.Page(event.Name(fmt.Sprintf("vol-%04d", i/4000)), event.Name(fmt.Sprintf("%08d.tif", i)), i%4000+1, fmt.Sprint(i))
		log.Add(p.Captured(1, 1), p.Fixed(1, 1), p.Derived(1, 1))
	}
	for i := range log.Entries {
		log.Entries[i].Sequence += uint64(3 * first)
	}
	return log.Entries
}

// BenchmarkAppend prints records a second at several numbers of facts a
// commit, beside two floors, both in a store of the same options and with the
// same number of records behind each sync:
//
//   - floor: what MAPPING section 6 says a ledger holds, byte for byte (k, e and
//     h of each record, m), set in plain batches as the records come;
//   - own-floor: exactly the keys and values of our commits, indexes among
//     them, in the order we write them.
//
// A floor leaves out all work on facts: decoding, mapping, looking names up,
// encoding and hashing. The two differ since our keys are written sorted.
func BenchmarkAppend(b *testing.B) {
	for _, size := range []int{1, 64, ledger.MaxBatch} {
		b.Run(fmt.Sprintf("facts=%d", size), func(b *testing.B) {
			entries := benchLog(0, (b.N+2)/3)
			l, err := ledger.Open(b.TempDir(), ledger.Options{Origin: facttest.Origin})
			if err != nil {
				b.Fatal(err)
			}
			start := time.Now()
			appendIn(b, l, entries, size)
			rate := float64(l.Size()) / time.Since(start).Seconds()
			records := float64(l.Size())
			if err := l.Close(); err != nil {
				b.Fatal(err)
			}
			own := pairsOf(b, entries, size)
			ownFloor := records / floorTime(b, own).Seconds()
			for i := range own {
				own[i] = own[i].Section6()
			}
			floor := records / floorTime(b, own).Seconds()
			b.ReportMetric(rate, "records/s")
			b.ReportMetric(rate*float64(len(entries))/records, "facts/s")
			b.ReportMetric(floor, "floor-records/s")
			b.ReportMetric(rate/floor, "of-floor")
			b.ReportMetric(rate/ownFloor, "of-own-floor")
		})
	}
}

func appendIn(b *testing.B, l *ledger.Ledger, entries []ledger.Entry, size int) {
	b.Helper()
	for len(entries) > 0 {
		n := min(size, len(entries))
		if _, err := l.Append(context.Background(), entries[:n]); err != nil {
			b.Fatal(err)
		}
		entries = entries[n:]
	}
}

func pairsOf(b *testing.B, entries []ledger.Entry, size int) (commits []ledger.Pairs) {
	b.Helper()
	l, err := ledger.Open(b.TempDir(), ledger.Options{Origin: facttest.Origin})
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	for len(entries) > 0 {
		n := min(size, len(entries))
		pairs, err := l.AppendPairs(entries[:n])
		if err != nil {
			b.Fatal(err)
		}
		commits, entries = append(commits, pairs), entries[n:]
	}
	return commits
}

func floorTime(b *testing.B, commits []ledger.Pairs) time.Duration {
	b.Helper()
	db, err := ledger.OpenFloor(b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	defer db.Close()
	start := time.Now()
	for _, pairs := range commits {
		w := db.NewBatch()
		for _, p := range pairs {
			if err := w.Set(p[0], p[1], nil); err != nil {
				b.Fatal(err)
			}
		}
		if err := w.Commit(pebble.Sync); err != nil {
			b.Fatal(err)
		}
		w.Close()
	}
	return time.Since(start)
}

// BenchmarkExisting prints the rate at 1,024 facts a commit into ledgers that
// hold 10,000 and 1,000,000 records already (COLOPHON_BENCH_RECORDS adds a
// size: 10000000 takes minutes), and how long such a ledger takes to open.
func BenchmarkExisting(b *testing.B) {
	sizes := []int{10_000, 1_000_000}
	if more, err := strconv.Atoi(os.Getenv("COLOPHON_BENCH_RECORDS")); err == nil {
		sizes = append(sizes, more)
	}
	for _, size := range sizes {
		b.Run(fmt.Sprintf("records=%d", size), func(b *testing.B) {
			dir := b.TempDir()
			l, err := ledger.Open(dir, ledger.Options{Origin: facttest.Origin})
			if err != nil {
				b.Fatal(err)
			}
			frames := 0
			for ; l.Size() < int64(size); frames += 1000 {
				appendIn(b, l, benchLog(frames, 1000), ledger.MaxBatch)
			}
			if err := l.Close(); err != nil {
				b.Fatal(err)
			}
			start := time.Now()
			if l, err = ledger.Open(dir, ledger.Options{Origin: facttest.Origin}); err != nil {
				b.Fatal(err)
			}
			defer l.Close()
			opened := time.Since(start).Seconds()
			entries, before := benchLog(frames, 10_000), l.Size()
			b.ResetTimer()
			start = time.Now()
			appendIn(b, l, entries, ledger.MaxBatch)
			b.ReportMetric(float64(l.Size()-before)/time.Since(start).Seconds(), "records/s")
			b.ReportMetric(opened, "open-s")
		})
	}
}
