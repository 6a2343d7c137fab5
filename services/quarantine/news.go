package quarantine

import (
	"context"
	"sync"
)

// news wakes those who wait for the store to move.
type news struct {
	mu sync.Mutex
	ch chan struct{}
}

func (n *news) next() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ch == nil {
		n.ch = make(chan struct{})
	}
	return n.ch
}

func (n *news) tell() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ch != nil {
		close(n.ch)
		n.ch = nil
	}
}

// until waits for a condition that only the store's moving can make true.
func (n *news) until(ctx context.Context, holds func() (bool, error)) error {
	for {
		moved := n.next()
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

// dirty is the set of cases to look at.
type dirty struct {
	mu   sync.Mutex
	ids  map[string]bool
	wake chan struct{}
}

func (d *dirty) signal() chan struct{} {
	if d.wake == nil {
		d.wake = make(chan struct{}, 1)
	}
	return d.wake
}

func (d *dirty) add(ids ...string) {
	if len(ids) == 0 {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ids == nil {
		d.ids = map[string]bool{}
	}
	for _, id := range ids {
		d.ids[id] = true
	}
	select {
	case d.signal() <- struct{}{}:
	default:
	}
}

// take waits until there is something, and takes all of it.
func (d *dirty) take(ctx context.Context) (map[string]bool, error) {
	d.mu.Lock()
	wake := d.signal()
	d.mu.Unlock()
	select {
	case <-wake:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	ids := d.ids
	d.ids = nil
	return ids, nil
}
