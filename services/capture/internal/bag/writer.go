package bag

import (
	"context"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"

	"colophon/shared/storage"
)

// writer fills the tree of one bag. The manifests are written as their files
// come, so that nothing is held but what is at hand.
type writer struct {
	ctx         context.Context //nolint:containedctx // lives for one call of Write
	store       *storage.Store
	tree        *storage.Tree
	manifest    *manifest
	tagManifest *manifest
	result      Result
	altered     map[string]string // path to frame, as in result.Names
}

func newWriter(ctx context.Context, r Request, tree *storage.Tree) (*writer, error) {
	w := &writer{ctx: ctx, store: r.Store, tree: tree, result: Result{Key: storage.BagKey(r.Batch)}, altered: map[string]string{}}
	var err error
	if w.manifest, err = newManifest(tree, "manifest-sha256.txt"); err != nil {
		return nil, err
	}
	w.tagManifest, err = newManifest(tree, "tagmanifest-sha256.txt")
	return w, err
}

// write holds the order: payload, its manifest, tag files, their manifest.
func (w *writer) write(r Request) error {
	for entry, err := range r.Frames {
		if err != nil {
			return fmt.Errorf("frames: %w", err)
		}
		if err := w.entry(entry); err != nil {
			return fmt.Errorf("frame %q: %w", entry.Frame, err)
		}
	}
	if w.result.Files == 0 {
		return fmt.Errorf("%w: no payload", ErrRequest)
	}
	if err := w.close(w.manifest); err != nil {
		return err
	}
	if r.Metadata != nil {
		for file, err := range r.Metadata {
			if err != nil {
				return fmt.Errorf("metadata: %w", err)
			}
			if err := w.metadata(file); err != nil {
				return fmt.Errorf("metadata %q: %w", file.Name, err)
			}
		}
	}
	if err := w.names(); err != nil {
		return err
	}
	info, err := r.Info.text(r.Batch, w.result)
	if err != nil {
		return err
	}
	if err := errors.Join(w.text("bagit.txt", declaration), w.text("bag-info.txt", info)); err != nil {
		return err
	}
	_, err = w.tagManifest.close()
	return err
}

// entry adds the files of one frame: its master, then the others.
func (w *writer) entry(e Entry) error {
	if len(e.Files) == 0 || e.Files[0].Profile != "" {
		return fmt.Errorf("%w: the first file of a frame is its master", ErrRequest)
	}
	type place struct{ profile, page string }
	seen := make(map[place]bool, len(e.Files))
	for _, f := range e.Files {
		if err := w.ctx.Err(); err != nil {
			return context.Cause(w.ctx)
		}
		p := place{f.Profile, f.Page}
		if seen[p] {
			return fmt.Errorf("%w: profile %q, page %q", ErrDuplicate, f.Profile, f.Page)
		}
		seen[p] = true
		if err := w.file(e.Frame, f); err != nil {
			return err
		}
	}
	return nil
}

// file links one stored object into the payload and lists it.
func (w *writer) file(frame string, f File) error {
	if err := f.check(); err != nil {
		return err
	}
	info, err := w.store.Stat(f.Key)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() || info.Size() != f.Size {
		return fmt.Errorf("%q: stored are %d bytes, listed %d", f.Key, info.Size(), f.Size)
	}
	path, err := w.link(frame, f)
	if err != nil {
		return err
	}
	w.result.Files++
	w.result.Bytes += f.Size
	return w.manifest.add(f.Digest, path)
}

// link finds a free path for the file and links it there. The path is made
// from the frame's name; where another frame has it (an encoded name that
// equals a plain one, a file where a folder must be), from the name and its
// digest. If that is taken too, it is the frame itself that came twice.
func (w *writer) link(frame string, f File) (string, error) {
	plain, path := f.path(frame, plainName), f.path(frame, safeName)
	linked, err := w.tree.Link(w.ctx, f.Key, path, f.Digest)
	if errors.Is(err, storage.ErrExist) && !w.twice(frame, f, path) {
		path = f.path(frame, digestName)
		linked, err = w.tree.Link(w.ctx, f.Key, path, f.Digest)
	}
	switch {
	case errors.Is(err, storage.ErrExist):
		return "", fmt.Errorf("%w: %w", ErrDuplicate, err)
	case err != nil:
		return "", err
	case !linked:
		w.result.Copied++
	}
	if path != plain {
		w.result.Names = append(w.result.Names, Name{Frame: frame, Profile: f.Profile, Path: path})
		w.altered[path] = frame
	}
	return path, nil
}

// twice reports whether the path is taken by the same frame. The masters tell,
// since every frame has one and each in a file of its own: a file at a name as
// it is, which no altered name led to, is that frame's. So nothing has to be
// remembered but the altered names.
func (w *writer) twice(frame string, f File, path string) bool {
	if f.Profile != "" {
		return false
	}
	if owner, ok := w.altered[path]; ok {
		return owner == frame
	}
	there, err := w.tree.Stat(path)
	return path == f.path(frame, plainName) && err == nil && there.Mode().IsRegular()
}

// metadata adds a tag file.
func (w *writer) metadata(t TagFile) error {
	if !utf8.ValidString(t.Name) || t.Name == namesFile {
		return fmt.Errorf("%w: the name of a tag file", ErrRequest)
	}
	return w.tagFile("metadata/"+t.Name, t.Write)
}

func (w *writer) tagFile(name string, write func(io.Writer) error) error {
	f, err := w.tree.Create(name)
	if errors.Is(err, storage.ErrExist) {
		return fmt.Errorf("%w: %w", ErrDuplicate, err)
	}
	if err != nil {
		return err
	}
	err = buffered(f, write)
	written, closeErr := f.Close()
	if err := errors.Join(err, closeErr); err != nil {
		return err
	}
	return w.tagManifest.add(written.Digest, name)
}

func (w *writer) text(name, text string) error {
	return w.tagFile(name, func(out io.Writer) error {
		_, err := io.WriteString(out, text)
		return err
	})
}

// names lists the frames whose path is not their name, so that the bag
// explains itself without the archive.
func (w *writer) names() error {
	if len(w.result.Names) == 0 {
		return nil
	}
	return w.tagFile("metadata/"+namesFile, func(out io.Writer) error {
		if _, err := io.WriteString(out, "# path, profile, frame; percent-encoded but for A-Z a-z 0-9 _ -\n"); err != nil {
			return err
		}
		for _, n := range w.result.Names {
			if _, err := fmt.Fprintf(out, "%s\t%s\t%s\n", escape(n.Path), escape(n.Profile), escape(n.Frame)); err != nil {
				return err
			}
		}
		return nil
	})
}

// close finishes the payload's manifest, itself a tag file.
func (w *writer) close(m *manifest) error {
	written, err := m.close()
	if err != nil {
		return err
	}
	return w.tagManifest.add(written.Digest, m.name)
}
