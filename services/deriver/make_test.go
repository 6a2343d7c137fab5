package deriver

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/semaphore"

	"colophon/services/deriver/internal/tifftest"
	"colophon/shared/event"
	"colophon/shared/fault"
	"colophon/shared/storage"
	"colophon/shared/testkit"
)

// gray is a small page; width makes others of it.
func gray(width int) tifftest.Spec {
	return tifftest.Spec{Width: width, Height: 40, Bits: 8, Samples: 1, Photometric: 1, Compression: 1}
}

// act is one act of a maker that no stage drives.
func (p *place) act(in event.FrameFixed) (made, *fault.Error) {
	out, err := p.maker().Act(p.Context(), &in, in.Work)
	return out, fault.Of(err)
}

func (p *place) refused(what string, in event.FrameFixed, code fault.Code) *fault.Error {
	p.Helper()
	out, err := p.act(in)
	if err == nil || err.Code != code {
		p.Fatalf("%s: %+v, %v, want %s", what, out, err, code)
	}
	return err
}

func (p *place) stored(o event.Output) {
	p.Helper()
	d, n, err := p.store.Digest(p.Context(), o.Key)
	testkit.OK(p, err)
	if event.Digest(d) != o.Digest || n != o.Size || o.Format.PUID == "" {
		p.Errorf("%s is stored as %s, %d bytes; told as %+v", o.Key, d, n, o)
	}
}

func (p *place) scratchIsEmpty() {
	p.Helper()
	if left := testkit.Must(os.ReadDir(p.scratch))(p); len(left) != 0 {
		p.Errorf("left in scratch: %v", left)
	}
}

func TestMake(t *testing.T) {
	p := newPlace(t)
	p.open()
	in := p.fixed("a.tif", tifftest.File(gray(50)))
	out, err := p.act(in)
	if err != nil {
		t.Fatal(err)
	}
	key := storage.DerivativeKey("jp2", storage.Digest(in.Digest), ".jp2")
	if len(out.Outputs) != 1 || out.Outputs[0].Key != key || out.Outputs[0].Page != 1 || !out.Outputs[0].Exact || out.Technical.Width != 50 || len(out.Helpers) == 0 {
		t.Fatalf("made %+v", out)
	}
	p.stored(out.Outputs[0])
	f := p.maker().Fact(&in, out, in.Work).(event.DerivativeMade)
	if f.Derived.RecipeDigest != p.maker().pinned.Digest || len(f.Helpers) != len(out.Helpers) {
		t.Errorf("the fact is %+v", f)
	}
	p.scratchIsEmpty()

	// What is there already is adopted where it is the same, byte for byte.
	before := testkit.Must(p.store.Stat(key))(t)
	if again, err := p.act(in); err != nil || again.Outputs[0] != out.Outputs[0] {
		t.Fatalf("again: %+v, %v", again, err)
	}
	if !os.SameFile(before, testkit.Must(p.store.Stat(key))(t)) {
		t.Error("the derivative was written again")
	}
	still := func() bool {
		ok, err := p.maker().Still(t.Context(), &in, out, in.Work)
		testkit.OK(t, err)
		return ok
	}
	if !still() {
		t.Error("a derivative that is there is not believed")
	}
	path := filepath.Join(p.dir, key)
	data := testkit.Must(os.ReadFile(path))(t)
	testkit.OK(t, os.Remove(path))
	if still() {
		t.Error("a derivative that is gone is believed")
	}
	data[len(data)/2] ^= 1
	testkit.OK(t, os.WriteFile(path, data, 0o444))
	p.refused("other bytes are there", in, fault.Conflict)
	p.scratchIsEmpty()
	if pins := testkit.ReadAll(t, p.js, event.StreamIngest, event.SubjectProfilePinned); len(pins) != 1 {
		t.Errorf("the recipe is pinned %d times", len(pins))
	}
}

func TestManyPages(t *testing.T) {
	p := newPlace(t)
	p.open()
	in := p.fixed("book.tif", tifftest.File(gray(50), gray(60), gray(70)))
	out, err := p.act(in)
	if err != nil {
		t.Fatal(err)
	}
	folder := storage.DerivativeKey("jp2", storage.Digest(in.Digest), "")
	if len(out.Outputs) != 3 {
		t.Fatalf("made %+v", out)
	}
	seen := map[event.Digest]bool{}
	for i, o := range out.Outputs {
		if o.Page != i+1 || o.Key != folder+[]string{"/0001.jp2", "/0002.jp2", "/0003.jp2"}[i] {
			t.Errorf("page %d is %+v", i+1, o)
		}
		p.stored(o)
		seen[o.Digest] = true
	}
	if len(seen) != 3 {
		t.Error("pages share a digest")
	}
	if again, err := p.act(in); err != nil || len(again.Outputs) != 3 {
		t.Errorf("again: %+v, %v", again, err)
	}
	testkit.OK(t, os.Remove(filepath.Join(p.dir, out.Outputs[1].Key)))
	if ok, _ := p.maker().Still(t.Context(), &in, out, in.Work); ok {
		t.Error("believed without its second page")
	}
	p.refused("a folder that lacks a page", in, fault.Conflict)
	p.scratchIsEmpty()
}

