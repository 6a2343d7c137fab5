package verify

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"colophon/shared/event"
	"colophon/shared/storage"
)

// seeded is one fault put into a sound archive, and what must come of it.
type seeded struct {
	spoil  func(*world)
	object string   // named by the first kind
	kinds  []string // no others
}

// TestSeeded: whatever is wrong with one file is found, and named. All cases
// share one log; each has a copy of the files.
func TestSeeded(t *testing.T) {
	t.Parallel()
	base := built(t)
	base.write(base.book())
	for group, cases := range map[string]map[string]seeded{
		"objects": objectCases(), "manifests": manifestCases(), "bags": bagCases(), "premis": premisCases(),
	} {
		for name, c := range cases {
			t.Run(group+"/"+name, func(t *testing.T) {
				t.Parallel()
				w := base.copy(t)
				c.spoil(w)
				expectKinds(t, w.run(), c.object, c.kinds...)
			})
		}
	}
}

// objectCases are what may happen to a stored file.
func objectCases() map[string]seeded {
	first := newPage("vol 1", "a/0001.tif", 1, "first page")
	unknown := storage.MasterKey(storage.Digest(sha([]byte("nobody knows me"))))
	orphan := storage.DerivativeKey("other", storage.Digest(first.digest()), "jp2")
	return map[string]seeded{
		"a bit of a master": {func(w *world) { w.flip(first.master(), 3) }, first.master(), []string{"master-damaged", "bag-file-damaged"}},
		"a bit of a derivative": {
			func(w *world) { w.flip(first.access(), -1) }, first.access(), []string{"derivative-damaged", "bag-file-damaged"},
		},
		"a longer master": {func(w *world) {
			f, err := os.OpenFile(w.path(first.master()), os.O_WRONLY|os.O_APPEND, 0)
			w.ok(err)
			_, err = f.WriteString("x")
			w.ok(err)
			w.ok(f.Close())
		}, first.master(), []string{"master-damaged", "bag-file-damaged", "bag-oxum"}},
		"a master gone": {func(w *world) { w.ok(os.Remove(w.path(first.master()))) }, first.master(), []string{"master-missing", "frame-incomplete"}},
		"a derivative gone": {
			func(w *world) { w.ok(os.Remove(w.path(first.access()))) }, first.access(), []string{"derivative-missing", "frame-incomplete"},
		},
		"a folder for a master": {func(w *world) {
			w.ok(os.Remove(w.path(first.master())))
			w.ok(os.Mkdir(w.path(first.master()), 0o755))
		}, first.master(), []string{"master-missing", "frame-incomplete"}},
		"a link for a master": {func(w *world) {
			w.ok(os.Rename(w.path(first.master()), filepath.Join(w.dir, "elsewhere")))
			w.ok(os.Symlink(filepath.Join(w.dir, "elsewhere"), w.path(first.master())))
		}, first.master(), []string{"unexpected-file", "master-missing", "frame-incomplete"}},
		"a master that can be written": {func(w *world) { w.ok(os.Chmod(w.path(first.master()), 0o644)) }, first.master(), []string{"object-mode"}},
		"a master nobody knows":        {func(w *world) { w.file(unknown, []byte("nobody knows me")) }, unknown, []string{"master-orphan"}},
		"a damaged one nobody knows":   {func(w *world) { w.file(unknown, []byte("x")) }, unknown, []string{"master-damaged", "master-orphan"}},
		"a derivative nobody made":     {func(w *world) { w.file(orphan, []byte("x")) }, orphan, []string{"derivative-orphan"}},
		"a stray file":                 {func(w *world) { w.file("derivatives/readme", nil) }, "derivatives/readme", []string{"unexpected-file"}},
		"a master in the wrong place": {
			func(w *world) { w.file("masters/sha256/"+string(first.digest()), []byte(first.bytes)) }, "masters/sha256/", []string{"unexpected-file"},
		},
		"bytes left in staging": {
			func(w *world) { w.file(first.captured().Staging, []byte(first.bytes)) }, first.captured().Staging, []string{"staging-left"},
		},
		"bytes nobody captured":  {func(w *world) { w.file("staging/vol%201/x", nil) }, "staging/vol%201/x", []string{"staging-unknown"}},
		"a manifest of no batch": {func(w *world) { w.file("batches/other.json", nil) }, "batches/other.json", []string{"unexpected-file"}},
		"a bag of no batch":      {func(w *world) { w.file("bags/other/bagit.txt", nil) }, "bags/other", []string{"unexpected-file"}},
		"a stray temporary":      {func(w *world) { w.file("masters/sha256/.tmp-0123", nil) }, "masters/sha256/.tmp-0123", []string{"stray-temp"}},
		"a stray manifest":       {func(w *world) { w.file("batches/.tmp-0123", nil) }, "batches/.tmp-0123", []string{"stray-temp"}},
		"a stray bag":            {func(w *world) { w.file("bags/.tmp-0123/bagit.txt", nil) }, "bags/.tmp-0123", []string{"stray-temp"}},
	}
}

// TestAlive: what a live archive has under way is no damage.
func TestAlive(t *testing.T) {
	t.Parallel()
	w := built(t)
	w.write(w.book())
	w.file("masters/sha256/.tmp-live", nil)
	f, err := os.Open(w.path("masters/sha256/.tmp-live"))
	w.ok(err)
	defer f.Close() //nolint:errcheck // a test
	w.ok(unix.Flock(int(f.Fd()), unix.LOCK_EX))
	if r := w.run(); !r.Clean() {
		t.Errorf("a writer that lives: %v", r.Findings)
	}
	next := newPage("vol 2", "1.tif", 1, "on its way")
	w.publish(opened("vol 2", 2))
	w.publish(next.captureFact())
	w.file(next.captured().Staging, []byte(next.bytes))
	w.file(next.master(), []byte(next.bytes))
	r := w.run()
	expectKinds(t, r, next.master(), "master-orphan", "ledger-behind")
	if r.Drifted() || len(r.Open) != 1 || r.Open[0] != (OpenBatch{Batch: "vol 2", Declared: 2, Pending: 1, Missing: 1}) {
		t.Errorf("%+v", r)
	}
	w.publish(next.fixedFact(1, 1))
	w.ok(os.Remove(w.path(next.captured().Staging)))
	w.file(next.access(), []byte(next.jp2))
	r = w.run()
	expectKinds(t, r, next.access(), "derivative-orphan", "ledger-behind")
	if r.Drifted() {
		t.Errorf("%+v", r.Findings)
	}
	w.publish(next.derivedFact(1, 1))
	expectKinds(t, w.run(), "vol 2/1.tif", "accession-pending", "ledger-behind")
}

// TestAsked: a frame that was asked for is pending before any fact speaks of it.
func TestAsked(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.open("b", 2)
	p := newPage("b", "1", 1, "x")
	m := event.FrameMessage{Schema: event.SchemaCaptureFrame, Slot: p.slot, Sequence: 1, Sources: []string{"file:///in/1"}, SHA256: p.digest()}
	was := w.last
	w.send(event.CaptureSubject("frame", "g", "b"), nil, m)
	w.last = was
	w.write(w.book())
	r := w.run()
	if !r.Clean() || len(r.Open) != 1 || r.Open[0] != (OpenBatch{Batch: "b", Declared: 2, Pending: 1, Missing: 1}) {
		t.Errorf("%+v", r)
	}
}
