package stage

import (
	"context"
	"slices"
	"sync"
)

// permits are the work slots of a consumer. Only an act holds one: waiting for
// a delay, a running key, a declaration or an open gate holds none.
//
// A fetch reserves the free slots for what it may bring. While it waits for
// messages, work that became due meanwhile takes reserved slots away; a message
// that then finds none waits its turn in hold.
type permits struct {
	size int

	mu       sync.Mutex
	free     int
	reserved int
	queue    []*turn // first come, first served: work done alone is not starved
}

type turn struct {
	want    int
	granted chan struct{}
}

func newPermits(n int) *permits { return &permits{size: n, free: n} }

// acquire takes n slots; reserved ones serve too.
func (p *permits) acquire(ctx context.Context, n int) error {
	p.mu.Lock()
	t := &turn{n, make(chan struct{})}
	p.queue = append(p.queue, t)
	p.serve()
	p.mu.Unlock()
	select {
	case <-t.granted:
		return nil
	default:
	}
	select {
	case <-t.granted:
		return nil
	case <-ctx.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := slices.Index(p.queue, t); i >= 0 {
		p.queue = slices.Delete(p.queue, i, i+1)
	} else { // granted just now
		p.free += n
	}
	p.serve()
	return ctx.Err()
}

func (p *permits) release(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free += n
	p.serve()
}

// serve grants what the head of the queue can have; p.mu is held.
func (p *permits) serve() {
	for len(p.queue) > 0 && p.queue[0].want <= p.free+p.reserved {
		t := p.queue[0]
		p.queue = p.queue[1:]
		fromFree := min(t.want, p.free)
		p.free -= fromFree
		p.reserved -= t.want - fromFree
		close(t.granted)
	}
}

// reserve waits for a free slot and sets all free ones aside; one fetch at a
// time does so.
func (p *permits) reserve(ctx context.Context) (int, error) {
	if err := p.acquire(ctx, 1); err != nil {
		return 0, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reserved = p.free + 1
	p.free = 0
	n := p.reserved
	p.serve()
	return n, nil
}

// arrived gives a message that a fetch brought its reserved slot, if that is
// still there.
func (p *permits) arrived() *permit {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.reserved == 0 || len(p.queue) > 0 {
		return &permit{of: p}
	}
	p.reserved--
	return &permit{p, 1}
}

// unreserve ends a fetch.
func (p *permits) unreserve() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free += p.reserved
	p.reserved = 0
	p.serve()
}

// permit is one message's share: nothing, one slot, or all of them.
type permit struct {
	of   *permits
	held int
}

// hold takes a work slot, or all of them for work that is done alone.
func (p *permit) hold(ctx context.Context, alone bool) error {
	want := 1
	if alone {
		want = p.of.size
	}
	if p.held >= want {
		return nil
	}
	p.drop()
	if err := p.of.acquire(ctx, want); err != nil {
		return err
	}
	p.held = want
	return nil
}

func (p *permit) alone() bool { return p.held == p.of.size }

func (p *permit) drop() {
	if p.held > 0 {
		p.of.release(p.held)
		p.held = 0
	}
}
