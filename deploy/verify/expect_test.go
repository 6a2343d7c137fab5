package verify

import (
	"slices"
	"testing"

	"colophon/shared/event"
)

// names feeds facts to the mapping and gives the names that come of them, in
// the order of the names.
func names(t *testing.T, facts ...event.Fact) []string {
	t.Helper()
	mem, err := openScratch(t.TempDir(), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer mem.close() //nolint:errcheck // a test
	x := &expecter{mem: mem}
	for i, f := range facts {
		if err := x.fact(f, message{seq: uint64(i + 1), id: f.MsgID()}); err != nil {
			t.Fatal(err)
		}
	}
	var out []string
	for p, err := range mem.each(memName, "") {
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, string(p.key))
	}
	return out
}

// TestIngestion: a content is ingested as soon as one slot that holds it lacks
// nothing, and not before.
func TestIngestion(t *testing.T) {
	t.Parallel()
	jp2, both := newPage("a", "1", 1, "x"), newPage("b", "1", 1, "x")
	wants := func(f event.FrameFixed, profiles ...string) event.FrameFixed {
		f.Profiles = profiles
		return f
	}
	made := func(p page, profile string) event.DerivativeMade {
		f := p.derivedFact(1, 1)
		f.Derived.Profile = profile
		return f
	}
	waive := func(p page, profile string) event.CaseFact {
		return p.caseFact(event.Derivative(profile), 1, event.CaseDiscarded, 2)
	}
	other := newPage("a", "1", 1, "other bytes")
	next := other.fixedFact(2, 1)
	next.Revision = 2
	for title, c := range map[string]struct {
		facts []event.Fact
		want  bool
	}{
		"nothing made":             {[]event.Fact{jp2.fixedFact(1, 1)}, false},
		"nothing wanted":           {[]event.Fact{wants(jp2.fixedFact(1, 1))}, true},
		"made":                     {[]event.Fact{jp2.fixedFact(1, 1), made(jp2, "jp2")}, true},
		"made before it was fixed": {[]event.Fact{made(jp2, "jp2")}, false},
		"one of two":               {[]event.Fact{wants(both.fixedFact(1, 1), "jp2", "tiff"), made(both, "jp2")}, false},
		"one of two, enough for another's slot": {
			[]event.Fact{wants(both.fixedFact(1, 1), "jp2", "tiff"), jp2.fixedFact(1, 1), made(both, "jp2")}, true,
		},
		"held already when another asks": {
			[]event.Fact{wants(both.fixedFact(1, 1), "jp2", "tiff"), made(both, "jp2"), jp2.fixedFact(1, 1)}, true,
		},
		"waived":              {[]event.Fact{jp2.fixedFact(1, 1), waive(jp2, "jp2")}, true},
		"waived before":       {[]event.Fact{waive(jp2, "jp2"), jp2.fixedFact(1, 1)}, true},
		"waived of another":   {[]event.Fact{jp2.fixedFact(1, 1), waive(both, "jp2")}, false},
		"two, one waived":     {[]event.Fact{wants(both.fixedFact(1, 1), "jp2", "tiff"), waive(both, "tiff"), made(both, "jp2")}, true},
		"waived of old bytes": {[]event.Fact{other.fixedFact(1, 1), waive(other, "jp2"), withRevision(jp2.fixedFact(2, 1), 2)}, false},
	} {
		got := slices.Contains(names(t, c.facts...), "event:ingestion:"+string(jp2.digest()))
		if got != c.want {
			t.Errorf("%s: %v", title, got)
		}
	}
	gone := "event:deaccession:" + string(jp2.digest()) + "@a/1+r2"
	if got := names(t, jp2.fixedFact(1, 1), next); !slices.Contains(got, gone) {
		t.Errorf("no %s in %v", gone, got)
	}
}

func withRevision(f event.FrameFixed, n int) event.FrameFixed {
	f.Revision = n
	return f
}

