package verify

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"colophon/shared/event"
	"colophon/shared/storage"
	"colophon/shared/testkit"
	"colophon/shared/topology"
)

// origin is the one of MAPPING's example identifiers.
const origin = "archive.example.org/colophon"

var (
	start   = time.Date(2025, 11, 24, 8, 0, 0, 0, time.UTC)
	policy  = json.RawMessage(`{"initial_delay":"1s","max_attempts":4,"max_delay":"1m0s"}`)
	recipe  = json.RawMessage(`{"name":"jp2"}`)
	worker  = event.Agent{Name: "worker", Version: "1.0.0"}
	openjpg = event.Agent{Name: "OpenJPEG", Version: "2.5.0"}
)

// world is an archive that a test builds by hand: real files, a real log, and
// a ledger and bags that are written here a second time.
type world struct {
	testing.TB
	dir     string
	js      jetstream.JetStream
	nc      *nats.Conn
	records []map[string]any
	frames  []page
	last    message // the fact published last
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{TB: t, dir: t.TempDir()}
	b := testkit.StartBroker(t, testkit.TempDir(t))
	w.nc, w.js = b.Connect()
	t.Cleanup(func() {
		w.nc.Close()
		b.Stop()
	})
	for _, c := range topology.Streams(topology.DefaultSizes()) {
		c.DenyDelete, c.DenyPurge = false, false // a test may lose a message
		_, err := w.js.CreateStream(t.Context(), c)
		w.ok(err)
	}
	for _, area := range []string{"masters", "derivatives", "staging", "batches", "bags"} {
		w.ok(os.MkdirAll(filepath.Join(w.dir, area), 0o755))
	}
	return w
}

