package premis_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"colophon/shared/event"
	"colophon/shared/topology"
	"colophon/shared/transfer"

	"colophon/services/premis"
	"colophon/services/premis/internal/facttest"
	"colophon/services/premis/internal/ledger"
	"colophon/services/premis/internal/premisxml"
)

// world is a server with the table's streams, and a log to grow.
type world struct {
	t   *testing.T
	nc  *nats.Conn
	js  jetstream.JetStream
	dir string
	key string // file of the signing key; empty: none
}

func newWorld(t *testing.T) *world {
	t.Helper()
	s, err := server.NewServer(&server.Options{DontListen: true, NoSigs: true, NoLog: true, JetStream: true, StoreDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(20 * time.Second) {
		t.Fatal("server is not ready")
	}
	nc, err := nats.Connect("", nats.InProcessServer(s))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, nc: nc, js: js, dir: t.TempDir()}
	w.provision()
	return w
}

func (w *world) provision() {
	w.t.Helper()
	if err := topology.Provision(w.t.Context(), w.js, topology.DefaultSizes(), []string{"jp2"}); err != nil {
		w.t.Fatal(err)
	}
}

// publish stores facts, and gives the sequence of the last.
func (w *world) publish(facts ...event.Fact) uint64 {
	w.t.Helper()
	last := uint64(0)
	for _, f := range facts {
		data, err := json.Marshal(f)
		if err != nil {
			w.t.Fatal(err)
		}
		ack, err := w.js.Publish(w.t.Context(), f.Subject(), data, jetstream.WithMsgID(f.MsgID()))
		if err != nil {
			w.t.Fatal(err)
		}
		last = ack.Sequence
	}
	return last
}

// start runs the service until stop is called.
func (w *world) start(log *slog.Logger) (s *premis.Service, stop func()) {
	w.t.Helper()
	s, err := premis.New(premis.Config{Dir: w.dir, Key: w.key, Origin: facttest.Origin, Logger: log}, w.nc)
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				w.t.Errorf("run: %v", err)
			}
			if err := s.Close(); err != nil {
				w.t.Errorf("close: %v", err)
			}
		})
	}
	w.t.Cleanup(stop)
	select {
	case <-s.Ready():
	case err := <-done:
		w.t.Fatalf("run: %v", err)
	}
	return s, stop
}

type out struct{ bytes.Buffer }

func (*out) Close() error { return nil }

// fetch exports and gives the files.
func (w *world) fetch(q premis.ExportRequest) (map[string]string, premis.Position, error) {
	ctx, cancel := context.WithTimeout(w.t.Context(), 30*time.Second)
	defer cancel()
	files := map[string]*out{}
	answer, err := transfer.FetchAnswer(ctx, w.nc, "premis.export", q, func(name string) (io.WriteCloser, error) {
		files[name] = &out{}
		return files[name], nil
	})
	texts := map[string]string{}
	for name, f := range files {
		texts[name] = f.String()
	}
	var p premis.Position
	if err == nil {
		err = json.Unmarshal(answer, &p)
	}
	return texts, p, err
}

func story(batch event.Name, frames int) []event.Fact {
	facts := []event.Fact{facttest.Opened(batch, frames, "jp2")}
	for i := range frames {
		p := facttest.Page(batch, event.Name(fmt.Sprintf("%04d", i)), i+1, fmt.Sprint(batch, i))
		facts = append(facts, p.Captured(1, 1), p.Fixed(1, 1), p.Derived(1, 1))
	}
	return append(facts, facttest.Converged(batch, 1, event.Totals{Declared: frames, Done: frames}))
}

func TestExportAtAPosition(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, stop := w.start(nil)
	last := w.publish(story("a", 60)...)
	files, at, err := w.fetch(premis.ExportRequest{Kind: premis.KindPremis, Batch: "a", MinPosition: last})
	if err != nil {
		t.Fatal(err)
	}
	if at.Sequence < last || len(files) != 1 {
		t.Fatalf("position %+v, %d files", at, len(files))
	}
	text := files["premis-0001.xml"]
	if len(text) < transfer.PartSize || !strings.Contains(text, "event:ingestion-end:@a<") {
		t.Errorf("%d bytes, without the end", len(text))
	}
	if err := premisxml.Check(strings.NewReader(text)); err != nil {
		t.Error(err)
	}
	one := facttest.Digest("a0")
	if files, _, err = w.fetch(premis.ExportRequest{Kind: premis.KindPremis, Digest: one}); err != nil || files["premis-"+string(one)+".xml"] == "" {
		t.Errorf("master: %v", err)
	}
	if files, _, err = w.fetch(premis.ExportRequest{Kind: premis.KindTSVFrames, Batch: "a"}); err != nil || strings.Count(files["frames.tsv"], "\tingested\t") != 60 {
		t.Errorf("frames: %v\n%.500s", err, files["frames.tsv"])
	}
	if files, _, err = w.fetch(premis.ExportRequest{Kind: premis.KindTSVEvents, Batch: "a"}); err != nil || int64(strings.Count(files["events.tsv"], "\n")) != at.Size+1 {
		t.Errorf("events: %v", err)
	}
	for _, q := range []premis.ExportRequest{
		{Kind: "else", Batch: "a"}, {Kind: premis.KindPremis}, {Kind: premis.KindPremis, Batch: "a", Digest: one},
		{Kind: premis.KindPremis, Batch: "no such"}, {Kind: premis.KindPremis, Digest: "zz"},
	} {
		var refused *transfer.ServiceError
		if _, _, err := w.fetch(q); !errors.As(err, &refused) || refused.Code != "400" && refused.Code != "404" {
			t.Errorf("%+v: %v", q, err)
		}
	}
	stop()
}

