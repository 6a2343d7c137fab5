package capture

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"colophon/shared/event"
	"colophon/shared/fault"
	"colophon/shared/storage"
	"colophon/shared/testkit"
)

func bytesOf(s string) io.Reader { return strings.NewReader(s) }

func size(n int64) *int64 { return &n }

func (r *rig) staged(key, content string) {
	r.Helper()
	f, err := r.store.Open(key)
	testkit.OK(r, err)
	defer f.Close() //nolint:errcheck // only read
	data, err := io.ReadAll(f)
	testkit.OK(r, err)
	if string(data) != content {
		r.Errorf("%s holds %q, want %q", key, data, content)
	}
}

func TestTake(t *testing.T) {
	r := newRig(t)
	r.start()
	r.opened(9, 2)
	r.source("a.tif", "aaa")
	m := r.message("a.tif", fileURI(r.in+"/a.tif"))
	m.Operator, m.Device, m.Acquisition = "op", "dev", map[string]string{"dpi": "400"}
	c := r.take(m)
	expect(t, "digest", c.Digest, testkit.Digest("aaa"))
	expect(t, "revision", c.Revision, 1)
	expect(t, "pass", c.Pass, 1)
	expect(t, "attempt", c.Attempt, 1)
	expect(t, "size", c.Size, 3)
	expect(t, "hit", c.Hit, false)
	expect(t, "gateway, operator, device", c.Gateway+c.Operator+c.Device, "gwopdev")
	if c.TakenAt.IsZero() || c.Stat == nil || len(c.Policy) == 0 || len(c.Profiles) != 1 {
		t.Errorf("the fact lacks something: %+v", c)
	}
	r.staged(c.Staging, "aaa")

	for _, f := range []struct {
		name, content string
		size          *int64
		code          fault.Code
		attempts      int
	}{
		{"empty.tif", "", nil, fault.Empty, 1},
		{"short.tif", "ab", size(3), fault.SourceUnsettled, 2},
		{"none-yet.tif", "", size(3), fault.SourceUnsettled, 2},
		{"long.tif", "abcd", size(3), fault.SizeMismatch, 1},
	} {
		m := r.message(f.name, r.source(f.name, f.content))
		m.Size = f.size
		got := r.refuse(m)
		expect(t, f.name, fault.Code(got.Code), f.code)
		expect(t, f.name+": attempts", got.Attempt, f.attempts)
	}
	gone := r.message("gone.tif", fileURI(r.in+"/gone.tif"))
	expect(t, "a missing source", fault.Code(r.refuse(gone).Code), fault.SourceMissing)
	expect(t, "staged files", len(r.stagedFiles()), 1)
}

func TestSeveralSources(t *testing.T) {
	r := newRig(t)
	r.start()
	r.opened(9, 2)
	good := r.source("copy/a.tif", "aaa")
	missing, empty, other := fileURI(r.in+"/a.tif"), r.source("empty.tif", ""), r.source("other.tif", "ooo")
	c := r.take(r.message("a", missing, empty, good, other))
	expect(t, "read from", c.Source, good)

	got := r.refuse(r.message("b", missing, empty))
	expect(t, "all fail: the first is told", fault.Code(got.Code), fault.SourceMissing)

	short := r.message("c", missing, r.source("short.tif", "x"))
	short.Size = size(2)
	got = r.refuse(short)
	expect(t, "one may do better later", fault.Code(got.Code), fault.SourceUnsettled)
	expect(t, "and was tried again", got.Attempt, 2)
}

func TestDeclaredDigest(t *testing.T) {
	r := newRig(t)
	r.start()
	r.opened(9, 1)
	uri := r.source("a.tif", "aaa")
	wrong := r.message("a", uri)
	wrong.SHA256, wrong.DeclaredBy = testkit.Digest("claimed"), "vendor"
	c := r.take(wrong)
	expect(t, "digest", c.Digest, testkit.Digest("aaa"))
	expect(t, "declared", c.Declared, testkit.Digest("claimed"))
	for token, want := range map[event.Digest]bool{testkit.Digest("aaa"): true, testkit.Digest("claimed"): false} {
		_, known, err := r.svc.set.Result(event.CaptureKey(token, testkit.Slot("a")).String())
		testkit.OK(t, err)
		expect(t, "recorded under "+string(token[:6]), known, want)
	}

	right := wrong // the vendor corrects the list
	right.SHA256, right.Pass = testkit.Digest("aaa"), 2
	c = r.take(right)
	expect(t, "nothing is read again", c.Hit, true)
	expect(t, "the new claim is told", c.Declared, testkit.Digest("aaa"))

	none := r.message("a", uri) // and so is that nobody claims anything
	none.Pass = 3
	expect(t, "no claim", r.take(none).Declared, "")
}

