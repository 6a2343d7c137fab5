package gateway

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"

	"colophon/shared/event"
)

// HotFolder watches a folder that scan software writes into: each subfolder is
// a batch. What is whole is published, and moved to done/ once the log holds
// it. Nothing that it decides by is kept but in the folder, in the log and in a
// journal of what was published, which may be lost.
type HotFolder struct {
	Gateway *Gateway
	Dir     string // absolute; the line must be allowed to read there
	Journal string // folder of the journals
	// Settle is how long files must have been left alone before they are
	// believed to be whole, where neither a sentinel nor a list says so.
	Settle time.Duration
	Rescan time.Duration // between two looks; a hint of the file system comes first
	// Sentinel is the name of a file that says that its subfolder is whole;
	// without one, and without a list, subfolders wait for it. Empty: none.
	Sentinel string
	Ignore   []string // patterns (path.Match) of names, or of paths below the batch, that are left alone
	Partial  bool     // lists may leave files out
	Device   string
	Operator string
	Policy   []byte // retry policy of new batches
	Profiles []string
	Log      *slog.Logger

	batches map[string]*batch
}

const doneFolder = "done"

// Summary tells how the hot folder stands.
type Summary struct {
	Waiting int // masters that are not published yet: written to, or held back
	Sent    int // masters that the line has not fixed yet
	Held    int // batches that something is wrong with
	Failed  int // frames that need a decision
}

// Busy reports whether anything will move by itself.
func (s Summary) Busy(spooled int) bool { return spooled > 0 || s.Sent > s.Failed }

// Run works until ctx ends. once ends it earlier, when nothing will move any
// more by itself.
func (h *HotFolder) Run(ctx context.Context, once bool) (Summary, error) {
	if err := os.MkdirAll(h.Journal, 0o700); err != nil {
		return Summary{}, fmt.Errorf("gateway: journal: %w", err)
	}
	hints := h.hints(ctx)
	for quiet := 0; ; {
		s, err := h.Look(ctx)
		if ctx.Err() != nil {
			return s, nil
		}
		if err != nil { // the folder's file system, most likely; it may come back
			h.Log.Error("hot_folder_unreadable", slog.Any("error", err))
		}
		// Held or failed things wait for people; files that are written to do
		// not, for as long as the settle time tells them apart.
		if quiet++; err != nil || s.Busy(h.Gateway.Spooled()) || s.Waiting > 0 && !h.stuck() {
			quiet = 0
		}
		if once && quiet >= 2 {
			return s, nil
		}
		select {
		case <-ctx.Done():
		case <-hints:
		case <-time.After(h.Rescan):
		}
	}
}

// stuck reports whether all that waits is held back for a reason.
func (h *HotFolder) stuck() bool {
	for _, b := range h.batches {
		if b.waiting > 0 && b.held == "" {
			return false
		}
	}
	return true
}

// hints says when it may be worth a look. Network folders and full queues tell
// nothing, so nobody relies on it.
func (h *HotFolder) hints(ctx context.Context) <-chan struct{} {
	out := make(chan struct{}, 1)
	w, err := fsnotify.NewWatcher()
	if err != nil {
		h.Log.Info("no_file_system_hints", slog.Any("error", err))
		return out
	}
	_ = w.Add(h.Dir) // a hint
	go func() {
		defer w.Close() //nolint:errcheck // nothing to report
		for {
			select {
			case <-ctx.Done():
				return
			case <-w.Errors:
			case e := <-w.Events:
				if e.Has(fsnotify.Create) && filepath.Base(e.Name) != doneFolder {
					if info, err := os.Lstat(e.Name); err == nil && info.IsDir() {
						_ = w.Add(e.Name)
					}
				}
			}
			select {
			case <-time.After(50 * time.Millisecond): // many come together
			case <-ctx.Done():
				return
			}
			select {
			case out <- struct{}{}:
			default:
			}
		}
	}()
	return out
}

