package capture

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"colophon/shared/event"
	"colophon/shared/fault"
)

// Roots are the folders that file sources may lie in. Nothing outside them is
// ever opened: not by "..", not by an absolute path, not by a symbolic link,
// also not by one that is exchanged at the wrong moment.
type Roots struct {
	mu    sync.RWMutex
	roots []root
}

type root struct {
	path string // absolute, clean
	real string // without symbolic links
	dir  *os.Root
}

// Add allows one more folder, absolute or relative to the working directory.
func (r *Roots) Add(path string) error {
	abs, err := filepath.Abs(path)
	if err != nil {
		return fmt.Errorf("capture: root %q: %w", path, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if slices.ContainsFunc(r.roots, func(o root) bool { return o.path == abs }) {
		return nil
	}
	dir, err := os.OpenRoot(abs)
	if err != nil {
		return fmt.Errorf("capture: root %q: %w", path, err)
	}
	real, err := filepath.EvalSymlinks(abs)
	if err != nil {
		return errors.Join(fmt.Errorf("capture: root %q: %w", path, err), dir.Close())
	}
	r.roots = append(r.roots, root{abs, real, dir})
	// the longest first, so that a folder inside another root is its own
	slices.SortFunc(r.roots, func(a, b root) int { return len(b.path) - len(a.path) })
	return nil
}

// Close lets go of the folders.
func (r *Roots) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var errs []error
	for _, o := range r.roots {
		errs = append(errs, o.dir.Close())
	}
	r.roots = nil
	return errors.Join(errs...)
}

// Open opens a source for reading and looks at it. Refusals are permanent
// faults that name no path of the machine.
func (r *Roots) Open(uri string) (*os.File, event.SourceStat, error) {
	path, err := sourcePath(uri)
	if err != nil {
		return nil, event.SourceStat{}, err
	}
	f, err := r.open(path)
	if err != nil {
		return nil, event.SourceStat{}, sourceFault(err)
	}
	st, err := statFile(f)
	if err != nil {
		return nil, st, errors.Join(err, f.Close())
	}
	return f, st, nil
}

// sourcePath gives the path that a file: URI names. A bare # or ? would cut
// the name short, and so name another file.
func sourcePath(uri string) (string, error) {
	u, err := url.Parse(uri)
	if err != nil {
		return "", fault.New(fault.PathRefused, nil, "the source is not a URI")
	}
	if u.Scheme != "file" {
		return "", fault.New(fault.SchemeRefused, nil, "sources of scheme %q are not taken", fault.Clean(u.Scheme))
	}
	if strings.ContainsAny(uri, "?#") {
		return "", fault.New(fault.PathRefused, nil, "the source has a query or a fragment; # and ? of a name are written %%23 and %%3F")
	}
	path := u.Path
	if u.User != nil || u.Host != "" && u.Host != "localhost" || !filepath.IsAbs(path) || strings.ContainsRune(path, 0) || filepath.Clean(path) != path {
		return "", fault.New(fault.PathRefused, nil, "the source's path is not absolute and plain")
	}
	return path, nil
}

// open opens a path below its root. A link that leaves the root may lead into
// another root, or back by an absolute path: where it leads is only a hint, and
// is opened below a root again, which no exchange of links gets out of.
func (r *Roots) open(path string) (*os.File, error) {
	dir, rel, ok := r.find(path, func(o root) string { return o.path })
	if !ok {
		return nil, fault.New(fault.PathRefused, nil, "the source lies outside the folders that sources may lie in")
	}
	// Without O_NONBLOCK a named pipe would hold the worker for good.
	const flags = os.O_RDONLY | syscall.O_NONBLOCK
	f, err := dir.OpenFile(rel, flags, 0)
	if err == nil || !escapes(err) {
		return f, err
	}
	if real, lost := filepath.EvalSymlinks(path); lost == nil {
		if dir, rel, ok := r.find(real, func(o root) string { return o.real }); ok {
			if f, err := dir.OpenFile(rel, flags, 0); err == nil {
				return f, nil
			}
		}
	}
	return nil, err
}

// find gives the innermost root that a path lies in, and the path below it.
func (r *Roots) find(path string, at func(root) string) (*os.Root, string, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for _, o := range r.roots {
		if rel, ok := strings.CutPrefix(path, strings.TrimSuffix(at(o), "/")+"/"); ok && rel != "" {
			return o.dir, rel, true
		}
	}
	return nil, "", false
}

// escapes reports whether os.Root refused a path; it has no sentinel for that.
func escapes(err error) bool {
	var p *fs.PathError
	return errors.As(err, &p) && p.Err.Error() == "path escapes from parent"
}

func statFile(f *os.File) (event.SourceStat, error) {
	info, err := f.Stat()
	if err != nil {
		return event.SourceStat{}, sourceFault(err)
	}
	if !info.Mode().IsRegular() {
		return event.SourceStat{}, fault.New(fault.SourceNotAFile, nil, "the source is %s, not a file", kind(info.Mode()))
	}
	return StatOf(info), nil
}

// StatOf gives what is remembered of a source file, from a look at it.
func StatOf(info fs.FileInfo) event.SourceStat {
	st := event.SourceStat{Size: info.Size(), ModTime: info.ModTime().UTC()}
	if sys, ok := info.Sys().(*syscall.Stat_t); ok {
		st.Inode = sys.Ino
		st.Change = time.Unix(sys.Ctim.Unix()).UTC()
	}
	return st
}

func kind(m fs.FileMode) string {
	switch {
	case m.IsDir():
		return "a folder"
	case m&fs.ModeNamedPipe != 0:
		return "a named pipe"
	case m&fs.ModeSocket != 0:
		return "a socket"
	case m&fs.ModeDevice != 0:
		return "a device"
	}
	return "something else"
}

// passing are the errors of a machine or a network mount that is short of
// something for a moment.
var passing = []error{
	syscall.EIO, syscall.ESTALE, syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.EAGAIN, syscall.EINTR, syscall.ETIMEDOUT,
	syscall.ENOTCONN, syscall.EHOSTDOWN, syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.ECONNRESET,
}

// sourceFault names what is wrong with a source. The store's own faults are
// classified elsewhere: a full disk of the source is none of ours.
func sourceFault(err error) error {
	var known *fault.Error
	switch {
	case errors.As(err, &known):
		return known
	case escapes(err):
		return fault.New(fault.PathRefused, err, "the source leads out of the folder that sources may lie in")
	case errors.Is(err, fs.ErrNotExist):
		return fault.New(fault.SourceMissing, err, "the source is not there, or its link leads nowhere")
	case errors.Is(err, fs.ErrPermission):
		return fault.New(fault.SourceUnreadable, err, "the source may not be read by this program")
	case errors.Is(err, syscall.EISDIR):
		return fault.New(fault.SourceNotAFile, err, "the source is a folder, not a file")
	case errors.Is(err, syscall.ENXIO):
		return fault.New(fault.SourceNotAFile, err, "the source is a device, a pipe or a socket, not a file")
	case errors.Is(err, syscall.ELOOP), errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.ENAMETOOLONG):
		return fault.New(fault.SourceUnreadable, err, "the source's path cannot be followed")
	case slices.ContainsFunc(passing, func(p error) bool { return errors.Is(err, p) }):
		return fault.New(fault.IOError, err, "the source cannot be read at the moment")
	}
	return fault.New(fault.SourceUnreadable, err, "the source cannot be read")
}

// reading is a reader whose faults are the source's.
type reading struct{ r io.Reader }

func (s reading) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = sourceFault(err)
	}
	return n, err
}
