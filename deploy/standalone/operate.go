package standalone

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"colophon/services/capture"
	"colophon/shared/event"
	"colophon/shared/profile"
	"colophon/shared/retry"
	"colophon/shared/topology"
)

// ErrUsage marks what the caller asked for wrongly.
var ErrUsage = errors.New("usage")

// RetryResult is what one more pass came to.
type RetryResult struct {
	event.RetryReply
	Totals    event.Totals `json:"totals"`
	Converged bool         `json:"converged"`
}

// RetryOptions are what `colophon retry` is told.
type RetryOptions struct {
	Batch event.Name
	Actor string
	Note  string
	// UntilConverged repeats only what failed transiently, at most max_attempts
	// passes, with the policy's delay between them.
	UntilConverged bool
	// Profile is wanted of the batch from now on: every frame that lacks its
	// derivative is sent, not only failed ones.
	Profile string
}

// Retry sends what failed of a batch again and returns when it is settled.
func (a *Archive) Retry(ctx context.Context, o RetryOptions) (RetryResult, error) {
	if _, ok := profile.Named(o.Profile); !ok && o.Profile != "" {
		return RetryResult{}, fmt.Errorf("%w: there is no profile %q; there are %s", ErrUsage, o.Profile, strings.Join(profile.Names(), ", "))
	}
	st, err := a.Status(ctx, o.Batch)
	if err != nil {
		return RetryResult{}, err
	}
	if !st.Known {
		return RetryResult{}, fmt.Errorf("%w: batch %s is not known", ErrUsage, o.Batch.Display())
	}
	policy, err := retry.Parse(st.Policy)
	if err != nil {
		return RetryResult{}, err
	}
	req := event.RetryRequest{Batch: o.Batch, Actor: o.Actor, Note: o.Note, Profile: o.Profile, Transient: o.UntilConverged && o.Profile == ""}
	passes := 1
	if o.UntilConverged {
		passes, req.Spread = policy.MaxAttempts, time.Duration(policy.InitialDelay)
	}
	var out RetryResult
	for n := 1; ; n++ {
		again, err := a.pass(ctx, req)
		req.Profile, req.Transient = "", o.UntilConverged // the profile is wanted once
		out = RetryResult{event.RetryReply{Dispatched: out.Dispatched + again.Dispatched, Left: again.Left, Sequence: again.Sequence}, again.Totals, again.Converged}
		if err != nil || out.Converged || again.Dispatched == 0 || n == passes {
			return out, err
		}
		select {
		case <-time.After(policy.Delay(n, rand.Float64)):
		case <-ctx.Done():
			return out, ctx.Err()
		}
	}
}

// pass is one pass over what failed, up to its settling.
func (a *Archive) pass(ctx context.Context, req event.RetryRequest) (RetryResult, error) {
	reply, err := Call[event.RetryReply](ctx, a.Client, event.EndpointBatchRetry, req)
	if err != nil {
		return RetryResult{}, err
	}
	run := newIngest(IngestOptions{Batch: req.Batch}, Listing{}, a.Log)
	run.Archive, run.last = a, reply.Sequence
	st, err := run.settle(ctx)
	return RetryResult{reply, st.Totals, st.Converged}, err
}

// Decide asks quarantine for a decision, and waits until the batches it spoke
// of are settled again: with the line in this process, nobody else would do
// the work.
func (a *Archive) Decide(ctx context.Context, endpoint string, req event.CaseRequest) (event.CaseDecision, error) {
	out, err := a.decideAll(ctx, endpoint, req)
	if err != nil || req.DryRun || !a.Own() || len(out.Done) == 0 {
		return out, err
	}
	at, err := a.logEnd(ctx)
	if err != nil {
		return out, err
	}
	run := newIngest(IngestOptions{}, Listing{}, a.Log)
	run.Archive = a
	return out, run.poll(ctx, func() (bool, error) {
		list, err := a.Batches(ctx)
		if err != nil {
			return true, err
		}
		for _, b := range list.Batches {
			st, err := a.Status(ctx, b.Batch)
			if err != nil {
				return true, err
			}
			if st.Position < at.ingest || st.CapturePosition < at.capture || !st.Settled ||
				st.Totals.Converged() && !(st.Converged && st.Bag >= st.Convergence) {
				return false, nil
			}
		}
		return true, nil
	})
}

