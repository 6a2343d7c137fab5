package e2e

import (
	"context"
	"encoding/json"
	"net"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// startServer is a broker that syncs every message, over a folder. port -1
// takes a free one, 0 listens nowhere.
func startServer(t testing.TB, dir string, port int) *server.Server {
	t.Helper()
	o := &server.Options{JetStream: true, StoreDir: dir, SyncAlways: true, NoSigs: true, NoLog: true, DisableJetStreamBanner: true, JetStreamMaxStore: 1 << 40}
	if port == 0 {
		o.DontListen = true
	} else {
		o.Host, o.Port = "127.0.0.1", port
	}
	s, err := server.NewServer(o)
	ok(t, err)
	s.Start()
	if !s.ReadyForConnections(time.Minute) {
		t.Fatal("the broker does not get ready")
	}
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	return s
}

// stop ends a broker, so that its folder can be used by another.
func stop(s *server.Server) {
	s.Shutdown()
	s.WaitForShutdown()
}

// streamed is a message of a stream.
type streamed struct {
	subject string
	header  nats.Header
	data    []byte
}

// stream reads a stream of an archive that nobody runs, in order.
func (a *archive) stream(name string, subjects ...string) []streamed {
	t := a.t
	t.Helper()
	s := startServer(t, a.path("jetstream"), 0)
	defer stop(s)
	nc, err := nats.Connect("", nats.InProcessServer(s))
	ok(t, err)
	defer nc.Close()
	return readStream(t, nc, name, subjects...)
}

func readStream(t testing.TB, nc *nats.Conn, name string, subjects ...string) []streamed {
	t.Helper()
	js, err := jetstream.New(nc)
	ok(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, err := js.OrderedConsumer(ctx, name, jetstream.OrderedConsumerConfig{FilterSubjects: subjects})
	ok(t, err)
	info, err := c.Info(ctx)
	ok(t, err)
	var out []streamed
	for left := info.NumPending; left > 0; left-- {
		m, err := c.Next(jetstream.FetchMaxWait(30 * time.Second))
		ok(t, err)
		out = append(out, streamed{m.Subject(), m.Headers(), m.Data()})
	}
	return out
}

// doneInLog gives the frames whose derivative the log holds: what may never be
// worked on again.
func (a *archive) doneInLog(t testing.TB) map[string]bool {
	t.Helper()
	out := map[string]bool{}
	for _, m := range a.stream("INGEST", "ingest.derivative.>") {
		var f struct{ Frame string }
		ok(t, json.Unmarshal(m.data, &f))
		out[f.Frame] = true
	}
	return out
}

// freePort gives a port of 127.0.0.1 that nobody listens on.
func freePort(t testing.TB) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	ok(t, err)
	defer l.Close() //nolint:errcheck // only its number matters
	return l.Addr().(*net.TCPAddr).Port
}
