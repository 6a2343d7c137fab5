package storage

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// ReplaceFile is [Store.Replace] with bytes at hand.
func (s *Store) ReplaceFile(ctx context.Context, key string, data []byte) (Written, error) {
	return s.Replace(ctx, key, bytes.NewReader(data), Options{})
}

// Replace stores what r gives under key, in place of what was there, by one
// rename; durable on return. A reader sees the old bytes or the new ones.
// Safe to repeat; of several at once the last rename stays. Only manifests
// (below batches) may be replaced: other keys are [ErrKey].
func (s *Store) Replace(ctx context.Context, key string, r io.Reader, o Options) (Written, error) {
	if err := checkKey(key); err != nil {
		return Written{}, err
	}
	if !strings.HasPrefix(key, areaBatches+"/") {
		return Written{}, fmt.Errorf("storage: replace: %w %q: only manifests are replaced", ErrKey, key)
	}
	dir := path.Dir(key)
	t, err := s.newTemp(dir)
	if err != nil {
		return Written{}, s.failure("replace", key, err)
	}
	defer t.discard()
	w, err := s.fill(ctx, t, r, key, o)
	if err != nil {
		return Written{}, err
	}
	if err := s.root.Rename(t.name, key); err != nil {
		return Written{}, s.failure("replace", key, err)
	}
	_ = t.close() // the temporary name is gone: discard has nothing to remove
	return w, s.flushBoth(dir)
}

// writable refuses a store that was opened for reading.
func (s *Store) writable(op, key string) error {
	if s.readOnly {
		return s.failure(op, key, unix.EROFS)
	}
	return nil
}
