package deriver

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"colophon/services/deriver/internal/tifftest"
	"colophon/shared/event"
	"colophon/shared/profile"
	"colophon/shared/stage"
	"colophon/shared/storage"
	"colophon/shared/testkit"
)

// place is an archive, a broker, and deriver between them.
type place struct {
	*testing.T
	dir, state, scratch string
	store               *storage.Store
	broker              *testkit.Broker
	js                  jetstream.JetStream
	log                 *testkit.Logbook
	profiles            []string // jp2 alone, if there are none
	svc                 *Service
	end                 context.CancelFunc
	ended               chan error
}

func newPlace(t *testing.T) *place {
	t.Helper()
	t.Parallel()
	dir := t.TempDir()
	p := &place{T: t, dir: filepath.Join(dir, "archive"), state: filepath.Join(dir, "state"), scratch: filepath.Join(dir, "scratch"), log: &testkit.Logbook{}}
	p.broker, p.js = testkit.NewBroker(t, profile.Names()...)
	p.store = testkit.Must(storage.Open(p.dir, storage.WithLowWater(1)))(t)
	t.Cleanup(func() {
		p.close()
		testkit.OK(t, p.store.Close())
		if t.Failed() {
			t.Log(p.log.String())
		}
	})
	return p
}

func (p *place) open() {
	p.Helper()
	if p.profiles == nil {
		p.profiles = []string{"jp2"}
	}
	svc, err := New(Config{
		State: p.state, Scratch: p.scratch, Store: p.store, JS: p.js, Log: p.log.Logger(), Metrics: stage.NewMetrics(prometheus.NewRegistry()),
		Instance: "test", Version: "test", Profiles: p.profiles, Concurrency: 4, Memory: 1 << 30,
	})
	testkit.OK(p, err)
	p.svc = svc
}

func (p *place) start() {
	p.Helper()
	p.open()
	ctx, cancel := context.WithCancel(context.Background())
	p.end, p.ended = cancel, make(chan error, 1)
	svc, ended := p.svc, p.ended
	go func() { ended <- svc.Run(ctx) }()
}

func (p *place) close() {
	p.Helper()
	if p.end != nil {
		p.end()
		p.end = nil
		if err := <-p.ended; err != nil {
			p.Errorf("deriver ended with: %v", err)
		}
	}
	if p.svc != nil {
		testkit.OK(p, p.svc.Close())
		p.svc = nil
	}
}

func (p *place) maker() *maker { return p.svc.makers[0] }

// fixed stores a master and gives its work order.
func (p *place) fixed(frame string, master []byte) event.FrameFixed {
	p.Helper()
	f := testkit.Fixed(testkit.Slot(frame), string(master), testkit.Policy(2, time.Millisecond))
	f.Fixed.Master = storage.MasterKey(storage.Digest(f.Digest))
	path := filepath.Join(p.dir, f.Fixed.Master)
	testkit.OK(p, os.MkdirAll(filepath.Dir(path), 0o755))
	if _, err := os.Stat(path); err != nil { // a master is never rewritten: somebody may be reading it
		testkit.OK(p, os.WriteFile(path, master, 0o444))
	}
	return f
}

func (p *place) settled() {
	p.Helper()
	testkit.Eventually(p, "every message is acked", func() bool { return testkit.Unfinished(p, p.js, event.StreamIngest, "deriver-jp2") == 0 })
}

func (p *place) derivatives() (out []event.DerivativeMade) {
	p.Helper()
	for _, m := range testkit.ReadAll(p, p.js, event.StreamIngest, event.SubjectDerivative+".jp2") {
		out = append(out, m.Fact(p).(event.DerivativeMade))
	}
	return out
}

func (p *place) ops() (kinds []string) {
	p.Helper()
	for _, kind := range []string{event.OpHalted, event.OpResumed, event.OpReleased} {
		for range testkit.ReadAll(p, p.js, event.StreamIngest, event.SubjectOp+"."+kind) {
			kinds = append(kinds, kind)
		}
	}
	return kinds
}

