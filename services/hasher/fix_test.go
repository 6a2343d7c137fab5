package hasher

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"colophon/services/hasher/internal/identify"
	"colophon/shared/event"
	"colophon/shared/fault"
	"colophon/shared/storage"
	"colophon/shared/testkit"
)

// png is a signature that siegfried knows.
const png = "\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x01\x00\x00\x00\x01\x08\x00\x00\x00\x00"

// place is an archive and the worker in it.
type place struct {
	*testing.T
	*fixer
	dir string
}

func newPlace(t *testing.T) *place {
	t.Helper()
	t.Parallel()
	dir := t.TempDir()
	store := testkit.Must(storage.Open(dir, storage.WithLowWater(1)))(t)
	t.Cleanup(func() { testkit.OK(t, store.Close()) })
	return &place{t, &fixer{store, testkit.Must(identify.New())(t)}, dir}
}

// captured puts bytes into staging and gives the fact that capture would.
func (p *place) captured(frame, content string) *event.FrameCaptured {
	p.Helper()
	d := testkit.Digest(content)
	key := storage.StagingKey("b", frame, 1, storage.Digest(d))
	_, err := p.store.Write(p.Context(), key, strings.NewReader(content), storage.Options{})
	testkit.OK(p, err)
	return &event.FrameCaptured{
		Work:     event.Work{Schema: event.SchemaFrameCaptured, Slot: testkit.Slot(frame), Sequence: 1, Revision: 1, Digest: d, Pass: 1, Attempt: 1},
		Captured: event.Captured{Source: "file:///in/" + frame, Size: int64(len(content)), Staging: key},
	}
}

func (p *place) act(in *event.FrameCaptured) (event.Fixed, *fault.Error) {
	out, err := p.Act(p.Context(), in, in.Work)
	return out, fault.Of(err)
}

func (p *place) refused(what string, in *event.FrameCaptured, code fault.Code) *fault.Error {
	p.Helper()
	out, err := p.act(in)
	if err == nil || err.Code != code {
		p.Fatalf("%s: %+v, %v, want %s", what, out, err, code)
	}
	return err
}

// overwrite changes stored bytes as a bad disk would.
func (p *place) overwrite(key, content string) {
	p.Helper()
	path := filepath.Join(p.dir, key)
	testkit.OK(p, os.Remove(path))
	testkit.OK(p, os.WriteFile(path, []byte(content), 0o444))
}

func (p *place) there(key string) bool {
	p.Helper()
	ok, err := p.store.Exists(key)
	testkit.OK(p, err)
	return ok
}

func TestFix(t *testing.T) {
	p := newPlace(t)
	in := p.captured("a.png", png)
	in.Declared = in.Digest
	out, err := p.act(in)
	if err != nil {
		t.Fatal(err)
	}
	if out.StoredDigest != in.Digest || out.Size != int64(len(png)) || out.Master != storage.MasterKey(storage.Digest(in.Digest)) || out.Format.PUID != "fmt/11" {
		t.Errorf("fixed as %+v", out)
	}
	f := p.Fact(in, out, in.Work).(event.FrameFixed)
	if f.Schema != event.SchemaFrameFixed || f.Captured.Source != in.Source || len(f.Helpers) != 1 || f.Helpers[0].Name != "siegfried" || f.Helpers[0].Version == "" {
		t.Errorf("the fact is %+v", f)
	}
	// A crash anywhere: the same again, also behind Finish.
	for range 2 {
		again, err := p.act(in)
		if err != nil || again != out {
			t.Fatalf("again: %+v, %v", again, err)
		}
		testkit.OK(t, p.Finish(t.Context(), in, out))
		if p.there(in.Staging) || !p.there(out.Master) {
			t.Error("Finish leaves the staged bytes, or takes the master")
		}
	}
}

// Transit, stored and declared digest, in every combination of agreement.
func TestThreeDigests(t *testing.T) {
	p := newPlace(t)
	other := testkit.Digest("other")
	for _, c := range []struct {
		what, stored string
		declared     event.Digest
		size         int64
		code         fault.Code
	}{
		{"all agree", "content", testkit.Digest("content"), 7, ""},
		{"nobody declared", "content", "", 7, ""},
		{"declared otherwise", "content", other, 7, fault.DigestMismatch},
		{"a bit flipped in staging", "cont%nt", "", 7, fault.MasterDamaged},
		{"a bit flipped to what was declared", "other", other, 7, fault.MasterDamaged},
		{"cut short in staging", "conten", "", 7, fault.MasterDamaged},
		{"nothing left in staging", "", "", 7, fault.MasterDamaged},
		{"longer than captured", "content", "", 6, fault.MasterDamaged},
	} {
		in := p.captured(c.what, "content")
		in.Declared, in.Size = c.declared, c.size
		if c.stored != "content" {
			p.overwrite(in.Staging, c.stored)
		}
		out, err := p.act(in)
		switch {
		case c.code == "" && err != nil, c.code != "" && (err == nil || err.Code != c.code):
			t.Errorf("%s: %+v, %v", c.what, out, err)
		case c.code == fault.DigestMismatch && err.Declared != string(c.declared):
			t.Errorf("%s: the fault does not tell what was declared: %+v", c.what, err)
		}
		if c.code != "" && !p.there(in.Staging) {
			t.Errorf("%s: the evidence is gone", c.what)
		}
	}
	for e, err := range p.store.List(t.Context(), "masters") {
		testkit.OK(t, err)
		if !strings.HasSuffix(e.Key, string(testkit.Digest("content"))) {
			t.Errorf("%s was promoted", e.Key)
		}
	}
}

