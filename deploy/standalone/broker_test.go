package standalone

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"colophon/shared/testkit"
)

// TestBrokerStartedAgain: a server that no longer stores messages is replaced by
// another one on the same store, port and password. Connections come back, and
// what was stored is there.
func TestBrokerStartedAgain(t *testing.T) {
	t.Parallel()
	var ill atomic.Bool
	archive := t.TempDir()
	b, err := startBroker(Options{Archive: archive, LowWater: 1, Log: slog.New(slog.DiscardHandler)}, "")
	testkit.OK(t, err)
	defer b.stop()
	if err := ailing(b.server()); err != nil {
		t.Errorf("a new server is ill: %v", err)
	}
	acc, err := readAccess(archive)
	testkit.OK(t, err)
	b.mu.Lock()
	b.look = func(*server.Server) error {
		if ill.Load() {
			return errors.New("as ill as can be")
		}
		return nil
	}
	b.mu.Unlock()
	inside, err := nats.Connect("", nats.InProcessServer(b), nats.UserInfo("colophon", b.password), nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond))
	testkit.OK(t, err)
	defer inside.Close()
	outside, err := nats.Connect(acc.URL, nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond))
	testkit.OK(t, err)
	defer outside.Close()
	js, err := jetstream.New(outside)
	testkit.OK(t, err)
	_, err = js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}})
	testkit.OK(t, err)
	_, err = js.Publish(t.Context(), "s", []byte("before"))
	testkit.OK(t, err)

	first := b.server()
	ill.Store(true)
	testkit.Eventually(t, "somebody notices", func() bool { return b.health() != nil })
	ill.Store(false)
	testkit.Eventually(t, "another server runs", func() bool { return b.server() != first && b.server() != nil && b.health() == nil })
	for _, nc := range []*nats.Conn{inside, outside} {
		testkit.Eventually(t, "the connection is back", func() bool {
			js, err := jetstream.New(nc)
			testkit.OK(t, err)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err = js.Publish(ctx, "s", []byte("behind"))
			return err == nil
		})
	}
	st, err := js.Stream(t.Context(), "S")
	testkit.OK(t, err)
	if m, err := st.GetMsg(t.Context(), 1); err != nil || string(m.Data) != "before" {
		t.Errorf("what was stored before is %v, %v", m, err)
	}
	if _, err := os.Stat(b.file); err != nil {
		t.Error(err)
	}
}

// TestEnough: the low-water mark, or a tenth of a small file system.
func TestEnough(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		free, size, mark uint64
		want             bool
	}{{1 << 30, 1 << 40, 1 << 30, true}, {1<<30 - 1, 1 << 40, 1 << 30, false}, {7 << 20, 64 << 20, 1 << 30, true}, {6 << 20, 64 << 20, 1 << 30, false}} {
		if err := enough(c.free, c.size, c.mark); (err == nil) != c.want {
			t.Errorf("%+v: %v", c, err)
		}
	}
}
