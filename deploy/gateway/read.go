package gateway

import (
	"crypto/md5" //nolint:gosec // vendors' lists have it
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"colophon/shared/event"
)

// errBusy: a file was written to while it was read.
var errBusy = errors.New("it is still being written")

// digests reads a file once, between two looks at it.
func digests(path string) (m5, s256 []byte, st event.SourceStat, err error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, st, err
	}
	defer f.Close() //nolint:errcheck // only read
	before, err := f.Stat()
	if err != nil {
		return nil, nil, st, err
	}
	a, b := md5.New(), sha256.New() //nolint:gosec // see above
	if _, err := io.Copy(io.MultiWriter(a, b), f); err != nil {
		return nil, nil, st, err
	}
	after, err := os.Lstat(path) // the name, too, must still mean this file
	if err != nil {
		return nil, nil, st, err
	}
	if st = statOf(before); !statOf(after).Same(st) {
		return nil, nil, st, errBusy
	}
	return a.Sum(nil), b.Sum(nil), st, nil
}

// statOf is how a file looks.
func statOf(info fs.FileInfo) event.SourceStat {
	st := event.SourceStat{Size: info.Size(), ModTime: info.ModTime().UTC()}
	if sys, ok := info.Sys().(*syscall.Stat_t); ok {
		st.Inode, st.Change = sys.Ino, time.Unix(sys.Ctim.Unix()).UTC()
	}
	return st
}

// readUpTo reads a file that must not be larger.
func readUpTo(path string, most int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // only read
	data, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(data)) > most {
		err = fmt.Errorf("%s is larger than %d bytes", filepath.Base(path), most)
	}
	return data, err
}
