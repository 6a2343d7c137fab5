package storage

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
)

// Options bound a write. The zero value has no bounds.
type Options struct {
	MaxBytes int64  // refuse a longer source with a TooLargeError; 0: no limit
	Expect   Digest // refuse other bytes with a DigestError; "": any
}

// Write stores what r gives under key, mode 0444, durable on return. If the
// key is taken it reads the object there: equal bytes are success with
// Existed, other bytes a [ConflictError]. Safe to repeat, safe together: of
// many writers of one key exactly one gets Existed == false. It holds 256 KiB
// of memory whatever the size. When it fails, nothing of it stays.
func (s *Store) Write(ctx context.Context, key string, r io.Reader, o Options) (Written, error) {
	if err := checkFile(key); err != nil {
		return Written{}, err
	}
	return s.write(ctx, path.Dir(key), r, func(Digest) string { return path.Base(key) }, key, o)
}

// WriteNamed is [Store.Write] for a name that depends on the digest: it stores
// r in dir under the one component that name gives.
func (s *Store) WriteNamed(ctx context.Context, dir string, r io.Reader, name func(Digest) string, o Options) (Written, error) {
	if err := checkFolder(dir); err != nil {
		return Written{}, err
	}
	return s.write(ctx, dir, r, name, dir, o)
}

// WriteFile is [Store.Write] with the bytes of a finished file outside the
// store (in scratch, on any file system). The file is copied, not taken: a
// process that still has it open cannot change what is stored. It stays where
// it is; its faults are [SourceError]s.
func (s *Store) WriteFile(ctx context.Context, fromPath, key string, o Options) (Written, error) {
	f, err := os.Open(fromPath)
	if err != nil {
		return Written{}, &SourceError{Key: key, Err: err}
	}
	defer f.Close() //nolint:errcheck // only read from
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return Written{}, &SourceError{Key: key, Err: errors.Join(fmt.Errorf("%s is not a file", fromPath), err)}
	}
	return s.Write(ctx, key, f, o)
}

// write holds the one order in which an object comes to be.
func (s *Store) write(ctx context.Context, dir string, r io.Reader, name func(Digest) string, label string, o Options) (Written, error) {
	t, err := s.newTemp(dir)
	if err != nil {
		return Written{}, s.failure("write", label, err)
	}
	// Killed from here on: a temporary file that the next sweep removes.
	defer t.discard()

	w, err := s.fill(ctx, t, r, label, o)
	if err != nil {
		return Written{}, err
	}
	w.Key = dir + "/" + name(w.Digest)
	if err := checkFile(w.Key); err != nil || path.Dir(w.Key) != dir {
		return Written{}, errors.Join(fmt.Errorf("storage: %w %q for a file in %q", ErrKey, w.Key, dir), err)
	}

	if w.Existed, err = s.linkOrCompare(ctx, t.name, w); err != nil {
		return Written{}, err
	}
	// Killed here: the object is whole under its name, and perhaps not
	// durable; its temporary name is a second link, which the sweep removes.
	if err := t.unlink(); err != nil {
		return Written{}, s.failure("write", w.Key, err)
	}
	// Also when somebody was first: he may not have come to his sync yet.
	if err := s.folders.flush(dir); err != nil {
		return Written{}, s.failure("sync", dir, err)
	}
	s.saw(w.Size)
	return w, nil
}

// fill copies r into t, hashes and checks it, and makes it durable.
func (s *Store) fill(ctx context.Context, t *temp, r io.Reader, label string, o Options) (Written, error) {
	digest, size, err := copyHash(ctx, t.f, r, o.MaxBytes)
	var fault writeError
	switch {
	case errors.As(err, &fault):
		return Written{}, s.failure("write", label, fault.error)
	case errors.Is(err, errTooLarge):
		return Written{}, &TooLargeError{Key: label, Limit: o.MaxBytes}
	case err != nil && ctx.Err() != nil:
		return Written{}, fmt.Errorf("storage: write %q: %w", label, err)
	case err != nil:
		return Written{}, &SourceError{Key: label, Err: err}
	case o.Expect != "" && digest != o.Expect:
		return Written{}, &DigestError{Key: label, Want: o.Expect, Have: digest}
	}
	if err := t.seal(); err != nil {
		return Written{}, s.failure("sync", label, err)
	}
	return Written{Key: label, Digest: digest, Size: size}, nil
}

