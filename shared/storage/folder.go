package storage

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"sync"
)

// folders shares the syncs of folders among writers, and remembers which
// folders are durable.
type folders struct {
	sync func(dir string) error

	mu      sync.Mutex
	running map[string]*sharing
	durable map[string]struct{}
}

// sharing is the state of one folder while at least one sync of it runs.
type sharing struct {
	next *round // what callers wait for who came while a sync ran; nil without any
}

// round is one sync to come, and those who wait for it.
type round struct {
	done chan struct{}
	err  error
}

// flush returns after a sync of dir that began after the call: one that was
// already running may have missed the caller's change, so callers who meet a
// running sync share the one after it.
func (f *folders) flush(dir string) error {
	f.mu.Lock()
	if s, busy := f.running[dir]; busy {
		if s.next == nil {
			s.next = &round{done: make(chan struct{})}
		}
		r := s.next
		f.mu.Unlock()
		<-r.done
		return r.err
	}
	if f.running == nil {
		f.running = map[string]*sharing{}
	}
	s := &sharing{}
	f.running[dir] = s
	f.mu.Unlock()

	err := f.sync(dir)
	if r := f.advance(dir, s); r != nil {
		go f.serve(dir, s, r)
	}
	return err
}

// serve runs rounds until nobody waits for one.
func (f *folders) serve(dir string, s *sharing, r *round) {
	for ; r != nil; r = f.advance(dir, s) {
		r.err = f.sync(dir)
		close(r.done)
	}
}

// advance takes the next round, or retires the folder when there is none.
func (f *folders) advance(dir string, s *sharing) *round {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := s.next
	s.next = nil
	if r == nil {
		delete(f.running, dir)
	}
	return r
}

func (f *folders) isDurable(dir string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, ok := f.durable[dir]
	return ok
}

// maxDurable bounds the memory for folders known to be durable: above it all
// is forgotten, which costs a sync per folder and nothing else.
const maxDurable = 200_000

func (f *folders) setDurable(dir string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.durable == nil || len(f.durable) >= maxDurable {
		f.durable = map[string]struct{}{}
	}
	f.durable[dir] = struct{}{}
}

// forget makes ensureFolder look at dir and the folders above it again.
func (f *folders) forget(dir string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for ; dir != "."; dir = path.Dir(dir) {
		delete(f.durable, dir)
	}
}

// ensureFolder makes dir and the folders above it, durably. A folder that is
// there already may be another writer's, not synced yet: so the first use of a
// folder syncs the one above it, whoever made it.
func (s *Store) ensureFolder(dir string) error {
	if dir == "." || s.folders.isDurable(dir) {
		return nil
	}
	parent := path.Dir(dir)
	if err := s.ensureFolder(parent); err != nil {
		return err
	}
	if err := s.root.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	info, err := s.root.Stat(dir)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return fmt.Errorf("%q is not a folder", dir)
	}
	if err := s.folders.flush(parent); err != nil {
		return err
	}
	s.folders.setDurable(dir)
	return nil
}

// fsyncFolder makes the names in dir durable.
func (s *Store) fsyncFolder(dir string) error {
	f, err := s.root.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// mkdirDurable makes the absolute path dir and the folders above it, and syncs
// the parent of each one that it makes. The archive's own parent is always
// synced: a run before this one may have been killed between the two.
func mkdirDurable(dir string) error {
	info, err := os.Stat(dir)
	if err == nil && !info.IsDir() {
		return fmt.Errorf("%s is not a folder", dir)
	}
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := mkdirParents(filepath.Dir(dir)); err != nil {
			return err
		}
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return syncPath(filepath.Dir(dir))
}

func mkdirParents(dir string) error {
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	return mkdirDurable(dir)
}

// syncPath syncs a folder outside the store. A parent that this user may not
// read is no reason to refuse an archive that is already there.
func syncPath(dir string) error {
	f, err := os.Open(dir)
	if errors.Is(err, fs.ErrPermission) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
