package premis

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"colophon/shared/event"
	"colophon/shared/transfer"

	"colophon/services/premis/internal/export"
)

// Kinds of export.
const (
	KindPremis    = "premis"     // PREMIS 3.0 XML
	KindTSVEvents = "tsv-events" // one row an event
	KindTSVFrames = "tsv-frames" // one row a frame
)

// ExportRequest is the body of premis.export. Files come by shared/transfer:
// its header names the inbox they are sent to. The final answer is [Position],
// that of the ledger the files were made from.
type ExportRequest struct {
	Kind        string       `json:"kind"`
	Batch       event.Name   `json:"batch,omitempty"`
	Digest      event.Digest `json:"digest,omitempty"`       // of a master, instead of a batch
	MinPosition uint64       `json:"min_position,omitempty"` // the export waits until the ledger is there
}

// Validate reports every fault at once.
func (r ExportRequest) Validate() error {
	var errs []error
	switch r.Kind {
	case KindPremis, KindTSVEvents:
	case KindTSVFrames:
		if r.Batch == "" {
			errs = append(errs, errors.New("/batch: frames are those of a batch"))
		}
	default:
		errs = append(errs, fmt.Errorf("/kind: %q is none of %s, %s, %s", r.Kind, KindPremis, KindTSVEvents, KindTSVFrames))
	}
	switch {
	case (r.Batch == "") == (r.Digest == ""):
		errs = append(errs, errors.New("/batch, /digest: give one of them"))
	case r.Digest != "" && !r.Digest.Valid():
		errs = append(errs, fmt.Errorf("/digest: %q is not a lower-case SHA-256", r.Digest))
	}
	return errors.Join(errs...)
}

// Codes of a failed request.
const (
	codeBad      = "400"
	codeNotFound = "404"
	codeFailed   = "500"
	codeTimeout  = "504"
)

// answer starts the endpoints; the function it gives ends them and waits for
// the exports under way.
func (s *Service) answer(ctx context.Context) (func(), error) {
	svc, err := micro.AddService(s.nc, micro.Config{
		Name: "premis", Version: s.cfg.Version, Description: "the preservation ledger",
	})
	if err != nil {
		return nil, fmt.Errorf("premis: endpoints: %w", err)
	}
	group := svc.AddGroup("premis")
	err = errors.Join(
		group.AddEndpoint("export", micro.HandlerFunc(func(r micro.Request) { s.inBackground(ctx, r, s.export) })),
		group.AddEndpoint("position", micro.HandlerFunc(func(r micro.Request) { s.respond(r, s.Position()) })),
		group.AddEndpoint("checkpoint", micro.HandlerFunc(func(r micro.Request) { s.inBackground(ctx, r, s.checkpoint) })),
	)
	end := func() {
		if err := svc.Stop(); err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
			s.log.Warn("endpoints_stop", slog.Any("error", err))
		}
		for range cap(s.slots) {
			s.slots <- struct{}{}
		}
		for range cap(s.slots) {
			<-s.slots
		}
	}
	if err != nil {
		end()
		return nil, fmt.Errorf("premis: endpoints: %w", err)
	}
	return end, nil
}

// inBackground runs a request beside others: handlers of one endpoint come one
// after the other, and an export may take long.
func (s *Service) inBackground(ctx context.Context, r micro.Request, do func(context.Context, micro.Request) (any, error)) {
	ctx, cancel := context.WithTimeout(ctx, transfer.Timeout(nats.Header(r.Headers()), s.cfg.Wait))
	go func() {
		defer cancel()
		select {
		case s.slots <- struct{}{}:
			defer func() { <-s.slots }()
		case <-ctx.Done():
			s.refuse(r, fmt.Errorf("too many exports under way: %w", ctx.Err()))
			return
		}
		defer func() {
			if p := recover(); p != nil {
				s.refuse(r, fmt.Errorf("panic: %v", p))
			}
		}()
		var answer any
		err := ctx.Err() // the ledger may be closing
		if err == nil {
			answer, err = do(ctx, r)
		}
		if err != nil {
			s.refuse(r, err)
			return
		}
		s.respond(r, answer)
	}()
}

