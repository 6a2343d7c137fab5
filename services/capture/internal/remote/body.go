package remote

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"colophon/shared/fault"
)

// ErrChanged: the source became another one while it was read. What was read of
// it is worth nothing; it must be read from its start.
var ErrChanged = errors.New("remote: the source changed while it was read")

// Body is a source under way. It gives the source's bytes whole and in order,
// or an error; it is for one reader.
type Body struct {
	c      *Client
	uri    string
	whole  context.Context // of the transfer, with all that breaks
	end    context.CancelFunc
	ctx    context.Context // of one connection's
	cancel context.CancelCauseFunc

	first  http.Header // of the first answer: what later ones are compared with
	size   int64       // of the whole; −1: the server does not say
	body   io.ReadCloser
	watch  *time.Timer
	paced  int64 // bytes since the watch was set last
	at     int64 // bytes given
	sum    hash.Hash
	broken int   // times in a row
	since  int64 // where the transfer broke last
	failed error // what the next read says
}

// Open asks for a source. sized says that the caller knows its size or digest:
// only then may a server leave the end of a source to the end of a connection.
// A failure is a [*fault.Error] or ctx's own.
func (c *Client) Open(ctx context.Context, uri string, sized bool) (*Body, error) {
	b := &Body{c: c, uri: uri, sum: sha256.New()}
	b.whole, b.end = context.WithTimeoutCause(ctx, c.limits.Total, errTotal)
	b.ctx, b.cancel = context.WithCancelCause(b.whole)
	r, err := c.request(b.ctx, http.MethodGet, uri, nil)
	if err != nil {
		return nil, errors.Join(err, b.Close())
	}
	if err := b.begin(r, sized); err != nil {
		return nil, errors.Join(err, r.Body.Close(), b.Close())
	}
	return b, nil
}

func (b *Body) begin(r *http.Response, sized bool) error {
	switch encoding := r.Header.Get("Content-Encoding"); {
	case r.StatusCode != http.StatusOK:
		return b.c.refused(r)
	case encoding != "" && encoding != "identity":
		return fault.New(fault.SourceUnreadable, nil, "the source's server sends it encoded (%s), so not as it is", fault.Clean(encoding))
	case r.ContentLength > b.c.limits.MaxBytes:
		return tooLarge(b.c.limits.MaxBytes)
	case r.ContentLength < 0 && !sized && !slices.Contains(r.TransferEncoding, "chunked"):
		return fault.New(fault.SourceUnreadable, nil, "the source's server does not say where it ends, and nobody declared its size and digest")
	}
	b.first, b.size = r.Header, r.ContentLength
	b.take(r.Body)
	return nil
}

func tooLarge(limit int64) error {
	return fault.New(fault.SizeMismatch, nil, "the source has more than the %d bytes that are taken", limit)
}

// take reads from an answer from now on, watched.
func (b *Body) take(body io.ReadCloser) {
	b.body, b.paced = body, 0
	b.watch = time.AfterFunc(b.c.limits.Stall, func() { b.cancel(errStall) })
}

// Close lets go of the connection.
func (b *Body) Close() error {
	if b.watch != nil {
		b.watch.Stop()
	}
	b.cancel(nil)
	b.end()
	if b.body == nil {
		return nil
	}
	return b.body.Close()
}

// Size is the source's size in bytes, −1 where the server does not say.
func (b *Body) Size() int64 { return b.size }

// Modified is when the source was changed last, and how long that was ago, by
// the server's clock; the zero time where it does not say.
func (b *Body) Modified() (at time.Time, age time.Duration) {
	at, err := http.ParseTime(b.first.Get("Last-Modified"))
	if err != nil {
		return time.Time{}, 0
	}
	now, err := http.ParseTime(b.first.Get("Date"))
	if err != nil {
		now = time.Now()
	}
	return at, now.Sub(at)
}

// Read implements [io.Reader]. A transfer that breaks is taken up again; it
// fails with [ErrChanged] where it then is another one.
func (b *Body) Read(p []byte) (int, error) {
	for {
		if b.failed != nil {
			return 0, b.failed
		}
		n, err := b.body.Read(p)
		b.note(p[:n])
		switch {
		case b.at > b.c.limits.MaxBytes:
			b.failed = tooLarge(b.c.limits.MaxBytes)
			return 0, b.failed
		case errors.Is(err, io.EOF) && (b.size < 0 || b.at >= b.size):
			b.watch.Stop()
			b.failed = io.EOF
		case errors.Is(err, io.EOF):
			b.failed = b.resume(io.ErrUnexpectedEOF)
		case err != nil:
			b.failed = b.resume(err)
		}
		if n > 0 {
			return n, nil
		}
	}
}

func (b *Body) note(p []byte) {
	b.sum.Write(p)
	b.at += int64(len(p))
	if b.paced += int64(len(p)); b.paced >= b.c.limits.Pace {
		b.paced = 0
		b.watch.Reset(b.c.limits.Stall)
	}
}

