package storage

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// tempPrefix starts the name of everything that is not an object yet. Keys
// cannot hold it.
const tempPrefix = ".tmp-"

// temp is a file or folder under a temporary name, locked (flock) by its
// writer for as long as it lives: the lock goes with the process, so a sweeper
// can tell a dead writer's from a live one's, whatever the process number is.
type temp struct {
	s    *Store
	f    *os.File
	name string // below the root
}

// newTemp makes an empty temporary file in dir.
func (s *Store) newTemp(dir string) (*temp, error) {
	return s.locked(dir, func(name string) (*os.File, error) {
		return s.root.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	})
}

// newTempFolder makes an empty temporary folder in dir.
func (s *Store) newTempFolder(dir string) (*temp, error) {
	return s.locked(dir, func(name string) (*os.File, error) {
		if err := s.root.Mkdir(name, 0o755); err != nil {
			return nil, err
		}
		return s.root.Open(name)
	})
}

// locked makes something under a fresh temporary name and locks it. A sweeper
// may be quicker than the lock and remove the newborn: then it makes another.
// The same holds when somebody removed the folder dir itself.
func (s *Store) locked(dir string, create func(name string) (*os.File, error)) (*temp, error) {
	if s.readOnly {
		return nil, unix.EROFS
	}
	var last error
	for range 20 {
		if err := s.ensureFolder(dir); err != nil {
			return nil, err
		}
		name := path.Join(dir, tempName())
		f, err := create(name)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrExist) {
			s.folders.forget(dir)
			last = err
			continue
		}
		if err != nil {
			return nil, err
		}
		t := &temp{s: s, f: f, name: name}
		if err := flock(f, unix.LOCK_EX); err != nil {
			t.discard()
			return nil, fmt.Errorf("lock %q: %w", name, err)
		}
		if t.named() {
			return t, nil
		}
		last = fs.ErrNotExist
		_ = f.Close() // swept before it was locked: nothing is in it
	}
	return nil, last
}

func tempName() string {
	var random [12]byte
	_, _ = rand.Read(random[:]) // never fails
	return tempPrefix + hex.EncodeToString(random[:])
}

// named reports whether t's name still leads to t.
func (t *temp) named() bool {
	mine, err := t.f.Stat()
	if err != nil {
		return false
	}
	there, err := t.s.root.Lstat(t.name)
	return err == nil && os.SameFile(mine, there)
}

// seal makes a temporary file's content durable and read-only.
func (t *temp) seal() error {
	return errors.Join(t.f.Chmod(0o444), t.f.Sync())
}

// unlink removes the temporary name, and lets go of the lock after that.
func (t *temp) unlink() error {
	err := t.s.root.RemoveAll(t.name)
	return errors.Join(err, t.close())
}

func (t *temp) close() error {
	if t.f == nil {
		return nil
	}
	err := t.f.Close()
	t.f = nil
	return err
}

// discard is unlink for the way out of a failure: what it cannot remove, the
// next sweep will. After unlink or close it does nothing.
func (t *temp) discard() {
	if t.f != nil {
		_ = t.unlink()
	}
}

// SweepTemp removes what killed writers left: every temporary file and folder
// whose writer no longer lives. A live writer's are never touched, whichever
// process it is in: the lock on the file tells. It reads each folder of the
// archive once (not the bags' insides) and gives the number of temporary
// files and folders removed. Safe at any time; meant for start-up.
func (s *Store) SweepTemp(ctx context.Context) (removed int, err error) {
	if s.readOnly {
		return 0, s.failure("sweep", ".", unix.EROFS)
	}
	var faults []error
	for _, area := range areas {
		n, err := s.sweep(ctx, area)
		removed += n
		faults = append(faults, err)
	}
	return removed, errors.Join(faults...)
}

func (s *Store) sweep(ctx context.Context, dir string) (removed int, err error) {
	var faults []error
	err = s.readFolder(ctx, dir, func(e fs.DirEntry) error {
		name := path.Join(dir, e.Name())
		switch {
		case strings.HasPrefix(e.Name(), tempPrefix):
			gone, err := s.sweepOne(name)
			faults = append(faults, err)
			if gone {
				removed++
			}
		case e.IsDir() && dir != areaBags: // a bag's files have names of their own
			n, err := s.sweep(ctx, name)
			removed += n
			faults = append(faults, err)
		}
		return nil
	})
	return removed, errors.Join(append(faults, err)...)
}

// sweepOne removes the temporary name unless a live writer holds its lock.
func (s *Store) sweepOne(name string) (bool, error) {
	f, err := s.root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil // its writer was faster
	}
	if err != nil {
		return false, s.failure("sweep", name, err)
	}
	t := &temp{s: s, f: f, name: name}
	if err := flock(f, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = t.close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return false, nil // its writer lives
		}
		return false, s.failure("sweep", name, err)
	}
	if err := t.unlink(); err != nil {
		return false, s.failure("sweep", name, err)
	}
	return true, nil
}

// readFolder calls each for every entry of dir, in chunks, in no order. A
// folder that is gone is an empty one.
func (s *Store) readFolder(ctx context.Context, dir string, each func(fs.DirEntry) error) error {
	f, err := s.root.Open(dir)
	if errors.Is(err, fs.ErrNotExist) && !s.vanished() {
		return nil
	}
	if err != nil {
		return s.failure("list", dir, err)
	}
	defer f.Close() //nolint:errcheck // only read from
	for {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		entries, err := f.ReadDir(512)
		for _, e := range entries {
			if err := each(e); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return s.failure("list", dir, err)
		}
	}
}

// flock locks an open file. Unlike Fd, control leaves its mode alone.
func flock(f *os.File, how int) error {
	return control(f, func(fd int) error {
		for {
			if err := unix.Flock(fd, how); !errors.Is(err, unix.EINTR) {
				return err
			}
		}
	})
}

func control(f *os.File, do func(fd int) error) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	if err := conn.Control(func(fd uintptr) { inner = do(int(fd)) }); err != nil {
		return err
	}
	return inner
}
