package stage_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"colophon/shared/stage"
	"colophon/shared/testkit"
)

func TestNews(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var n stage.News
		n.Spread() // nobody waits
		var store atomic.Int32
		ended := make(chan error, 3)
		for want := range int32(3) {
			go func() {
				ended <- n.Until(t.Context(), func() (bool, error) { return store.Load() > want, nil })
			}()
		}
		for range 3 {
			synctest.Wait()
			if len(ended) != int(store.Load()) {
				t.Errorf("%d woke after %d writes", len(ended), store.Load())
			}
			store.Add(1)
			n.Spread()
		}
		for range 3 {
			testkit.OK(t, <-ended)
		}
		// What is written between taking the channel and looking is not missed.
		moved := n.Next()
		n.Spread()
		<-moved
		broken := errors.New("the store is broken")
		if err := n.Until(t.Context(), func() (bool, error) { return false, broken }); !errors.Is(err, broken) {
			t.Error(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := n.Until(ctx, func() (bool, error) { return false, nil }); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}
