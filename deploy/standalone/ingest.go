package standalone

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"golang.org/x/sync/errgroup"

	"colophon/services/capture"
	"colophon/shared/event"
	"colophon/shared/fault"
)

// IngestOptions are what `colophon ingest` is told beside the archive.
type IngestOptions struct {
	Dir      string
	Batch    event.Name
	Checksum bool   // read also what looks unchanged
	Replace  bool   // accept other bytes for done slots as revisions
	Policy   []byte // retry policy of a new batch; nil: the installation's
	Actor    string
	Gateway  string
	Progress func(event.BatchStatus)
}

// Result is the object that ingest prints with --json.
type Result struct {
	Batch      event.Name  `json:"batch"`
	Pass       int         `json:"pass"`       // highest pass of this run
	Frames     int         `json:"frames"`     // files found
	Dispatched int         `json:"dispatched"` // capture messages sent
	Processed  int         `json:"processed"`  // frames an effect ran for
	Skipped    int         `json:"skipped"`    // frames that were done already
	Failed     int         `json:"failed"`
	Pending    int         `json:"pending"`
	Ignored    int         `json:"ignored"` // files left out
	Converged  bool        `json:"converged"`
	Cases      []CaseShort `json:"cases"`
	Unread     []CaseShort `json:"unread"` // done frames whose file could not be read again: they stay as they are
}

// CaseShort is one failed operation of a frame.
type CaseShort struct {
	Frame     event.Name      `json:"frame"` // original name
	Operation event.Operation `json:"operation"`
	Code      string          `json:"code"`
	Reason    string          `json:"reason"`
}

// ErrEmpty: a folder without a single master.
var ErrEmpty = errors.New("the folder holds no masters (*.tif *.tiff *.jp2 *.jpg *.jpeg *.png)")

// Ingest sends what is not done of a folder and returns when the batch is
// settled and, if it converged, its manifest and bag stand.
func (a *Archive) Ingest(ctx context.Context, o IngestOptions, l Listing) (Result, error) {
	r := Result{Batch: o.Batch, Frames: len(l.Files), Ignored: len(l.Ignored), Cases: []CaseShort{}, Unread: []CaseShort{}}
	if len(l.Files) == 0 {
		return r, ErrEmpty
	}
	run := newIngest(o, l, a.Log)
	run.Archive = a
	ctx, release := a.while(ctx)
	defer release()
	return r, a.ended(run.all(ctx, &r))
}

func (r *ingest) all(ctx context.Context, out *Result) error {
	if err := r.begin(ctx); err != nil {
		return err
	}
	if err := r.dispatch(ctx); err != nil {
		return err
	}
	st, err := r.settle(ctx)
	if err != nil {
		return err
	}
	out.Dispatched, out.Pass, out.Converged = len(r.sent), max(r.pass, 1), st.Converged
	if err := r.count(ctx, out); err != nil {
		return err
	}
	return r.opened(ctx, len(out.Cases))
}

