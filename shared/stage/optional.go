package stage

import (
	"context"
	"time"

	"colophon/shared/event"
)

// Waiter is a [Worker] with messages that must wait for something else, such
// as a declaration. A waiting message holds no work slot.
type Waiter[In any] interface {
	// Waits names what a message waits for that may be long in coming, "" where
	// nothing is. So many wait for one name in memory; further ones are parked.
	Waits(in In) (string, error)
	// Wait returns nil when the message may go on. It is called in any case.
	// since is when the message began to wait, over restarts where it was parked.
	Wait(ctx context.Context, in In, since time.Time) error
}

// Doubter is a [Worker] whose recorded result may have lost its bytes: Still
// reports whether a hit can be believed.
type Doubter[In, Out any] interface {
	Still(ctx context.Context, in In, out Out, w event.Work) (bool, error)
}

// Serial is a [Worker] with keys that touch one thing, such as the revisions of
// one slot: messages of equal turns are worked one after the other, from check
// to record, whatever their keys.
type Serial[In any] interface {
	Turn(in In) string
}

// Dependent is a [Worker] whose act leans on something that can be away and
// come back, such as a device or an endpoint. Depends names it, "" for nothing;
// a breaker guards each name.
type Dependent[In any] interface {
	Depends(in In) string
}

// Chooser is a [Worker] that leaves some messages alone.
type Chooser[In any] interface {
	Wants(in In) bool
}