// Look goes through the hot folder once.
func (h *HotFolder) Look(ctx context.Context) (sum Summary, err error) {
	if h.batches == nil {
		h.batches = map[string]*batch{}
	}
	entries, err := os.ReadDir(h.Dir)
	if err != nil {
		return sum, fmt.Errorf("gateway: hot folder: %w", err)
	}
	var errs []error
	there := map[string]bool{}
	for _, e := range entries {
		name := e.Name()
		if !e.IsDir() || name == doneFolder || strings.HasPrefix(name, ".") || h.ignored(name) {
			continue
		}
		there[name] = true
		b := h.batches[name]
		if b == nil {
			if b, err = h.open(name); err != nil {
				errs = append(errs, err)
				continue
			}
			h.batches[name] = b
		}
		if err := b.look(ctx); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
		}
		sum.Waiting, sum.Sent, sum.Failed = sum.Waiting+b.waiting, sum.Sent+b.under, sum.Failed+b.failed
		if b.held != "" {
			sum.Held++
		}
	}
	for name, b := range h.batches {
		if !there[name] {
			errs = append(errs, b.forget())
			delete(h.batches, name)
		}
	}
	return sum, errors.Join(errs...)
}

// ignored reports whether a path below a batch is left alone.
func (h *HotFolder) ignored(rel string) bool {
	return slices.ContainsFunc(h.Ignore, func(p string) bool {
		whole, _ := filepath.Match(p, rel)
		base, _ := filepath.Match(p, filepath.Base(rel))
		return whole || base
	})
}

// masterNames are the endings of files that are taken as masters, lower case.
var masterNames = []string{".tif", ".tiff", ".jp2", ".jpg", ".jpeg", ".png"}

// unfinishedNames are the endings that programs give to files while they write.
var unfinishedNames = []string{".part", ".partial", ".tmp", ".temp", ".filepart", ".crdownload", ".download", ".swp", "~"}

type kind int

const (
	leave kind = iota // hidden or ignored
	master
	unfinished
	sidecar // goes along
)

func (h *HotFolder) kindOf(rel string, d fs.DirEntry) kind {
	name := strings.ToLower(d.Name())
	switch {
	case strings.HasPrefix(name, "."), h.ignored(rel):
		return leave
	case slices.ContainsFunc(unfinishedNames, func(s string) bool { return strings.HasSuffix(name, s) }):
		return unfinished
	case slices.Contains(masterNames, filepath.Ext(name)) && d.Type().IsRegular():
		return master
	}
	return sidecar
}

// listing is what a batch's folder holds.
type listing struct {
	masters    []string // natural order
	unfinished []string
	lists      []string // vendors' checksums
	sidecars   []string // those among them
	sentinel   *event.SourceStat
	stats      map[string]event.SourceStat
}

func (h *HotFolder) list(dir string) (listing, error) {
	l := listing{stats: map[string]event.SourceStat{}}
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) { // renamed or removed meanwhile
			return nil
		}
		if err != nil || p == dir {
			return err
		}
		rel, err := filepath.Rel(dir, p)
		if err != nil {
			return err
		}
		k := h.kindOf(rel, d)
		switch {
		case d.IsDir() && k == leave:
			return fs.SkipDir
		case d.IsDir() || k == leave:
			return nil
		}
		info, err := os.Lstat(p)
		if err != nil {
			return nil //nolint:nilerr // gone; the next look tells
		}
		l.stats[rel] = statOf(info)
		switch {
		case k == master:
			l.masters = append(l.masters, rel)
		case k == unfinished:
			l.unfinished = append(l.unfinished, rel)
		default:
			l.sidecars = append(l.sidecars, rel)
			if h.Sentinel != "" && rel == h.Sentinel {
				st := l.stats[rel]
				l.sentinel = &st
			} else if isList(rel) {
				l.lists = append(l.lists, rel)
			}
		}
		return nil
	})
	slices.SortFunc(l.masters, func(a, b string) int { return slices.Compare(event.NaturalKey(a), event.NaturalKey(b)) })
	return l, err
}
