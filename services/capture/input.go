package capture

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"time"

	"colophon/services/capture/internal/remote"
	"colophon/shared/event"
	"colophon/shared/fault"
)

// input is an open source, read from its start to its end, once or again.
type input interface {
	io.ReadCloser
	// Look tells how the source looked when it was opened, and how long it had
	// been left alone. A size of −1, and the zero time, are not known.
	Look() (st event.SourceStat, alone time.Duration)
	// Rewind begins anew.
	Rewind(ctx context.Context) error
	// Same looks again: is it still what was opened?
	Same(ctx context.Context) bool
}

// inputs opens sources by their scheme.
type inputs struct {
	roots  *Roots
	remote *remote.Client
}

func isRemote(uri string) bool {
	scheme, _, _ := strings.Cut(uri, ":")
	return strings.EqualFold(scheme, "http") || strings.EqualFold(scheme, "https")
}

// open opens a source; vouched says that its size and digest are declared.
func (i inputs) open(ctx context.Context, uri string, vouched bool) (input, error) {
	if isRemote(uri) {
		f := &fetched{client: i.remote, uri: uri, vouched: vouched}
		return f, f.Rewind(ctx)
	}
	f, st, err := i.roots.Open(uri)
	if err != nil {
		return nil, err
	}
	return &file{f, i.roots, uri, st}, nil
}

// touched reports whether a source looks otherwise than it did. One that is
// gone, or does not answer, is not touched.
func (i inputs) touched(ctx context.Context, uri string, was *event.SourceStat) bool {
	if isRemote(uri) {
		size, modified, ok := i.remote.Look(ctx, uri)
		return ok && (was == nil || size != was.Size || !modified.Equal(was.ModTime))
	}
	f, st, err := i.roots.Open(uri)
	if err != nil {
		return false
	}
	_ = f.Close()
	return was == nil || !st.Same(*was)
}

// file is a source below a root.
type file struct {
	*os.File
	roots *Roots
	uri   string
	stat  event.SourceStat
}

func (f *file) Read(p []byte) (int, error) { return reading{f.File}.Read(p) }

func (f *file) Look() (event.SourceStat, time.Duration) { return f.stat, time.Since(f.stat.ModTime) }

func (f *file) Rewind(context.Context) error {
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return sourceFault(err)
	}
	return nil
}

// Same looks at the source by its name: it must be the file that was opened.
func (f *file) Same(context.Context) bool {
	now, after, err := f.roots.Open(f.uri)
	if err != nil {
		return false
	}
	_ = now.Close()
	return after.Same(f.stat)
}

// fetched is a source of an HTTP server.
type fetched struct {
	*remote.Body
	client  *remote.Client
	uri     string
	vouched bool
}

func (f *fetched) Read(p []byte) (int, error) {
	n, err := f.Body.Read(p)
	if errors.Is(err, remote.ErrChanged) {
		err = fault.New(fault.SourceUnsettled, err, "the source changed while it was read")
	}
	return n, err
}

func (f *fetched) Close() error {
	if f.Body == nil {
		return nil
	}
	return f.Body.Close()
}

func (f *fetched) Look() (event.SourceStat, time.Duration) {
	at, alone := f.Modified()
	if at.IsZero() {
		alone = settleTime // nobody can tell
	}
	return event.SourceStat{Size: f.Size(), ModTime: at}, alone
}

func (f *fetched) Rewind(ctx context.Context) error {
	_ = f.Close() // was broken off
	var err error
	f.Body, err = f.client.Open(ctx, f.uri, f.vouched)
	return err
}

// Same asks again where nobody declared what the source is to be.
func (f *fetched) Same(ctx context.Context) bool { return f.vouched || f.Unchanged(ctx) }
