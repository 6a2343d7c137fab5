package quarantine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go/micro"

	"colophon/shared/daemon"
	"colophon/shared/event"
	"colophon/shared/fault"
)

// problem is an answer that is none: a code as in HTTP and a sentence.
type problem struct {
	code int
	text string
}

func (p *problem) Error() string { return p.text }

func refuse(code int, format string, args ...any) error {
	return &problem{code, fmt.Sprintf(format, args...)}
}

var errStopping = &problem{503, "quarantine is stopping"}

// answer serves the endpoints until the returned function is called.
func (q *Service) answer(ctx context.Context) (stop func(), err error) {
	s, err := micro.AddService(q.NC, micro.Config{
		Name: Name, Version: daemon.Semver(daemon.Version), Description: "cases of what the line gave up on: list, show, replay, discard, rescan",
		ErrorHandler: func(_ micro.Service, err *micro.NATSError) {
			q.Log.Error("endpoint_failed", slog.String("subject", err.Subject), slog.String("error", err.Description))
		},
	})
	if err != nil {
		return nil, fmt.Errorf("quarantine: endpoints: %w", err)
	}
	stop = func() {
		if err := s.Stop(); err != nil && !q.NC.IsClosed() {
			q.Log.Warn("endpoints_not_stopped", slog.Any("error", err))
		}
	}
	for _, e := range []struct {
		name, subject string
		handle        func(context.Context, event.CaseRequest) (any, error)
	}{
		{"list", event.EndpointQuarantineList, q.list},
		{"show", event.EndpointQuarantineShow, q.show},
		{"replay", event.EndpointQuarantineReplay, q.replay},
		{"discard", event.EndpointQuarantineDiscard, q.discard},
		{"rescan", event.EndpointQuarantineRescan, q.rescan},
	} {
		h := micro.HandlerFunc(func(r micro.Request) { q.respond(ctx, r, e.handle) })
		if err := s.AddEndpoint(e.name, h, micro.WithEndpointSubject(e.subject)); err != nil {
			stop()
			return nil, fmt.Errorf("quarantine: endpoint %s: %w", e.subject, err)
		}
	}
	return stop, nil
}

// open runs f while the store is open.
func (q *Service) open(f func() error) error {
	q.closing.RLock()
	defer q.closing.RUnlock()
	if q.closed {
		return errStopping
	}
	return f()
}

func (q *Service) respond(ctx context.Context, r micro.Request, handle func(context.Context, event.CaseRequest) (any, error)) {
	var out any
	err := q.open(func() error {
		if !q.whole.Load() { // half the cases are worse than none
			return refuse(503, "quarantine is reading the log, ask again")
		}
		req, err := request(r.Data())
		if err != nil {
			return err
		}
		out, err = q.contained(ctx, req, handle)
		return err
	})
	if err == nil {
		err = r.RespondJSON(out)
	}
	if err == nil {
		return
	}
	var p *problem
	if !errors.As(err, &p) {
		q.Log.Error("request_failed", slog.String("subject", r.Subject()), slog.Any("error", err))
		p = &problem{500, fault.Clean(err.Error())}
		if ctx.Err() != nil {
			p = errStopping
		}
	}
	if err := r.Error(strconv.Itoa(p.code), p.text, nil); err != nil {
		q.Log.Warn("no_answer", slog.String("subject", r.Subject()), slog.Any("error", err))
	}
}

// contained keeps a panic to its request.
func (q *Service) contained(ctx context.Context, req event.CaseRequest, handle func(context.Context, event.CaseRequest) (any, error)) (out any, err error) {
	defer func() {
		if p := recover(); p != nil {
			q.Log.Error("panic_contained", slog.Any("panic", p), slog.String("stack", string(debug.Stack())))
			err = refuse(500, "the program failed on this request")
		}
	}()
	return handle(ctx, req)
}

// request reads the body of a request: an object; or, short for one with that
// id, a number (of a dead letter in DEADLETTER), a string or bare text; or
// nothing. Unknown fields are refused: a filter that is spelled wrong must not
// select everything.
func request(body []byte) (event.CaseRequest, error) {
	var req event.CaseRequest
	body = bytes.TrimSpace(body)
	if len(body) == 0 {
		return req, nil
	}
	if body[0] != '{' {
		req.ID = string(body)
		if body[0] == '"' {
			if err := json.Unmarshal(body, &req.ID); err != nil {
				return req, refuse(400, "the request is no JSON: %v", err)
			}
		}
		return req, nil
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(&req); err != nil {
		return req, refuse(400, "the request cannot be read: %v", err)
	}
	if d.More() {
		return req, refuse(400, "the request is more than one JSON value")
	}
	return req, check(req)
}

// check refuses what selects nothing, or everything, by a slip.
func check(req event.CaseRequest) error {
	switch states := []string{"", event.CaseOpened, event.CaseReplayed, event.CaseDiscarded, event.CaseRescan, event.CaseResolved}; {
	case req.Limit < 0:
		return refuse(400, "the limit %d is negative", req.Limit)
	case req.OlderThan < 0 || req.NewerThan < 0:
		return refuse(400, "an age is not below zero")
	case !slices.Contains(states, req.State):
		return refuse(400, "there is no state %q: it is one of %s", req.State, strings.Join(states[1:], ", "))
	}
	return nil
}

// id resolves what a person calls a case: its id, or the sequence of its dead
// letter.
func (q *Service) id(name string) (string, error) {
	n, err := strconv.ParseUint(name, 10, 64)
	if err != nil {
		return name, nil
	}
	id, ok, err := q.store.OfLetter(n)
	if err == nil && !ok {
		err = refuse(404, "no case has the dead letter %d", n)
	}
	return id, err
}
