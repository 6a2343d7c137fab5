package verify

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"colophon/shared/event"
)

// tempPrefix starts the name of what is not an object yet.
const tempPrefix = ".tmp-"

// walk calls each for what is below a folder, folders included, in no order
// and a few hundred names at a time. each tells of a folder whether to go into
// it. What looks temporary is judged here and not handed on. A folder that is
// not there is an empty one.
func (j *judge) walk(ctx context.Context, dir string, each func(key string, e fs.DirEntry) (into bool, err error)) error {
	f, err := j.root.Open(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		j.out.damage("folder-unreadable", dir, "%v", err)
		return nil
	}
	defer f.Close() //nolint:errcheck // only read from
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		entries, err := f.ReadDir(512)
		for _, e := range entries {
			if err := j.visit(ctx, path.Join(dir, e.Name()), e, each); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			j.out.damage("folder-unreadable", dir, "%v", err)
			return nil
		}
	}
}

func (j *judge) visit(ctx context.Context, key string, e fs.DirEntry, each func(string, fs.DirEntry) (bool, error)) error {
	insideBag := strings.HasPrefix(key, areaBags+"/") && strings.Count(key, "/") > 1 // names there are a bag's own
	if strings.HasPrefix(e.Name(), tempPrefix) && !insideBag {
		j.stray(key)
		return nil
	}
	into, err := each(key, e)
	if err != nil || !into || !e.IsDir() {
		return err
	}
	return j.walk(ctx, key, each)
}

// stray judges a temporary name: its writer holds a lock on it for as long as
// it lives, so one without a lock was left behind.
func (j *judge) stray(key string) {
	f, err := j.root.OpenFile(key, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return // its writer is done
	}
	if err != nil {
		j.out.drift("stray-temp", key, "a temporary file that cannot be opened: %v", err)
		return
	}
	defer f.Close() //nolint:errcheck // only locked
	if locked(f) {
		return
	}
	j.out.drift("stray-temp", key, "left behind by a writer that no longer lives")
}

func locked(f *os.File) bool {
	conn, err := f.SyscallConn()
	if err != nil {
		return false
	}
	busy := false
	err = conn.Control(func(fd uintptr) {
		busy = errors.Is(unix.Flock(int(fd), unix.LOCK_SH|unix.LOCK_NB), unix.EWOULDBLOCK)
	})
	return err == nil && busy
}

// identity of a file on its file system: a hard link to bytes that were
// verified needs no second reading.
func inode(info fs.FileInfo) (string, bool) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return "", false
	}
	return fmt.Sprintf("%x/%x", st.Dev, st.Ino), true
}

// meanwhile reports whether a file came to its name after the run began.
func (j *judge) meanwhile(info fs.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return false
	}
	sec, nsec := st.Ctim.Unix()
	return !j.started.After(unixTime(sec, nsec))
}

// anyPending reports whether some slot that captured a digest can still move.
func (j *judge) anyPending(d event.Digest) (known, pending bool, err error) {
	for p, err := range j.mem.each(memContent, string(d)+"/") {
		if err != nil {
			return known, false, err
		}
		known = true
		s, err := j.stateOf(string(p.key))
		if err != nil {
			return known, false, err
		}
		if s == event.StatePending {
			return known, true, nil
		}
	}
	return known, false, nil
}

// stateOf gives the state of a slot at the end of the log.
func (j *judge) stateOf(slot string) (event.State, error) {
	p, err := j.slots.progress(slot)
	if err != nil || p == nil {
		return "", err
	}
	b, err := j.slots.batch(p.Batch)
	if err != nil {
		return "", err
	}
	return p.State(b.Profiles), nil
}
