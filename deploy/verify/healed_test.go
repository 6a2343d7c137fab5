package verify

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"colophon/shared/event"
	"colophon/shared/topology"
)

func (w *world) ingest() jetstream.Stream {
	st, err := w.js.Stream(w.Context(), event.StreamIngest)
	w.ok(err)
	return st
}

// fact gives a stored fact as it was published.
func (w *world) fact(seq uint64) *nats.Msg {
	m, err := w.ingest().GetMsg(w.Context(), seq)
	w.ok(err)
	for _, place := range []string{jetstream.StreamHeader, jetstream.SequenceHeader, jetstream.TimeStampHeaer, jetstream.SubjectHeader} {
		delete(m.Header, place) // what the broker says of it
	}
	return &nats.Msg{Subject: m.Subject, Header: m.Header, Data: m.Data}
}

// retell puts another log in the place of the one that is there: it begins with
// an operational fact and tells the rest in another order. The ledger keeps what
// it has, of a log that was longer.
func (w *world) retell(kind string, order func([]*nats.Msg)) {
	var told []*nats.Msg
	for seq := uint64(1); seq <= w.last.seq; seq++ {
		told = append(told, w.fact(seq))
	}
	w.ok(w.js.DeleteStream(w.Context(), event.StreamIngest))
	for _, c := range topology.Streams(topology.DefaultSizes()) {
		if c.Name == event.StreamIngest {
			c.DenyDelete, c.DenyPurge = false, false
			_, err := w.js.CreateStream(w.Context(), c)
			w.ok(err)
		}
	}
	for _, r := range w.records {
		r["sequence"] = r["sequence"].(uint64) + 1000
	}
	w.tell(kind, nil)
	order(told)
	for _, m := range told {
		ack, err := w.js.PublishMsg(w.Context(), m)
		w.ok(err)
		stored, err := w.ingest().GetMsg(w.Context(), ack.Sequence)
		w.ok(err)
		w.last = message{seq: ack.Sequence, stored: stored.Time.UTC(), id: m.Header.Get(event.HeaderMsgID)}
	}
}

func (w *world) tell(kind string, detail map[string]string) {
	f := event.OpFact{Schema: event.SchemaOp, Kind: kind, Service: "worker", Instance: "x", Counter: 1, Reason: "it happened", Detail: detail, Agent: worker, At: start}
	w.publish(f, w.op(f.MsgID(), nil))
}

// derivativesFirst is what services come to that heal at the same time.
func derivativesFirst(told []*nats.Msg) {
	slices.SortStableFunc(told, func(a, b *nats.Msg) int {
		first := func(m *nats.Msg) int {
			if strings.HasPrefix(m.Subject, event.SubjectDerivative+".") {
				return 0
			}
			return 1
		}
		return first(a) - first(b)
	})
}

// TestHealed: a log that was rolled back and told again in another order is
// sound while ledger and log hold the same events, and only where it says so.
func TestHealed(t *testing.T) {
	t.Parallel()
	for title, c := range map[string]struct {
		kind  string
		spoil func(*world, *book)
		kinds []string
	}{
		"healed":            {event.OpRolledBack, nil, []string{"log-healed"}},
		"not said to be so": {event.OpHalted, nil, []string{"record-order", "record-source", "record-beyond"}},
		"an event lost": {event.OpRolledBack, func(w *world, b *book) {
			b.names["event:nowhere"] = b.names["event:ingestion-start:@vol%201"]
			delete(b.names, "event:ingestion-start:@vol%201")
			b.records[1] = bytes.Replace(b.records[1], []byte("event:ingestion-start:@vol%201"), []byte("event:ingestion-start:@vol%202"), 1)
			b.grow(w)
		}, []string{"name-missing", "name-extra", "index-missing", "index-extra", "premis-unknown-event", "log-healed"}},
		"another content": {event.OpRolledBack, func(w *world, b *book) {
			n := b.find("event:message-digest-calculation:" + string(newPage("", "", 1, "first page").digest()))
			b.records[n] = bytes.Replace(b.records[n], []byte(`"size":10`), []byte(`"size":11`), 1)
			b.grow(w)
		}, []string{"record-material", "log-healed"}},
	} {
		t.Run(title, func(t *testing.T) {
			t.Parallel()
			w := built(t)
			w.retell(c.kind, derivativesFirst)
			b := w.book()
			if c.spoil != nil {
				c.spoil(w, b)
			}
			w.write(b)
			r := w.run()
			expectKinds(t, r, "", c.kinds...)
			if sound := len(c.kinds) == 1; sound == r.Drifted() {
				t.Errorf("%v", r.Findings)
			}
		})
	}
}

// TestHealedWarning: a warning about content that two frames hold is told of
// the one that came first; of which is a matter of the order.
func TestHealedWarning(t *testing.T) {
	t.Parallel()
	for kind, want := range map[string]int{event.OpRolledBack: 0, event.OpHalted: 1} {
		w := newWorld(t)
		w.open("b", 2)
		for i, frame := range []event.Name{"1", "2"} {
			p := newPage("b", frame, i+1, "x")
			w.file(p.master(), []byte(p.bytes))
			w.publish(p.captureFact())
			f := p.fixedFact(1, 1)
			f.Fixed.Format = event.Format{}
			records := []map[string]any{w.accession(p)}
			if i == 0 {
				records = w.fixedRecords(p)
				records[3]["name"] = fmt.Sprintf("%s@%s#1", records[3]["name"], p.slot)
				records[3]["outcome"] = "warning"
				records[3]["data"] = map[string]any{"identification": map[string]any{"puid": "UNKNOWN"}}
			}
			w.publish(f, records...)
		}
		w.retell(kind, slices.Reverse)
		w.write(w.book())
		r := w.run()
		if r.Counts["name-extra"] != want || r.Counts["name-missing"] != want {
			t.Errorf("%s: %v", kind, r.Findings)
		}
	}
}

// TestHole: a hole that a fact tells of, and that was told again, is no damage;
// one that no fact covers is.
func TestHole(t *testing.T) {
	t.Parallel()
	for title, c := range map[string]struct {
		detail map[string]string
		kinds  []string
	}{
		"told":         {map[string]string{"stream": event.StreamIngest, "first": "3", "last": "4"}, []string{"log-hole", "log-healed"}},
		"told in part": {map[string]string{"stream": event.StreamIngest, "first": "3", "last": "3"}, []string{"log-gap", "log-healed"}},
		"of another":   {map[string]string{"stream": event.StreamCapture, "first": "3", "last": "4"}, []string{"log-gap", "record-source"}},
	} {
		t.Run(title, func(t *testing.T) {
			t.Parallel()
			w := built(t)
			for _, seq := range []uint64{3, 4} { // a capture and its fixity
				m := w.fact(seq)
				w.ok(w.ingest().DeleteMsg(w.Context(), seq))
				m.Header.Set(event.HeaderMsgID, m.Header.Get(event.HeaderMsgID)+"!1")
				_, err := w.js.PublishMsg(w.Context(), m)
				w.ok(err)
			}
			w.tell(event.OpHole, c.detail)
			w.write(w.book())
			r := w.run()
			expectKinds(t, r, "INGEST 3", c.kinds...)
			if sound := c.kinds[0] == "log-hole"; sound == r.Drifted() {
				t.Errorf("%v", r.Findings)
			}
		})
	}
}
