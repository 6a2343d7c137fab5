package standalone

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"colophon/services/capture"
	"colophon/shared/event"
)

// masterNames are the endings of files that are taken as masters, lower case.
var masterNames = []string{".tif", ".tiff", ".jp2", ".jpg", ".jpeg", ".png"}

// File is one master found in a folder.
type File struct {
	Frame event.Name // path relative to the folder
	Path  string
	Stat  event.SourceStat
	key   []byte
}

// Listing is what a folder holds.
type Listing struct {
	Files   []File   // natural order
	Ignored []string // relative paths of what is left out
}

// List looks through a folder, at any depth. Names that begin with a dot,
// unfinished files (.part, .tmp) and whatever is no master are left out and
// named. What is called like a master but cannot be read is listed: capture
// says what is wrong with it.
func List(dir string) (Listing, error) {
	var l Listing
	dir = strings.TrimSuffix(dir, "/") + "/" // follows a link in the folder's own place
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if path == dir {
			return err
		}
		rel, rerr := filepath.Rel(dir, path)
		if rerr != nil {
			return rerr
		}
		hidden := strings.HasPrefix(e.Name(), ".")
		ext := strings.ToLower(filepath.Ext(e.Name()))
		if hidden || !slices.Contains(masterNames, ext) {
			if e.IsDir() && !hidden {
				return err
			}
			l.Ignored = append(l.Ignored, rel)
			if e.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		f := File{Frame: event.Name(rel), Path: path, key: event.NaturalKey(rel)}
		if info, serr := os.Stat(path); serr == nil {
			f.Stat = capture.StatOf(info)
		}
		l.Files = append(l.Files, f)
		return err
	})
	if err != nil {
		return l, fmt.Errorf("standalone: %w", err)
	}
	slices.SortFunc(l.Files, func(a, b File) int { return slices.Compare(a.key, b.key) })
	slices.Sort(l.Ignored)
	return l, nil
}
