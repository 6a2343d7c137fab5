package storage

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"
)

// Part is one file of a folder to store.
type Part struct {
	Name string                        // one path component
	Open func() (io.ReadCloser, error) // called once
}

// WriteDir stores the parts as one folder under key: all are visible or none;
// durable on return. If the folder is there already, it must hold the same
// names with the same bytes, which are read; else [ConflictError]. existed
// says that somebody was first. Safe to repeat, safe together. o.MaxBytes
// bounds each part; o.Expect must be empty.
func (s *Store) WriteDir(ctx context.Context, key string, parts []Part, o Options) (written []Written, existed bool, err error) {
	if len(parts) == 0 || o.Expect != "" {
		return nil, false, fmt.Errorf("storage: write %q: a folder needs parts, and no single digest", key)
	}
	t, err := s.NewTree(key)
	if err != nil {
		return nil, false, err
	}
	defer t.Abort()
	for _, p := range parts {
		w, err := t.writePart(ctx, p, o)
		if err != nil {
			return nil, false, err
		}
		written = append(written, w)
	}
	err = t.Place(ctx)
	if !errors.Is(err, ErrExist) {
		return written, false, err
	}
	if err := s.sameDir(ctx, key, written); err != nil {
		return nil, false, err
	}
	return written, true, s.flushBoth(path.Dir(key))
}

func (t *Tree) writePart(ctx context.Context, p Part, o Options) (Written, error) {
	if strings.Contains(p.Name, "/") || strings.HasPrefix(p.Name, tempPrefix) {
		return Written{}, fmt.Errorf("storage: write: %w %q: part %q", ErrKey, t.key, p.Name)
	}
	r, err := p.Open()
	if err != nil {
		return Written{}, &SourceError{Key: t.key + "/" + p.Name, Err: err}
	}
	defer r.Close() //nolint:errcheck // only read from
	w, err := t.Write(ctx, p.Name, r, o)
	if err == nil {
		t.s.saw(w.Size)
	}
	return w, err
}

// sameDir compares the folder at key with what should be in it.
func (s *Store) sameDir(ctx context.Context, key string, want []Written) error {
	extra := map[string]bool{}
	err := s.readFolder(ctx, key, func(e fs.DirEntry) error {
		extra[key+"/"+e.Name()] = true
		return nil
	})
	if err != nil {
		return err
	}
	for _, w := range want {
		if err := s.same(ctx, "", w); errors.Is(err, ErrNotExist) {
			return &ConflictError{Key: w.Key, Want: w.Digest, WantN: w.Size}
		} else if err != nil {
			return err
		}
		delete(extra, w.Key)
	}
	for k := range extra {
		return &ConflictError{Key: k}
	}
	return nil
}
