package transfer

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
)

// Fetch sends a request (marshalled as JSON) to subject and writes each file
// that comes back to what sink opens for its name; files come one after the
// other. It returns nil only when the server has answered that all is sent and
// every file arrived whole: its digest was compared, and its writer closed
// without an error. A file that broke off is closed as well; what its sink
// made of it is for the caller to throw away. ctx should have a deadline.
func Fetch(ctx context.Context, nc *nats.Conn, subject string, request any, sink func(file string) (io.WriteCloser, error)) error {
	_, err := FetchAnswer(ctx, nc, subject, request, sink)
	return err
}

// FetchAnswer is [Fetch], and gives the body of the server's final answer.
func FetchAnswer(ctx context.Context, nc *nats.Conn, subject string, request any, sink func(file string) (io.WriteCloser, error)) ([]byte, error) {
	body, err := json.Marshal(request)
	if err != nil {
		return nil, fmt.Errorf("transfer: request: %w", err)
	}
	in := &receiver{sink: sink}
	inbox := nc.NewInbox()
	sub, err := nc.Subscribe(inbox, in.take)
	if err != nil {
		return nil, fmt.Errorf("transfer: inbox: %w", err)
	}
	m := &nats.Msg{Subject: subject, Data: body, Header: nats.Header{}}
	m.Header.Set(HeaderInbox, inbox)
	if until, ok := ctx.Deadline(); ok {
		m.Header.Set(HeaderTimeout, time.Until(until).String())
	}
	answer, err := nc.RequestMsgWithContext(ctx, m)
	if err == nil {
		err = AnswerError(answer)
	}
	// Every part was answered before the end was told, so none is under way;
	// after a failure the subscription ends before its files are closed.
	settle(sub)
	if err = errors.Join(in.finish(), wrap(subject, err)); err != nil {
		return nil, err
	}
	return answer.Data, nil
}

func wrap(subject string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("transfer: %s: %w", subject, err)
}

// settle ends a subscription and waits until its handler has returned.
func settle(sub *nats.Subscription) {
	done := make(chan struct{})
	sub.SetClosedHandler(func(string) { close(done) })
	if sub.Unsubscribe() == nil { // else the connection is gone, and its handlers with it
		<-done
	}
}

// receiver is the client's end; its parts come one at a time.
type receiver struct {
	sink func(string) (io.WriteCloser, error)
	file string
	part int
	out  io.WriteCloser
	sum  hash.Hash
	err  error
}

func (r *receiver) take(m *nats.Msg) {
	answer := &nats.Msg{Subject: m.Reply, Header: nats.Header{}}
	if r.err == nil {
		r.err = r.store(m)
	}
	if r.err != nil {
		answer.Header.Set(HeaderError, headerText(r.err))
	}
	if err := m.RespondMsg(answer); err != nil && r.err == nil {
		r.err = fmt.Errorf("transfer: reply: %w", err)
	}
}

func headerText(err error) string {
	return string(bytes.Map(func(c rune) rune {
		if c < ' ' {
			return ' '
		}
		return c
	}, []byte(err.Error())))
}

func (r *receiver) store(m *nats.Msg) error {
	file := m.Header.Get(HeaderFile)
	if r.out == nil {
		out, err := r.sink(file)
		if err != nil {
			return err
		}
		r.file, r.part, r.out, r.sum = file, 0, out, sha256.New()
	}
	if part, err := strconv.Atoi(m.Header.Get(HeaderPart)); err != nil || part != r.part || file != r.file {
		return fmt.Errorf("%w: part %s of %s came for part %d of %s", ErrBroken, m.Header.Get(HeaderPart), file, r.part, r.file)
	}
	r.part++
	r.sum.Write(m.Data)
	if _, err := r.out.Write(m.Data); err != nil {
		return err
	}
	if m.Header.Get(HeaderLast) == "" {
		return nil
	}
	if got := hex.EncodeToString(r.sum.Sum(nil)); got != m.Header.Get(HeaderSHA256) {
		return fmt.Errorf("%w: %s has digest %s", ErrBroken, file, got)
	}
	err := r.out.Close()
	r.out = nil
	return err
}

// finish tells whether everything that was begun is whole.
func (r *receiver) finish() error {
	if r.out == nil {
		return r.err
	}
	err := r.out.Close()
	if r.err != nil {
		return r.err
	}
	return errors.Join(fmt.Errorf("%w: %s broke off after %d parts", ErrBroken, r.file, r.part), err)
}