// resume takes a broken transfer up again, or gives the reason why it cannot.
func (b *Body) resume(cause error) error {
	b.watch.Stop()
	_ = b.body.Close() // broken already
	why := failure(b.ctx, cause)
	b.cancel(nil)
	if b.at-b.since >= 1<<20 {
		b.broken = 0
	}
	b.since = b.at
	if b.broken++; b.broken > b.c.limits.Resumes || b.whole.Err() != nil {
		return why
	}
	b.ctx, b.cancel = context.WithCancelCause(b.whole)
	select { // a moment, not the same for all that broke at once
	case <-time.After(time.Duration(b.broken)*50*time.Millisecond + rand.N(100*time.Millisecond)): //nolint:gosec // no secret
	case <-b.ctx.Done():
		return failure(b.ctx, b.ctx.Err())
	}
	return b.again()
}

// again asks for the rest. The condition goes with the request: a source that
// is another one by now comes whole, and is told by its beginning.
func (b *Body) again() error {
	head := http.Header{}
	if v := validator(b.first); v != "" {
		head.Set("Range", fmt.Sprintf("bytes=%d-", b.at))
		head.Set("If-Range", v)
	}
	r, err := b.c.request(b.ctx, http.MethodGet, b.uri, head)
	if err != nil {
		return err
	}
	err = b.rest(r)
	if err != nil {
		return errors.Join(err, r.Body.Close())
	}
	return nil
}

func (b *Body) rest(r *http.Response) error {
	switch {
	case r.StatusCode == http.StatusPartialContent:
		from, size, ok := contentRange(r.Header.Get("Content-Range"))
		if !ok || from != b.at || b.size >= 0 && size >= 0 && size != b.size || differ(b.first, r.Header) {
			return ErrChanged
		}
		b.take(r.Body)
		return nil
	case r.StatusCode == http.StatusRequestedRangeNotSatisfiable:
		return ErrChanged
	case r.StatusCode != http.StatusOK:
		return b.c.refused(r)
	case r.ContentLength != b.size || differ(b.first, r.Header):
		return ErrChanged
	}
	b.take(r.Body)
	return b.skip()
}

// skip reads over what was given already. It must be what it was.
func (b *Body) skip() error {
	h := sha256.New()
	buf := make([]byte, 32<<10)
	for left := b.at; left > 0; {
		n, err := b.body.Read(buf[:min(left, int64(len(buf)))])
		h.Write(buf[:n])
		left -= int64(n)
		if b.paced += int64(n); b.paced >= b.c.limits.Pace {
			b.paced = 0
			b.watch.Reset(b.c.limits.Stall)
		}
		if err != nil && left > 0 {
			return b.resume(err)
		}
	}
	if !slices.Equal(h.Sum(nil), b.sum.Sum(nil)) {
		return ErrChanged
	}
	return nil
}

// Unchanged reports whether the source still is what was read, as far as its
// server tells. A server that does not answer tells nothing.
func (b *Body) Unchanged(ctx context.Context) bool {
	now, size, ok := b.c.look(ctx, b.uri)
	return !ok || !differ(b.first, now) && (size < 0 || size == b.at)
}

// Look asks when a source was changed last and how large it is, without its
// bytes; false where the server does not say.
func (c *Client) Look(ctx context.Context, uri string) (size int64, modified time.Time, ok bool) {
	h, size, ok := c.look(ctx, uri)
	if !ok {
		return 0, time.Time{}, false
	}
	modified, err := http.ParseTime(h.Get("Last-Modified"))
	return size, modified, err == nil
}

func (c *Client) look(ctx context.Context, uri string) (http.Header, int64, bool) {
	ctx, cancel := context.WithTimeout(ctx, c.limits.Answer)
	defer cancel()
	r, err := c.request(ctx, http.MethodHead, uri, nil)
	if err != nil {
		return nil, 0, false
	}
	_ = r.Body.Close() // has none
	return r.Header, r.ContentLength, r.StatusCode == http.StatusOK
}

// validator is what If-Range is asked with: a strong ETag, else the time of the
// last change.
func validator(h http.Header) string {
	if tag := h.Get("ETag"); strings.HasPrefix(tag, `"`) {
		return tag
	}
	return h.Get("Last-Modified")
}

// differ reports whether two answers are of different sources.
func differ(a, b http.Header) bool {
	for _, k := range []string{"ETag", "Last-Modified"} {
		if x, y := a.Get(k), b.Get(k); x != "" && y != "" && x != y {
			return true
		}
	}
	return false
}

// contentRange reads "bytes from-to/size"; −1 where the size is not known.
func contentRange(v string) (from, size int64, ok bool) {
	v, ok = strings.CutPrefix(v, "bytes ")
	span, whole, slash := strings.Cut(v, "/")
	start, _, dash := strings.Cut(span, "-")
	from, err := strconv.ParseInt(strings.TrimSpace(start), 10, 64)
	size = -1
	if whole != "*" {
		n, err := strconv.ParseInt(strings.TrimSpace(whole), 10, 64)
		if err != nil {
			return 0, 0, false
		}
		size = n
	}
	return from, size, ok && slash && dash && err == nil
}
