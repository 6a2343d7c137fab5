package topology_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"colophon/shared/completed"
	"colophon/shared/event"
	"colophon/shared/testkit"
	"colophon/shared/topology"
)

// reader is a follower with a memory, as a service would keep it.
type reader struct {
	mu      sync.Mutex
	ids     []string
	batches int
	pos     completed.Position
	rolled  []completed.Position
	caught  int
	end     func() // stops the follower and waits for it
}

func (r *reader) follow(t *testing.T, js jetstream.JetStream, stream string, filters ...string) *topology.Follower {
	t.Helper()
	f := &topology.Follower{
		JS: js, Stream: stream, Filters: filters, Log: (&testkit.Logbook{}).Logger(),
		Position: func() (completed.Position, error) {
			r.mu.Lock()
			defer r.mu.Unlock()
			return r.pos, nil
		},
		Handle: func(_ context.Context, batch []topology.Message) error {
			r.mu.Lock()
			defer r.mu.Unlock()
			for _, m := range batch {
				r.ids = append(r.ids, m.MsgID)
			}
			r.batches++
			r.pos = batch[len(batch)-1].Position
			return nil
		},
		RolledBack: func(_ context.Context, was completed.Position) error {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.rolled = append(r.rolled, was)
			return nil
		},
		CaughtUp: func(context.Context) error {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.caught++
			return nil
		},
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- f.Run(ctx) }()
	r.end = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the follower ended with: %v", err)
		}
	})
	t.Cleanup(r.end)
	return f
}

func (r *reader) seen() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.ids)
}

func (r *reader) waitFor(t *testing.T, ids []string) {
	t.Helper()
	testkit.Eventually(t, fmt.Sprintf("%d messages", len(ids)), func() bool { return len(r.seen()) >= len(ids) })
	if got := r.seen(); !slices.Equal(got, ids) {
		t.Fatalf("read %v\nwant %v", got, ids)
	}
}

func publish(t *testing.T, js jetstream.JetStream, subject string, from, to int) (ids []string) {
	t.Helper()
	for n := from; n < to; n++ {
		id := fmt.Sprint("m", n)
		testkit.PublishRaw(t, js, subject, nats.Header{event.HeaderMsgID: {id}}, []byte(id))
		ids = append(ids, id)
	}
	return ids
}

func TestAFollowerReadsAllInOrder(t *testing.T) {
	t.Parallel()
	_, js := testkit.NewBroker(t)
	ids := publish(t, js, "ingest.frame.fixed", 0, 1500)
	publish(t, js, "ingest.frame.captured", 5000, 5010) // not followed
	r := &reader{}
	f := r.follow(t, js, event.StreamIngest, "ingest.frame.fixed", "ingest.op.*")
	testkit.Closed(t, "ready", f.Ready())
	r.waitFor(t, ids) // ready means: all that was there is handled
	if r.batches > 1000 {
		t.Errorf("%d batches for 1,500 messages", r.batches)
	}
	ids = append(ids, publish(t, js, "ingest.op.halted", 1500, 1600)...)
	r.waitFor(t, ids)
	r.end()
	ids = append(ids, publish(t, js, "ingest.frame.fixed", 1600, 1650)...)
	f = r.follow(t, js, event.StreamIngest, "ingest.frame.fixed", "ingest.op.*")
	testkit.Closed(t, "ready again", f.Ready())
	r.waitFor(t, ids) // from the position, nothing twice
	if len(r.rolled) > 0 {
		t.Errorf("took it for a rollback: %v", r.rolled)
	}
}

func TestAFollowerOfAnEmptyStreamIsReady(t *testing.T) {
	t.Parallel()
	_, js := testkit.NewBroker(t)
	r := &reader{}
	testkit.Closed(t, "ready", r.follow(t, js, event.StreamIngest).Ready())
	r.waitFor(t, publish(t, js, "ingest.op.halted", 0, 3))
}

// TestReadyUnderLoad: ready is what was there at the start, and comes also
// when the stream never rests.
func TestReadyUnderLoad(t *testing.T) {
	t.Parallel()
	_, js := testkit.NewBroker(t)
	publish(t, js, "ingest.op.halted", 0, 100)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for n := 1000; ; n++ {
			select {
			case <-stop:
				return
			default:
				_, _ = js.PublishAsync("ingest.op.halted", []byte("load"))
			}
		}
	}()
	r := &reader{}
	testkit.Closed(t, "ready", r.follow(t, js, event.StreamIngest).Ready())
	close(stop)
	<-stopped
	if n := len(r.seen()); n < 100 {
		t.Errorf("ready after %d of 100", n)
	}
}

func TestAFollowerSurvivesTheBroker(t *testing.T) {
	t.Parallel()
	b, js := testkit.NewBroker(t)
	r := &reader{}
	r.follow(t, js, event.StreamIngest)
	var ids []string
	for i := range 3 {
		ids = append(ids, publish(t, js, "ingest.op.halted", i*10, i*10+10)...)
		r.waitFor(t, ids)
		b.Restart()
		testkit.Eventually(t, "the broker answers", func() bool {
			_, err := js.Stream(t.Context(), event.StreamIngest)
			return err == nil
		})
	}
	ids = append(ids, publish(t, js, "ingest.op.halted", 100, 110)...)
	r.waitFor(t, ids)
	if len(r.rolled) > 0 {
		t.Errorf("took a restart for a rollback: %v", r.rolled)
	}
}

