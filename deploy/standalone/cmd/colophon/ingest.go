package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
	"golang.org/x/term"

	"colophon/deploy/standalone"
	"colophon/shared/event"
	"colophon/shared/retry"
)

type ingestCmd struct {
	Dir      string `arg:"" help:"Folder of masters (*.tif *.tiff *.jp2 *.jpg *.jpeg *.png, at any depth)." type:"path"`
	Batch    string `help:"Id of the batch; default: the folder's name."`
	Checksum bool   `help:"Read every file again, also those that look unchanged."`
	Replace  bool   `help:"Take other bytes for done frames as new revisions."`
	Policy   string `help:"File with the batch's retry policy (JSON); it is pinned at the first run." type:"existingfile"`
}

func (c *ingestCmd) Run(s *session) error {
	info, err := os.Stat(c.Dir)
	if err != nil {
		return fmt.Errorf("%w: %s is not there", standalone.ErrUsage, c.Dir)
	}
	if !info.IsDir() {
		return fmt.Errorf("%w: %s is not a folder", standalone.ErrUsage, c.Dir)
	}
	if c.Batch == "" {
		c.Batch = filepath.Base(c.Dir)
	}
	batch, err := batchArg(c.Batch)
	if err != nil {
		return err
	}
	var policy []byte
	if c.Policy != "" {
		if policy, err = os.ReadFile(c.Policy); err != nil {
			return err
		}
		if _, err := retry.Parse(policy); err != nil {
			return fmt.Errorf("%w: %w", standalone.ErrUsage, err)
		}
	}
	for {
		res, ignored, err := c.once(s, batch, policy)
		if errors.Is(err, errTakeOver) && s.Err() == nil {
			s.log.Info("taking_over", slog.String("batch_id", c.Batch))
			continue
		}
		if err != nil {
			return err
		}
		return c.report(s, res, ignored)
	}
}

// errTakeOver: the process that held the archive is gone before this batch
// settled; this one goes on by itself.
var errTakeOver = errors.New("the process that held the archive is gone")

func (c *ingestCmd) once(s *session, batch event.Name, policy []byte) (res standalone.Result, ignored []string, err error) {
	listing, err := standalone.List(c.Dir)
	if err != nil {
		return res, nil, err
	}
	ignored = listing.Ignored
	for _, name := range listing.Ignored {
		s.log.Info("ignored", slog.String("name", event.Name(name).Display()))
	}
	if len(listing.Files) == 0 {
		return res, ignored, fmt.Errorf("%s: %w", c.Dir, standalone.ErrEmpty)
	}
	o := standalone.IngestOptions{Dir: c.Dir, Batch: batch, Checksum: c.Checksum, Replace: c.Replace, Policy: policy, Actor: s.Actor, Gateway: s.Who("cli")}
	if res, ok := standalone.Glance(s.Archive, o, listing, s.log); ok && s.NATS.URL == "" && policy == nil {
		return res, ignored, nil
	}
	a, err := s.open(c.Dir)
	if err != nil {
		return res, ignored, err
	}
	defer func() { err = errors.Join(err, a.Close()) }()
	progress, finish := meter(s, batch)
	o.Progress = progress
	res, err = a.Ingest(s, o, listing)
	finish()
	if err != nil && !a.Own() && s.Err() == nil {
		wait := 10 * time.Millisecond
		if errors.Is(err, nats.ErrConnectionClosed) || errors.Is(err, nats.ErrDisconnected) {
			wait = time.Second // the connection is lost, and Done says so in a moment
		}
		select {
		case <-a.Done():
			return res, ignored, errTakeOver
		case <-time.After(wait):
		}
	}
	if errors.Is(err, context.Canceled) && s.Err() != nil {
		return res, ignored, errors.New("stopped; what has not finished goes on at the next run")
	}
	return res, ignored, err
}

// shown is how many names of one kind are printed before "and n more".
const shown = 20

func (c *ingestCmd) report(s *session, r standalone.Result, ignored []string) error {
	err := s.print(r, func() {
		fmt.Printf("batch %s: %d frames, %d dispatched, %d processed, %d skipped, %d failed", event.Name(r.Batch).Display(), r.Frames, r.Dispatched, r.Processed, r.Skipped, r.Failed)
		if r.Ignored > 0 {
			fmt.Printf(", %d ignored", r.Ignored)
		}
		fmt.Println()
		for i, name := range ignored {
			if i == shown {
				fmt.Printf("  and %d more ignored\n", len(ignored)-shown)
				break
			}
			fmt.Printf("  ignored: %s\n", event.Name(name).Display())
		}
		for i, k := range r.Cases {
			if i == shown {
				fmt.Printf("  and %d more cases\n", len(r.Cases)-shown)
				break
			}
			fmt.Printf("  %s  %s  %s: %s\n", k.Frame.Display(), k.Operation, k.Code, k.Reason)
		}
		for i, k := range r.Unread {
			if i == shown {
				fmt.Printf("  and %d more whose files cannot be read\n", len(r.Unread)-shown)
				break
			}
			fmt.Printf("  %s  is done and stays as it is, but its file cannot be read again: %s: %s\n", k.Frame.Display(), k.Code, k.Reason)
		}
		if r.Converged {
			fmt.Printf("converged; the bag is %s\n", filepath.Join(s.Archive, "bags"))
			return
		}
		fmt.Printf("not converged. Repair the masters and run the same command again, or decide:\n")
		fmt.Printf("  colophon --archive %s status %s\n  colophon --archive %s case list\n", s.Archive, quote(string(r.Batch)), s.Archive)
		fmt.Printf("  colophon --archive %s case discard CASE --note WHY\n", s.Archive)
	})
	if err == nil && !r.Converged {
		return status(exitUnsettled)
	}
	return err
}

func quote(s string) string {
	if strings.ContainsAny(s, " '\"\\()&;|<>$`\n*?[#~=%!") {
		return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
	}
	return s
}

// meter shows progress: a bar on a terminal, a log line every few seconds
// elsewhere.
func meter(s *session, batch event.Name) (progress func(event.BatchStatus), finish func()) {
	if !term.IsTerminal(int(os.Stderr.Fd())) {
		last := time.Now()
		return func(st event.BatchStatus) {
			if time.Since(last) < 5*time.Second {
				return
			}
			last = time.Now()
			t := st.Totals
			s.log.Info("progress", slog.String("batch_id", batch.Display()), slog.Int("done", t.Done), slog.Int("failed", t.Failed), slog.Int("pending", t.Pending), slog.Int("declared", t.Declared))
		}, func() {}
	}
	p := mpb.New(mpb.WithOutput(os.Stderr), mpb.WithWidth(60))
	bar := p.AddBar(0, mpb.PrependDecorators(decor.Name(batch.Display()+" "), decor.CountersNoUnit("%d / %d")), mpb.AppendDecorators(decor.Percentage(), decor.Name(" "), decor.Elapsed(decor.ET_STYLE_GO)))
	return func(st event.BatchStatus) {
			bar.SetTotal(int64(st.Totals.Declared), false)
			bar.SetCurrent(int64(st.Totals.Done + st.Totals.Failed + st.Totals.Discarded))
		}, func() {
			bar.Abort(false)
			p.Wait()
		}
}
