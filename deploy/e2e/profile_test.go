package e2e

import (
	"image/jpeg"
	"os"
	"path"
	"strings"
	"testing"
)

// TestRetryProfile: a profile is added to a batch that converged. Only its
// derivatives are made; whatever was stored stays as it is.
func TestRetryProfile(t *testing.T) {
	t.Parallel()
	a := newArchive(t)
	dir := pages(t, 5)
	a.ingest(dir).converged(5)
	before := a.digests("masters", "derivatives")
	var r struct {
		Dispatched int
		Converged  bool
	}
	o := a.run("--json", "retry", "vol", "--profile", "thumb").status(0)
	if o.last(&r); r.Dispatched != 5 || !r.Converged {
		t.Errorf("%+v", r)
	}
	for _, l := range o.logged("idempotent_execute") {
		if key := l.str("key"); !strings.HasPrefix(key, "derivative:thumb:") && !strings.HasPrefix(key, "batch-invalid:") { // the latter: the declaration
			t.Errorf("work beside the profile's: %v", l)
		}
	}
	thumbs := 0
	for key, digest := range a.digests("masters", "derivatives") {
		if was, there := before[key]; there {
			if was != digest {
				t.Errorf("%s has other bytes", key)
			}
			continue
		}
		if thumbs++; path.Ext(key) != ".jpg" {
			t.Errorf("a new file %s", key)
			continue
		}
		f, err := os.Open(a.path(key))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := jpeg.Decode(f); err != nil {
			t.Errorf("%s: %v", key, err)
		}
		_ = f.Close()
	}
	if bag := a.bag("vol"); thumbs != 5 || len(bag) != 15 {
		t.Errorf("%d thumbnails; in the bag %v", thumbs, bag)
	}
	a.verify(0)
	if a.run("--json", "retry", "vol", "--profile", "thumb").status(0).last(&r); r.Dispatched != 0 {
		t.Errorf("again: %+v", r)
	}
	a.run("retry", "vol", "--profile", "gif").status(2)
	a.ingest(dir).converged(5).counts(0, 0, 5, 0)
}
