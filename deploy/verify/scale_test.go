package verify

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/mod/sumdb/tlog"

	"colophon/shared/event"
	"colophon/shared/topology"
)

// BenchmarkRun judges one batch of many small pages, three facts and nine
// records each. COLOPHON_VERIFY_PAGES changes how many (333,000 are a million
// facts); the files of all of them are made, so give it a disk.
func BenchmarkRun(b *testing.B) {
	pages := 3000
	if n, err := strconv.Atoi(os.Getenv("COLOPHON_VERIFY_PAGES")); err == nil {
		pages = n
	}
	w := bigWorld(b, pages)
	for b.Loop() {
		r := w.run()
		if r.Drifted() || r.Checked.Facts != int64(3*pages+2) || r.Checked.Masters != int64(pages) {
			b.Fatalf("%+v", r)
		}
	}
	b.ReportMetric(float64(3*pages+2)*float64(b.N)/b.Elapsed().Seconds(), "facts/s")
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	b.ReportMetric(float64(m.Sys)/(1<<20), "MiB-sys")
}

func (w *world) big(n int) page {
	return newPage("big", event.Name(fmt.Sprintf("%07d.tif", n)), n, fmt.Sprintf("the bytes of page %d", n))
}

// bigWorld has no bag and no manifest: it is not converged.
func bigWorld(b *testing.B, pages int) *world {
	w := &world{TB: b, dir: b.TempDir()}
	srv, err := server.NewServer(&server.Options{JetStream: true, StoreDir: b.TempDir(), DontListen: true, NoSigs: true, NoLog: true})
	w.ok(err)
	srv.Start()
	w.nc, err = nats.Connect("", nats.InProcessServer(srv))
	w.ok(err)
	b.Cleanup(func() {
		w.nc.Close()
		srv.Shutdown()
		srv.WaitForShutdown()
	})
	w.js, err = jetstream.New(w.nc, jetstream.WithPublishAsyncMaxPending(4000))
	w.ok(err)
	w.ok(topology.Provision(b.Context(), w.js, topology.DefaultSizes(), nil))
	w.pin()
	w.open("big", pages+1)
	w.tellAll(pages)
	w.writeBig(pages)
	return w
}

func (w *world) tellAll(pages int) {
	send := func(f event.Fact) {
		data, err := json.Marshal(f)
		w.ok(err)
		_, err = w.js.PublishMsgAsync(&nats.Msg{Subject: f.Subject(), Header: nats.Header{event.HeaderMsgID: {f.MsgID()}}, Data: data})
		w.ok(err)
	}
	for n := 1; n <= pages; n++ {
		p := w.big(n)
		send(p.captureFact())
		send(p.fixedFact(1, 1))
		send(p.derivedFact(1, 1))
		w.file(p.master(), []byte(p.bytes))
		w.file(p.access(), []byte(p.jp2))
	}
	<-w.js.PublishAsyncComplete()
}

// writeBig writes the ledger of the log as it is, record by record.
func (w *world) writeBig(pages int) {
	db, err := pebble.Open(filepath.Join(w.dir, "ledger"), &pebble.Options{Logger: quiet{}, DisableWAL: true})
	w.ok(err)
	set := func(key string, value []byte) { w.ok(db.Set([]byte(key), value, pebble.NoSync)) }
	var nodes []tlog.Hash
	read := tlog.HashReaderFunc(func(at []int64) ([]tlog.Hash, error) {
		out := make([]tlog.Hash, len(at))
		for i, n := range at {
			out[i] = nodes[n]
		}
		return out, nil
	})
	size := int64(0)
	put := func(m message, r map[string]any) {
		r["sequence"], r["msg_id"], r["recorded"] = m.seq, m.id, m.stored
		data, err := json.Marshal(r)
		w.ok(err)
		h, err := tlog.StoredHashes(size, data, read)
		w.ok(err)
		for _, node := range h {
			set("h"+number(int64(len(nodes))), node[:])
			nodes = append(nodes, node)
		}
		set("e"+number(size), data)
		set("k"+r["name"].(string), binary.BigEndian.AppendUint64(nil, uint64(size)))
		size++
	}
	early := w.records // of the facts before the pages
	j := &judge{Options: Options{JS: w.js}}
	w.ok(j.read(w.Context(), event.StreamIngest, uint64(3*pages+2), func(m message) error {
		f, err := event.DecodeFact(m.subject, m.data)
		switch f := f.(type) {
		case event.FrameFixed:
			for _, r := range w.fixedRecords(w.big(f.Sequence)) {
				put(m, r)
			}
		case event.DerivativeMade:
			for _, r := range w.derivedRecords(w.big(f.Sequence)) {
				put(m, r)
			}
		case event.ProfilePinned:
			put(m, early[0])
		case event.BatchFact:
			put(m, early[1])
			put(m, early[2])
		}
		w.last = m
		return err
	}))
	root, err := tlog.TreeHash(size, read)
	w.ok(err)
	h := head{Format: ledgerFormat, Origin: origin, Size: size, Root: root}
	h.Position.Sequence, h.Position.Stored, h.Position.MsgID = w.last.seq, w.last.stored, w.last.id
	data, err := json.Marshal(h)
	w.ok(err)
	set("m", data)
	w.ok(db.Flush())
	w.ok(db.Close())
}
