//go:build soak

package e2e

import (
	"testing"
	"time"
)

// The long forms: `make soak`.

// patience bounds every wait. Only a broken program ever waits for it.
const patience = 30 * time.Minute

func TestSoakHalfFinished(t *testing.T) { halfFinished(t, 4000, 2731) }

func TestSoakMemory(t *testing.T) { large(t, 3<<30) }

// TestSoakKill; -short: one round of ten.
func TestSoakKill(t *testing.T) {
	rounds := 10
	if testing.Short() {
		rounds = 1
	}
	for range rounds {
		killed(t, 200, 30, 4*time.Second)
	}
}

// BenchmarkDoubleRun runs a converged batch of 4,000 frames again, as a new
// process, and hashes the same files for comparison.
func BenchmarkDoubleRun(b *testing.B) {
	const n = 4000
	a := newArchive(b)
	dir := pages(b, n)
	p := a.startIngest(dir)
	p.wait().parsed().converged(n)
	b.Run("again", func(b *testing.B) {
		var cpu time.Duration
		for b.Loop() {
			cpu += a.ingest(dir).converged(n).counts(0, 0, n, 0).cpu
		}
		b.ReportMetric(float64(cpu.Milliseconds())/float64(b.N), "cpu-ms/op")
	})
	b.Run("hash", func(b *testing.B) {
		for b.Loop() {
			hashAll(b, dir)
		}
	})
}
