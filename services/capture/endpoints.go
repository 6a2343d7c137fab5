package capture

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"

	"github.com/nats-io/nats.go/micro"

	"colophon/shared/daemon"
	"colophon/shared/event"
	"colophon/shared/fault"
)

// desk answers requests, each beside the others, until it is closed: what it
// reads is closed behind it.
type desk struct {
	log  *slog.Logger
	ctx  context.Context //nolint:containedctx // of all requests: ends when the service stops
	mu   sync.Mutex
	shut bool
	busy sync.WaitGroup
}

func (d *desk) enter() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.shut {
		return false
	}
	d.busy.Add(1)
	return true
}

// close lets nobody in any more and waits for those who are.
func (d *desk) close() {
	d.mu.Lock()
	d.shut = true
	d.mu.Unlock()
	d.busy.Wait()
}

// serve answers the batch endpoints until ctx ends and stop was called.
func (s *Service) serve(ctx context.Context) (stop func(), err error) {
	svc, err := micro.AddService(s.NC, micro.Config{
		Name: "capture", Version: daemon.Semver(s.Version), Description: "batch view: status, frames, retry",
		ErrorHandler: func(_ micro.Service, err *micro.NATSError) {
			s.Log.Error("endpoint_failed", slog.String("subject", err.Subject), slog.String("error", err.Description))
		},
	})
	if err != nil {
		return nil, fmt.Errorf("capture: endpoints: %w", err)
	}
	d := &desk{log: s.Log, ctx: ctx}
	stop = func() {
		_ = svc.Stop()
		d.close()
	}
	for subject, h := range map[string]micro.Handler{
		event.EndpointBatchStatus: answer(d, s.status), event.EndpointBatchFrames: answer(d, s.pageOfFrames),
		event.EndpointBatchList: answer(d, s.list), event.EndpointBatchRetry: answer(d, s.retry),
	} {
		if err := svc.AddEndpoint(strings.ReplaceAll(subject, ".", "-"), h, micro.WithEndpointSubject(subject)); err != nil {
			stop()
			return nil, fmt.Errorf("capture: endpoint %s: %w", subject, err)
		}
	}
	return stop, nil
}

// badRequest is the caller's fault.
type badRequest struct{ error }

// answer decodes a request and answers it, and contains panics, which the
// library does not.
func answer[In, Out any](d *desk, h func(context.Context, In) (Out, error)) micro.Handler {
	return micro.HandlerFunc(func(r micro.Request) {
		if !d.enter() {
			_ = r.Error("503", "the service is stopping", nil)
			return
		}
		go func() {
			defer d.busy.Done()
			refuse := func(code string, err error) {
				d.log.Error("endpoint_failed", slog.String("subject", r.Subject()), slog.Any("error", err))
				_ = r.Error(code, fault.Clean(err.Error()), nil)
			}
			defer func() {
				if p := recover(); p != nil {
					d.log.Error("panic_contained", slog.String("subject", r.Subject()), slog.Any("panic", p))
					_ = r.Error("500", "the program failed", nil)
				}
			}()
			var in In
			if len(r.Data()) > 0 {
				if err := json.Unmarshal(r.Data(), &in); err != nil {
					refuse("400", err)
					return
				}
			}
			out, err := h(d.ctx, in)
			var bad badRequest
			switch {
			case errors.As(err, &bad):
				refuse("400", err)
			case err != nil:
				refuse("500", err)
			default:
				if err := r.RespondJSON(out); err != nil {
					refuse("500", err)
				}
			}
		}()
	})
}

func (s *Service) status(_ context.Context, in event.BatchRequest) (event.BatchStatus, error) {
	l, release := s.view.snapshot()
	defer release()
	return l.status(in.Batch)
}
