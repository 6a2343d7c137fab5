package storage

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// minLowWater is the least default low-water mark: 1 GiB.
const minLowWater = 1 << 30

// LowWater is the default rule of the low-water mark, in bytes: the larger of
// 1 GiB and twice the largest master.
func LowWater(largestMaster uint64) uint64 { return max(minLowWater, 2*largestMaster) }

// LowWater gives the store's low-water mark in bytes: the configured one, else
// [LowWater] of the largest object this process has stored or promoted or was
// told of by [Store.Expect].
func (s *Store) LowWater() uint64 {
	if s.lowWater > 0 {
		return s.lowWater
	}
	return LowWater(s.largest.Load())
}

// Expect tells the store of an object of size bytes, stored before or to come,
// so that the default low-water mark takes it into account.
func (s *Store) Expect(size int64) { s.saw(size) }

func (s *Store) saw(size int64) {
	for size > 0 {
		old := s.largest.Load()
		if old >= uint64(size) || s.largest.CompareAndSwap(old, uint64(size)) {
			return
		}
	}
}

// Free gives the space an unprivileged writer can still use on the archive's
// file system, in bytes. Quotas are not seen.
func (s *Store) Free() (uint64, error) {
	f, err := s.root.Open(".")
	if err != nil {
		return 0, s.failure("statfs", ".", err)
	}
	defer f.Close() //nolint:errcheck // only looked at
	var st unix.Statfs_t
	if err := control(f, func(fd int) error { return unix.Fstatfs(fd, &st) }); err != nil {
		return 0, s.failure("statfs", ".", err)
	}
	return st.Bavail * uint64(st.Bsize), nil
}

// CheckSpace is [ErrFull] when free space is below the low-water mark, and
// [ErrUnavailable] when the archive is no longer at its path. The mark comes
// before anything breaks: call it before taking work.
func (s *Store) CheckSpace() error {
	if s.vanished() {
		return &Error{Op: "check", Key: s.path, Kind: ErrUnavailable, Err: errVanished}
	}
	free, err := s.Free()
	if err != nil {
		return err
	}
	if mark := s.LowWater(); free < mark {
		return &Error{Op: "check", Key: s.path, Kind: ErrFull, Err: fmt.Errorf("%d bytes free, low-water mark %d", free, mark)}
	}
	return nil
}