// TestARollbackIsSeen: the broker comes back with an older copy of its folder,
// with and without new messages on the lost sequences.
func TestARollbackIsSeen(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"shorter", "refilled", "refilled while the follower was down", "refilled alike while the follower was down"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			b, js := testkit.NewBroker(t)
			r := &reader{}
			ids := publish(t, js, "ingest.op.halted", 0, 20)
			b.Stop()
			copyDir := filepath.Join(testkit.TempDir(t), "copy")
			testkit.OK(t, os.CopyFS(copyDir, os.DirFS(b.Dir)))
			b.Start()
			awake(t, js)
			r.follow(t, js, event.StreamIngest)
			ids = append(ids, publish(t, js, "ingest.op.halted", 20, 30)...)
			r.waitFor(t, ids)
			down := strings.HasSuffix(how, "down")
			if down {
				r.end()
			}
			b.Stop()
			testkit.OK(t, os.RemoveAll(b.Dir))
			testkit.OK(t, os.CopyFS(b.Dir, os.DirFS(copyDir)))
			b.Start()
			awake(t, js)
			left := ids[:20]
			if down {
				from := 40
				if strings.Contains(how, "alike") { // the same ids on the same sequences, at another time
					from = 20
				}
				left = append(slices.Clone(left), publish(t, js, "ingest.op.resumed", from, from+10)...)
				r.follow(t, js, event.StreamIngest)
			}
			testkit.Eventually(t, "the rollback is told", func() bool {
				r.mu.Lock()
				defer r.mu.Unlock()
				return len(r.rolled) > 0
			})
			if how == "refilled" {
				left = append(slices.Clone(left), publish(t, js, "ingest.op.resumed", 40, 60)...)
			}
			r.waitFor(t, append(slices.Clone(ids), left...)) // from the start again
			if r.rolled[0].Sequence != 30 || r.rolled[0].MsgID != "m29" {
				t.Errorf("told of %+v", r.rolled[0])
			}
		})
	}
}

func awake(t *testing.T, js jetstream.JetStream) {
	t.Helper()
	testkit.Eventually(t, "the broker answers", func() bool {
		_, err := js.Stream(t.Context(), event.StreamIngest)
		return err == nil
	})
}

// TestATrimmedStreamIsNoRollback: the janitor may remove what is behind a
// position, up to it and all.
func TestATrimmedStreamIsNoRollback(t *testing.T) {
	t.Parallel()
	for _, keep := range []uint64{5, 11, 21} { // first sequence left of 20; 21 is none
		_, js := testkit.NewBroker(t)
		r := &reader{}
		ids := publish(t, js, "capture.frame.g.b", 0, 10)
		r.follow(t, js, event.StreamCapture)
		r.waitFor(t, ids)
		r.end()
		rest := publish(t, js, "capture.frame.g.b", 10, 20)
		st, err := js.Stream(t.Context(), event.StreamCapture)
		testkit.OK(t, err)
		testkit.OK(t, st.Purge(t.Context(), jetstream.WithPurgeSequence(keep)))
		if keep == 21 {
			rest = nil
		}
		rest = append(rest, publish(t, js, "capture.frame.g.b", 20, 25)...)
		r.follow(t, js, event.StreamCapture)
		r.waitFor(t, append(ids, rest...))
		r.end()
		if len(r.rolled) > 0 {
			t.Errorf("purged up to %d: took it for a rollback: %v", keep, r.rolled)
		}
	}
}

func TestAHandlerThatFailsEndsTheFollower(t *testing.T) {
	t.Parallel()
	_, js := testkit.NewBroker(t)
	publish(t, js, "ingest.op.halted", 0, 1)
	broken := errors.New("disk gone")
	f := &topology.Follower{
		JS: js, Stream: event.StreamIngest, Log: (&testkit.Logbook{}).Logger(),
		Position: func() (completed.Position, error) { return completed.Position{}, nil },
		Handle:   func(context.Context, []topology.Message) error { return broken },
	}
	if err := f.Run(t.Context()); !errors.Is(err, broken) {
		t.Errorf("ended with %v", err)
	}
}

// TestCaughtUpBesideWhatCannotBeRead: messages that are lost to a flipped bit
// are counted as pending, and never come; nobody waits for them.
func TestCaughtUpBesideWhatCannotBeRead(t *testing.T) {
	t.Parallel()
	b, js := testkit.NewBroker(t)
	for n := range 5 {
		testkit.PublishRaw(t, js, "ingest.op.hole", nil, fmt.Appendf(nil, "message %d", n))
	}
	b.Stop()
	blocks, err := filepath.Glob(filepath.Join(b.Dir, "jetstream", "*", "streams", event.StreamIngest, "msgs", "*.blk"))
	testkit.OK(t, err)
	flipped := 0
	for _, block := range blocks {
		data, err := os.ReadFile(block)
		testkit.OK(t, err)
		for _, text := range []string{"message 1", "message 4"} {
			if i := bytes.Index(data, []byte(text)); i >= 0 {
				data[i] ^= 1
				flipped++
			}
		}
		testkit.OK(t, os.WriteFile(block, data, 0o600))
	}
	if flipped != 2 {
		t.Fatalf("%d messages were flipped", flipped)
	}
	b.Start()
	var read atomic.Int32
	f := &topology.Follower{
		JS: js, Stream: event.StreamIngest, Log: slog.New(slog.DiscardHandler),
		Position: func() (completed.Position, error) { return completed.Position{}, nil },
		Handle: func(_ context.Context, batch []topology.Message) error {
			read.Add(int32(len(batch)))
			return nil
		},
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- f.Run(ctx) }()
	testkit.Closed(t, "it has caught up", f.Ready())
	if n := read.Load(); n != 3 {
		t.Errorf("%d messages were read, 3 can be", n)
	}
	cancel()
	testkit.OK(t, <-ended)
}
