package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// TestMemory takes a large sparse master in: memory does not grow with it.
func TestMemory(t *testing.T) { // not parallel: it would starve the others of the disk
	large(t, 1<<30)
}

// resident bounds the memory of the process, in bytes.
const resident = 100 << 20

func large(t *testing.T, size int64) {
	var fs syscall.Statfs_t
	ok(t, syscall.Statfs(os.TempDir(), &fs))
	if free := int64(fs.Bavail) * fs.Bsize; free < 3*size+4<<30 {
		t.Fatalf("the disk has %d MiB free, too few for this test", free>>20)
	}
	a := newArchive(t)
	dir := filepath.Join(tempDir(t), "vol")
	putAll(t, dir, good)
	path := filepath.Join(dir, "large.tif")
	side := uint32(1)
	for int64(side)*int64(side) < size {
		side <<= 1
	}
	// one strip of zeros that says it is compressed in a way nobody reads: an
	// access copy of it would be hours of work
	head := tiffHead(side, uint32(size/int64(side)), uint32(size), nil)
	head[8+2+3*12+8] = 6
	ok(t, os.WriteFile(path, head, 0o644))
	ok(t, os.Truncate(path, int64(len(head))+size))
	ok(t, os.Chtimes(path, longAgo, longAgo))
	p := a.serve("--root", dir)
	start := time.Now()
	o := a.ingest(dir)
	peak := peakResident(t, p.cmd.Process.Pid)
	t.Logf("%d MiB: status %d, cases %v, %v; peak resident %d MiB", size>>20, o.code, o.cases(), time.Since(start).Round(time.Millisecond), peak>>20)
	if o.code != 0 && o.code != 3 || o.json.Pending != 0 {
		t.Fatalf("%s", o.stdout)
	}
	if peak > resident {
		t.Errorf("%d MiB resident", peak>>20)
	}
	p.signal(syscall.SIGTERM)
	p.wait().status(0)
	found := false
	for name, info := range a.files("masters") {
		if info.Size() == int64(len(head))+size {
			found = true
			if filepath.Base(name) != sumFile(t, a.path(name)) {
				t.Errorf("%s is stored under another digest", name)
			}
		}
	}
	if !found {
		t.Error("the large master is not stored")
	}
}

var vmHWM = regexp.MustCompile(`VmHWM:\s+(\d+) kB`)

// peakResident is the most memory that a process has had, in bytes.
func peakResident(t testing.TB, pid int) int64 {
	t.Helper()
	m := vmHWM.FindStringSubmatch(readFile(t, fmt.Sprintf("/proc/%d/status", pid)))
	if m == nil {
		t.Fatal("no VmHWM")
	}
	kb, err := strconv.ParseInt(m[1], 10, 64)
	ok(t, err)
	return kb << 10
}