// An unfinished slot takes other bytes as its next revision; the bytes of those
// before go when it is fixed, and not while hasher may still read them.
func TestRevisions(t *testing.T) {
	r := newRig(t)
	r.start()
	r.opened(1, 1)
	for n, content := range []string{"one", "two2", "three", "one"} {
		c := r.take(r.message("a", r.source("a.tif", content)))
		expect(t, "revision", c.Revision, n+1)
		if n > 0 {
			expect(t, "replaces", c.Replaces, testkit.Digest([]string{"one", "two2", "three"}[n-1]))
		}
		if n == 2 { // a new start knows as much
			r.stop()
			testkit.OK(t, os.RemoveAll(r.state))
			r.start()
		}
		if got := r.stagedFiles(); len(got) != n+1 || !slices.Contains(got, c.Staging) {
			t.Errorf("in staging: %v", got)
		}
		if n == 3 { // it comes back to bytes it had: the fact has another name
			expect(t, "pass", c.Pass, 2)
			r.fix(c)
			testkit.Eventually(t, "the bytes before it go", func() bool { return len(r.stagedFiles()) == 0 })
		}
	}
}

func TestChangedSource(t *testing.T) {
	r := newRig(t)
	r.start()
	r.opened(1, 1)
	r.done(r.take(r.message("a", r.source("a.tif", "good"))))

	other := r.message("a", r.source("a.tif", "rewritten"))
	other.Pass = 2
	got := r.refuse(other)
	expect(t, "operation", got.Operation, event.SourceChanged)
	expect(t, "code", fault.Code(got.Code), fault.SourceChanged)
	expect(t, "the other bytes' digest", got.Declared, testkit.Digest("rewritten"))
	refused := r.stagedFiles()
	expect(t, "the other bytes are kept for the decision", len(refused), 1)
	r.staged(refused[0], "rewritten")

	other.Pass, other.Replaces = 3, testkit.Digest("something else")
	expect(t, "a wrong digest replaces nothing", r.refuse(other).Operation, event.SourceChanged)

	back := r.message("a", r.source("a.tif", "good"))
	back.Pass = 4
	c := r.take(back)
	expect(t, "restored: revision", c.Revision, 1)
	expect(t, "restored: digest", c.Digest, testkit.Digest("good"))
	if got := r.stagedFiles(); len(got) != 1 || got[0] != refused[0] {
		t.Errorf("a master came into staging again: %v", got)
	}

	other = r.message("a", r.source("a.tif", "rewritten"))
	other.Pass, other.Replaces = 5, testkit.Digest("good")
	c = r.take(other)
	expect(t, "replaced: revision", c.Revision, 2)
	expect(t, "replaced: it replaces", c.Replaces, testkit.Digest("good"))
	expect(t, "replaced: staged", c.Staging, refused[0])
	r.status("the revision is on its way", func(st event.BatchStatus) bool { return st.Totals.Pending == 1 })
}

// Where the view lags behind the log, a done slot is done all the same.
func TestChangedBehindTheView(t *testing.T) {
	r := newRig(t)
	r.start()
	r.opened(1, 1)
	c := r.take(r.message("a", r.source("a.tif", "good")))
	m := r.message("a", r.source("a.tif", "rewritten"))
	m.Pass = 2
	r.svc.view.mu.Lock() // the view reads no further
	before := len(r.failed())
	r.derive(r.fix(c), "jp2")
	r.send(m)
	testkit.Eventually(t, "the other bytes are in staging", func() bool { return len(r.stagedFiles()) == 1 })
	r.svc.view.mu.Unlock()
	r.settled()
	if all := r.failed(); len(all) != before+1 || all[before].Operation != event.SourceChanged {
		t.Errorf("other bytes for a done slot were taken: %+v", r.captured())
	}
}

