package capture

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"colophon/shared/fault"
	"colophon/shared/testkit"
)

// Staged bytes that lost a bit are read from the source again.
func TestDamagedStaging(t *testing.T) {
	r := newRig(t)
	r.start()
	r.opened(1, 1)
	m := r.message("a", r.source("a.tif", "aaaa"))
	c := r.take(m)
	path := testkit.Must(r.store.FilePath(c.Staging))(t)
	testkit.OK(t, os.Remove(path))
	testkit.OK(t, os.WriteFile(path, []byte("aaba"), 0o444))
	m.Pass = 2 // hasher found it damaged, somebody asked for another pass
	c = r.take(m)
	expect(t, "hit", c.Hit, false)
	expect(t, "revision", c.Revision, 1)
	r.staged(c.Staging, "aaaa")
}

// A file that moves while it is read is not believed, and leaves nothing.
func TestMovingSource(t *testing.T) {
	big := strings.Repeat("0123456789abcdef", 3<<20)
	for name, move := range map[string]func(t *testing.T, path string){
		"appended": func(t *testing.T, path string) {
			f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
			testkit.OK(t, err)
			_, err = f.WriteString("more")
			testkit.OK(t, err)
			testkit.OK(t, f.Close())
		},
		"touched": func(t *testing.T, path string) {
			then := time.Now().Add(-30 * time.Minute)
			testkit.OK(t, os.Chtimes(path, then, then))
		},
		"replaced": func(t *testing.T, path string) {
			testkit.OK(t, os.Rename(path+".new", path))
		},
		"removed": func(t *testing.T, path string) { testkit.OK(t, os.Remove(path)) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.start()
			r.opened(1, 1)
			m := r.message("a", r.source("a.tif", big))
			r.source("a.tif.new", big[:len(big)-1]+"X") // of the same size and time
			like := testkit.Must(os.Stat(filepath.Join(r.in, "a.tif")))(t).ModTime()
			testkit.OK(t, os.Chtimes(filepath.Join(r.in, "a.tif.new"), like, like))
			r.send(m)
			testkit.EventuallyWithin(t, 10*time.Second, "the reading has begun", func() bool {
				temps, _ := filepath.Glob(filepath.Join(r.archive, "staging", "b", ".tmp-*"))
				return len(temps) > 0
			})
			move(t, filepath.Join(r.in, "a.tif"))
			r.settled()
			got := r.failed()
			if len(got) != 1 || fault.Code(got[0].Code) != fault.SourceUnsettled {
				t.Fatalf("%+v, captured %+v", got, r.captured())
			}
			expect(t, "staged files", len(r.stagedFiles()), 0)
		})
	}
}
