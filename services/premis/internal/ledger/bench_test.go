package ledger_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2"

	"colophon/shared/event"

	"colophon/services/premis/internal/facttest"
	"colophon/services/premis/internal/ledger"
)

// BenchmarkAppend prints records a second at several batch sizes, beside
// BenchmarkFloor: the same records in plain synced Pebble batches.
func BenchmarkAppend(b *testing.B) {
	for _, size := range []int{1, 64, 1024} {
		b.Run(fmt.Sprintf("batch=%d", size), func(b *testing.B) {
			l, err := ledger.Open(b.TempDir(), ledger.Options{Origin: facttest.Origin})
			if err != nil {
				b.Fatal(err)
			}
			defer l.Close()
			var log facttest.Log
			for i := range b.N {
				p := facttest.Page("vol-0142", event.Name(fmt.Sprintf("%08d.tif", i)), i+1, fmt.Sprint(i))
				log.Add(p.Captured(1, 1), p.Fixed(1, 1), p.Derived(1, 1))
			}
			b.ResetTimer()
			records := 0
			for e := log.Entries; len(e) > 0; {
				n := min(size, len(e))
				got, err := l.Append(context.Background(), e[:n])
				if err != nil {
					b.Fatal(err)
				}
				records += got.New
				e = e[n:]
			}
			b.ReportMetric(float64(records)/b.Elapsed().Seconds(), "records/s")
			b.ReportMetric(float64(len(log.Entries))/b.Elapsed().Seconds(), "facts/s")
		})
	}
}

func BenchmarkFloor(b *testing.B) {
	l, err := ledger.Open(b.TempDir(), ledger.Options{Origin: facttest.Origin})
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	var log facttest.Log
	for i := range 400 {
		p := facttest.Page("vol-0142", event.Name(fmt.Sprintf("%08d.tif", i)), i+1, fmt.Sprint(i))
		log.Add(p.Captured(1, 1), p.Fixed(1, 1), p.Derived(1, 1))
	}
	appendAll(b, l, log.Entries)
	var records []ledger.Numbered
	for n := range l.Size() {
		r, err := l.Get(n)
		if err != nil {
			b.Fatal(err)
		}
		records = append(records, r)
	}
	for _, facts := range []int{1, 64, 1024} {
		b.Run(fmt.Sprintf("batch=%d", facts), func(b *testing.B) {
			db, err := pebble.Open(b.TempDir(), &pebble.Options{Logger: quiet{}, MemTableSize: 16 << 20})
			if err != nil {
				b.Fatal(err)
			}
			defer db.Close()
			b.ResetTimer()
			done := 0
			for n := 0; n < 3*b.N; n += facts { // three facts an iteration, as above
				w := db.NewBatch()
				for range 3 * min(facts, 3*b.N-n) { // three records a fact
					floorRecord(b, w, records[done%len(records)], done)
					done++
				}
				if err := w.Commit(pebble.Sync); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(done)/b.Elapsed().Seconds(), "records/s")
		})
	}
}

func floorRecord(b *testing.B, w *pebble.Batch, r ledger.Numbered, n int) {
	number := binary.BigEndian.AppendUint64(nil, uint64(n))
	err := errors.Join(
		w.Set(fmt.Appendf(nil, "k%s%d", r.Name, n), number, nil), w.Set(append([]byte{'e'}, number...), r.Bytes, nil),
		w.Set(append([]byte{'h'}, number...), make([]byte, 32), nil), w.Set(append([]byte{'i'}, number...), make([]byte, 32), nil),
	)
	if err != nil {
		b.Fatal(err)
	}
}
