package standalone

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"colophon/shared/event"
)

// settle waits until the view has seen what was sent, nothing is pending, and
// what a convergence leaves on disk stands.
func (r *ingest) settle(ctx context.Context) (event.BatchStatus, error) {
	var st event.BatchStatus
	err := r.poll(ctx, func() (bool, error) {
		var err error
		if st, err = r.Status(ctx, r.Batch); err != nil {
			return true, err
		}
		if r.Progress != nil {
			r.Progress(st)
		}
		if st.CapturePosition < r.last || !st.Settled {
			return false, nil
		}
		if answered, err := r.answered(ctx); err != nil || !answered {
			return err != nil, err
		}
		if st.Totals.Converged() {
			return st.Converged && st.Bag >= st.Convergence && st.Manifest >= st.Convergence, nil
		}
		return true, nil
	})
	return st, err
}

// answered reports whether the settled frames that were sent again have their
// answer. What is done, or has other bytes waiting for a decision, stays so
// meanwhile, and the batch looks settled.
func (r *ingest) answered(ctx context.Context) (bool, error) {
	if len(r.asked) == 0 {
		return true, nil
	}
	err := r.Frames(ctx, r.Batch, false, func(f event.FrameStatus) error {
		if pass, ok := r.asked[f.Frame]; ok && f.Ended >= pass {
			delete(r.asked, f.Frame)
		}
		return nil
	})
	// what was read before the answers may be older than they are
	return false, err
}

// count tells what became of the run's frames.
func (r *ingest) count(ctx context.Context, out *Result) error {
	found := map[event.Name]bool{}
	for _, f := range r.listing.Files {
		found[f.Frame] = true
	}
	err := r.Frames(ctx, r.Batch, false, func(f event.FrameStatus) error {
		for _, t := range f.Troubles {
			if f.State == event.StateFailed {
				out.Cases = append(out.Cases, CaseShort{f.Frame, t.Operation, t.Code, t.Reason})
			}
		}
		if !found[f.Frame] {
			return nil
		}
		if why := r.unread[f.Frame]; why != nil && f.State == event.StateDone {
			out.Unread = append(out.Unread, CaseShort{f.Frame, event.Capture, string(why.Code), why.Message})
			r.log.Warn("done_source_unread", slog.String("name", f.Frame.Display()), slog.String("code", string(why.Code)), slog.Any("error", why))
		}
		switch {
		case f.State == event.StateFailed:
			out.Failed++
		case f.State == event.StatePending:
			out.Pending++
		case f.Effect > r.start:
			out.Processed++
		default:
			out.Skipped++
		}
		return nil
	})
	summary(r.log, *out)
	return err
}

func summary(log *slog.Logger, r Result) {
	log.Info("batch_retry_summary", slog.String("batch_id", r.Batch.Display()), slog.Int("pass", r.Pass), slog.Int("dispatched", r.Dispatched),
		slog.Int("processed", r.Processed), slog.Int("skipped", r.Skipped), slog.Int("failed", r.Failed), slog.Int("pending", r.Pending), slog.Bool("converged", r.Converged))
}

// caseWait bounds how long a finished run waits for quarantine.
const caseWait = 30 * time.Second

// opened waits until what failed is in quarantine: the line may end with this
// process, and who reads of a failure looks for its case next.
func (r *ingest) opened(ctx context.Context, failures int) error {
	if failures == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, caseWait)
	defer cancel()
	err := r.poll(ctx, func() (bool, error) {
		list, err := Call[event.CaseList](ctx, r.Client, event.EndpointQuarantineList, event.CaseRequest{Batch: r.Batch, Limit: 1})
		return list.Total >= failures, err
	})
	if errors.Is(err, context.DeadlineExceeded) {
		r.log.Warn("cases_late", slog.String("batch_id", r.Batch.Display()), slog.Int("failures", failures))
		return nil
	}
	return err
}
