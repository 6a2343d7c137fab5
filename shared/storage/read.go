package storage

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path"
	"strings"
)

// Open opens the object at key for reading. A key without an object is
// [ErrNotExist], a folder [ErrKey]. The caller closes the file.
func (s *Store) Open(key string) (*os.File, error) {
	if err := checkKey(key); err != nil {
		return nil, err
	}
	f, err := s.root.Open(key)
	if err != nil {
		return nil, s.failure("open", key, err)
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("storage: open: %w %q: not a file", ErrKey, key)
	}
	if err != nil {
		return nil, errors.Join(s.failure("open", key, err), f.Close())
	}
	return f, nil
}

// Stat describes the object at key, a file or a folder; symbolic links are not
// followed. A key without an object is [ErrNotExist].
func (s *Store) Stat(key string) (fs.FileInfo, error) {
	if err := checkKey(key); err != nil {
		return nil, err
	}
	info, err := s.root.Lstat(key)
	if err != nil {
		return nil, s.failure("stat", key, err)
	}
	return info, nil
}

// Exists reports whether there is an object at key.
func (s *Store) Exists(key string) (bool, error) {
	_, err := s.Stat(key)
	if errors.Is(err, ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// Digest reads the object at key and gives its digest and its size in bytes.
func (s *Store) Digest(ctx context.Context, key string) (Digest, int64, error) {
	f, err := s.Open(key)
	if err != nil {
		return "", 0, err
	}
	defer f.Close() //nolint:errcheck // only read from
	d, n, err := Sum(ctx, f)
	if err != nil {
		return "", 0, s.failure("read", key, err)
	}
	return d, n, nil
}

// Entry is one object that [Store.List] found.
type Entry struct {
	Key  string
	File fs.DirEntry // its Info is a system call
}

// List goes through the files below the folder prefix ("masters",
// "staging/<batch>"), in no order, holding a few hundred names at a time. It
// leaves out temporary files; it shows everything else that is not a folder,
// also what does not belong there. A missing folder is an empty one. Objects
// stored meanwhile may be seen or not. After an error it ends.
func (s *Store) List(ctx context.Context, prefix string) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		prefix = strings.TrimSuffix(prefix, "/")
		if err := checkFolder(prefix); err != nil {
			yield(Entry{}, err)
			return
		}
		if err := s.list(ctx, prefix, yield); err != nil && !errors.Is(err, errStop) {
			yield(Entry{}, err)
		}
	}
}

// errStop says that the consumer of a List has enough.
var errStop = errors.New("stop")

func (s *Store) list(ctx context.Context, dir string, yield func(Entry, error) bool) error {
	return s.readFolder(ctx, dir, func(e fs.DirEntry) error {
		key := path.Join(dir, e.Name())
		switch {
		case strings.HasPrefix(e.Name(), tempPrefix) && !insideBag(dir):
			return nil
		case e.IsDir():
			return s.list(ctx, key, yield)
		case !yield(Entry{Key: key, File: e}, nil):
			return errStop
		}
		return nil
	})
}

// insideBag reports whether names in dir are a bag's own.
func insideBag(dir string) bool { return strings.HasPrefix(dir, areaBags+"/") }
