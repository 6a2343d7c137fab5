// Package testkit is what tests share: a broker of their own, a crashable
// disk, calls that fail to order, a worker whose results are scripted, and
// waiting for conditions. It is imported by tests only.
package testkit

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats-server/v2/server/ats"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"colophon/shared/topology"
)

// The server keeps one clock goroutine a process for the access times of its
// caches, started by the first server and ended by the last. Held from here it
// belongs to no synctest bubble, and bubbles with servers may run side by side.
func init() { ats.Register() }

// Broker is an embedded server that syncs every message, on a folder of its
// own. Connections made by [Broker.Connect] find it again after a restart.
type Broker struct {
	TB   testing.TB
	Dir  string
	port int // 0: in-process only

	childs bool // the server is a process of its own

	mu    sync.Mutex
	srv   *server.Server
	child *Child
}

// StartBroker starts a server that listens nowhere; dir may be a test's
// TempDir. It runs inside a synctest bubble too: stop it before the bubble ends.
func StartBroker(tb testing.TB, dir string) *Broker {
	tb.Helper()
	b := &Broker{TB: tb, Dir: dir}
	b.Start()
	return b
}

// StartLoopback starts a server that listens on a port of 127.0.0.1.
func StartLoopback(tb testing.TB, dir string) *Broker {
	tb.Helper()
	b := &Broker{TB: tb, Dir: dir, port: freePort(tb)}
	b.Start()
	return b
}

// BrokerProgram is the server as a program of [Children]: it takes a folder and
// a port, and says when it is ready.
func BrokerProgram(args []string) {
	port, err := strconv.Atoi(args[1])
	if err != nil {
		panic(err)
	}
	s, err := server.NewServer(Options(args[0], port))
	if err != nil {
		panic(err)
	}
	s.Start()
	if s.ReadyForConnections(30 * time.Second) {
		fmt.Println("ready")
	}
	s.WaitForShutdown()
}

// StartChildBroker starts a server as a process of its own, which [Broker.Kill]
// can kill. The test binary's TestMain must know [BrokerProgram] as "broker".
func StartChildBroker(tb testing.TB, dir string) *Broker {
	tb.Helper()
	b := &Broker{TB: tb, Dir: dir, port: freePort(tb), childs: true}
	b.Start()
	return b
}

// Kill ends a server that is a process of its own, with SIGKILL.
func (b *Broker) Kill() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.child != nil {
		b.child.Kill()
		b.child = nil
	}
}

func freePort(tb testing.TB) int {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	OK(tb, err)
	defer l.Close() //nolint:errcheck // only its number matters
	return l.Addr().(*net.TCPAddr).Port
}

// Options are the settings of every server of the tests; port 0 does not listen.
func Options(dir string, port int) *server.Options {
	o := &server.Options{
		JetStream: true, StoreDir: dir, SyncAlways: true, SyncInterval: 10 * time.Second,
		DontListen: port == 0, NoSigs: true, NoLog: true, DisableJetStreamBanner: true,
	}
	if port != 0 {
		o.Host, o.Port = "127.0.0.1", port
	}
	return o
}

// Start starts the server again on its folder.
func (b *Broker) Start() {
	b.TB.Helper()
	if b.childs {
		c := StartChild(b.TB, "broker", b.Dir, strconv.Itoa(b.port))
		if l := c.Line(); l != "ready" {
			b.TB.Fatalf("the broker says %q", l)
		}
		b.mu.Lock()
		b.child = c
		b.mu.Unlock()
		return
	}
	s, err := server.NewServer(Options(b.Dir, b.port))
	OK(b.TB, err)
	s.Start()
	b.mu.Lock()
	b.srv = s
	b.mu.Unlock()
	if !s.ReadyForConnections(30 * time.Second) {
		b.TB.Fatal("the broker does not get ready")
	}
}

// Stop ends the server; connections stay and wait for the next Start.
func (b *Broker) Stop() {
	b.Kill() // where it is a process; graceful ends are no test of it
	b.mu.Lock()
	s := b.srv
	b.srv = nil
	b.mu.Unlock()
	if s != nil {
		s.Shutdown()
		s.WaitForShutdown()
	}
}

// Restart stops and starts the server.
func (b *Broker) Restart() {
	b.TB.Helper()
	b.Stop()
	b.Start()
}

// URL is where a server on a port listens.
func (b *Broker) URL() string { return "nats://127.0.0.1:" + strconv.Itoa(b.port) }

// InProcessConn implements [nats.InProcessConnProvider]: it reaches whichever
// server runs now.
func (b *Broker) InProcessConn() (net.Conn, error) {
	b.mu.Lock()
	s := b.srv
	b.mu.Unlock()
	if s == nil {
		return nil, errors.New("the broker is down")
	}
	return s.InProcessConn()
}

// Connect gives a connection that comes back by itself. Close it before the
// server stops for good.
func (b *Broker) Connect() (*nats.Conn, jetstream.JetStream) {
	b.TB.Helper()
	url, opts := "", []nats.Option{nats.MaxReconnects(-1), nats.ReconnectWait(20 * time.Millisecond), nats.ReconnectJitter(0, 0)}
	if b.port == 0 {
		opts = append(opts, nats.InProcessServer(b))
	} else {
		url = b.URL()
	}
	nc, err := nats.Connect(url, opts...)
	OK(b.TB, err)
	js, err := jetstream.New(nc)
	OK(b.TB, err)
	return nc, js
}

// Provision creates the streams and consumers of the one table.
func (b *Broker) Provision(profiles ...string) {
	b.TB.Helper()
	nc, js := b.Connect()
	defer nc.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	OK(b.TB, topology.Provision(ctx, js, topology.DefaultSizes(), profiles))
}

// NewBroker starts and provisions a server for one test and stops it behind it.
func NewBroker(tb testing.TB, profiles ...string) (*Broker, jetstream.JetStream) {
	tb.Helper()
	b := StartBroker(tb, TempDir(tb))
	b.Provision(profiles...)
	nc, js := b.Connect()
	tb.Cleanup(func() {
		nc.Close()
		b.Stop()
	})
	return b, js
}