func (w *world) ok(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// file writes an object.
func (w *world) file(key string, data []byte) {
	w.Helper()
	path := filepath.Join(w.dir, filepath.FromSlash(key))
	w.ok(os.MkdirAll(filepath.Dir(path), 0o755))
	w.ok(os.WriteFile(path, data, 0o444))
}

// publish stores a fact, and notes the records that it must give.
func (w *world) publish(f event.Fact, records ...map[string]any) {
	w.Helper()
	w.send(f.Subject(), nats.Header{event.HeaderMsgID: {f.MsgID()}}, f, records...)
}

func (w *world) send(subject string, h nats.Header, f any, records ...map[string]any) {
	w.Helper()
	data, err := json.Marshal(f)
	w.ok(err)
	ack, err := w.js.PublishMsg(w.Context(), &nats.Msg{Subject: subject, Header: h, Data: data})
	w.ok(err)
	if ack.Duplicate {
		w.Fatalf("%s is a duplicate", h.Get(event.HeaderMsgID))
	}
	st, err := w.js.Stream(w.Context(), ack.Stream)
	w.ok(err)
	m, err := st.GetMsg(w.Context(), ack.Sequence)
	w.ok(err)
	w.last = message{seq: ack.Sequence, stored: m.Time.UTC(), id: h.Get(event.HeaderMsgID)}
	for _, r := range records {
		r["sequence"], r["msg_id"], r["recorded"] = w.last.seq, w.last.id, w.last.stored
		w.records = append(w.records, r)
	}
}

// page is a frame as a test wants it.
type page struct {
	slot     event.Slot
	sequence int
	bytes    string
	jp2      string // "" where it has no derivative
}

func (p page) digest() event.Digest  { return sha([]byte(p.bytes)) }
func (p page) derived() event.Digest { return sha([]byte(p.jp2)) }
func (p page) master() string        { return storage.MasterKey(storage.Digest(p.digest())) }
func (p page) access() string {
	return storage.DerivativeKey("jp2", storage.Digest(p.digest()), "jp2")
}

func newPage(batch, frame event.Name, sequence int, bytes string) page {
	return page{event.Slot{Batch: batch, Frame: frame}, sequence, bytes, "jp2 of " + bytes}
}

func (p page) work(schema string, pass, attempt int) event.Work {
	at := start.Add(time.Duration(p.sequence) * time.Minute)
	return event.Work{
		Schema: schema, Slot: p.slot, Sequence: p.sequence, Revision: 1, Digest: p.digest(), Pass: pass, Attempt: attempt, Limit: 4,
		Started: at, Ended: at.Add(time.Second), Agent: worker, Policy: policy, Profiles: []string{"jp2"},
	}
}

func (p page) captured() event.Captured {
	return event.Captured{Source: "file:///in/x.tif", Size: int64(len(p.bytes)), Staging: "staging/" + p.slot.String(), Declared: p.digest(), DeclaredBy: "gateway"}
}

func (p page) captureFact() event.FrameCaptured {
	return event.FrameCaptured{Work: p.work(event.SchemaFrameCaptured, 1, 1), Captured: p.captured()}
}

func (p page) fixedFact(pass, attempt int) event.FrameFixed {
	return event.FrameFixed{Work: p.work(event.SchemaFrameFixed, pass, attempt), Captured: p.captured(), Capturer: worker, Fixed: event.Fixed{
		StoredDigest: p.digest(), Size: int64(len(p.bytes)), Master: p.master(), Format: event.Format{PUID: "fmt/353", Name: "TIFF"},
	}}
}

func (p page) derivedFact(pass, attempt int) event.DerivativeMade {
	w := p.work(event.SchemaDerivative, pass, attempt)
	w.Helpers = []event.Agent{openjpg}
	return event.DerivativeMade{Work: w, Derived: event.Derived{
		Profile: "jp2", RecipeDigest: sha(recipe), Technical: event.Technical{Width: 4, Height: 6},
		Outputs: []event.Output{{Page: 1, Key: p.access(), Digest: p.derived(), Size: int64(len(p.jp2)), PSNR: 41.25}},
	}}
}

func (p page) failedFact(op event.Operation, pass, attempt int, dead bool) event.AttemptFailed {
	f := event.AttemptFailed{
		Work: p.work(event.SchemaAttemptFailed, pass, attempt), Service: "worker", Operation: op, Class: "transient", Code: "io-error",
		Message: "input/output error", Decision: event.DecisionRetry, NotBefore: start.Add(time.Hour),
	}
	if dead {
		f.Decision, f.NotBefore = event.DecisionDeadLetter, time.Time{}
	}
	return f
}

func (p page) caseFact(op event.Operation, pass int, state string, number int) event.CaseFact {
	return event.CaseFact{
		Schema: event.SchemaCase, ID: event.CaseID(op, p.slot, ""), Slot: p.slot, Sequence: p.sequence, Revision: 1, Operation: op, Digest: p.digest(),
		Pass: pass, State: state, Number: number, Service: "worker", Class: "transient", Code: "io-error", Reason: "input/output error", Attempts: 1,
		Origin: "INGEST-1", Agent: worker, At: start,
	}
}

func (w *world) pin() {
	w.publish(event.ProfilePinned{Schema: event.SchemaProfilePinned, Name: "jp2", Recipe: recipe, Digest: sha(recipe), Agent: worker, At: start},
		w.op("op:profile:jp2:"+string(sha(recipe)), map[string]any{"policy": map[string]any{"sha256": sha(recipe)}}))
}

func opened(batch event.Name, count int) event.BatchFact {
	return event.BatchFact{
		Schema: event.SchemaBatch, Batch: batch, State: "opened", Count: count, Order: event.OrderSequence, Policy: policy, PolicyDigest: sha(policy),
		Profiles: []string{"jp2"}, Agent: worker, At: start,
	}
}

func (w *world) open(batch event.Name, count int) {
	b := "@" + batch.Encode()
	s := event.Slot{Batch: batch}
	w.publish(opened(batch, count),
		w.event("event:ingestion-start:"+b, "ins", s, "", nil),
		w.event("event:policy-assignment:"+b, "poa", s, "", map[string]any{"policy": map[string]any{"document": string(policy), "sha256": sha(policy)}}))
}

// converge says that a batch converged, with a bag and a manifest of it.
func (w *world) converge(batch event.Name, number int) {
	f := opened(batch, len(w.frames))
	f.State, f.Number = "converged", number
	t := event.Totals{Declared: len(w.frames), Done: len(w.frames)}
	f.Totals = &t
	name := "event:ingestion-end:@" + batch.Encode()
	if number > 1 {
		name += fmt.Sprintf("#%d", number)
	}
	w.publish(f, w.event(name, "ine", event.Slot{Batch: batch}, "", nil))
	w.manifest(batch, number, t)
	w.bag(batch, number)
}

// fixedRecords are the events of a page that is fixed for the first time.
func (w *world) fixedRecords(p page) []map[string]any {
	d := string(p.digest())
	file := map[string]any{"digest": map[string]any{"value": d}}
	return []map[string]any{
		w.event("event:capture:"+d, "cap", p.slot, p.digest(), file),
		w.event("event:message-digest-calculation:"+d, "mes", p.slot, p.digest(), map[string]any{"digest": map[string]any{"value": d}, "file": map[string]any{"size": len(p.bytes)}}),
		w.event("event:fixity-check:"+d, "fix", p.slot, p.digest(), map[string]any{"digest": map[string]any{"value": d, "expected": d}}),
		w.event("event:format-identification:"+d, "for", p.slot, p.digest(), map[string]any{"identification": map[string]any{"puid": "fmt/353"}}),
		w.accession(p),
	}
}

func (w *world) accession(p page) map[string]any {
	return w.event("event:accession:"+string(p.digest())+"@"+p.slot.String(), "acc", p.slot, p.digest(), nil)
}

// derivedRecords are the events of a page's derivative.
func (w *world) derivedRecords(p page) []map[string]any {
	d, o := string(p.digest()), string(p.derived())
	return []map[string]any{
		w.event("event:validation:jp2:"+d, "val", p.slot, p.digest(), nil),
		w.event("event:migration:derivative:jp2:"+d, "mig", p.slot, p.digest(), map[string]any{"derivation": map[string]any{
			"set": sha([]byte(o + "\n")), "outputs": []any{map[string]any{"digest": o, "size": len(p.jp2)}},
		}}),
		w.event("event:message-digest-calculation:"+o, "mes", p.slot, p.derived(), map[string]any{"digest": map[string]any{"value": o}, "file": map[string]any{"size": len(p.jp2)}}),
		w.event("event:ingestion:"+d, "ing", p.slot, p.digest(), nil),
	}
}

// retry is one attempt's event.
func (w *world) retry(p page, op event.Operation, pass, attempt int, status, previous string) map[string]any {
	name := fmt.Sprintf("event:retry:%s:%s@%s#%d.%d", op, p.digest(), p.slot, pass, attempt)
	a := map[string]any{"operation": op, "pass": pass, "number": attempt, "policy": namespaceOf(origin).id("event:policy-assignment:@" + p.slot.Batch.Encode())}
	if previous != "" {
		a["previous"] = namespaceOf(origin).id(previous)
	}
	r := w.event(name, "", p.slot, p.digest(), map[string]any{"attempt": a, "resolution": map[string]any{"status": status}})
	if status != "Success" {
		r["outcome"] = "fail"
	}
	return r
}

// letter writes a dead letter as a stage does.
func (w *world) letter(p page, op event.Operation, pass int) {
	h := nats.Header{}
	for k, v := range map[string]string{
		event.HeaderMsgID: event.DeadLetterID(op, p.digest(), p.slot, pass, "INGEST-1"), event.HeaderService: "worker", event.HeaderOperation: string(op),
		event.HeaderBatch: p.slot.Batch.Encode(), event.HeaderFrame: p.slot.Frame.Encode(), event.HeaderPass: fmt.Sprint(pass), event.HeaderCode: "io-error",
		event.HeaderOrigin: "INGEST-1",
	} {
		h.Set(k, v)
	}
	_, err := w.js.PublishMsg(w.Context(), &nats.Msg{Subject: "deadletter.worker", Header: h, Data: []byte("{}")})
	w.ok(err)
}

// run judges the archive.
func (w *world) run(change ...func(*Options)) Report {
	w.Helper()
	o := Options{Archive: w.dir, JS: w.js, Ledger: filepath.Join(w.dir, "ledger"), Origin: origin, Workers: 2, Scratch: w.TempDir()}
	for _, c := range change {
		c(&o)
	}
	r, err := Run(context.Background(), o)
	w.ok(err)
	return r
}