func TestAWaitEndsWithItsRequest(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(nil)
	m := nats.NewMsg("premis.export")
	m.Data = []byte(`{"kind":"premis","batch":"a","min_position":99}`)
	m.Header.Set(transfer.HeaderInbox, "_INBOX.x")
	m.Header.Set(transfer.HeaderTimeout, "50ms")
	answer, err := w.nc.RequestMsg(m, 20*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	var refused *transfer.ServiceError
	if err := transfer.AnswerError(answer); !errors.As(err, &refused) || refused.Code != "504" {
		t.Errorf("got %v", err)
	}
}

func TestPositionAndCheckpoint(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s, _ := w.start(nil)
	last := w.publish(story("a", 3)...)
	if _, _, err := w.fetch(premis.ExportRequest{Kind: premis.KindPremis, Batch: "a", MinPosition: last}); err != nil {
		t.Fatal(err)
	}
	var at premis.Position
	w.ask("premis.position", &at)
	if at != s.Position() || at.Sequence != last {
		t.Errorf("%+v", at)
	}
	var c premis.Checkpoint
	w.ask("premis.checkpoint", &c)
	l, err := ledger.OpenReadOnly(c.Dir, ledger.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if l.Root().String() != at.Root {
		t.Errorf("root %v", l.Root())
	}
}

func (w *world) ask(subject string, answer any) {
	w.t.Helper()
	m, err := w.nc.Request(subject, nil, 20*time.Second)
	if err == nil {
		err = transfer.AnswerError(m)
	}
	if err == nil {
		err = json.Unmarshal(m.Data, answer)
	}
	if err != nil {
		w.t.Fatalf("%s: %v", subject, err)
	}
}

// TestDeliveriesOutOfOrder leaves the first deliveries with another client, so
// that the service sees only later ones, and those again afterwards.
func TestDeliveriesOutOfOrder(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	last := w.publish(story("a", 10)...)
	c, err := w.js.Consumer(t.Context(), event.StreamIngest, topology.Premis)
	if err != nil {
		t.Fatal(err)
	}
	taken, err := c.Fetch(7)
	if err != nil {
		t.Fatal(err)
	}
	var held []jetstream.Msg
	for m := range taken.Messages() {
		held = append(held, m)
	}
	if len(held) != 7 {
		t.Fatalf("%d held", len(held))
	}
	s, stop := w.start(nil)
	if _, _, err := w.fetch(premis.ExportRequest{Kind: premis.KindPremis, Batch: "a", MinPosition: last}); err != nil {
		t.Fatal(err)
	}
	for _, m := range held {
		if err := m.Nak(); err != nil {
			t.Fatal(err)
		}
	}
	more := w.publish(story("b", 2)...)
	if _, _, err := w.fetch(premis.ExportRequest{Kind: premis.KindPremis, Batch: "b", MinPosition: more}); err != nil {
		t.Fatal(err)
	}
	root := s.Position().Root
	stop()
	if want := w.undisturbed(); want != root {
		t.Errorf("root %s, undisturbed %s", root, want)
	}
}

// undisturbed is the root of a ledger that reads the stream in order.
func (w *world) undisturbed() string {
	w.t.Helper()
	l, err := ledger.Open(w.t.TempDir(), ledger.Options{Origin: facttest.Origin})
	if err != nil {
		w.t.Fatal(err)
	}
	defer l.Close()
	stream, err := w.js.Stream(w.t.Context(), event.StreamIngest)
	if err != nil {
		w.t.Fatal(err)
	}
	for seq := uint64(1); seq <= stream.CachedInfo().State.LastSeq; seq++ {
		m, err := stream.GetMsg(w.t.Context(), seq)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			continue
		}
		if err != nil {
			w.t.Fatal(err)
		}
		e := ledger.Entry{Sequence: seq, Stored: m.Time, MsgID: m.Header.Get(event.HeaderMsgID), Subject: m.Subject, Data: m.Data}
		if _, err := l.Append(w.t.Context(), []ledger.Entry{e}); err != nil {
			w.t.Fatal(err)
		}
	}
	return l.Root().String()
}

// shouts collects the messages of one log line.
type shouts struct {
	mu sync.Mutex
	bytes.Buffer
}

func (s *shouts) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Buffer.Write(p)
}