// Messages of one slot that differ become revisions one after the other, each
// told, recorded and in staging as what it is.
func TestTwoMessagesOfOneSlot(t *testing.T) {
	r := newRig(t)
	r.start()
	r.opened(1, 1)
	const rounds = 12
	var wg sync.WaitGroup
	for n := range rounds {
		content := strings.Repeat(string(rune('a'+n)), 1<<20)
		m := r.message("a", r.source("copy"+string(rune('a'+n))+".tif", content))
		wg.Go(func() { r.send(m) })
	}
	wg.Wait()
	r.settled()
	all := r.captured()
	expect(t, "facts", len(all), rounds)
	for n, c := range all {
		expect(t, "revision in log order", c.Revision, n+1)
		if n > 0 {
			expect(t, "replaces", c.Replaces, all[n-1].Digest)
		}
	}
	expect(t, "in staging until one is fixed", len(r.stagedFiles()), rounds)
	r.fix(all[rounds-1])
	testkit.Eventually(t, "those before it go", func() bool { return len(r.stagedFiles()) == 0 })
}

func TestEqualBytesAndPasses(t *testing.T) {
	r := newRig(t)
	r.start()
	r.opened(1, 1)
	uri := r.source("a.tif", "aaa")
	first := r.take(r.message("a", uri))

	later := r.message("a", uri) // the same look at the same file
	later.Pass = 2
	c := r.take(later)
	expect(t, "the same look: hit", c.Hit, true)
	expect(t, "the same look: attempt", c.Attempt, 0)

	now := time.Now().Add(-time.Minute)
	testkit.OK(t, os.Chtimes(filepath.Join(r.in, "a.tif"), now, now))
	touched := r.message("a", uri)
	touched.Pass = 3
	c = r.take(touched)
	expect(t, "another look: read", c.Hit, false)
	expect(t, "another look: revision", c.Revision, 1)
	expect(t, "another look: staged", c.Staging, first.Staging)

	again := later // the first look again, and the source looks otherwise since
	again.Pass = 4
	expect(t, "an old look: read", r.take(again).Hit, false)

	testkit.OK(t, os.Remove(filepath.Join(r.in, "a.tif")))
	again.Pass = 5
	expect(t, "a source that is gone is no fault of bytes that are here", r.take(again).Hit, true)

	testkit.OK(t, r.store.Remove(first.Staging))
	again.Pass = 6
	expect(t, "bytes that are gone are no hit", fault.Code(r.refuse(again).Code), fault.SourceMissing)
}

func TestFrameMessages(t *testing.T) {
	t.Parallel()
	f := new(frames)
	good := testkit.JSON(t, testkit.FrameMessage(testkit.Slot("a"), 1, "x"))
	subject := event.CaptureSubject("frame", "gw.1", "b")
	in, err := f.Decode(subject, nil, good)
	testkit.OK(t, err)
	expect(t, "gateway", in.Gateway, "gw.1")
	expect(t, "turn", f.Turn(in), testkit.Slot("a").String())
	for what, c := range map[string]struct{ subject, body string }{
		"another batch's subject": {event.CaptureSubject("frame", "gw", "c"), string(good)},
		"no subject of ours":      {"capture.frame.gw", string(good)},
		"no JSON":                 {subject, "{"},
		"two values":              {subject, string(good) + string(good)},
		"a key twice":             {subject, strings.Replace(string(good), `"sequence":1`, `"sequence":1,"sequence":2`, 1)},
		"another schema":          {subject, strings.Replace(string(good), "/v1", "/v2", 1)},
		"no sequence":             {subject, strings.Replace(string(good), `"sequence":1`, `"sequence":0`, 1)},
	} {
		if _, err := f.Decode(c.subject, nil, []byte(c.body)); err == nil {
			t.Errorf("%s was read", what)
		}
	}
	_, err = f.Decode(subject, nil, bytes.Replace(good, []byte("/v1"), []byte("/v9"), 1))
	if !strings.Contains(err.Error(), event.ErrUnknownSchema.Error()) {
		t.Errorf("another schema: %v", err)
	}
}

func TestProbe(t *testing.T) {
	t.Parallel()
	full := testkit.Must(storage.Open(t.TempDir(), storage.WithLowWater(1<<62)))(t)
	defer full.Close() //nolint:errcheck // of no further use
	expect(t, "below the low-water mark", fault.Of((&frames{store: full}).Probe(context.Background(), false)).Class(), fault.Environment)
	dir := t.TempDir()
	lost := testkit.Must(storage.Open(dir, storage.WithLowWater(1)))(t)
	defer lost.Close() //nolint:errcheck // of no further use
	testkit.OK(t, (&frames{store: lost}).Probe(context.Background(), true))
	testkit.OK(t, os.RemoveAll(dir))
	expect(t, "an archive that is gone", fault.Of((&frames{store: lost}).Probe(context.Background(), true)).Class(), fault.Environment)
}