// Equal content is encoded once, however many slots hold it, and told of each;
// a slot that does not want the profile is left alone.
func TestEqualContent(t *testing.T) {
	p := newPlace(t)
	testkit.OK(t, os.MkdirAll(filepath.Join(p.scratch, "derive-left"), 0o700))
	p.start()
	if _, err := os.Stat(filepath.Join(p.scratch, "derive-left")); err == nil {
		t.Error("scratch of a killed process is still there")
	}
	page := tifftest.File(gray(50))
	for n := range 5 {
		testkit.Publish(t, p.js, p.fixed(fmt.Sprintf("%d.tif", n), page))
	}
	other := p.fixed("other.tif", tifftest.File(gray(60)))
	other.Profiles = []string{"jp2-lossless"}
	testkit.Publish(t, p.js, other)
	p.settled()
	made := p.derivatives()
	hits := 0
	for _, f := range made {
		if f.Hit {
			hits++
		}
	}
	if len(made) != 5 || hits != 4 || p.log.Count("idempotent_execute") != 1 {
		t.Errorf("%d facts, %d hits, %d acts", len(made), hits, p.log.Count("idempotent_execute"))
	}

	// A lost disk repeats nothing, nor does it pin again.
	p.close()
	testkit.OK(t, os.RemoveAll(p.state))
	p.start()
	testkit.Publish(t, p.js, p.fixed("late.tif", page))
	p.settled()
	if made = p.derivatives(); len(made) != 6 || !made[5].Hit {
		t.Errorf("behind a lost disk: %d facts", len(made))
	}
	testkit.Publish(t, p.js, p.fixed("new.tif", tifftest.File(gray(70))))
	p.settled()
	if pins := testkit.ReadAll(t, p.js, event.StreamIngest, event.SubjectProfilePinned); len(pins) != 1 {
		t.Errorf("the recipe is pinned %d times", len(pins))
	}
	p.scratchIsEmpty()
}

// A log that holds another recipe under the name halts the consumer, once and
// for good; nothing is spent on it.
func TestPinnedOtherwise(t *testing.T) {
	p := newPlace(t)
	testkit.Publish(t, p.js, event.ProfilePinned{Schema: event.SchemaProfilePinned, Name: "jp2", Recipe: []byte("{}"), Digest: testkit.Digest("another recipe")})
	p.start()
	testkit.Publish(t, p.js, p.fixed("a.tif", tifftest.File(gray(50))))
	testkit.Eventually(t, "the consumer is halted", func() bool { return p.svc.Health() != nil && len(p.ops()) > 0 })
	testkit.Eventually(t, "it was looked at again", func() bool { return p.log.Count("probe_failed") > 1 })
	if got := p.ops(); !slices.Equal(got, []string{event.OpHalted}) {
		t.Errorf("the log says %v", got)
	}
	if made := p.derivatives(); len(made) != 0 || p.log.Count("idempotent_execute") != 0 {
		t.Errorf("%d derivatives were made", len(made))
	}
	if pins := testkit.ReadAll(t, p.js, event.StreamIngest, event.SubjectProfilePinned); len(pins) != 1 {
		t.Errorf("the recipe is pinned %d times", len(pins))
	}
}