// while is ctx for as long as the line is there: a publish would wait for a
// broker that is gone without end.
func (a *Archive) while(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		select {
		case <-a.done:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// ended says why the line ended, where that is why err is.
func (a *Archive) ended(err error) error {
	if why := a.Err(); why != nil && errors.Is(err, context.Canceled) {
		return fmt.Errorf("standalone: the line ended: %w", why)
	}
	return err
}

// Glance tells the result of an ingest that has nothing to do, from the batch
// view alone, without starting anything: a finished batch is run again at the
// speed of a look-up. It reports false where the line is needed, or runs.
func Glance(archive string, o IngestOptions, l Listing, log *slog.Logger) (Result, bool) {
	lock, err := lockFile(lockPath(archive))
	if err != nil {
		return Result{}, false
	}
	defer lock.Close() //nolint:errcheck // the lock goes with it
	reader, err := capture.OpenReader(filepath.Join(archive, "state", "capture"))
	if err != nil {
		return Result{}, false
	}
	defer reader.Close() //nolint:errcheck // only read
	st, err := reader.Status(o.Batch)
	if err != nil || !st.Converged || st.Bag < st.Convergence || st.Manifest < st.Convergence {
		return Result{}, false
	}
	run := newIngest(o, l, log)
	if err := reader.Frames(o.Batch, false, run.learn); err != nil || run.declared() != st.Count {
		return Result{}, false
	}
	for i, f := range l.Files {
		if m, err := run.message(f, i+1); err != nil || m != nil {
			return Result{}, false
		}
	}
	r := Result{Batch: o.Batch, Pass: 1, Frames: len(l.Files), Skipped: len(l.Files), Ignored: len(l.Ignored), Converged: true, Cases: []CaseShort{}, Unread: []CaseShort{}}
	summary(log, r)
	return r, true
}

type ingest struct {
	*Archive
	IngestOptions
	log     *slog.Logger
	listing Listing
	known   map[event.Name]event.FrameStatus
	sent    map[event.Name]bool
	asked   map[event.Name]int          // pass of each settled frame that was sent again
	unread  map[event.Name]*fault.Error // why a done frame's file could not be read
	start   uint64                      // log position at the beginning
	last    uint64                      // capture message that was sent last
	pass    int
}

func newIngest(o IngestOptions, l Listing, log *slog.Logger) *ingest {
	return &ingest{IngestOptions: o, log: log, listing: l, known: map[event.Name]event.FrameStatus{}, sent: map[event.Name]bool{}, asked: map[event.Name]int{}, unread: map[event.Name]*fault.Error{}}
}

func (r *ingest) learn(f event.FrameStatus) error {
	r.known[f.Frame] = f
	return nil
}

// declared counts the frames that there are: those found and those known. A
// file that is gone from the folder does not shrink the batch: no page is lost
// without a word.
func (r *ingest) declared() int {
	count := len(r.known)
	for _, f := range r.listing.Files {
		if _, ok := r.known[f.Frame]; !ok {
			count++
		}
	}
	return count
}

// begin learns what the archive knows of the batch, and declares it.
func (r *ingest) begin(ctx context.Context) error {
	st, err := r.Status(ctx, r.Batch)
	if err != nil {
		return err
	}
	r.start = st.Position
	if err := r.Frames(ctx, r.Batch, false, r.learn); err != nil {
		return err
	}
	return r.declare(ctx, st)
}

// declare says how many frames there are, where that is news.
func (r *ingest) declare(ctx context.Context, st event.BatchStatus) error {
	count := r.declared()
	if st.Known && st.Count == count && len(r.Policy) == 0 {
		return nil
	}
	d := event.BatchDeclaration{Schema: event.SchemaCaptureBatch, Batch: r.Batch, Count: count, Order: event.OrderNatural, Operator: r.Actor, Policy: r.Policy}
	number := 0
	if st.Known {
		number = st.Number + 1
		d.Order, d.Profiles, d.Follows = st.Order, st.Profiles, &st.Number
	}
	body, err := json.Marshal(d)
	if err != nil {
		return fmt.Errorf("standalone: %w", err)
	}
	m := &nats.Msg{Subject: event.CaptureSubject("batch", r.Gateway, r.Batch), Data: body, Header: nats.Header{event.HeaderMsgID: {event.DeclarationID(body, r.Batch, number)}}}
	ack, err := r.Client.log.Publish(ctx, m, nil)
	if err != nil {
		return err
	}
	return r.accepted(ctx, count, ack.Sequence)
}

// accepted waits until the declaration stands, or its refusal does.
func (r *ingest) accepted(ctx context.Context, count int, seq uint64) error {
	origin := fmt.Sprintf("%s-%d", event.StreamCapture, seq)
	return r.poll(ctx, func() (bool, error) {
		st, err := r.Status(ctx, r.Batch)
		if err != nil || st.Known && st.Count == count {
			return true, err
		}
		list, err := Call[event.CaseList](ctx, r.Client, event.EndpointQuarantineList, event.CaseRequest{Batch: r.Batch})
		if err != nil {
			return true, err
		}
		for _, c := range list.Cases {
			if c.Origin == origin {
				return true, fmt.Errorf("the declaration of batch %s was refused: %s: %s", r.Batch.Display(), c.Code, c.Reason)
			}
		}
		return false, nil
	})
}

// poll asks until done, quickly at first.
func (r *ingest) poll(ctx context.Context, ask func() (bool, error)) error {
	wait := 2 * time.Millisecond
	for {
		done, err := ask()
		if done || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-r.Done():
			return errors.Join(errors.New("standalone: the line ended"), r.Err())
		case <-time.After(wait):
		}
		wait = min(wait*3/2, 250*time.Millisecond)
	}
}

// dispatch sends what is not done, in order; the broker stores some at once.
func (r *ingest) dispatch(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	work := make(chan *nats.Msg)
	acks := make(chan uint64, 16)
	for range cap(acks) {
		g.Go(func() error {
			for m := range work {
				ack, err := r.Client.log.Publish(ctx, m, nil)
				if err != nil {
					return err
				}
				acks <- ack.Sequence
			}
			return nil
		})
	}
	collected := make(chan struct{})
	go func() {
		defer close(collected)
		for s := range acks {
			r.last = max(r.last, s)
		}
	}()
	g.Go(func() error {
		defer close(work)
		for i, f := range r.listing.Files {
			m, err := r.message(f, i+1)
			if err != nil {
				return err
			}
			if m == nil {
				continue
			}
			select {
			case work <- m:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	})
	err := g.Wait()
	close(acks)
	<-collected
	return err
}

// message decides about one file: nil when its slot needs nothing.
func (r *ingest) message(f File, sequence int) (*nats.Msg, error) {
	known, ok := r.known[f.Frame]
	u := url.URL{Scheme: "file", Path: f.Path}
	fm := event.FrameMessage{
		Schema: event.SchemaCaptureFrame, Slot: event.Slot{Batch: r.Batch, Frame: f.Frame}, Sequence: sequence, Sources: []string{u.String()},
		Source: event.SourceToken(u.String(), f.Stat), Operator: r.Actor, Pass: 1,
	}
	if ok {
		fm.Pass = known.Pass
		switch known.State {
		case event.StateDiscarded:
			return nil, nil
		case event.StateDone:
			same, why := r.unchanged(f, known)
			if same {
				return nil, nil
			}
			if why != nil { // capture says it for the record, and this run to who started it
				r.unread[f.Frame] = why
			}
			fm.Pass++
			r.asked[f.Frame] = fm.Pass
		case event.StateFailed:
			fm.Pass++
			r.asked[f.Frame] = fm.Pass
		}
		if r.Replace {
			fm.Replaces = known.Pinned
		}
	}
	body, err := json.Marshal(fm)
	if err != nil {
		return nil, fmt.Errorf("standalone: %w", err)
	}
	m := &nats.Msg{Subject: event.CaptureSubject("frame", r.Gateway, r.Batch), Data: body, Header: nats.Header{event.HeaderMsgID: {fm.MsgID()}}}
	if fm.Pass > 1 {
		m.Header.Set(event.HeaderPass, strconv.Itoa(fm.Pass))
		m.Header.Set(event.HeaderActor, r.Actor)
		m.Header.Set(event.HeaderNote, "re-run")
	}
	r.sent[f.Frame] = true
	r.pass = max(r.pass, fm.Pass)
	return m, nil
}

// unchanged reports whether a done slot's file still has its bytes: by the
// look of it, or, where that changed or --checksum asks, by reading it. A file
// that cannot be read has a fault.
func (r *ingest) unchanged(f File, known event.FrameStatus) (bool, *fault.Error) {
	if !r.Checksum && known.Stat != nil && known.Stat.Same(f.Stat) {
		return true, nil
	}
	// Without O_NONBLOCK a named pipe would hold the command for good.
	file, err := os.OpenFile(f.Path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, fault.New(fault.SourceMissing, err, "the file is not there, or its link leads nowhere")
	case errors.Is(err, syscall.ENXIO):
		return false, fault.New(fault.SourceNotAFile, err, "it is no file any more")
	case err != nil:
		return false, fault.New(fault.SourceUnreadable, err, "the file may not or cannot be read")
	}
	defer file.Close() //nolint:errcheck // only read
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return false, fault.New(fault.SourceNotAFile, err, "it is no file any more")
	}
	h := sha256.New()
	if _, err := io.Copy(h, file); err != nil {
		return false, fault.New(fault.SourceUnreadable, err, "the file cannot be read to its end")
	}
	return event.Digest(hex.EncodeToString(h.Sum(nil))) == known.Pinned, nil
}
