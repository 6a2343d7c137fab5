package storage

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

// TestFlushShares: callers who come while a sync runs are not content with it,
// and share the next one.
func TestFlushShares(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var begun atomic.Int32
		gate := make(chan struct{})
		f := folders{sync: func(string) error {
			begun.Add(1)
			<-gate
			return nil
		}}
		var wg sync.WaitGroup
		wg.Go(func() { _ = f.flush("d") })
		synctest.Wait() // the first sync runs
		var returned atomic.Int32
		for range 20 {
			wg.Go(func() {
				_ = f.flush("d")
				returned.Add(1)
			})
		}
		synctest.Wait()
		gate <- struct{}{} // the first sync ends: nobody of the twenty may return on it
		synctest.Wait()
		if begun.Load() != 2 || returned.Load() != 0 {
			t.Errorf("begun %d, returned %d", begun.Load(), returned.Load())
		}
		wg.Go(func() { _ = f.flush("d") }) // comes while the second runs: a third
		synctest.Wait()
		gate <- struct{}{}
		synctest.Wait()
		if begun.Load() != 3 || returned.Load() != 20 {
			t.Errorf("begun %d, returned %d", begun.Load(), returned.Load())
		}
		gate <- struct{}{}
		wg.Wait()
		synctest.Wait()
		f.mu.Lock()
		defer f.mu.Unlock()
		if len(f.running) != 0 {
			t.Errorf("remembered: %v", f.running)
		}
	})
}

// TestFlushCovers: whatever the interleaving, a sync begins after every call.
func TestFlushCovers(t *testing.T) {
	t.Parallel()
	var clock atomic.Int64
	var lastBegun atomic.Int64
	f := folders{sync: func(string) error {
		lastBegun.Store(clock.Add(1))
		return nil
	}}
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for range 2000 {
				called := clock.Add(1)
				if err := f.flush("d"); err != nil || lastBegun.Load() < called {
					t.Errorf("called at %d, last sync began at %d, %v", called, lastBegun.Load(), err)
				}
			}
		})
	}
	wg.Wait()
}

func TestFlushFails(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	f := folders{sync: func(string) error { return broken }}
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			if err := f.flush("d"); !errors.Is(err, broken) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}
