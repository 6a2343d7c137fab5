// Package gateway is the reference client of the line's contract (CONTRACT.md):
// a hot folder and a SANE scanner, and what any gateway needs. It publishes
// declarations, frames and faults under ids that make a repetition harmless,
// keeps them on disk while the broker is away, and asks the line what it holds.
package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"path/filepath"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nats.go/micro"

	"colophon/shared/event"
)

// Config is what a gateway is told.
type Config struct {
	Name  string // its own, below which it publishes
	NC    *nats.Conn
	Spool string // folder for messages that the broker does not take yet
	Log   *slog.Logger
}

// Gateway speaks for devices.
type Gateway struct {
	Config
	js  jetstream.JetStream
	out *outbox
}

// New makes a gateway; what an earlier one left in the spool is sent by Run.
func New(c Config) (*Gateway, error) {
	js, err := jetstream.New(c.NC)
	if err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	out, err := openOutbox(c.Spool, c.NC, js, c.Log)
	if err != nil {
		return nil, err
	}
	return &Gateway{c, js, out}, nil
}

// Run sends what was spooled, until ctx ends.
func (g *Gateway) Run(ctx context.Context) error { return g.out.run(ctx) }

// Spooled is the number of messages that the broker has not confirmed.
func (g *Gateway) Spooled() int { return g.out.len() }

// Declare says what a batch is to be; follows is the number of declarations
// before this one. When it returns nil, the broker has it, or the spool.
func (g *Gateway) Declare(ctx context.Context, d event.BatchDeclaration, follows int) error {
	d.Schema = event.SchemaCaptureBatch
	body, err := encode(d)
	if err != nil {
		return err
	}
	return g.send(ctx, event.CaptureSubject("batch", g.Name, d.Batch), event.DeclarationID(body, d.Batch, follows), body)
}

// Frame says where a slot's bytes are; see [Gateway.Declare].
func (g *Gateway) Frame(ctx context.Context, m event.FrameMessage) error {
	m.Schema = event.SchemaCaptureFrame
	body, err := encode(m)
	if err != nil {
		return err
	}
	return g.send(ctx, event.CaptureSubject("frame", g.Name, m.Batch), m.MsgID(), body)
}

// Fault reports what a device could not do; see [Gateway.Declare]. A report
// without an id gets one.
func (g *Gateway) Fault(ctx context.Context, f event.CaptureFault) error {
	f.Schema = event.SchemaCaptureFault
	if f.ID == "" {
		f.ID = newUUID()
	}
	body, err := encode(f)
	if err != nil {
		return err
	}
	return g.send(ctx, f.Subject(g.Name), f.MsgID(), body)
}

// encode refuses what the line would refuse.
func encode[M interface{ Validate() error }](m M) ([]byte, error) {
	if err := m.Validate(); err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	body, err := json.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("gateway: %w", err)
	}
	return body, nil
}

func (g *Gateway) send(ctx context.Context, subject, id string, body []byte) error {
	return g.out.send(ctx, &nats.Msg{Subject: subject, Header: nats.Header{event.HeaderMsgID: {id}, "Content-Type": {"application/json"}}, Data: body})
}

// Known is what the line knows of a batch.
type Known struct {
	event.BatchStatus
	Frames map[event.Name]event.FrameStatus
}

// Number is how many declarations of the batch were accepted.
func (k Known) Declarations() int {
	if !k.Known {
		return 0
	}
	return k.BatchStatus.Number + 1
}

// ErrAway: the line does not answer at the moment.
var ErrAway = errors.New("gateway: the line does not answer")

// Known asks the line about a batch. [ErrAway] where it does not answer.
func (g *Gateway) Known(ctx context.Context, b event.Name) (k Known, err error) {
	k.Frames = map[event.Name]event.FrameStatus{}
	req := event.BatchRequest{Batch: b}
	if k.BatchStatus, err = ask[event.BatchStatus](ctx, g.NC, event.EndpointBatchStatus, req); err != nil {
		return k, err
	}
	for {
		page, err := ask[event.BatchFrames](ctx, g.NC, event.EndpointBatchFrames, req)
		if err != nil {
			return k, err
		}
		for _, f := range page.Frames {
			k.Frames[f.Frame] = f
		}
		if page.Next == "" {
			return k, nil
		}
		req.After = page.Next
	}
}

// Settled waits until the line has nothing more to do for a batch: what could be
// done is done, and bag and manifest stand where it converged.
func (g *Gateway) Settled(ctx context.Context, b event.Name) error {
	for {
		st, err := ask[event.BatchStatus](ctx, g.NC, event.EndpointBatchStatus, event.BatchRequest{Batch: b})
		switch {
		case err != nil && !errors.Is(err, ErrAway):
			return err
		case err == nil && g.Spooled() == 0 && st.Known && st.Settled && st.Totals.Missing == 0 && (!st.Converged || st.Bag >= st.Convergence && st.Manifest >= st.Convergence):
			return nil
		}
		if err := wait(ctx, 200*time.Millisecond); err != nil {
			return err
		}
	}
}

const askWait = 10 * time.Second

func ask[Out any](ctx context.Context, nc *nats.Conn, subject string, in any) (out Out, err error) {
	data, err := json.Marshal(in)
	if err != nil {
		return out, fmt.Errorf("gateway: %w", err)
	}
	if !nc.IsConnected() {
		return out, ErrAway
	}
	ctx, cancel := context.WithTimeout(ctx, askWait)
	defer cancel()
	m, err := nc.RequestWithContext(ctx, subject, data)
	if err != nil {
		return out, fmt.Errorf("%w: %s: %w", ErrAway, subject, err)
	}
	if code := m.Header.Get(micro.ErrorCodeHeader); code != "" { // also a service that still starts
		return out, fmt.Errorf("%w: %s: %s (%s)", ErrAway, subject, m.Header.Get(micro.ErrorHeader), code)
	}
	if err := json.Unmarshal(m.Data, &out); err != nil {
		return out, fmt.Errorf("gateway: %s: %w", subject, err)
	}
	return out, nil
}

// fileURI names a file to the line.
func fileURI(path string) string {
	return (&url.URL{Scheme: "file", Path: filepath.ToSlash(path)}).String()
}