// linkOrCompare gives the sealed file at from its final name, or finds the
// same bytes there. An object may vanish between the two looks (a staged file,
// removed): then the name is free again.
func (s *Store) linkOrCompare(ctx context.Context, from string, w Written) (existed bool, err error) {
	for range 20 {
		err = s.root.Link(from, w.Key)
		if err == nil {
			return false, nil
		}
		if !errors.Is(err, fs.ErrExist) {
			return false, s.failure("link", w.Key, err)
		}
		if err = s.same(ctx, from, w); !errors.Is(err, ErrNotExist) {
			return true, err
		}
	}
	return false, err
}

// same compares the object at w.Key with w: nil when they are equal. The bytes
// there are read, unless they are the very file at from.
func (s *Store) same(ctx context.Context, from string, w Written) error {
	have, err := s.Stat(w.Key)
	if err != nil {
		return err
	}
	if from != "" {
		if mine, err := s.root.Lstat(from); err == nil && os.SameFile(mine, have) {
			return nil
		}
	}
	conflict := &ConflictError{Key: w.Key, Want: w.Digest, WantN: w.Size, HaveN: have.Size()}
	if have.IsDir() || w.Size >= 0 && have.Size() != w.Size {
		return conflict
	}
	conflict.Have, conflict.HaveN, err = s.Digest(ctx, w.Key)
	if err != nil {
		return err
	}
	if conflict.Have != w.Digest {
		return conflict
	}
	return nil
}

// Promote gives the stored object at fromKey a second name, toKey, without
// copying; durable on return. The caller has verified that the bytes at
// fromKey have the digest want. If toKey is taken: the same file is success
// with Existed; another file is read, and equal bytes are success with
// Existed, others a [ConflictError]. Safe to repeat, also after fromKey was
// removed: then toKey is read and compared with want, and only if it is not
// there either the error is [ErrNotExist].
func (s *Store) Promote(ctx context.Context, fromKey, toKey string, want Digest) (Written, error) {
	if err := errors.Join(checkFile(fromKey), checkFile(toKey)); err != nil {
		return Written{}, err
	}
	if err := s.writable("promote", toKey); err != nil {
		return Written{}, err
	}
	w := Written{Key: toKey, Digest: want, Size: -1}
	from, err := s.Stat(fromKey)
	switch {
	case errors.Is(err, ErrNotExist):
		return s.promoted(ctx, fromKey, w)
	case err != nil:
		return Written{}, err
	case !from.Mode().IsRegular():
		return Written{}, fmt.Errorf("storage: promote: %w %q: not a file", ErrKey, fromKey)
	}
	w.Size = from.Size()
	if err := s.ensureFolder(path.Dir(toKey)); err != nil {
		return Written{}, s.failure("promote", toKey, err)
	}
	if w.Existed, err = s.linkOrCompare(ctx, fromKey, w); err != nil {
		return Written{}, err
	}
	if err := s.flushBoth(path.Dir(toKey), path.Dir(fromKey)); err != nil {
		return Written{}, err
	}
	s.saw(w.Size)
	return w, nil
}

// promoted is the end of a promotion whose source is gone: done before, or
// impossible.
func (s *Store) promoted(ctx context.Context, fromKey string, w Written) (Written, error) {
	there, err := s.Stat(w.Key)
	if errors.Is(err, ErrNotExist) {
		return Written{}, &Error{Op: "promote", Key: fromKey, Kind: ErrNotExist, Err: err}
	}
	if err != nil {
		return Written{}, err
	}
	w.Size, w.Existed = there.Size(), true
	if err := s.same(ctx, "", w); err != nil {
		return Written{}, err
	}
	return w, s.flushBoth(path.Dir(w.Key))
}

func (s *Store) flushBoth(dirs ...string) error {
	for _, dir := range dirs {
		if err := s.folders.flush(dir); err != nil {
			return s.failure("sync", dir, err)
		}
	}
	return nil
}

// Remove removes a staged object; its absence is durable on return. An object
// that is not there is success. Only keys below staging may be removed
// ([ErrKey]): masters and derivatives never are.
func (s *Store) Remove(key string) error {
	if err := checkKey(key); err != nil {
		return err
	}
	if !strings.HasPrefix(key, areaStaging+"/") || strings.Count(key, "/") < 2 {
		return fmt.Errorf("storage: remove: %w %q: only staged files are removed", ErrKey, key)
	}
	if err := s.writable("remove", key); err != nil {
		return err
	}
	err := s.root.Remove(key)
	if errors.Is(err, fs.ErrNotExist) && !s.vanished() {
		return nil
	}
	if err != nil {
		return s.failure("remove", key, err)
	}
	return s.flushBoth(path.Dir(key))
}
