// Package storage keeps objects that are whole or absent: a file store below
// one archive folder.
//
// An object is written under a temporary name in the folder it belongs to,
// hashed while it is written, synced, linked to its final name, and its folder
// is synced. So:
//
//   - nothing half-written is ever visible under a final name, whatever is
//     killed, and whenever;
//   - what a call reports as stored survives a power failure from its return;
//   - of many writers of one name one wins, and the others learn whether the
//     winner stored their bytes or others ([ConflictError]);
//   - every call is safe to repeat and safe to make from many goroutines and
//     many processes, unless its own doc says otherwise.
//
// Keys are slash-separated paths below the archive, made by [MasterKey] and
// its siblings. All access goes through [os.Root]: no key and no symbolic link
// leads out of the archive. The layout is
//
//	staging/<batch>/<frame>.r<revision>.<digest>
//	masters/sha256/ab/cd/<digest>
//	derivatives/<profile>/ab/cd/<digest>.jp2   (many pages: a folder <digest>)
//	batches/<batch>.json
//	bags/<batch>/
//
// Objects under masters and derivatives are never rewritten and never removed.
// Errors say what they call for: see [ErrFull], [ErrReadOnly],
// [ErrUnavailable], [ErrNotExist], [ConflictError], [DigestError],
// [TooLargeError] and [SourceError].
//
// The package needs Linux: flock, renameat2 and statfs.
package storage

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Store is one archive folder. Create it with [Open] or [OpenReadOnly]. All
// methods may be called at the same time.
type Store struct {
	root     *os.Root
	path     string // absolute; for messages, and to see whether the archive is still there
	readOnly bool
	lowWater uint64        // configured mark in bytes, 0: the default rule
	largest  atomic.Uint64 // size of the largest object seen by this process, in bytes
	folders  folders
}

// Option changes how [Open] sets a store up.
type Option func(*Store)

// WithLowWater sets the low-water mark to bytes instead of the default rule
// that [Store.LowWater] describes. 0 keeps the default.
func WithLowWater(bytes uint64) Option { return func(s *Store) { s.lowWater = bytes } }

// Open opens the archive at root, and creates the folder and its layout where
// they are missing, durably. It refuses a file system without hard links or
// without file locks, because the promises of this package rest on both.
// Stray temporary files are left alone: see [Store.SweepTemp].
func Open(root string, options ...Option) (*Store, error) {
	path, err := filepath.Abs(root)
	if err != nil {
		return nil, fmt.Errorf("storage: open %s: %w", root, err)
	}
	if err := mkdirDurable(path); err != nil {
		return nil, failure("create", path, err)
	}
	s, err := open(path)
	if err != nil {
		return nil, err
	}
	for _, o := range options {
		o(s)
	}
	if err := s.layOut(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// OpenReadOnly opens an existing archive for reading: it changes nothing, and
// every writing call on the store fails with [ErrReadOnly]. A missing archive
// is [ErrUnavailable].
func OpenReadOnly(root string) (*Store, error) {
	path, err := filepath.Abs(root)
	if err != nil {
		return nil, fmt.Errorf("storage: open %s: %w", root, err)
	}
	s, err := open(path)
	if err != nil {
		return nil, err
	}
	s.readOnly = true
	return s, nil
}

func open(path string) (*Store, error) {
	root, err := os.OpenRoot(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, &Error{Op: "open", Key: path, Kind: ErrUnavailable, Err: err}
	case err != nil:
		return nil, failure("open", path, err)
	}
	s := &Store{root: root, path: path}
	s.folders.sync = s.fsyncFolder
	return s, nil
}

// layOut makes the layout's folders and proves that the file system can keep
// the promises.
func (s *Store) layOut() error {
	for _, area := range areas {
		if err := s.ensureFolder(area); err != nil {
			return s.failure("create", area, err)
		}
	}
	return s.Check()
}

// Close releases the store's handle on the archive folder. Files it returned
// stay usable. It loses nothing: every write was durable when it returned.
func (s *Store) Close() error {
	if err := s.root.Close(); err != nil {
		return fmt.Errorf("storage: close: %w", err)
	}
	return nil
}

// Path gives the absolute path of the archive folder, for messages.
func (s *Store) Path() string { return s.path }

// FilePath gives the absolute path of the object at key for programs that take
// a file name (an encoder, sha256sum). It does not look whether it exists.
// Opening it by path is not guarded by [os.Root]: prefer [Store.Open].
func (s *Store) FilePath(key string) (string, error) {
	if err := checkKey(key); err != nil {
		return "", err
	}
	return filepath.Join(s.path, filepath.FromSlash(key)), nil
}

// Check reports whether the archive can take writes now: it is still at its
// path, and a file can be made, locked and linked there. Its error is
// [ErrUnavailable], [ErrReadOnly], [ErrFull], or unclassified when the file
// system lacks hard links or locks. It is the probe to call while a consumer
// is halted. It does not look at free space: see [Store.CheckSpace].
func (s *Store) Check() error {
	if s.readOnly {
		return s.failure("check", ".", unix.EROFS)
	}
	if s.vanished() {
		return &Error{Op: "check", Key: s.path, Kind: ErrUnavailable, Err: errVanished}
	}
	t, err := s.newTemp(areaBatches)
	if err != nil {
		return s.failure("check", areaBatches, err)
	}
	defer t.discard()
	second := t.name + ".link"
	err = s.root.Link(t.name, second)
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EMLINK) {
		return fmt.Errorf("storage: the file system of %s has no hard links, without which objects cannot be stored whole: %w", s.path, err)
	}
	if err != nil {
		return s.failure("check", areaBatches, err)
	}
	if err := s.root.Remove(second); err != nil {
		return s.failure("check", areaBatches, err)
	}
	return nil
}

var errVanished = errors.New("the archive folder is no longer at its path")

// vanished reports whether the archive's path no longer names the folder this
// store opened: unmounted, removed, or moved.
func (s *Store) vanished() bool {
	now, err := os.Stat(s.path)
	if err != nil {
		return true
	}
	opened, err := s.root.Stat(".")
	return err != nil || !os.SameFile(now, opened)
}
