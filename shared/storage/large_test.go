package storage

import (
	"io"
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

// TestConstantMemory hashes a sparse file of 3 GB and stores one of 200 MB,
// and watches the heap while it does.
func TestConstantMemory(t *testing.T) { // not parallel: it measures the process
	path := filepath.Join(t.TempDir(), "sparse")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // a test's end
	const size = 3_000_000_000
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	s := newStore(t)
	peak := &watch{r: f}
	if _, n, err := Sum(t.Context(), peak); err != nil || n != size {
		t.Fatal(n, err)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	peak.r = io.LimitReader(f, 200_000_000)
	if _, err := s.Write(t.Context(), "staging/b/f", peak, Options{MaxBytes: 200_000_000}); err != nil {
		t.Fatal(err)
	}
	if peak.grown > 8<<20 {
		t.Errorf("the heap grew by %d bytes", peak.grown)
	}
}

// watch notes by how much the heap grows from its first read on.
type watch struct {
	r     io.Reader
	reads int
	first uint64
	grown uint64
}

func (w *watch) Read(p []byte) (int, error) {
	if w.reads%1000 == 0 {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		if w.first == 0 {
			w.first = m.HeapAlloc
		}
		if m.HeapAlloc > w.first {
			w.grown = max(w.grown, m.HeapAlloc-w.first)
		}
	}
	w.reads++
	return w.r.Read(p)
}

// BenchmarkWrite stores small objects in one folder from many goroutines: the
// cost of the syncs, shared.
func BenchmarkWrite(b *testing.B) {
	s := newStore(b)
	b.SetParallelism(8)
	next := make(chan int, 1)
	next <- 0
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			i := <-next
			next <- i + 1
			put(b, s, StagingKey("b", "f", i, digestOf("x")), "x")
		}
	})
}
