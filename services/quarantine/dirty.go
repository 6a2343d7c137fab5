package quarantine

import (
	"context"
	"sync"
)

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
