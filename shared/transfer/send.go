package transfer

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"strconv"

	"github.com/nats-io/nats.go"
)

// Send sends what r gives as one file to a client's inbox. It returns when the
// client has taken the last part. At most [PartSize] bytes are in memory. ctx
// needs a deadline only where its caller wants one: a client that is gone ends
// it at once.
func Send(ctx context.Context, nc *nats.Conn, inbox, file string, r io.Reader) error {
	w := NewWriter(ctx, nc, inbox, file)
	if _, err := io.Copy(onlyWriter{w}, r); err != nil {
		return err
	}
	return w.Close()
}

// onlyWriter hides everything else, so that io.Copy brings its own buffer.
type onlyWriter struct{ io.Writer }

// Writer is a file on its way to a client. Close sends its last part; a file
// that is not closed never becomes whole on the other side.
type Writer struct {
	ctx   context.Context
	nc    *nats.Conn
	inbox string
	file  string
	part  int
	buf   []byte
	sum   hash.Hash
	err   error
}

// NewWriter begins a file.
func NewWriter(ctx context.Context, nc *nats.Conn, inbox, file string) *Writer {
	return &Writer{ctx: ctx, nc: nc, inbox: inbox, file: file, sum: sha256.New(), buf: make([]byte, 0, PartSize)}
}

// Write implements [io.Writer]; it blocks while the client takes a part.
func (w *Writer) Write(p []byte) (int, error) {
	n := 0
	for w.err == nil && n < len(p) {
		take := min(len(p)-n, PartSize-len(w.buf))
		w.buf = append(w.buf, p[n:n+take]...)
		n += take
		if len(w.buf) == PartSize && n < len(p) {
			w.flush(false)
		}
	}
	return n, w.err
}

// Close sends what is left, marked as the last part.
func (w *Writer) Close() error {
	if w.err != nil {
		return w.err
	}
	w.flush(true)
	if w.err == nil {
		w.err = errors.New("transfer: write after close")
		return nil
	}
	return w.err
}

// flush sends one part and waits for the client's reply.
func (w *Writer) flush(last bool) {
	w.sum.Write(w.buf)
	m := &nats.Msg{Subject: w.inbox, Data: w.buf, Header: nats.Header{}}
	m.Header.Set(HeaderFile, w.file)
	m.Header.Set(HeaderPart, strconv.Itoa(w.part))
	if last {
		m.Header.Set(HeaderLast, "true")
		m.Header.Set(HeaderSHA256, hex.EncodeToString(w.sum.Sum(nil)))
	}
	answer, err := w.nc.RequestMsgWithContext(w.ctx, m)
	switch {
	case err != nil:
		w.err = fmt.Errorf("transfer: part %d of %s: %w", w.part, w.file, err)
	case answer.Header.Get(HeaderError) != "":
		w.err = fmt.Errorf("%w: part %d of %s: %s", ErrRefused, w.part, w.file, answer.Header.Get(HeaderError))
	}
	w.part++
	w.buf = w.buf[:0]
}
