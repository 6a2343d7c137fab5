package capture

import (
	"context"
	"encoding/json"
	"strconv"
	"time"

	"colophon/shared/completed"
	"colophon/shared/event"
	"colophon/shared/fault"
	"colophon/shared/stage"
)

// undeclaredAfter is how long frames wait for their declaration; lookAgain is
// how often they look by themselves. A declaration that another replica
// accepted is learned from the log, and can be read a moment after the news.
//
// leastWait is how long they wait in any case: after an outage their
// declaration may stand in the queue beside them.
const (
	undeclaredAfter = 24 * time.Hour
	leastWait       = time.Minute
	lookAgain       = time.Second
)

// declared knows the accepted declarations, and lets frames wait for theirs.
type declared struct {
	set *completed.Set
	now *stage.News
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

// wait waits for the batch's declaration, at least the one of a number; since
// is when the wait began.
func (d declared) wait(ctx context.Context, b event.Name, least int, since time.Time) (event.BatchFact, error) {
	late := since.Add(undeclaredAfter)
	if soonest := time.Now().Add(leastWait); late.Before(soonest) {
		late = soonest
	}
	for {
		next := d.now.Next()
		f, ok, err := d.get(b)
		if err != nil || ok && f.Number >= least {
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
