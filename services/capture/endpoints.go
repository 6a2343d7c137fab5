package capture

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"colophon/shared/event"
	"colophon/shared/fault"
	"colophon/shared/stage"
)

// serve answers the batch endpoints until the connection ends.
func (s *Service) serve() (micro.Service, error) {
	svc, err := micro.AddService(s.NC, micro.Config{
		Name: "capture", Version: microVersion, Description: "batch view: status, frames, retry",
		ErrorHandler: func(_ micro.Service, err *micro.NATSError) {
			s.Log.Error("endpoint_failed", slog.String("subject", err.Subject), slog.String("error", err.Description))
		},
	})
	if err != nil {
		return nil, fmt.Errorf("capture: endpoints: %w", err)
	}
	for subject, h := range map[string]func(event.BatchRequest) (any, error){
		event.EndpointBatchStatus: s.status, event.EndpointBatchFrames: s.pageOfFrames, event.EndpointBatchList: s.list,
	} {
		if err := svc.AddEndpoint(name(subject), answer(s.Log, h), micro.WithEndpointSubject(subject)); err != nil {
			return nil, fmt.Errorf("capture: endpoint %s: %w", subject, err)
		}
	}
	if err := svc.AddEndpoint("batch-retry", answer(s.Log, s.retry), micro.WithEndpointSubject(event.EndpointBatchRetry)); err != nil {
		return nil, fmt.Errorf("capture: endpoint %s: %w", event.EndpointBatchRetry, err)
	}
	return svc, nil
}

// microVersion is what nats.go/micro asks for: a semantic version.
const microVersion = "1.0.0"

func name(subject string) string {
	out := []byte(subject)
	for i, c := range out {
		if c == '.' {
			out[i] = '-'
		}
	}
	return string(out)
}

// answer decodes a request, answers it, and contains panics, which the library
// does not.
func answer[In any](log *slog.Logger, h func(In) (any, error)) micro.Handler {
	return micro.HandlerFunc(func(r micro.Request) {
		defer func() {
			if p := recover(); p != nil {
				log.Error("panic_contained", slog.String("subject", r.Subject()), slog.Any("panic", p))
				_ = r.Error("500", "the program failed", nil)
			}
		}()
		var in In
		if len(r.Data()) > 0 {
			if err := json.Unmarshal(r.Data(), &in); err != nil {
				_ = r.Error("400", fault.Clean(err.Error()), nil)
				return
			}
		}
		out, err := h(in)
		if err != nil {
			log.Error("endpoint_failed", slog.String("subject", r.Subject()), slog.Any("error", err))
			_ = r.Error("500", fault.Clean(err.Error()), nil)
			return
		}
		if err := r.RespondJSON(out); err != nil {
			log.Error("endpoint_failed", slog.String("subject", r.Subject()), slog.Any("error", err))
		}
	})
}

func (s *Service) status(in event.BatchRequest) (any, error) { return s.view.status(in.Batch) }

func (s *Service) list(event.BatchRequest) (any, error) { return s.view.list() }

func (s *Service) pageOfFrames(in event.BatchRequest) (any, error) {
	r, err := s.view.batch(in.Batch)
	if err != nil {
		return nil, err
	}
	after, err := base64.RawURLEncoding.DecodeString(in.After)
	if err != nil {
		return nil, fmt.Errorf("/after: %w", err)
	}
	limit := in.Limit
	if limit <= 0 || limit > maxPending {
		limit = maxPending
	}
	out := event.BatchFrames{Frames: []event.FrameStatus{}}
	size := 0
	for p, err := range s.view.frames(in.Batch, string(after)) {
		if err != nil {
			return nil, err
		}
		f := frameStatus(&p.Progress, r.Profiles)
		if in.Undone && f.State == event.StateDone {
			continue
		}
		out.Frames = append(out.Frames, f)
		size += 600 + 4*len(f.Source) + 4*len(f.Frame) + 700*len(f.Troubles)
		for _, t := range f.Troubles {
			size += len(t.Reason)
		}
		if len(out.Frames) == limit || size > maxReply { // a reply has a size limit
			out.Next = base64.RawURLEncoding.EncodeToString([]byte(p.cursor))
			break
		}
	}
	return out, nil
}

// maxReply keeps a page below the broker's message limit of 1 MiB.
const maxReply = 700 << 10

func frameStatus(p *event.Progress, profiles []string) event.FrameStatus {
	f := event.FrameStatus{
		Frame: p.Frame, Sequence: p.Sequence, State: p.State(profiles), Pass: max(p.Pass(), 1), Revision: p.Revision, Digest: p.Digest, Pinned: p.Pinned, Effect: p.Effect,
	}
	if p.Captured != nil {
		f.Source, f.Stat = p.Captured.Source, p.Captured.Stat
	}
	if f.State != event.StateDone {
		f.Troubles = p.Troubles(profiles)
	}
	if f.State == event.StatePending {
		f.Stage = p.Stage(profiles)
	}
	return f
}

// retry sends every failed slot of a batch again, under its next pass.
func (s *Service) retry(in event.RetryRequest) (any, error) {
	ctx, cancel := context.WithTimeout(context.Background(), endpointWait+in.Spread)
	defer cancel()
	r, err := s.view.batch(in.Batch)
	if err != nil {
		return nil, err
	}
	var out event.RetryReply
	pause := in.Spread / time.Duration(max(r.Totals.Failed, 1))
	for p, err := range s.view.frames(in.Batch, "") {
		if err != nil {
			return nil, err
		}
		if p.State(r.Profiles) != event.StateFailed {
			continue
		}
		if in.Transient && !transient(&p.Progress, r.Profiles) {
			out.Left++
			continue
		}
		if in.DryRun {
			out.Dispatched++
			continue
		}
		seq, sent, err := s.again(ctx, &p.Progress, in.Actor, in.Note)
		if err != nil {
			return nil, err
		}
		if !sent {
			out.Left++
			continue
		}
		out.Dispatched++
		out.Sequence = max(out.Sequence, seq)
		if err := wait(ctx, pause); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func transient(p *event.Progress, profiles []string) bool {
	for _, t := range p.Troubles(profiles) {
		if c := fault.Class(t.Class); c != fault.Transient && c != fault.Lost {
			return false
		}
	}
	return true
}

// again publishes a slot's newest capture message under the next pass.
func (s *Service) again(ctx context.Context, p *event.Progress, actor, note string) (uint64, bool, error) {
	a, ok, err := s.view.asked(p.Slot)
	if err != nil || !ok {
		return 0, false, err
	}
	var f event.FrameMessage
	if err := json.Unmarshal(a.Body, &f); err != nil {
		return 0, false, err
	}
	f.Pass = p.Pass() + 1
	m := &nats.Msg{Subject: a.Subject, Data: a.Body, Header: nats.Header{
		event.HeaderMsgID: {f.MsgID()}, event.HeaderPass: {strconv.Itoa(f.Pass)}, event.HeaderActor: {fault.Clean(actor)}, event.HeaderNote: {fault.Clean(note)},
	}}
	ack, err := stage.NewLog(s.JS, s.Log).Publish(ctx, m, nil)
	if err != nil {
		return 0, false, err
	}
	return ack.Sequence, true, nil
}