func (s *Service) respond(r micro.Request, answer any) {
	if err := r.RespondJSON(answer); err != nil {
		s.log.Warn("answer_failed", slog.String("subject", r.Subject()), slog.Any("error", err))
	}
}

func (s *Service) refuse(r micro.Request, err error) {
	code := codeFailed
	var bad badRequest
	switch {
	case errors.As(err, &bad):
		code = codeBad
	case errors.Is(err, export.ErrNothing):
		code = codeNotFound
	case errors.Is(err, context.DeadlineExceeded):
		code = codeTimeout
	}
	s.log.Warn("request_failed", slog.String("subject", r.Subject()), slog.String("code", code), slog.Any("error", err))
	if err := r.Error(code, strconv.Quote(err.Error()), nil); err != nil {
		s.log.Warn("answer_failed", slog.String("subject", r.Subject()), slog.Any("error", err))
	}
}

type badRequest struct{ error }

// export waits for the position and streams the files of one consistent view.
func (s *Service) export(ctx context.Context, r micro.Request) (any, error) {
	var q ExportRequest
	if err := json.Unmarshal(r.Data(), &q); err != nil {
		return nil, badRequest{err}
	}
	inbox := r.Headers().Get(transfer.HeaderInbox)
	if inbox == "" {
		return nil, badRequest{errors.New(transfer.HeaderInbox + ": the request names no inbox")}
	}
	if err := q.Validate(); err != nil {
		return nil, badRequest{err}
	}
	if err := s.ledger.Await(ctx, q.MinPosition); err != nil {
		return nil, err
	}
	view, err := s.ledger.Snapshot()
	if err != nil {
		return nil, err
	}
	defer view.Close()
	sink := func(file string) (io.WriteCloser, error) { return transfer.NewWriter(ctx, s.nc, inbox, file), nil }
	if err := exportTo(ctx, export.New(view.View), q, sink); err != nil {
		return nil, err
	}
	return position(view.At()), nil
}

func exportTo(ctx context.Context, x *export.Exporter, q ExportRequest, sink export.Sink) error {
	switch {
	case q.Kind == KindTSVFrames:
		return x.FramesTSV(ctx, q.Batch, sink)
	case q.Kind == KindTSVEvents && q.Batch != "":
		return x.BatchTSV(ctx, q.Batch, sink)
	case q.Kind == KindTSVEvents:
		return x.MasterTSV(ctx, q.Digest, sink)
	case q.Batch != "":
		return x.Batch(ctx, q.Batch, sink)
	}
	return x.Master(ctx, q.Digest, sink)
}

// Checkpoint answers premis.checkpoint: a copy of the ledger's store, and the
// last checkpoint that was signed.
type Checkpoint struct {
	Dir string `json:"dir"` // on the service's machine
	Position
	Signed string `json:"signed,omitempty"` // signed note; empty: none yet
	Key    string `json:"key,omitempty"`    // that verifies it
}

// checkpoint makes a copy that readers open while the ledger goes on; it holds
// at least the position it answers. Removing copies is the reader's; those it
// left are removed at the next start.
func (s *Service) checkpoint(_ context.Context, _ micro.Request) (any, error) {
	if err := os.MkdirAll(s.cfg.Checkpoints, 0o750); err != nil {
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	out := Checkpoint{}
	for c, err := range s.ledger.Signed() {
		if err != nil {
			return nil, err
		}
		out.Signed, out.Key = c.Note, c.Key
		break
	}
	out.Position = s.Position()
	out.Dir = filepath.Join(s.cfg.Checkpoints, fmt.Sprintf("%012d-%d", out.Size, time.Now().UnixNano()))
	if err := s.ledger.Checkpoint(out.Dir); err != nil {
		return nil, errors.Join(err, os.RemoveAll(out.Dir))
	}
	return out, nil
}

// removeCopies removes what readers who ended without a word left behind.
func removeCopies(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("checkpoints: %w", err)
	}
	for _, e := range entries {
		if copyName.MatchString(e.Name()) {
			err = errors.Join(err, os.RemoveAll(filepath.Join(dir, e.Name())))
		}
	}
	return err
}

var copyName = regexp.MustCompile(`^[0-9]{12,}-[0-9]+$`)