func TestRefusals(t *testing.T) {
	p := newPlace(t)
	p.open()
	good := tifftest.File(gray(50))
	p.refused("a master cut short", p.fixed("cut.tif", good[:len(good)/2]), "truncated")
	p.refused("another kind than it is called", p.fixed("a.jpg", good), "format-mismatch")
	in := p.fixed("a.tif", good)
	path := filepath.Join(p.dir, in.Fixed.Master)
	testkit.OK(t, os.Remove(path))
	p.refused("the master is gone", in, fault.BytesMissing)
	testkit.OK(t, os.WriteFile(path, bytes.Replace(good, []byte("II"), []byte("I!"), 1), 0o444))
	p.refused("the master is damaged", in, fault.MasterDamaged)
	p.scratchIsEmpty()
	testkit.OK(t, os.RemoveAll(p.dir))
	if f := p.refused("the archive is gone", in, fault.StoreUnavailable); f.Class() != fault.Environment {
		t.Errorf("it is %s", f.Class())
	}
	if c := fault.Of(scratchFault(&storage.SourceError{Key: "x", Err: os.ErrNotExist})); c.Class() != fault.Transient {
		t.Errorf("a scratch file that is gone is %s", c.Code)
	}
}

func TestOrders(t *testing.T) {
	p := newPlace(t)
	p.open()
	good := p.fixed("a.tif", []byte("x"))
	in, err := p.maker().Decode("", nil, testkit.JSON(t, good))
	testkit.OK(t, err)
	if !p.maker().Wants(in) || p.maker().Key(in) != event.DerivativeKey("jp2", good.Digest) {
		t.Errorf("read as %+v", in)
	}
	in.Profiles = []string{"jp2-lossless"}
	if p.maker().Wants(in) {
		t.Error("wanted though the batch does not")
	}
	for what, spoil := range map[string]func(*event.FrameFixed){
		"no slot":                 func(f *event.FrameFixed) { f.Batch = "" },
		"no digest":               func(f *event.FrameFixed) { f.Digest = "" },
		"another master":          func(f *event.FrameFixed) { f.Fixed.Master = storage.MasterKey(storage.Digest(testkit.Digest("other"))) },
		"a master that climbs up": func(f *event.FrameFixed) { f.Fixed.Master = "masters/../../etc/passwd" },
		"another schema":          func(f *event.FrameFixed) { f.Schema = "colophon/frame.fixed/v2" },
	} {
		f := good
		spoil(&f)
		if _, err := p.maker().Decode("", nil, testkit.JSON(t, f)); err == nil {
			t.Errorf("%s was read", what)
		}
	}
}

// All profiles together work on as many masters as there are cores for.
func TestCores(t *testing.T) {
	p := newPlace(t)
	p.profiles = []string{"jp2", "thumb"}
	p.open()
	testkit.OK(t, p.svc.makers[0].cores.Acquire(t.Context(), 4))
	in := p.fixed("a.tif", tifftest.File(gray(50)))
	testkit.OK(t, p.svc.makers[1].ensurePinned(t.Context()))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := p.svc.makers[1].Act(ctx, &in, in.Work); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a thumbnail beside four others: %v", err)
	}
	p.svc.makers[0].cores.Release(4)
	for range 5 { // each gives its core back
		if _, err := p.svc.makers[1].Act(t.Context(), &in, in.Work); err != nil {
			t.Error(err)
		}
	}
}

// Helpers are admitted by the memory they take together; one that wants more
// than there is runs alone.
func TestAdmission(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := &maker{total: 10, memory: semaphore.NewWeighted(10)}
		var mu sync.Mutex
		var log []string
		note := func(what string) {
			mu.Lock()
			defer mu.Unlock()
			log = append(log, what)
		}
		run := func(name string, bytes int64, takes time.Duration) {
			release, err := m.reserve(context.Background(), bytes)
			testkit.OK(t, err)
			note("+" + name)
			time.Sleep(takes) // virtual: the helper at work
			note("-" + name)
			release()
		}
		go run("a", 6, 2*time.Second)
		go func() { time.Sleep(time.Millisecond); run("b", 4, time.Second) }()
		go func() { time.Sleep(2 * time.Millisecond); run("huge", 99, time.Second) }()
		go func() { time.Sleep(3 * time.Millisecond); run("c", 1, time.Second) }()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if got := strings.Join(log, " "); got != "+a +b -b -a +huge -huge +c -c" {
			t.Errorf("ran as %s", got)
		}
		ctx, cancel := context.WithCancel(context.Background())
		release, err := m.reserve(ctx, 10)
		testkit.OK(t, err)
		cancel()
		if _, err := m.reserve(ctx, 1); err == nil {
			t.Error("a stop does not end the wait")
		}
		release()
	})
}