// TestAttempts: which attempts have an event of their own.
func TestAttempts(t *testing.T) {
	t.Parallel()
	p := newPage("a", "1", 1, "x")
	lost := p.failedFact(event.Fixity, 1, 1, false)
	lost.Class, lost.Code = "lost", "worker-lost"
	late := p.failedFact(event.Fixity, 1, 1, false)
	late.Late = true
	mismatch := p.failedFact(event.Fixity, 1, 1, true)
	mismatch.Class, mismatch.Code, mismatch.Declared = "permanent", "digest-mismatch", sha(nil)
	broken := p.failedFact(event.Derivative("jp2"), 1, 1, true)
	broken.Class, broken.Code = "permanent", "truncated"
	nowhere := p.failedFact(event.Fixity, 1, 1, true)
	nowhere.Slot = event.Slot{}
	hit := p.derivedFact(2, 0)
	hit.Hit = true
	d := string(p.digest())
	for title, c := range map[string]struct {
		facts []event.Fact
		want  []string
	}{
		"at once":                 {[]event.Fact{p.captureFact()}, nil},
		"at the second":           {[]event.Fact{event.FrameCaptured{Work: p.work(event.SchemaFrameCaptured, 1, 2)}}, []string{"event:retry:capture:" + d + "@a/1#1.2"}},
		"at once in pass 2":       {[]event.Fact{event.FrameCaptured{Work: p.work(event.SchemaFrameCaptured, 2, 1)}}, []string{"event:retry:capture:" + d + "@a/1#2.1"}},
		"lost":                    {[]event.Fact{lost}, []string{"event:retry:fixity:" + d + "@a/1#1.1"}},
		"late":                    {[]event.Fact{lost, late}, []string{"event:retry:fixity:" + d + "@a/1#1.1", "event:retry:fixity:" + d + "@a/1#1.1+late"}},
		"late, and not said so":   {[]event.Fact{lost, p.failedFact(event.Fixity, 1, 1, false)}, []string{"event:retry:fixity:" + d + "@a/1#1.1", "event:retry:fixity:" + d + "@a/1#1.1+late"}},
		"another digest declared": {[]event.Fact{mismatch}, []string{"event:fixity-check:" + d + "@a/1#1", "event:retry:fixity:" + d + "@a/1#1.1"}},
		"a broken image":          {[]event.Fact{broken}, []string{"event:retry:derivative:jp2:" + d + "@a/1#1.1", "event:validation:jp2:" + d + "@a/1#1"}},
		"of no batch":             {[]event.Fact{nowhere}, []string{"op:" + nowhere.MsgID()}},
	} {
		if got := names(t, c.facts...); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", title, got, c.want)
		}
	}
	if got := names(t, hit); slices.ContainsFunc(got, func(n string) bool { _, is := parseAttempt(n); return is }) {
		t.Errorf("a hit is no attempt: %q", got)
	}
}

// TestKept: what became of files that are held, and of staged bytes.
func TestKept(t *testing.T) {
	t.Parallel()
	p := newPage("a b", "1", 1, "x")
	d := string(p.digest())
	op := func(kind string, detail map[string]string) event.OpFact {
		return event.OpFact{Schema: event.SchemaOp, Kind: kind, Service: "s", Instance: "i", Counter: 1, Detail: detail}
	}
	reported := p.failedFact(event.Capture, 0, 2, false)
	reported.Digest = ""
	staged := map[string]string{"batch": "a%20b", "frame": "1", "revision": "2", "digest": d, "operation": "fixity", "pass": "1"}
	for title, c := range map[string]struct {
		fact event.Fact
		want string
	}{
		"scheduled":          {op(event.OpVerified, map[string]string{"digest": d, "value": d, "run": "2027 annual"}), "event:fixity-check:" + d + "+2027%20annual"},
		"the end of a run":   {op(event.OpVerified, map[string]string{"run": "2027"}), "op:verified:s:i#1"},
		"copied":             {op(event.OpReplicated, map[string]string{"digest": d, "value": d, "store": "b"}), "event:replication:" + d + "+b"},
		"removed":            {op(event.OpDeleted, staged), "event:deletion:" + d + "@a%20b/1+r2"},
		"removed, by nobody": {op(event.OpDeleted, map[string]string{"batch": "a", "frame": "1"}), "op:deleted:s:i#1"},
		"a device's own":     {reported, "event:retry:capture:@a%20b/1#0.2"},
	} {
		if got := names(t, c.fact); !slices.Equal(got, []string{c.want}) {
			t.Errorf("%s: %q, want %q", title, got, c.want)
		}
	}
}
