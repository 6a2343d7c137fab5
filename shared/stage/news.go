package stage

import (
	"context"
	"sync"
)

// News wakes everybody who waits for a store to move, each time something was
// written. The zero value is ready; it is safe for concurrent use.
type News struct {
	mu sync.Mutex
	ch chan struct{}
}

// Next gives a channel that the next Spread closes. Take it before looking:
// what is written in between wakes too.
func (n *News) Next() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ch == nil {
		n.ch = make(chan struct{})
	}
	return n.ch
}

// Spread wakes all who wait.
func (n *News) Spread() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ch != nil {
		close(n.ch)
		n.ch = nil
	}
}

// Awaited reports whether somebody took a channel that is not closed yet.
func (n *News) Awaited() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.ch != nil
}

// Until waits for a condition that only the store's moving can make true; it
// returns the condition's error, or ctx's.
func (n *News) Until(ctx context.Context, holds func() (bool, error)) error {
	for {
		moved := n.Next()
		if ok, err := holds(); ok || err != nil {
			return err
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
