package capture

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"colophon/shared/event"
	"colophon/shared/testkit"
	"colophon/shared/transfer"
)

// premis plays the ledger: it answers exports at once, or once it is let.
func (r *rig) premis() *ledger {
	r.Helper()
	l := &ledger{let: make(chan struct{})}
	sub, err := r.nc.Subscribe(event.EndpointPremisExport, func(m *nats.Msg) {
		go func() {
			l.asked.Add(1)
			var req event.ExportRequest
			_ = json.Unmarshal(m.Data, &req)
			l.mu.Lock()
			slow := l.slow == req.Batch
			l.mu.Unlock()
			if slow {
				<-l.let
			}
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			if transfer.Send(ctx, r.nc, m.Header.Get(transfer.HeaderInbox), "batch.xml", strings.NewReader("<premis of='"+string(req.Batch)+"'/>")) == nil {
				_ = m.Respond([]byte("{}"))
			}
		}()
	})
	testkit.OK(r, err)
	r.Cleanup(func() { _ = sub.Unsubscribe() })
	l.sub = sub
	return l
}

type ledger struct {
	sub   *nats.Subscription
	asked atomic.Int32
	mu    sync.Mutex
	slow  event.Name
	let   chan struct{}
}

func (r *rig) facts(state string, b event.Name) (out []event.BatchFact) {
	for _, m := range testkit.ReadAll(r, r.js, event.StreamIngest, event.SubjectBatch+"."+state) {
		if f := m.Fact(r).(event.BatchFact); f.Batch == b {
			out = append(out, f)
		}
	}
	return out
}

// stands waits until manifest and bag of a convergence do.
func (r *rig) stands(n int) {
	r.Helper()
	r.status("manifest and bag stand", func(st event.BatchStatus) bool {
		return st.Convergence == n && st.Converged && st.Manifest == n && st.Bag == n
	})
}

func (r *rig) file(key string) string {
	r.Helper()
	data, err := os.ReadFile(filepath.Join(r.archive, key))
	testkit.OK(r, err)
	return string(data)
}

func (r *rig) there(key string) bool {
	_, err := os.Lstat(filepath.Join(r.archive, key))
	return err == nil
}

// untouched: a file was not written since a look at it.
func (r *rig) untouched(key string, before os.FileInfo) {
	r.Helper()
	now := testkit.Must(os.Stat(filepath.Join(r.archive, key)))(r)
	if !os.SameFile(before, now) || !StatOf(before).Same(StatOf(now)) {
		r.Errorf("%s was written again", key)
	}
}

// manifestIsTheView compares the manifest with the view, byte by byte.
func (r *rig) manifestIsTheView() {
	r.Helper()
	l, release := r.svc.view.snapshot()
	defer release()
	rec, err := l.batch("b")
	testkit.OK(r, err)
	var want strings.Builder
	testkit.OK(r, writeManifest(&want, l, rec))
	expect(r, "the manifest", r.file("batches/b.json"), want.String())
}

func TestConvergences(t *testing.T) {
	r := newRig(t)
	r.premis()
	r.start()
	r.opened(2, 1)
	r.done(r.take(r.message("a.tif", r.source("a.tif", "aaa"))))
	expect(t, "told early", len(r.facts("converged", "b")), 0)
	r.done(r.take(r.message("b.tif", r.source("b.tif", "bbb"))))
	r.stands(1)
	r.manifestIsTheView()
	for _, name := range []string{"data/masters/a.tif", "data/masters/b.tif", "data/access/a.tif.jp2", "metadata/manifest.json", "metadata/premis/batch.xml"} {
		if !r.there("bags/b/" + name) {
			t.Errorf("the bag lacks %s", name)
		}
	}
	expect(t, "the bag's manifest", r.file("bags/b/metadata/manifest.json"), r.file("batches/b.json"))
	all := r.facts("converged", "b")
	expect(t, "convergences", len(all), 1)
	expect(t, "totals told", *all[0].Totals, event.Totals{Declared: 2, Done: 2})

	// A new start says and writes nothing again.
	before := testkit.Must(os.Stat(filepath.Join(r.archive, "batches/b.json")))(t)
	r.stop()
	testkit.OK(t, os.Mkdir(filepath.Join(r.state, "bag-left"), 0o700))
	r.start()
	testkit.Eventually(t, "scratch of a killed process is swept", func() bool {
		_, err := os.Stat(filepath.Join(r.state, "bag-left"))
		return os.IsNotExist(err)
	})
	body := testkit.JSON(t, event.BatchDeclaration{Schema: event.SchemaCaptureBatch, Batch: "z", Count: 1})
	testkit.PublishRaw(t, r.js, event.CaptureSubject("batch", "gw", "z"), nil, body)
	testkit.Eventually(t, "the keeper is behind its start", func() bool { return r.there("batches/z.json") })
	r.untouched("batches/b.json", before)
	r.stands(1)

	// Nor does a frame that comes once more, as it was.
	again := r.message("a.tif", fileURI(r.in+"/a.tif"))
	again.Pass = 2
	expect(t, "a hit", r.take(again).Hit, true)
	r.read()
	testkit.Eventually(t, "the keeper has looked at it", func() bool {
		rec, err := r.svc.view.batch("b")
		testkit.OK(t, err)
		m, err := r.svc.view.made("b")
		testkit.OK(t, err)
		return m.Of == rec.Read
	})
	r.untouched("batches/b.json", before)

	// A revision ends the convergence; the next has the next number.
	m := r.message("a.tif", r.source("a.tif", "another"))
	m.Pass, m.Replaces = 3, testkit.Digest("aaa")
	c := r.take(m)
	r.status("no longer converged", func(st event.BatchStatus) bool { return !st.Converged && st.Convergence == 1 })
	r.done(c)
	r.stands(2)
	r.manifestIsTheView()
	all = r.facts("converged", "b")
	expect(t, "convergences", len(all), 2)
	expect(t, "its number", all[1].Number, 2)
	expect(t, "the bag is made anew", r.file("bags/b/data/masters/a.tif"), "another")
	if !strings.Contains(r.file("bags/b/bag-info.txt"), "Colophon-Convergence: 2") {
		t.Error("the bag is of another convergence")
	}

	// What changes the manifest and not the convergence is written too.
	r.declare(event.BatchDeclaration{Count: 2, Devices: []string{"scanner"}})
	testkit.Eventually(t, "the manifest knows the devices", func() bool { return strings.Contains(r.file("batches/b.json"), `"devices":["scanner"]`) })
	r.stands(2)
	r.manifestIsTheView()
	expect(t, "convergences", len(r.facts("converged", "b")), 2)
}

