package gateway

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"colophon/shared/event"
)

// tally counts what is left to do.
func (b *batch) tally(l listing, known Known) {
	b.waiting, b.under, b.failed = 0, 0, 0
	for _, rel := range l.masters {
		if j, ok := b.sent[rel]; !ok || !j.Stat.Same(l.stats[rel]) {
			b.waiting++
			continue
		}
		b.under++
		if f := known.Frames[event.Name(rel)]; f.State == event.StateFailed && string(f.Pinned) != string(b.sent[rel].Digest) {
			b.failed++
		}
	}
	for _, rel := range l.unfinished {
		if !b.quiet(rel) { // somebody is at it; what was given up waits for a person
			b.waiting++
		}
	}
}

// collect moves the masters that the log holds, and, behind the last one, what
// lies beside them.
func (b *batch) collect(l listing, known Known) error {
	left := len(l.unfinished)
	var errs []error
	for _, rel := range l.masters {
		j, ok := b.sent[rel]
		f := known.Frames[event.Name(rel)]
		if !ok || !j.Stat.Same(l.stats[rel]) || f.Pinned != j.Digest {
			left++
			continue
		}
		if err := b.move(rel, l.stats[rel]); err != nil {
			errs = append(errs, err)
			left++
			continue
		}
		b.under--
	}
	if left > 0 || len(b.sent) == 0 || time.Since(b.since) < b.h.Settle && b.h.Sentinel == "" && len(l.lists) == 0 {
		return errors.Join(errs...)
	}
	for _, rel := range l.sidecars {
		errs = append(errs, b.move(rel, l.stats[rel]))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return b.tidy()
}

// move puts a file under done/, where no other file gives way to it. One that
// was written to at the last moment comes back.
func (b *batch) move(rel string, st event.SourceStat) error {
	from := filepath.Join(b.dir, rel)
	to := filepath.Join(b.h.Dir, doneFolder, b.name, rel)
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil { //nolint:gosec // as readable as the folder it came from
		return err
	}
	free := to
	for n := 2; ; n++ {
		err := renameNew(from, free)
		if err == nil {
			break
		}
		if !errors.Is(err, fs.ErrExist) || n > 10_000 {
			return err
		}
		ext := filepath.Ext(to)
		free = fmt.Sprintf("%s~%d%s", strings.TrimSuffix(to, ext), n, ext)
	}
	info, err := os.Lstat(free)
	if err != nil {
		return err
	}
	if now := statOf(info); now.Size != st.Size || !now.ModTime.Equal(st.ModTime) || now.Inode != st.Inode {
		b.h.Log.Warn("changed_while_moved", slog.String("batch_id", b.id.Display()), slog.String("frame_id", event.Name(rel).Display()))
		return renameNew(free, from)
	}
	return nil
}

// tidy removes the batch's folders where nothing is left in them.
func (b *batch) tidy() error {
	var dirs []string
	err := filepath.WalkDir(b.dir, func(p string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			dirs = append(dirs, p)
		}
		return err
	})
	if err != nil {
		return err
	}
	for i := len(dirs) - 1; i >= 0; i-- {
		if err := os.Remove(dirs[i]); err != nil && !errors.Is(err, syscall.ENOTEMPTY) && !errors.Is(err, syscall.EEXIST) {
			return err
		}
	}
	return nil
}
