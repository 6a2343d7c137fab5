package capture

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"colophon/shared/testkit"
)

// A name inside a manifest is no field of it.
func TestManifestConvergence(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{
		`{"schema":"x","batch":"b","convergence":3,"frames":[{"frame":"convergence"}]}`:    3,
		`{"schema":"x","batch":"frames","state":"converged","convergence":3,"frames":[]}`:  3,
		`{"schema":"x","batch":"convergence","convergence":2}`:                             2,
		`{"schema":"x","batch":{"percent_encoded":"%FF","convergence":9},"convergence":2}`: 2,
		`{"schema":"x","frames":[],"convergence":2}`:                                       -1,
		`{"schema":"x","batch":"b"`:                                                        -1, `{"convergence":"2"}`: -1, `[2]`: -1, ``: -1,
	} {
		expect(t, text, manifestConvergence(strings.NewReader(text)), want)
	}
}

// A manifest or bag that is gone, or older than the log's convergence, is made
// again: at a start, and by the loop.
func TestManifestAndBagStandAgain(t *testing.T) {
	r := newRig(t)
	r.premis()
	r.every = 20 * time.Millisecond
	r.start()
	r.opened(1, 1)
	r.done(r.take(r.message("a", r.source("a.tif", "aaa"))))
	r.stands(1)
	m := r.message("a", r.source("a.tif", "another"))
	m.Pass, m.Replaces = 2, testkit.Digest("aaa")
	old := r.file("batches/b.json")
	r.done(r.take(m))
	r.stands(2)
	manifest, info := r.file("batches/b.json"), "bags/b/bag-info.txt"
	path := func(key string) string { return filepath.Join(r.archive, key) }
	replace := func(key, content string) {
		testkit.OK(t, os.Remove(path(key)))
		testkit.OK(t, os.WriteFile(path(key), []byte(content), 0o644))
	}
	bagInfo := r.file(info)
	for what, lose := range map[string]func(){
		"the manifest is gone":             func() { testkit.OK(t, os.Remove(path("batches/b.json"))) },
		"the manifest is older":            func() { replace("batches/b.json", old) },
		"the manifest is cut short":        func() { replace("batches/b.json", manifest[:20]) },
		"the bag is gone":                  func() { testkit.OK(t, os.RemoveAll(path("bags/b"))) },
		"the bag is older":                 func() { replace(info, strings.Replace(bagInfo, "Convergence: 2", "Convergence: 1", 1)) },
		"the bag has lost its information": func() { testkit.OK(t, os.Remove(path(info))) },
	} {
		for _, when := range []string{"while it runs", "at a start"} {
			if when == "at a start" {
				r.stop()
				r.every = time.Hour
			}
			lose()
			if when == "at a start" {
				r.start()
			}
			testkit.Eventually(t, what+" "+when, func() bool {
				now, err := os.ReadFile(path("batches/b.json"))
				bag, lost := os.ReadFile(path(info))
				return err == nil && lost == nil && string(now) == manifest && string(bag) == bagInfo
			})
			r.stands(2)
		}
		r.stop()
		r.every = 20 * time.Millisecond
		r.start()
	}
	expect(t, "convergences", len(r.facts("converged", "b")), 2)
	expect(t, "the bag", r.file("bags/b/data/masters/a"), "another")
}
