package quarantine

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"colophon/shared/event"
	"colophon/shared/schema"
	"colophon/shared/topology"

	"colophon/services/quarantine/internal/cases"
)

// world is a broker with the line's streams, and what services would put there.
type world struct {
	t   testing.TB
	dir string
	srv atomic.Pointer[server.Server]
	nc  *nats.Conn
	js  jetstream.JetStream
	// ends are the sequences of the test's last messages, by stream.
	ends map[string]uint64
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{t: t, dir: t.TempDir(), ends: map[string]uint64{}}
	w.start()
	nc, err := nats.Connect("", nats.InProcessServer(w), nats.MaxReconnects(-1), nats.ReconnectWait(5*time.Millisecond), nats.ReconnectJitter(0, 0))
	ok(t, err)
	t.Cleanup(func() {
		nc.Close()
		w.srv.Load().Shutdown()
		w.srv.Load().WaitForShutdown()
	})
	w.nc = nc
	w.js, err = jetstream.New(nc)
	ok(t, err)
	ok(t, topology.Provision(t.Context(), w.js, topology.DefaultSizes(), []string{"jp2"}))
	return w
}

// InProcessConn connects to whichever server runs.
func (w *world) InProcessConn() (net.Conn, error) { return w.srv.Load().InProcessConn() }

func (w *world) start() {
	w.t.Helper()
	s, err := server.NewServer(&server.Options{
		DontListen: true, NoSigs: true, NoLog: true, JetStream: true, StoreDir: w.dir, SyncAlways: true, SyncInterval: 10 * time.Second, JetStreamMaxStore: 64 << 30,
	})
	ok(w.t, err)
	s.Start()
	if !s.ReadyForConnections(10 * time.Second) {
		w.t.Fatal("the server does not start")
	}
	w.srv.Store(s)
}

// instance is a running quarantine.
type instance struct {
	*Service
	t     testing.TB
	stop  context.CancelFunc
	ended chan error
}

func (w *world) run(state string, change ...func(*Config)) *instance {
	w.t.Helper()
	i := w.begin(state, change...)
	i.wait("ready", func() bool { return i.Ready() == nil })
	return i
}

func (w *world) begin(state string, change ...func(*Config)) *instance {
	w.t.Helper()
	c := Default()
	c.State, c.NC, c.JS = state, w.nc, w.js
	if os.Getenv("QUARANTINE_TEST_LOG") != "" {
		c.Log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	for _, f := range change {
		f(&c)
	}
	q, err := New(c)
	ok(w.t, err)
	ctx, stop := context.WithCancel(context.WithoutCancel(w.t.Context()))
	i := &instance{Service: q, t: w.t, stop: stop, ended: make(chan error, 1)}
	go func() { i.ended <- q.Run(ctx) }()
	w.t.Cleanup(func() { stop() })
	return i
}

func (i *instance) end() {
	i.t.Helper()
	i.stop()
	i.ends()
}

func (i *instance) ends() {
	i.t.Helper()
	select {
	case err := <-i.ended:
		ok(i.t, err)
		i.ended <- nil
	case <-time.After(time.Minute):
		i.t.Fatal("the instance does not stop")
	}
}

// wait waits for a condition; it looks whenever the broker has had the time to
// answer.
func (i *instance) wait(what string, holds func() bool) {
	i.t.Helper()
	eventually(i.t, what, func() bool {
		select {
		case err := <-i.ended:
			i.t.Fatalf("the instance ended while it was waited for %s: %v", what, err)
		default:
		}
		return holds()
	})
}

func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	deadline := time.After(time.Minute) // of a machine that does much else
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("not in time: %s", what)
		}
	}
}

