package capture

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"colophon/shared/event"
	"colophon/shared/profile"
	"colophon/shared/retry"
	"colophon/shared/stage"
	"colophon/shared/storage"
	"colophon/shared/testkit"
)

// rig is capture at work on a broker and an archive of its own. The test plays
// gateway, hasher and deriver.
type rig struct {
	*testing.T
	in, archive, state string
	nc                 *nats.Conn
	js                 jetstream.JetStream
	store              *storage.Store
	roots              *Roots
	hosts              []string
	log                *testkit.Logbook
	broker             *testkit.Broker
	every              time.Duration // of the reconcile loop

	svc   *Service
	end   context.CancelFunc
	ended chan error
}

func newRig(t *testing.T) *rig {
	t.Helper()
	t.Parallel()
	dir := t.TempDir()
	r := &rig{T: t, in: filepath.Join(dir, "in"), archive: filepath.Join(dir, "archive"), state: filepath.Join(dir, "state"), log: &testkit.Logbook{}}
	for _, d := range []string{r.in, r.state} {
		testkit.OK(t, os.Mkdir(d, 0o755))
	}
	broker, _ := testkit.NewBroker(t, profile.Names()...)
	r.nc, r.js = broker.Connect()
	r.broker = broker
	r.store = testkit.Must(storage.Open(r.archive, storage.WithLowWater(1)))(t)
	r.roots = rootsOf(t, r.in)
	t.Cleanup(func() {
		r.stop()
		r.nc.Close()
		testkit.OK(t, r.store.Close())
		if t.Failed() {
			t.Log(r.log.String())
		}
	})
	return r
}

// open makes the service, at rest.
func (r *rig) open() *Service {
	r.Helper()
	svc, err := New(Config{
		State: r.state, Store: r.store, Roots: r.roots, Hosts: r.hosts, NC: r.nc, JS: r.js, Log: r.log.Logger(), Metrics: stage.NewMetrics(prometheus.NewRegistry()),
		Instance: "test", Version: "test", Concurrency: 4, Policy: retry.Default(), Profiles: []string{"jp2"}, Reconcile: r.every,
	})
	testkit.OK(r, err)
	return svc
}

func (r *rig) start() {
	r.Helper()
	svc := r.open()
	ctx, cancel := context.WithCancel(context.Background())
	r.svc, r.end, r.ended = svc, cancel, make(chan error, 1)
	ended := r.ended
	go func() { ended <- svc.Run(ctx) }()
}

func (r *rig) stop() {
	r.Helper()
	if r.end == nil {
		return
	}
	r.end()
	r.end = nil
	if err := <-r.ended; err != nil {
		r.Errorf("capture ended with: %v", err)
	}
	testkit.OK(r, r.svc.Close())
}

// source writes a file that was left alone for long, and gives its URI.
func (r *rig) source(name, content string) string {
	r.Helper()
	path := filepath.Join(r.in, name)
	write(r, path, content)
	old := time.Now().Add(-time.Hour)
	testkit.OK(r, os.Chtimes(path, old, old))
	return fileURI(path)
}

// message is a gateway's word about a frame: its source as it looks now.
func (r *rig) message(frame string, sources ...string) event.FrameMessage {
	r.Helper()
	m := event.FrameMessage{Schema: event.SchemaCaptureFrame, Slot: testkit.Slot(frame), Sequence: 1, Sources: sources, Pass: 1}
	if f, st, err := r.roots.Open(sources[0]); err == nil {
		testkit.OK(r, f.Close())
		m.Source = event.SourceToken(sources[0], st)
	}
	return m
}

func (r *rig) send(m event.FrameMessage) uint64 {
	r.Helper()
	h := nats.Header{event.HeaderMsgID: {m.MsgID()}}
	return testkit.PublishRaw(r, r.js, event.CaptureSubject("frame", "gw", m.Batch), h, testkit.JSON(r, m)).Sequence
}

// declare sends a declaration of the batch "b" with a quick policy.
func (r *rig) declare(d event.BatchDeclaration) uint64 {
	r.Helper()
	d.Schema, d.Batch = event.SchemaCaptureBatch, "b"
	body := testkit.JSON(r, d)
	h := nats.Header{event.HeaderMsgID: {event.DeclarationID(body, "b", 0)}}
	return testkit.PublishRaw(r, r.js, event.CaptureSubject("batch", "gw", "b"), h, body).Sequence
}

// opened declares count frames under a policy of attempts a millisecond apart.
func (r *rig) opened(count, attempts int) {
	r.Helper()
	r.declare(event.BatchDeclaration{Count: count, Order: event.OrderNatural, Policy: testkit.Policy(attempts, time.Millisecond)})
	r.status("the batch is open", func(st event.BatchStatus) bool { return st.Known })
}

