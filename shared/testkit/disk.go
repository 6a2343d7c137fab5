package testkit

import (
	"math/rand/v2"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"colophon/shared/completed"
)

// Disk is a crashable disk in memory with a completed-set on it.
type Disk struct {
	TB  testing.TB
	FS  *vfs.MemFS
	Set *completed.Set
}

// NewDisk makes an empty disk and opens the set on it. Close it.
func NewDisk(tb testing.TB) *Disk {
	tb.Helper()
	d := &Disk{TB: tb, FS: vfs.NewCrashableMem()}
	d.open()
	return d
}

func (d *Disk) open() {
	d.TB.Helper()
	s, err := completed.Open("set", completed.Options{FS: d.FS})
	OK(d.TB, err)
	d.Set = s
}

// Close closes the set.
func (d *Disk) Close() { OK(d.TB, d.Set.Close()) }

// Cut cuts the power: what was synced is there afterwards, and a random part
// of what was not. It gives the disk as the next start finds it; the old one
// must still be closed.
func (d *Disk) Cut(rng *rand.Rand) *Disk {
	d.TB.Helper()
	n := &Disk{TB: d.TB, FS: d.FS.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rng.IntN(101), RNG: rng})}
	n.open()
	return n
}

// Reopen is a restart of the process on the same disk.
func (d *Disk) Reopen() {
	d.TB.Helper()
	d.Close()
	d.open()
}