// quiet waits until the instance has dealt with every message that the test
// published, and no case waits for a look.
func (w *world) quiet(i *instance) {
	w.t.Helper()
	i.wait("quiet", func() bool {
		letters, err := i.store.Position(cases.FollowLetters)
		ok(w.t, err)
		if letters.Sequence < w.ends[event.StreamDeadLetter] || i.read.Load() < w.ends[event.StreamIngest] {
			return false
		}
		i.deciding <- struct{}{} // whoever decides has read his facts back by then
		defer func() { <-i.deciding }()
		ids, err := i.store.Unsettled()
		ok(w.t, err)
		for _, id := range ids {
			_, due, err := i.store.Due(id)
			ok(w.t, err)
			if len(due) > 0 {
				return false
			}
		}
		return true
	})
}

func (w *world) last(stream string) uint64 {
	w.t.Helper()
	s, err := w.js.Stream(context.Background(), stream)
	ok(w.t, err)
	return s.CachedInfo().State.LastSeq
}

func (w *world) publish(m *nats.Msg) *jetstream.PubAck {
	w.t.Helper()
	ack, err := w.js.PublishMsg(context.Background(), m)
	ok(w.t, err)
	w.ends[ack.Stream] = max(w.ends[ack.Stream], ack.Sequence)
	return ack
}

func (w *world) fact(f event.Fact) *jetstream.PubAck {
	w.t.Helper()
	data, err := json.Marshal(f)
	ok(w.t, err)
	return w.publish(&nats.Msg{Subject: f.Subject(), Header: nats.Header{event.HeaderMsgID: {f.MsgID()}}, Data: data})
}

// work is the part of a fact that all facts about work have.
func work(schema string, s event.Slot, d event.Digest, revision, pass int) event.Work {
	return event.Work{Schema: schema, Slot: s, Sequence: 1, Revision: revision, Digest: d, Pass: pass, Agent: event.Agent{Name: "test", Version: "1"}}
}

func captured(s event.Slot, d event.Digest, revision, pass int) event.FrameCaptured {
	return event.FrameCaptured{Work: work(event.SchemaFrameCaptured, s, d, revision, pass)}
}

func fixed(s event.Slot, d event.Digest, revision, pass int) event.FrameFixed {
	return event.FrameFixed{Work: work(event.SchemaFrameFixed, s, d, revision, pass)}
}

func derived(s event.Slot, d event.Digest, revision, pass int) event.DerivativeMade {
	return event.DerivativeMade{Work: work(event.SchemaDerivative, s, d, revision, pass), Derived: event.Derived{Profile: "jp2"}}
}

func attempt(op event.Operation, s event.Slot, d event.Digest, revision, pass int) event.AttemptFailed {
	return event.AttemptFailed{
		Work: work(event.SchemaAttemptFailed, s, d, revision, pass), Service: "deriver", Operation: op, Class: "permanent", Code: "truncated",
		Message: "the image ends early", Decision: event.DecisionDeadLetter,
	}
}

// dead is a dead letter as a stage writes it.
type dead struct {
	op       event.Operation
	slot     event.Slot
	digest   event.Digest
	revision int
	pass     int
	service  string
	code     string
	origin   event.Fact // the message that failed
	n        uint64     // its sequence
	body     []byte     // instead of origin
	subject  string
}

func (d dead) msg(t testing.TB) *nats.Msg {
	t.Helper()
	h, stream := nats.Header{}, event.StreamIngest
	set := func(k, v string) {
		if v != "" {
			h.Set(k, v)
		}
	}
	data, subject, id := d.body, d.subject, ""
	if d.origin != nil {
		var err error
		data, err = json.Marshal(d.origin)
		ok(t, err)
		subject, id = d.origin.Subject(), d.origin.MsgID()
	}
	if d.service == "" {
		d.service = "deriver"
	}
	if d.code == "" {
		d.code = "truncated"
	}
	origin := fmt.Sprintf("%s-%d", stream, d.n)
	set(event.HeaderMsgID, event.DeadLetterID(d.op, d.digest, d.slot, d.pass, origin))
	set(event.HeaderService, d.service)
	set(event.HeaderOperation, string(d.op))
	set(event.HeaderDigest, string(d.digest))
	set(event.HeaderBatch, d.slot.Batch.Encode())
	set(event.HeaderFrame, d.slot.Frame.Encode())
	set(event.HeaderSequence, "1")
	set(event.HeaderRevision, strconv.Itoa(d.revision))
	set(event.HeaderPass, strconv.Itoa(d.pass))
	set(event.HeaderAttempts, "1")
	set(event.HeaderClass, "permanent")
	set(event.HeaderCode, d.code)
	set(event.HeaderMessage, url.PathEscape("the image ends early, 50% of it"))
	set(event.HeaderDetail, url.PathEscape("opj_compress: no\nreally"))
	set(event.HeaderOrigin, origin)
	set(event.HeaderOriginID, id)
	set(event.HeaderOriginAt, time.Now().UTC().Format(time.RFC3339Nano))
	set(event.HeaderOriginSub, subject)
	return &nats.Msg{Subject: event.DeadLetterSubject(d.service), Header: h, Data: data}
}

