package standalone

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"

	"colophon/shared/event"
)

// allow lets sources lie in one more folder: that of a command that found this
// line running.
func (a *Archive) allow(root string) error {
	if err := a.roots.Add(root); err != nil {
		return err
	}
	return a.remember(root)
}

// known reads the folders that this archive's owner gave before.
func (a *Archive) known() (roots []event.Name, err error) { // paths may be no UTF-8
	data, err := os.ReadFile(a.rootsFile())
	if err == nil {
		err = json.Unmarshal(data, &roots)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("standalone: %w", err)
	}
	return roots, nil
}

func (a *Archive) rootsFile() string { return filepath.Join(a.Archive, "state", "roots.json") }

// recall allows the folders of earlier commands: frames of theirs may still
// wait, and must not be refused what they were allowed. A line that is told
// where to read stays there, and says what it will refuse.
func (a *Archive) recall() error {
	roots, err := a.known()
	if err != nil {
		return err
	}
	for _, n := range roots {
		switch {
		case a.Known:
			if err := a.roots.Add(string(n)); err != nil {
				a.Log.Warn("root_gone", slog.String("root", n.Display()), slog.Any("error", err))
			}
		case !slices.ContainsFunc(a.Roots, func(r string) bool { return below(string(n), r) }):
			a.Log.Warn("root_not_given", slog.String("root", n.Display()), slog.String("decision", "frames that an earlier command left there will be refused"))
		}
	}
	return nil
}

func below(path, root string) bool {
	abs, err := filepath.Abs(root)
	if err != nil {
		return false
	}
	rel, err := filepath.Rel(abs, path)
	return err == nil && filepath.IsLocal(rel)
}

// remember keeps folders for commands to come.
func (a *Archive) remember(roots ...string) error {
	known, err := a.known()
	if err != nil {
		return err
	}
	before := len(known)
	for _, r := range roots {
		abs, err := filepath.Abs(r)
		if err != nil {
			return fmt.Errorf("standalone: %w", err)
		}
		if n := event.Name(abs); !slices.Contains(known, n) {
			known = append(known, n)
		}
	}
	if len(known) == before {
		return nil
	}
	data, err := json.Marshal(known)
	if err == nil {
		err = writePrivate(a.rootsFile(), data)
	}
	if err != nil {
		return fmt.Errorf("standalone: %w", err)
	}
	return nil
}

// recallHosts keeps the hosts that a line was given: a command that starts the
// line, and cannot be told any, has those of the run before. Frames may still
// wait, and must not be refused what that run was allowed.
func (a *Archive) recallHosts() error {
	path := filepath.Join(a.Archive, "state", "hosts.json")
	if a.Hosts != nil {
		data, err := json.Marshal(a.Hosts)
		if err == nil {
			err = writePrivate(path, data)
		}
		if err != nil {
			return fmt.Errorf("standalone: %w", err)
		}
		return nil
	}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = json.Unmarshal(data, &a.Hosts)
	}
	if err != nil {
		return fmt.Errorf("standalone: hosts: %w", err)
	}
	return nil
}
