package standalone

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
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

func (a access) password() string {
	u, err := url.Parse(a.URL)
	if err != nil {
		return ""
	}
	p, _ := u.User.Password()
	return p
}

// Refusal is an endpoint's own word that it will not do what was asked.
type Refusal struct{ Code, Text string }

func (r *Refusal) Error() string { return r.Text + " (" + r.Code + ")" }

const callWait = 30 * time.Second

// starting is the code of an endpoint whose service has not caught up yet.
const starting = "503"

// notYet is the code of a service that has not read the log to its end.
const notYet = "503"

// Call asks an endpoint, and waits for a service that is still starting. It
// returns a [*Refusal] where the endpoint refuses: `nats req` would say
// nothing of it.
func Call[Out any](ctx context.Context, c *Client, subject string, in any) (out Out, err error) {
	data, err := json.Marshal(in)
	if err != nil {
		return out, fmt.Errorf("standalone: %s: %w", subject, err)
	}
	ctx, cancel := context.WithTimeout(ctx, callWait)
	defer cancel()
	for {
		m, err := c.NC.RequestWithContext(ctx, subject, data)
		if errors.Is(err, nats.ErrNoResponders) {
			select {
			case <-time.After(5 * time.Millisecond):
				continue
			case <-ctx.Done():
				return out, fmt.Errorf("standalone: %s: nobody answers", subject)
			}
		}
		if err != nil {
			return out, fmt.Errorf("standalone: %s: %w", subject, err)
		}
		if code := m.Header.Get(micro.ErrorCodeHeader); code == starting && ctx.Err() == nil {
			select {
			case <-time.After(20 * time.Millisecond):
				continue
			case <-ctx.Done():
			}
			return out, &Refusal{code, m.Header.Get(micro.ErrorHeader)}
		} else if code != "" {
			return out, &Refusal{code, m.Header.Get(micro.ErrorHeader)}
		}
		if err := json.Unmarshal(m.Data, &out); err != nil {
			return out, fmt.Errorf("standalone: %s: %w", subject, err)
		}
		return out, nil
	}
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