// settled waits until every capture message is acked.
func (r *rig) settled() {
	r.Helper()
	for _, c := range []string{"capture-frame", "capture-batch", "capture-fault"} {
		testkit.Eventually(r, "every message of "+c+" is acked", func() bool { return testkit.Unfinished(r, r.js, event.StreamCapture, c) == 0 })
	}
}

// captured lists what the log says was captured.
func (r *rig) captured() (out []event.FrameCaptured) {
	for _, m := range testkit.ReadAll(r, r.js, event.StreamIngest, event.SubjectFrameCaptured) {
		out = append(out, m.Fact(r).(event.FrameCaptured))
	}
	return out
}

// take sends a frame and gives the fact that follows.
func (r *rig) take(m event.FrameMessage) event.FrameCaptured {
	r.Helper()
	before := len(r.captured())
	r.send(m)
	r.settled()
	all := r.captured()
	if len(all) != before+1 {
		r.Fatalf("%s: %d facts follow its message; failed: %+v", m.Frame, len(all)-before, r.failed())
	}
	return all[before]
}

// failed lists the failed attempts.
func (r *rig) failed() (out []event.AttemptFailed) {
	for _, m := range testkit.ReadAll(r, r.js, event.StreamIngest, event.SubjectAttemptFailed) {
		out = append(out, m.Fact(r).(event.AttemptFailed))
	}
	return out
}

// refuse sends a frame and gives the last of the failed attempts that follow.
func (r *rig) refuse(m event.FrameMessage) event.AttemptFailed {
	r.Helper()
	before, facts := len(r.failed()), len(r.captured())
	r.send(m)
	r.settled()
	all := r.failed()
	if len(all) == before || len(r.captured()) != facts {
		r.Fatalf("%s was not refused", m.Frame)
	}
	return all[len(all)-1]
}

// fix plays hasher: the bytes of a captured frame become a master.
func (r *rig) fix(c event.FrameCaptured) event.FrameFixed {
	r.Helper()
	key := storage.MasterKey(storage.Digest(c.Digest))
	_, err := r.store.Promote(context.Background(), c.Staging, key, storage.Digest(c.Digest))
	testkit.OK(r, err)
	testkit.OK(r, r.store.Remove(c.Staging))
	w := c.Work
	w.Schema = event.SchemaFrameFixed
	f := event.FrameFixed{Work: w, Captured: c.Captured, Fixed: event.Fixed{StoredDigest: c.Digest, Size: c.Size, Master: key}}
	testkit.Publish(r, r.js, f)
	return f
}

// derive plays deriver.
func (r *rig) derive(f event.FrameFixed, profiles ...string) {
	r.Helper()
	for _, p := range profiles {
		key := storage.DerivativeKey(p, storage.Digest(f.Digest), ".jp2")
		out, err := r.store.Write(context.Background(), key, bytesOf("derived from "+string(f.Digest)), storage.Options{})
		testkit.OK(r, err)
		w := f.Work
		w.Schema = event.SchemaDerivative
		testkit.Publish(r, r.js, event.DerivativeMade{Work: w, Derived: event.Derived{Profile: p, Outputs: []event.Output{{Page: 1, Key: key, Digest: event.Digest(out.Digest), Size: out.Size}}, Technical: event.Technical{Format: p}}})
	}
}

// done plays the rest of the line for a captured frame.
func (r *rig) done(c event.FrameCaptured) {
	r.Helper()
	r.derive(r.fix(c), "jp2")
	r.read()
}

// read waits until the view has read the log.
func (r *rig) read() {
	r.Helper()
	testkit.OK(r, r.svc.view.abreast(context.Background(), r.js))
}

func (r *rig) status(what string, holds func(event.BatchStatus) bool) event.BatchStatus {
	r.Helper()
	var st event.BatchStatus
	testkit.Eventually(r, what, func() bool {
		var err error
		st, err = r.svc.view.status("b")
		testkit.OK(r, err)
		return holds(st)
	})
	return st
}

// stagedFiles lists what is in staging.
func (r *rig) stagedFiles() (keys []string) {
	r.Helper()
	for e, err := range r.store.List(context.Background(), "staging") {
		testkit.OK(r, err)
		keys = append(keys, e.Key)
	}
	return keys
}

// ask calls an endpoint.
func ask[Out any](r *rig, subject string, in any) (out Out) {
	r.Helper()
	m, err := r.nc.Request(subject, testkit.JSON(r, in), 30*time.Second)
	testkit.OK(r, err)
	if e := m.Header.Get("Nats-Service-Error"); e != "" {
		r.Fatalf("%s: %s", subject, e)
	}
	testkit.OK(r, json.Unmarshal(m.Data, &out))
	return out
}

func expect[T comparable](t testing.TB, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}