func (s *shouts) has(text string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Contains(s.String(), text)
}

// TestALogRolledBackIsReadAgain gives the service a stream that ends before
// its position and then grows on otherwise.
func TestALogRolledBackIsReadAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, stop := w.start(nil)
	facts := story("a", 5)
	last := w.publish(facts...)
	if _, _, err := w.fetch(premis.ExportRequest{Kind: premis.KindPremis, Batch: "a", MinPosition: last}); err != nil {
		t.Fatal(err)
	}
	stop()
	if err := w.js.DeleteStream(t.Context(), event.StreamIngest); err != nil {
		t.Fatal(err)
	}
	w.provision()
	w.publish(facts[:6]...)
	again := w.publish(story("b", 8)...)
	var log shouts
	s, stop := w.start(slog.New(slog.NewTextHandler(&log, nil)))
	files, at, err := w.fetch(premis.ExportRequest{Kind: premis.KindPremis, Batch: "b", MinPosition: again})
	if err != nil {
		t.Fatal(err)
	}
	if !log.has("log_rolled_back") {
		t.Error("it was not told")
	}
	if err := premisxml.Check(strings.NewReader(files["premis-0001.xml"])); err != nil {
		t.Error(err)
	}
	if at.Sequence != again || s.Position().Sequence != again {
		t.Errorf("position %d, not %d", at.Sequence, again)
	}
}

// TestAHoleIsToldAndPassedOver removes messages from a stream that allows it.
func TestAHoleIsToldAndPassedOver(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if err := w.js.DeleteStream(t.Context(), event.StreamIngest); err != nil {
		t.Fatal(err)
	}
	for _, c := range topology.Streams(topology.DefaultSizes()) {
		if c.Name == event.StreamIngest {
			c.DenyDelete, c.DenyPurge = false, false
			if _, err := w.js.CreateStream(t.Context(), c); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := w.js.CreateConsumer(t.Context(), event.StreamIngest, jetstream.ConsumerConfig{Durable: topology.Premis, AckPolicy: jetstream.AckExplicitPolicy}); err != nil {
		t.Fatal(err)
	}
	last := w.publish(story("a", 4)...)
	stream, err := w.js.Stream(t.Context(), event.StreamIngest)
	if err != nil {
		t.Fatal(err)
	}
	for _, seq := range []uint64{4, 5, 9} {
		if err := stream.DeleteMsg(t.Context(), seq); err != nil {
			t.Fatal(err)
		}
	}
	var log shouts
	s, stop := w.start(slog.New(slog.NewTextHandler(&log, nil)))
	if _, _, err := w.fetch(premis.ExportRequest{Kind: premis.KindTSVEvents, Batch: "a", MinPosition: last}); err != nil {
		t.Fatal(err)
	}
	root := s.Position().Root
	stop()
	if !log.has("log_hole") || !log.has("from=4 to=5") || !log.has("from=9 to=9") {
		t.Errorf("told: %s", log.String())
	}
	if want := w.undisturbed(); want != root {
		t.Errorf("root %s, undisturbed %s", root, want)
	}
}

func TestUnknownFactsStopTheService(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if _, err := w.js.Publish(t.Context(), "ingest.frame.fixed", []byte(`{"schema":"colophon/frame.fixed/v2"}`)); err != nil {
		t.Fatal(err)
	}
	s, err := premis.New(premis.Config{Dir: w.dir, Origin: facttest.Origin}, w.nc)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Run(t.Context()); !errors.Is(err, event.ErrUnknownSchema) {
		t.Errorf("got %v", err)
	}
}

func TestConfigReportsEveryFault(t *testing.T) {
	t.Parallel()
	err := premis.Config{Batch: 5000, Exports: -1, Wait: -1, Origin: "a b"}.Validate()
	for _, want := range []string{"dir", "batch", "exports", "wait", "origin"} {
		if err == nil || !strings.Contains(err.Error(), want+":") {
			t.Errorf("%s is not in %v", want, err)
		}
	}
	if err := (premis.Config{Dir: "x"}).Validate(); err != nil {
		t.Error(err)
	}
}
