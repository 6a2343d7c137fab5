package capture

import (
	"context"
	"fmt"
	"time"

	"colophon/shared/event"
)

// settleTime is how long a file must have been left alone before its bytes are
// believed to be whole.
const settleTime = 2 * time.Second

// vouched: somebody declared size and digest, so that half a file shows.
func vouched(in *frameIn) bool { return in.Size != nil && in.SHA256 != "" }

// Waits names the batch's declaration while nobody has made it.
func (f *frames) Waits(in *frameIn) (string, error) {
	if b, known, err := f.declared.get(in.Batch); err != nil || known && b.Number >= in.follows {
		return "", err
	}
	return fmt.Sprintf("declaration %s#%d", in.Batch.Encode(), in.follows), nil
}

// Wait waits for the batch's declaration, and for a file that is still being
// written to be left alone.
func (f *frames) Wait(ctx context.Context, in *frameIn, since time.Time) error {
	if _, err := f.declared.wait(ctx, in.Batch, in.follows, since); err != nil {
		return err
	}
	if vouched(in) {
		return nil
	}
	return f.settled(ctx, in.Sources)
}

// settled waits until the first source that is there was left alone. A time
// that lies ahead tells nothing: then two looks must agree.
func (f *frames) settled(ctx context.Context, sources []string) error {
	var before event.SourceStat
	for {
		st, ok := f.glance(sources)
		if !ok {
			return nil // Act says what is wrong with them
		}
		age := time.Since(st.ModTime)
		if age >= settleTime || st.Same(before) {
			return nil
		}
		before = st
		if err := wait(ctx, min(settleTime-age, settleTime)); err != nil {
			return err
		}
	}
}

func (f *frames) glance(sources []string) (event.SourceStat, bool) {
	for _, s := range sources {
		file, st, err := f.roots.Open(s)
		if err == nil {
			_ = file.Close()
			return st, true
		}
	}
	return event.SourceStat{}, false
}

func wait(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
