package standalone

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nats.go/micro"

	"colophon/shared/event"
	"colophon/shared/stage"
)

// Client speaks to a line as a gateway and an operator.
type Client struct {
	NC  *nats.Conn
	JS  jetstream.JetStream
	log *stage.Log
}

// NewClient makes a client of a connection.
func NewClient(nc *nats.Conn, log *slog.Logger) (*Client, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("standalone: %w", err)
	}
	return &Client{nc, js, stage.NewLog(js, log)}, nil
}

// Refusal is an endpoint's own word that it will not do what was asked.
type Refusal struct{ Code, Text string }

func (r *Refusal) Error() string { return r.Text + " (" + r.Code + ")" }

// callWait bounds how long an endpoint may take over one stay of the connection.
const callWait = 30 * time.Second

// notYet is the code of a service that has not read the log to its end.
const notYet = "503"

// Call asks an endpoint, and waits for a service that is still starting, and
// for a broker that is away; an endpoint may be asked twice then. It returns a
// [*Refusal] where the endpoint refuses: `nats req` would say nothing of it.
func Call[Out any](ctx context.Context, c *Client, subject string, in any) (out Out, err error) {
	data, err := json.Marshal(in)
	if err != nil {
		return out, fmt.Errorf("standalone: %s: %w", subject, err)
	}
	m, err := c.ask(ctx, subject, data)
	for errors.Is(err, errInterrupted) {
		if err = c.connected(ctx); err == nil {
			m, err = c.ask(ctx, subject, data)
		}
	}
	if err != nil {
		return out, fmt.Errorf("standalone: %s: %w", subject, err)
	}
	if code := m.Header.Get(micro.ErrorCodeHeader); code != "" {
		return out, &Refusal{code, m.Header.Get(micro.ErrorHeader)}
	}
	if err := json.Unmarshal(m.Data, &out); err != nil {
		return out, fmt.Errorf("standalone: %s: %w", subject, err)
	}
	return out, nil
}

var errInterrupted = errors.New("the connection to the broker was lost")

// ask asks over one stay of the connection.
func (c *Client) ask(ctx context.Context, subject string, data []byte) (*nats.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, callWait)
	defer cancel()
	stay, end := context.WithCancelCause(ctx)
	defer end(nil)
	lost := c.NC.StatusChanged(nats.RECONNECTING)
	defer c.NC.RemoveStatusListener(lost)
	go func() {
		select {
		case <-lost:
			end(errInterrupted)
		case <-stay.Done():
		}
	}()
	if c.NC.Status() == nats.RECONNECTING {
		return nil, errInterrupted
	}
	for {
		m, err := c.NC.RequestWithContext(stay, subject, data)
		pause := 20 * time.Millisecond
		switch {
		case errors.Is(err, nats.ErrNoResponders):
			pause, err = 5*time.Millisecond, errors.New("nobody answers")
		case errors.Is(context.Cause(stay), errInterrupted):
			return nil, errInterrupted
		case err != nil || m.Header.Get(micro.ErrorCodeHeader) != notYet:
			return m, err
		}
		select {
		case <-time.After(pause):
		case <-stay.Done():
			if ctx.Err() == nil {
				return nil, errInterrupted
			}
			return m, err
		}
	}
}

// connected waits until the broker is there again.
func (c *Client) connected(ctx context.Context) error {
	for !c.NC.IsConnected() {
		if c.NC.IsClosed() {
			return nats.ErrConnectionClosed
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// Status asks for a batch.
func (c *Client) Status(ctx context.Context, b event.Name) (event.BatchStatus, error) {
	return Call[event.BatchStatus](ctx, c, event.EndpointBatchStatus, event.BatchRequest{Batch: b})
}

// Batches lists the batches known.
func (c *Client) Batches(ctx context.Context) (event.BatchList, error) {
	all := event.BatchList{Batches: []event.BatchStatus{}}
	var req event.BatchRequest
	for {
		page, err := Call[event.BatchList](ctx, c, event.EndpointBatchList, req)
		if err != nil {
			return all, err
		}
		all.Batches = append(all.Batches, page.Batches...)
		if page.Next == "" {
			return all, nil
		}
		req.After = page.Next
	}
}

// Frames goes through a batch's frames in order.
func (c *Client) Frames(ctx context.Context, b event.Name, undone bool, each func(event.FrameStatus) error) error {
	req := event.BatchRequest{Batch: b, Undone: undone}
	for {
		page, err := Call[event.BatchFrames](ctx, c, event.EndpointBatchFrames, req)
		if err != nil {
			return err
		}
		for _, f := range page.Frames {
			if err := each(f); err != nil {
				return err
			}
		}
		if page.Next == "" {
			return nil
		}
		req.After = page.Next
	}
}

// endpointRoot lets another command of the same user on the same archive add
// the folder it ingests; only the standalone answers it.
const endpointRoot = "standalone.root"

func (c *Client) addRoot(ctx context.Context, path string) error {
	_, err := Call[struct{}](ctx, c, endpointRoot, path)
	return err
}

func (c *Client) serveRoots(allow func(path string) error) error {
	svc, err := micro.AddService(c.NC, micro.Config{Name: "standalone", Version: "1.0.0", Description: "composition of one process"})
	if err != nil {
		return fmt.Errorf("standalone: %w", err)
	}
	return svc.AddEndpoint("root", micro.HandlerFunc(func(r micro.Request) {
		var path string
		err := json.Unmarshal(r.Data(), &path)
		if err == nil {
			err = allow(path)
		}
		if err != nil {
			_ = r.Error("400", err.Error(), nil)
			return
		}
		_ = r.RespondJSON(struct{}{})
	}), micro.WithEndpointSubject(endpointRoot))
}
