package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// disk is a file system that a test may fill: a small one of its own where
// tests may mount (as root), else a part of the machine's.
type disk struct {
	t     testing.TB
	dir   string
	small bool // its own: it can be full to the last byte, or read-only
	mark  int  // MiB: a low-water mark that fill goes below
}

// newDisk mounts a tmpfs of some MiB. Where that is not allowed it says so, and
// the test tests what is left.
func newDisk(t testing.TB, mib int) *disk {
	t.Helper()
	d := &disk{t: t, dir: tempDir(t), mark: mib / 4}
	err := syscall.Mount("tmpfs", d.dir, "tmpfs", syscall.MS_NOSUID|syscall.MS_NODEV, fmt.Sprintf("mode=0755,size=%dm", mib))
	if err == nil {
		d.small = true
		t.Cleanup(func() { _ = syscall.Unmount(d.dir, syscall.MNT_DETACH) })
		return d
	}
	t.Logf("NOT TESTED: a full and a read-only file system: no tmpfs can be mounted here (%v). Run this test as root.", err)
	d.mark = int(d.free()>>20) - 1024
	return d
}

func (d *disk) ballast() string { return filepath.Join(d.dir, "ballast") }

func (d *disk) free() int64 {
	d.t.Helper()
	var fs syscall.Statfs_t
	ok(d.t, syscall.Statfs(d.dir, &fs))
	return int64(fs.Bavail) * fs.Bsize
}

// low takes space away until less is free than the mark.
func (d *disk) low() { d.leave(int64(d.mark)<<20 - 1<<20) }

// full takes all space away: not a byte can be written any more. It fights for
// the last blocks with whoever writes there at the same time.
func (d *disk) full() {
	d.t.Helper()
	if !d.small {
		d.t.Fatal("only a disk of its own may be filled")
	}
	f, err := os.OpenFile(d.ballast(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	ok(d.t, err)
	defer f.Close() //nolint:errcheck // only ballast
	for block := make([]byte, 1<<20); len(block) >= 1; {
		if _, err := f.Write(block); errors.Is(err, syscall.ENOSPC) {
			block = block[:len(block)/2]
		} else {
			ok(d.t, err)
		}
	}
}

// leave takes space away but for some bytes.
func (d *disk) leave(n int64) {
	d.t.Helper()
	f, err := os.OpenFile(d.ballast(), os.O_CREATE|os.O_WRONLY, 0o600)
	ok(d.t, err)
	defer f.Close() //nolint:errcheck // only ballast
	ok(d.t, syscall.Fallocate(int(f.Fd()), 0, 0, d.free()-n))
}

// relieve gives the space back.
func (d *disk) relieve() {
	d.t.Helper()
	ok(d.t, os.Remove(d.ballast()))
}

// readOnly mounts the disk anew. Files that are open for writing are waited for.
func (d *disk) readOnly(yes bool) {
	d.t.Helper()
	flags := uintptr(syscall.MS_REMOUNT | syscall.MS_NOSUID | syscall.MS_NODEV)
	if yes {
		flags |= syscall.MS_RDONLY
	}
	var err error
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(time.Millisecond) { // until nobody writes
		if err = syscall.Mount("tmpfs", d.dir, "tmpfs", flags, ""); !errors.Is(err, syscall.EBUSY) {
			break
		}
	}
	ok(d.t, err)
}