// Each profile is an operation of its own: what a batch wants is made, under
// its own name and key, and nothing else.
func TestEachProfile(t *testing.T) {
	p := newPlace(t)
	p.profiles = profile.Names()
	p.start()
	in := p.fixed("a.tif", tifftest.File(gray(50)))
	in.Profiles = []string{"jp2", "kb-access-2014", "ndnp", "thumb"}
	testkit.Publish(t, p.js, in)
	for _, name := range profile.Names() {
		testkit.Eventually(t, name+" is settled", func() bool { return testkit.Unfinished(t, p.js, event.StreamIngest, "deriver-"+name) == 0 })
	}
	for _, name := range profile.Names() {
		facts := testkit.ReadAll(t, p.js, event.StreamIngest, event.SubjectDerivative+"."+name)
		if want := slices.Contains(in.Profiles, name); want != (len(facts) == 1) {
			t.Errorf("%s: %d facts", name, len(facts))
		}
		for _, m := range facts {
			f := m.Fact(t).(event.DerivativeMade)
			o := f.Derived.Outputs[0]
			p.stored(o)
			if key := storage.DerivativeKey(name, storage.Digest(in.Digest), map[bool]string{true: "jpg", false: "jp2"}[name == "thumb"]); o.Key != key {
				t.Errorf("%s is stored as %s, not %s", name, o.Key, key)
			}
			if thumb := o.Format.PUID == "fmt/44" && o.Format.MIME == "image/jpeg"; thumb != (name == "thumb") {
				t.Errorf("%s is told as %+v", name, o.Format)
			}
		}
	}
	if pins := testkit.ReadAll(t, p.js, event.StreamIngest, event.SubjectProfilePinned); len(pins) != len(in.Profiles) {
		t.Errorf("%d recipes are pinned", len(pins))
	}
}

// The first recipe in the log holds, whatever is pinned behind it.
func TestPinnedAgain(t *testing.T) {
	p := newPlace(t)
	p.open()
	ours := p.maker().pinned
	p.close()
	testkit.OK(t, os.RemoveAll(p.state))
	testkit.Publish(t, p.js, ours)
	testkit.Publish(t, p.js, event.ProfilePinned{Schema: event.SchemaProfilePinned, Name: "jp2", Recipe: []byte("{}"), Digest: testkit.Digest("another recipe")})
	for range 2 { // learned from the log, and known from the disk
		p.start()
		testkit.Publish(t, p.js, p.fixed("a.tif", tifftest.File(gray(50))))
		p.settled()
		testkit.OK(t, p.svc.Health())
		p.close()
	}
	if len(p.derivatives()) != 1 {
		t.Errorf("%d derivatives", len(p.derivatives()))
	}
}

// The recipe's own fact is healed like any other: a log that comes back older
// holds it again before the derivatives that were made by it.
func TestPinIsHealed(t *testing.T) {
	p := newPlace(t)
	older := filepath.Join(testkit.TempDir(t), "older")
	p.broker.Stop()
	testkit.OK(t, os.CopyFS(older, os.DirFS(p.broker.Dir)))
	p.broker.Start()
	p.start()
	testkit.Eventually(t, "the connection", p.js.Conn().IsConnected)
	testkit.Publish(t, p.js, p.fixed("a.tif", tifftest.File(gray(50))))
	p.settled()
	pins := func() []testkit.Stored {
		return testkit.ReadAll(t, p.js, event.StreamIngest, event.SubjectProfilePinned)
	}
	before := pins()
	p.close()
	p.broker.Stop()
	testkit.OK(t, os.RemoveAll(p.broker.Dir))
	testkit.OK(t, os.CopyFS(p.broker.Dir, os.DirFS(older)))
	p.broker.Start()
	testkit.Eventually(t, "the connection", p.js.Conn().IsConnected)
	p.start()
	testkit.Eventually(t, "the log is healed", func() bool { return p.log.Count("log_healed") > 0 })
	if after := pins(); len(before) != 1 || len(after) != 1 || string(after[0].Data) != string(before[0].Data) || after[0].ID() != before[0].ID() {
		t.Errorf("pinned %d times, then %d, or otherwise", len(before), len(after))
	}
	if n := len(p.derivatives()); n != 1 {
		t.Errorf("%d derivatives", n)
	}
}

func TestNew(t *testing.T) {
	t.Parallel()
	if _, err := New(Config{State: t.TempDir(), Scratch: t.TempDir(), Profiles: []string{"gif"}}); err == nil {
		t.Error("a profile nobody knows was taken")
	}
}
