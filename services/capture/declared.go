package capture

import (
	"context"
	"encoding/json"
	"strconv"
	"sync"
	"time"

	"colophon/shared/completed"
	"colophon/shared/event"
	"colophon/shared/fault"
)

// undeclaredAfter is how long frames wait for their declaration; lookAgain is
// how often they look by themselves. A declaration that another replica
// accepted is learned from the log, and can be read a moment after the news.
const (
	undeclaredAfter = 24 * time.Hour
	lookAgain       = time.Second
)

// declared knows the accepted declarations, and lets frames wait for theirs.
type declared struct {
	set *completed.Set
	now *news
}

// news wakes everybody who waits, each time something was accepted.
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

func (n *news) spread() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ch != nil {
		close(n.ch)
		n.ch = nil
	}
}

// declaredToken is where one accepted declaration of a batch is kept. Each has
// its own: an old one that is told once more never takes the newest one's place.
func declaredToken(b event.Name, number int) string {
	return event.Key{Operation: "declaration", Digest: event.Digest(strconv.Itoa(number)), Slot: event.Slot{Batch: b}}.String()
}

// get gives the declaration that stands: they are numbered from 0 without gaps.
func (d declared) get(b event.Name) (f event.BatchFact, known bool, err error) {
	for n := 0; ; n++ {
		data, ok, err := d.set.Result(declaredToken(b, n))
		if err != nil || !ok {
			return f, known, err
		}
		f, known = event.BatchFact{}, true
		if err := json.Unmarshal(data, &f); err != nil {
			return f, false, err
		}
	}
}

func (d declared) wait(ctx context.Context, b event.Name) (event.BatchFact, error) {
	late := time.Now().Add(undeclaredAfter)
	for {
		next := d.now.next()
		f, ok, err := d.get(b)
		if err != nil || ok {
			return f, err
		}
		if time.Now().After(late) {
			return f, fault.New(fault.BatchUndeclared, nil, "nobody declared the batch within %v", undeclaredAfter)
		}
		select {
		case <-next:
		case <-time.After(lookAgain):
		case <-ctx.Done():
			return f, ctx.Err()
		}
	}
}