// decideAll goes through all that the request selects: quarantine decides a
// page at a time. On an error it gives what was decided before.
func (a *Archive) decideAll(ctx context.Context, endpoint string, req event.CaseRequest) (event.CaseDecision, error) {
	all := event.CaseDecision{DryRun: req.DryRun, Refused: map[string]string{}}
	for {
		page, err := Call[event.CaseDecision](ctx, a.Client, endpoint, req)
		if err != nil {
			return all, err
		}
		all.Eligible, all.Done = all.Eligible+page.Eligible, append(all.Done, page.Done...)
		maps.Copy(all.Refused, page.Refused)
		if req.After = page.Next; page.Next == "" {
			return all, nil
		}
	}
}

type ends struct{ ingest, capture uint64 }

// logEnd tells what the streams hold now, of what the batch view reads.
func (a *Archive) logEnd(ctx context.Context) (e ends, err error) {
	st, err := a.JS.Stream(ctx, event.StreamIngest)
	if err != nil {
		return e, fmt.Errorf("standalone: %w", err)
	}
	e.ingest = st.CachedInfo().State.LastSeq
	m, err := a.JS.Stream(ctx, event.StreamCapture)
	if err != nil {
		return e, fmt.Errorf("standalone: %w", err)
	}
	if last, err := m.GetLastMsgForSubject(ctx, event.SubjectCaptureFrame+".>"); err == nil {
		e.capture = last.Sequence
	}
	return e, nil
}

// Judging is what a judge needs of an archive.
type Judging struct {
	*Archive
	Ledger string // folder of the ledger, or of a checkpoint of it
}

// Evidence opens an archive for a judge, without starting a service: the
// ledger of a line that does not run is read as it lies there, of one that
// runs a checkpoint is asked for.
func Evidence(ctx context.Context, o Options) (*Judging, error) {
	a := &Archive{Options: o, done: make(chan struct{}), roots: new(capture.Roots)}
	if err := a.brokerOnly(ctx, "judge"); err != nil {
		return nil, errors.Join(err, a.Close())
	}
	j := &Judging{a, filepath.Join(o.Archive, "state", "premis")}
	if a.broker == nil {
		c, err := Call[struct {
			Dir string `json:"dir"`
		}](ctx, a.Client, event.EndpointPremisCheckpoint, struct{}{})
		if err != nil {
			return nil, errors.Join(err, a.Close())
		}
		j.Ledger = c.Dir
		a.later(func() error { return os.RemoveAll(c.Dir) })
	}
	return j, nil
}

// brokerOnly connects to the broker of an archive: an outside one, that of the
// line that runs, or, where none runs, one that is started without services.
func (a *Archive) brokerOnly(ctx context.Context, name string) error {
	broker, opts := a.Broker, []nats.Option(nil)
	if broker.URL == "" {
		b, err := startBroker(a.Options, "")
		switch {
		case errors.Is(err, ErrRunning):
			acc, err := readAccess(a.Archive)
			if err != nil {
				return err
			}
			broker.URL = acc.URL
			opts = append(opts, acc.pin())
		case err != nil:
			return err
		default:
			a.later(func() error { b.stop(); return nil })
			a.broker = b
			opts = append(opts, nats.InProcessServer(b), nats.UserInfo("colophon", b.password))
		}
	}
	nc, _, err := broker.Connect(ctx, name, a.Log, &a.health, opts...)
	if err != nil {
		return err
	}
	a.later(func() error { nc.Close(); return nil })
	a.Client, err = NewClient(nc, a.Log)
	return err
}

// Provision creates or checks the streams and consumers of an archive's own
// broker or of an outside one.
func Provision(ctx context.Context, o Options, check bool) ([]topology.Drift, error) {
	if _, err := os.Stat(o.Archive); check && o.Broker.URL == "" && err != nil {
		return nil, fmt.Errorf("%w: there is no archive at %s", ErrUsage, o.Archive)
	}
	a := &Archive{Options: o, done: make(chan struct{}), roots: new(capture.Roots)}
	defer a.Close() //nolint:errcheck // nothing was written but streams
	if err := a.brokerOnly(ctx, "provision"); err != nil {
		return nil, err
	}
	sizes := topology.DefaultSizes()
	sizes.Replicas = max(o.Replicas, 1)
	if !check {
		if err := topology.Provision(ctx, a.JS, sizes, profile.Names()); err != nil {
			return nil, err
		}
	}
	return topology.Check(ctx, a.JS, sizes, profile.Names())
}

// Look opens the batch view of an archive whose line is not running, to read
// only. [ErrRunning] says that it runs: ask it.
func Look(archive string) (*capture.Reader, func() error, error) {
	lock, err := lockFile(lockPath(archive))
	if err != nil {
		return nil, nil, err
	}
	r, err := capture.OpenReader(filepath.Join(archive, "state", "capture"))
	if err != nil {
		return nil, nil, errors.Join(err, lock.Close())
	}
	return r, func() error { return errors.Join(r.Close(), lock.Close()) }, nil
}
