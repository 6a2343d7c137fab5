package storage

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// Tree is a folder of files that comes to be at once: it is built under a
// temporary name and then renamed into place. One goroutine uses it. After
// [Tree.Place], [Tree.Replace] or [Tree.Abort] it is spent; Abort then does
// nothing, so it can be deferred.
type Tree struct {
	s    *Store
	t    *temp
	key  string
	last string // the folder made last, to make each one once in a row
}

// NewTree begins the folder at key.
func (s *Store) NewTree(key string) (*Tree, error) {
	if err := checkTree(key); err != nil {
		return nil, err
	}
	t, err := s.newTempFolder(path.Dir(key))
	if err != nil {
		return nil, s.failure("build", key, err)
	}
	return &Tree{s: s, t: t, key: key}, nil
}

// place makes room for the file name and gives its path below the root.
func (t *Tree) place(name string) (string, error) {
	if err := checkNames(name, name, false); err != nil {
		return "", err
	}
	full := t.t.name + "/" + name
	if dir := path.Dir(full); dir != t.t.name && dir != t.last {
		if err := t.s.root.MkdirAll(dir, 0o755); err != nil {
			return "", t.fail(name, err)
		}
		t.last = dir
	}
	return full, nil
}

// fail wraps the error of a system call on a file of the tree.
func (t *Tree) fail(name string, err error) error {
	if errors.Is(err, fs.ErrExist) || errors.Is(err, unix.ENOTDIR) {
		return &Error{Op: "build", Key: t.key + "/" + name, Kind: ErrExist, Err: err}
	}
	return t.s.failure("build", t.key+"/"+name, err)
}

// Write adds a file: what r gives, hashed, mode 0444, synced.
func (t *Tree) Write(ctx context.Context, name string, r io.Reader, o Options) (Written, error) {
	full, err := t.place(name)
	if err != nil {
		return Written{}, err
	}
	f, err := t.s.root.OpenFile(full, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return Written{}, t.fail(name, err)
	}
	w, err := t.s.fill(ctx, &temp{s: t.s, f: f, name: full}, r, t.key+"/"+name, o)
	if err := errors.Join(err, f.Close()); err != nil {
		return Written{}, t.fail(name, err)
	}
	return w, nil
}

// Link adds a file by a hard link to the stored object at key, and by a copy
// of it where no link can be made (another device, too many links). linked
// says which. A copy is checked against want, if that is not empty.
func (t *Tree) Link(ctx context.Context, key, name string, want Digest) (linked bool, err error) {
	if err := checkKey(key); err != nil {
		return false, err
	}
	full, err := t.place(name)
	if err != nil {
		return false, err
	}
	err = t.s.root.Link(key, full)
	if err == nil {
		return true, nil
	}
	if !errors.Is(err, unix.EXDEV) && !errors.Is(err, unix.EMLINK) && !errors.Is(err, unix.EPERM) {
		return false, t.fail(name, err)
	}
	f, err := t.s.Open(key)
	if err != nil {
		return false, err
	}
	defer f.Close() //nolint:errcheck // only read from
	_, err = t.Write(ctx, name, f, Options{Expect: want})
	return false, err
}

// Stat describes what the tree has under name; nothing is [ErrNotExist].
func (t *Tree) Stat(name string) (fs.FileInfo, error) {
	if err := checkNames(name, name, false); err != nil {
		return nil, err
	}
	info, err := t.s.root.Lstat(t.t.name + "/" + name)
	if errors.Is(err, unix.ENOTDIR) {
		err = fs.ErrNotExist
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &Error{Op: "stat", Key: t.key + "/" + name, Kind: ErrNotExist, Err: err}
	}
	if err != nil {
		return nil, t.fail(name, err)
	}
	return info, nil
}

// File is a file of a tree that is written bit by bit; see [Tree.Create].
type File struct {
	t    *Tree
	f    *os.File
	name string
	sum  hash.Hash
	size int64
}

// Create adds an empty file to write to. The caller must Close it; a tree with
// an open file must not be placed.
func (t *Tree) Create(name string) (*File, error) {
	full, err := t.place(name)
	if err != nil {
		return nil, err
	}
	f, err := t.s.root.OpenFile(full, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, t.fail(name, err)
	}
	return &File{t: t, f: f, name: name, sum: sha256.New()}, nil
}

// Write implements [io.Writer], without a buffer.
func (f *File) Write(p []byte) (int, error) {
	n, err := f.f.Write(p)
	f.sum.Write(p[:n])
	f.size += int64(n)
	if err != nil {
		return n, f.t.fail(f.name, err)
	}
	return n, nil
}