// While the ledger is away, or slow for one batch, everything but its bags goes on.
func TestLedgerAway(t *testing.T) {
	r := newRig(t)
	r.start()
	r.opened(1, 1)
	r.done(r.take(r.message("a", r.source("a.tif", "aaa"))))
	st := r.status("there is a problem with the bag", func(st event.BatchStatus) bool { return st.Problem != "" })
	expect(t, "converged and written", st.Converged && st.Manifest == 1 && st.Bag == 0, true)
	if strings.Contains(st.Problem, "/") {
		t.Errorf("the problem names a path: %q", st.Problem)
	}

	// It dies between convergence and bag.
	r.stop()
	l := r.premis()
	l.mu.Lock()
	l.slow = "b"
	l.mu.Unlock()
	r.start()
	testkit.Eventually(t, "the ledger is asked again", func() bool { return l.asked.Load() > 0 })
	body := testkit.JSON(t, event.BatchDeclaration{Schema: event.SchemaCaptureBatch, Batch: "c", Count: 1})
	testkit.PublishRaw(t, r.js, event.CaptureSubject("batch", "gw", "c"), nil, body)
	m := r.message("x", r.source("x.tif", "xxx"))
	m.Batch = "c"
	r.done(r.take(m))
	testkit.Eventually(t, "another batch converges, with manifest and bag", func() bool {
		st, err := r.svc.view.status("c")
		testkit.OK(t, err)
		return st.Converged && st.Manifest == 1 && st.Bag == 1
	})
	expect(t, "the slow one's bag", r.there("bags/b"), false)
	close(l.let)
	r.stands(1)
	expect(t, "problem", r.status("none", func(event.BatchStatus) bool { return true }).Problem, "")
	expect(t, "convergences", len(r.facts("converged", "b")), 1)
}

// A batch that moves on while its bag waits for the ledger gets no bag of a
// state that is half one, half the other.
func TestBagOfAMovingBatch(t *testing.T) {
	r := newRig(t)
	l := r.premis()
	l.slow = "b"
	r.start()
	r.opened(2, 1)
	r.done(r.take(r.message("a", r.source("a.tif", "aaa"))))
	r.done(r.take(r.message("b", r.source("b.tif", "bbb"))))
	testkit.Eventually(t, "the ledger is asked", func() bool { return l.asked.Load() == 1 })
	m := r.message("a", r.source("a.tif", "another"))
	m.Pass, m.Replaces = 2, testkit.Digest("aaa")
	c := r.take(m)
	r.read()
	l.mu.Lock()
	l.slow = ""
	l.mu.Unlock()
	close(l.let)
	testkit.Eventually(t, "the scratch of that bag is gone", func() bool {
		left, _ := filepath.Glob(filepath.Join(r.state, bagScratch+"*"))
		return len(left) == 0
	})
	expect(t, "a bag", r.there("bags/b"), false)
	r.done(c)
	r.stands(2)
	expect(t, "the bag", r.file("bags/b/data/masters/a"), "another")
}

func TestManifestIsDetermined(t *testing.T) {
	t.Parallel()
	p := &event.Progress{Slot: testkit.Slot("a"), Derived: map[string]*event.Derived{}}
	for _, name := range []string{"jp2-lossless", "jp2", "z", "y"} {
		p.Derived[name] = &event.Derived{Profile: name, Technical: event.Technical{Format: name}}
	}
	for range 50 {
		expect(t, "technical data of", manifestOf(p, nil).Technical.Format, "jp2")
	}
}