func TestStagingGone(t *testing.T) {
	p := newPlace(t)
	in := p.captured("a.png", png)
	testkit.OK(t, p.store.Remove(in.Staging))
	p.refused("neither in staging nor a master", in, fault.BytesMissing)

	in = p.captured("a.png", png)
	out, err := p.act(in)
	if err != nil {
		t.Fatal(err)
	}
	testkit.OK(t, p.store.Remove(in.Staging))
	if again, err := p.act(in); err != nil || again != out {
		t.Errorf("the master stands in: %+v, %v", again, err)
	}
	p.overwrite(out.Master, strings.Replace(png, "IHDR", "IHDS", 1))
	p.refused("the master is damaged", in, fault.MasterDamaged)
	in = p.captured("a.png", png)
	p.refused("good bytes, and a damaged master", in, fault.Conflict)
	testkit.OK(t, os.RemoveAll(p.dir))
	p.refused("the archive is gone", in, fault.StoreUnavailable)
}

func TestStill(t *testing.T) {
	p := newPlace(t)
	in := p.captured("a.png", png)
	out, ferr := p.act(in)
	if ferr != nil {
		t.Fatal(ferr)
	}
	still := func(declared event.Digest) bool {
		in.Declared = declared
		ok, err := p.Still(t.Context(), in, out, in.Work)
		testkit.OK(t, err)
		return ok
	}
	for declared, want := range map[event.Digest]bool{"": true, in.Digest: true, testkit.Digest("other"): false} {
		if still(declared) != want {
			t.Errorf("a hit that declares %q is believed: %v", declared, !want)
		}
	}
	p.refused("another claim about fixed bytes", func() *event.FrameCaptured { in.Declared = testkit.Digest("other"); return in }(), fault.DigestMismatch)
	testkit.OK(t, os.Remove(filepath.Join(p.dir, out.Master)))
	if still("") {
		t.Error("a hit is believed without its master")
	}
	tokens, learned, ok := p.Learn(p.Fact(in, out, in.Work))
	if !ok || learned != out || len(tokens) != 1 || tokens[0] != p.Key(in).String() || tokens[0] != p.Tokens(in, out)[0] {
		t.Errorf("learned %v, %+v, %v", tokens, learned, ok)
	}
	if _, _, ok := p.Learn(event.BatchFact{}); ok {
		t.Error("learned from a foreign fact")
	}
}

type broken struct{ err error }

func (b broken) Identify(context.Context, io.ReaderAt, int64, string) (identify.Format, error) {
	return identify.Format{}, b.err
}

func TestIdentificationFails(t *testing.T) {
	p := newPlace(t)
	in := p.captured("a.png", png)
	p.ids = broken{errors.Join(identify.ErrFailed, errors.New("panic"))}
	err := p.refused("the library fails", in, fault.IdentifyFailed)
	if err.Class() != fault.Transient {
		t.Errorf("it is %s", err.Class())
	}
	if p.there(storage.MasterKey(storage.Digest(in.Digest))) {
		t.Error("promoted all the same")
	}
}

func TestDecode(t *testing.T) {
	p := newPlace(t)
	good := p.captured("a.png", png)
	in, err := p.Decode("", nil, testkit.JSON(t, good))
	testkit.OK(t, err)
	if p.Key(in) != event.FixityKey(good.Digest, good.Slot) || p.Work(in).Slot != good.Slot {
		t.Errorf("read as %+v", in)
	}
	for what, spoil := range map[string]func(*event.FrameCaptured){
		"no slot":                      func(f *event.FrameCaptured) { f.Frame = "" },
		"no digest":                    func(f *event.FrameCaptured) { f.Digest = "src-1" },
		"no staging key":               func(f *event.FrameCaptured) { f.Staging = "" },
		"a staging key elsewhere":      func(f *event.FrameCaptured) { f.Staging = "masters/sha256/ab/cd/x" },
		"a schema of another build":    func(f *event.FrameCaptured) { f.Schema = "colophon/frame.captured/v2" },
		"a staging key that climbs up": func(f *event.FrameCaptured) { f.Staging = "../staging/x" },
	} {
		f := *good
		spoil(&f)
		if _, err := p.Decode("", nil, testkit.JSON(t, f)); err == nil {
			t.Errorf("%s was read", what)
		}
	}
}