// Close makes the file durable and read-only and gives its digest and size.
func (f *File) Close() (Written, error) {
	if err := errors.Join(f.f.Chmod(0o444), f.f.Sync(), f.f.Close()); err != nil {
		return Written{}, f.t.fail(f.name, err)
	}
	return Written{Key: f.t.key + "/" + f.name, Digest: Digest(hex.EncodeToString(f.sum.Sum(nil))), Size: f.size}, nil
}

// Place gives the finished tree its name, durably: all of it is visible or
// nothing. A name that is taken is [ErrExist], and the tree stays to be
// aborted.
func (t *Tree) Place(ctx context.Context) error {
	if err := t.flush(ctx, t.t.name); err != nil {
		return err
	}
	if err := t.rename(unix.RENAME_NOREPLACE); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return &Error{Op: "place", Key: t.key, Kind: ErrExist, Err: err}
		}
		return t.s.failure("place", t.key, err)
	}
	_ = t.t.close() // the temporary name is gone; nothing is left to sweep
	return t.s.flushBoth(path.Dir(t.key))
}

// Replace is [Place], or an exchange with the folder of that name, which is
// then removed; durable on return. Readers see the old tree or the new one,
// and those with files of the old one open keep them. Of several at once the
// last exchange stays. Only bags may be replaced: other keys are [ErrKey].
//
// A file system without RENAME_EXCHANGE has the name free for an instant
// between two renames. Killed then, the name is free until it is built again.
func (t *Tree) Replace(ctx context.Context) error {
	if !insideBag(t.key) {
		return fmt.Errorf("storage: replace: %w %q: only bags are replaced", ErrKey, t.key)
	}
	if err := t.flush(ctx, t.t.name); err != nil {
		return err
	}
	for range 20 {
		err := t.rename(unix.RENAME_NOREPLACE)
		if err == nil {
			_ = t.t.close()
			return t.s.flushBoth(path.Dir(t.key))
		}
		if !errors.Is(err, fs.ErrExist) {
			return t.s.failure("replace", t.key, err)
		}
		err = t.rename(unix.RENAME_EXCHANGE)
		switch {
		case err == nil:
			return t.exchanged()
		case unsupported(err):
			if err := t.moveAside(); err != nil {
				return err
			}
		case !errors.Is(err, fs.ErrNotExist): // gone since: then the name is free
			return t.s.failure("replace", t.key, err)
		}
	}
	return fmt.Errorf("storage: replace %q: others replace it all the time", t.key)
}

// exchanged makes the exchange durable and only then removes the old tree,
// which the temporary name now leads to.
func (t *Tree) exchanged() error {
	if err := t.s.flushBoth(path.Dir(t.key)); err != nil {
		_ = t.t.close() // the old tree stays for the next sweep
		return err
	}
	if err := t.t.unlink(); err != nil {
		return t.s.failure("replace", t.key, err)
	}
	return nil
}

// moveAside frees the name where nothing can be exchanged.
func (t *Tree) moveAside() error {
	old, err := t.s.newTempFolder(path.Dir(t.key))
	if err != nil {
		return t.s.failure("replace", t.key, err)
	}
	defer old.discard()
	if err := t.s.root.Rename(t.key, old.name+"/old"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return t.s.failure("replace", t.key, err)
	}
	return nil
}

// Abort removes the tree, unless it was placed.
func (t *Tree) Abort() { t.t.discard() }

// rename moves the temporary name to the final one as flags say. Both are
// single names in one folder, so nothing on the way can lead elsewhere.
func (t *Tree) rename(flags uint) error {
	dir, err := t.s.root.Open(path.Dir(t.key))
	if err != nil {
		return err
	}
	defer dir.Close() //nolint:errcheck // only looked at
	from, to := path.Base(t.t.name), path.Base(t.key)
	err = control(dir, func(fd int) error { return unix.Renameat2(fd, from, fd, to, flags) })
	if flags == unix.RENAME_NOREPLACE && unsupported(err) {
		// A plain rename of a folder never replaces one that holds something,
		// and a placed tree always does.
		err = control(dir, func(fd int) error { return unix.Renameat(fd, from, fd, to) })
	}
	if errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.ENOTDIR) {
		return fs.ErrExist
	}
	return err
}

func unsupported(err error) bool {
	return errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EOPNOTSUPP)
}

// flush makes the names in dir and in every folder below it durable. The files
// already are.
func (t *Tree) flush(ctx context.Context, dir string) error {
	err := t.s.readFolder(ctx, dir, func(e fs.DirEntry) error {
		if !e.IsDir() {
			return nil
		}
		return t.flush(ctx, dir+"/"+e.Name())
	})
	if err != nil {
		return err
	}
	if err := t.s.fsyncFolder(dir); err != nil {
		return t.fail(strings.TrimPrefix(dir, t.t.name), err)
	}
	return nil
}