func (w *world) dead(d dead) *jetstream.PubAck {
	w.t.Helper()
	return w.publish(d.msg(w.t))
}

// fail lets the deriver fail on a slot: the fact, then the letter.
func (w *world) fail(s event.Slot, d event.Digest, pass int, origin uint64) {
	w.t.Helper()
	op := event.Derivative("jp2")
	w.fact(attempt(op, s, d, 1, pass))
	w.dead(dead{op: op, slot: s, digest: d, revision: 1, pass: pass, origin: fixed(s, d, 1, 1), n: origin})
}

// messages reads all that a stream holds below a subject.
func (w *world) messages(stream, filter string) []*jetstream.RawStreamMsg {
	w.t.Helper()
	s, err := w.js.Stream(context.Background(), stream)
	ok(w.t, err)
	var out []*jetstream.RawStreamMsg
	for n := uint64(1); ; {
		m, err := s.GetMsg(context.Background(), n, jetstream.WithGetMsgSubject(filter))
		if err != nil {
			return out
		}
		if strings.HasPrefix(m.Subject, event.SubjectCase+".") { // what we say, we may say
			ok(w.t, schema.Validate("case", m.Data))
		}
		out, n = append(out, m), m.Sequence+1
	}
}

// changes are the states that the log gives a case, as <state>.<number>.
func (w *world) changes(id string) []string {
	w.t.Helper()
	var out []string
	for _, m := range w.messages(event.StreamIngest, event.SubjectCase+".>") {
		var f event.CaseFact
		ok(w.t, json.Unmarshal(m.Data, &f))
		if f.ID == id {
			out = append(out, fmt.Sprintf("%s.%d", f.State, f.Number))
		}
	}
	return out
}

// ask sends a request as the nats CLI would.
func (w *world) ask(subject string, body any) (data []byte, code string) {
	w.t.Helper()
	b, raw := body.(string)
	if !raw {
		j, err := json.Marshal(body)
		ok(w.t, err)
		b = string(j)
	}
	m, err := w.nc.Request(subject, []byte(b), 30*time.Second)
	ok(w.t, err)
	return m.Data, m.Header.Get("Nats-Service-Error-Code")
}

func get[T any](w *world, subject string, body any) T {
	w.t.Helper()
	data, code := w.ask(subject, body)
	if code != "" {
		w.t.Fatalf("%s %v: %s", subject, body, code)
	}
	var v T
	ok(w.t, json.Unmarshal(data, &v))
	return v
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func same[T any](t testing.TB, what string, got, want T) {
	t.Helper()
	if g, w := fmt.Sprintf("%v", got), fmt.Sprintf("%v", want); g != w {
		t.Fatalf("%s: %s, want %s", what, g, w)
	}
}

func slotOf(batch, frame string) event.Slot {
	return event.Slot{Batch: event.Name(batch), Frame: event.Name(frame)}
}

func digest(n int) event.Digest { return event.Digest(fmt.Sprintf("%064x", n)) }

var jp2 = event.Derivative("jp2")

func caseOf(s event.Slot) string { return event.CaseID(jp2, s, "") }
