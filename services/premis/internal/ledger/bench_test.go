package ledger_test

import (
	"context"
	"fmt"
	"testing"

	"colophon/shared/event"

	"colophon/services/premis/internal/facttest"
	"colophon/services/premis/internal/ledger"
)

// BenchmarkAppend prints records a second at several batch sizes.
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
