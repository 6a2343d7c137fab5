package capture

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"colophon/services/capture/internal/bag"
	"colophon/shared/event"
	"colophon/shared/fault"
	"colophon/shared/stage"
	"colophon/shared/storage"
	"colophon/shared/transfer"
)

const (
	manifestEvery = 3 * time.Second // at most this often while a batch moves
	endpointWait  = time.Minute
	bagWait       = 30 * time.Minute // for the ledger to catch up and export
	keepRetry     = 2 * time.Second
)

// keep says when batches converge, and makes what stands on disk about them.
// All of it follows from the view, so a crash anywhere is made good by looking
// again: at start it looks at every batch.
func (s *Service) keep(ctx context.Context) error {
	due := map[event.Name]turn{}
	for r, err := range s.view.batches() {
		if err != nil {
			return err
		}
		due[r.Batch] = turn{}
	}
	for ctx.Err() == nil {
		next := s.view.changed.next()
		touched, discarded := s.view.take()
		for _, b := range touched {
			if _, ok := due[b]; !ok {
				due[b] = turn{}
			}
		}
		for _, c := range discarded {
			if err := s.unstage(ctx, c); err != nil {
				s.Log.Error("unstage_failed", slog.String("batch_id", c.Batch.Display()), slog.String("frame_id", c.Frame.Display()), slog.Any("error", err))
			}
		}
		wait := s.keepDue(ctx, due)
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-next:
		case <-timer.C:
		}
		timer.Stop()
	}
	return nil
}

// turn is when a batch is looked at again.
type turn struct {
	at     time.Time
	failed bool // and waits whatever happens
}

// keepDue looks at the batches that are due and tells how long nothing else is.
func (s *Service) keepDue(ctx context.Context, due map[event.Name]turn) time.Duration {
	wait := time.Minute
	for b, t := range due {
		if d := time.Until(t.at); d > 0 {
			if r, err := s.view.batch(b); t.failed || err != nil || !r.Totals.Settled() {
				wait = min(wait, d)
				continue
			}
		}
		again, err := s.keepBatch(ctx, b)
		switch {
		case err != nil && ctx.Err() == nil:
			s.Log.Error("batch_keeping_failed", slog.String("batch_id", b.Display()), slog.Any("error", err))
			due[b] = turn{time.Now().Add(keepRetry), true}
			wait = min(wait, keepRetry)
		case again:
			due[b] = turn{at: time.Now().Add(manifestEvery)}
			wait = min(wait, manifestEvery)
		default:
			delete(due, b)
		}
	}
	return wait
}

// keepBatch brings the log and the disk in line with the view of one batch.
// again says that the batch still moves.
func (s *Service) keepBatch(ctx context.Context, b event.Name) (again bool, err error) {
	r, err := s.view.batch(b)
	if err != nil || !r.Known {
		return false, err
	}
	m, err := s.view.made(b)
	if err != nil {
		return false, err
	}
	if r.Totals.Converged() && !r.Converged {
		return true, s.converge(ctx, r)
	}
	if r.Converged && m.Bag >= r.Convergence && m.Manifest >= r.Convergence {
		return false, nil
	}
	if err := s.writeManifest(ctx, r); err != nil {
		return false, err
	}
	if !r.Converged {
		return !r.Totals.Settled(), nil
	}
	m.Manifest = r.Convergence
	if err := s.view.setMade(b, m); err != nil {
		return false, err
	}
	m.Problem = ""
	if err := s.writeBag(ctx, r); err != nil {
		m.Problem = fault.Clean(err.Error())
		return false, errors.Join(err, s.view.setMade(b, m))
	}
	m.Bag = r.Convergence
	return false, s.view.setMade(b, m)
}

// unstage removes the staged bytes that a discard decided about: those of an
// unfinished slot, or the other bytes that were refused for a done one.
// Masters are never removed.
func (s *Service) unstage(ctx context.Context, c event.CaseFact) error {
	p, known, err := s.view.slot(c.Slot)
	if err != nil || !known {
		return err
	}
	for e, err := range s.Store.List(ctx, storage.StagingFolder(string(c.Batch))) {
		if err != nil {
			return err
		}
		base := e.Key[strings.LastIndexByte(e.Key, '/')+1:]
		for revision := 1; revision <= p.Revision+1; revision++ {
			zero := storage.Digest(strings.Repeat("0", 64))
			prefix := strings.TrimSuffix(storage.StagingName(string(c.Frame), revision, zero), string(zero))
			if !strings.HasPrefix(base, prefix) {
				continue
			}
			if err := s.Store.Remove(e.Key); err != nil {
				return err
			}
			s.Log.Info("unstaged", slog.String("batch_id", c.Batch.Display()), slog.String("frame_id", c.Frame.Display()), slog.String("decision", "discard"))
		}
	}
	return nil
}

func (s *Service) converge(ctx context.Context, r batchRecord) error {
	f := r.BatchFact
	totals := r.Totals
	f.State, f.Number, f.Totals, f.Agent, f.At = "converged", r.Convergence+1, &totals, s.agent, time.Now().UTC()
	if _, err := stage.NewLog(s.JS, s.Log).PublishFact(ctx, f, nil); err != nil {
		return err
	}
	s.Log.Info("batch_converged", slog.String("batch_id", r.Batch.Display()), slog.Int("convergence", f.Number), slog.Int("frames", totals.Declared), slog.Int("discarded", totals.Discarded))
	return nil
}

// manifest is the head of batches/<batch>.json; the frames follow, in order.
type manifest struct {
	Schema      string          `json:"schema"`
	Batch       event.Name      `json:"batch"`
	State       string          `json:"state"` // open, settled, converged
	Convergence int             `json:"convergence"`
	ConvergedAt time.Time       `json:"converged_at,omitzero"`
	Declaration int             `json:"declaration"`
	Order       string          `json:"order"`
	Profiles    []string        `json:"profiles"`
	Policy      json.RawMessage `json:"policy"`
	PolicySHA   event.Digest    `json:"policy_sha256"`
	Devices     []string        `json:"devices,omitempty"`
	Operator    string          `json:"operator,omitempty"`
	Totals      event.Totals    `json:"totals"`
}

// manifestFrame is one frame of the manifest.
type manifestFrame struct {
	Frame     event.Name                `json:"frame"`
	Sequence  int                       `json:"sequence"`
	State     event.State               `json:"state"`
	Revision  int                       `json:"revision,omitempty"`
	Digest    event.Digest              `json:"digest,omitempty"`
	Size      int64                     `json:"size,omitempty"`
	Master    string                    `json:"master,omitempty"`
	Format    string                    `json:"format,omitempty"`
	Derived   map[string][]event.Output `json:"derivatives,omitempty"`
	Waived    []event.Operation         `json:"waived,omitempty"`
	Cases     []event.Trouble           `json:"cases,omitempty"`
	Technical *event.Technical          `json:"technical,omitempty"`
}

func (s *Service) writeManifest(ctx context.Context, r batchRecord) error {
	pr, pw := io.Pipe()
	go func() { pw.CloseWithError(s.manifest(pw, r)) }()
	_, err := s.Store.Replace(ctx, storage.ManifestKey(string(r.Batch)), pr, storage.Options{})
	_ = pr.Close()
	if err != nil {
		return fmt.Errorf("capture: manifest: %w", err)
	}
	return nil
}

func (s *Service) manifest(w io.Writer, r batchRecord) error {
	state := "open"
	switch {
	case r.Converged:
		state = "converged"
	case r.Totals.Settled():
		state = "settled"
	}
	head, err := json.Marshal(manifest{
		"colophon/manifest/v1", r.Batch, state, r.Convergence, r.At, r.Number, r.Order, r.Profiles, r.Policy, r.PolicyDigest, r.Devices, r.Operator, r.Totals,
	})
	if err != nil {
		return err
	}
	b := bufio.NewWriterSize(w, 64<<10)
	_, _ = b.Write(head[:len(head)-1])
	_, _ = b.WriteString(`,"frames":[`)
	sep := "\n"
	for p, err := range s.view.frames(r.Batch, "") {
		if err != nil {
			return err
		}
		line, err := json.Marshal(manifestOf(&p.Progress, r.Profiles))
		if err != nil {
			return err
		}
		_, _ = b.WriteString(sep)
		if _, err := b.Write(line); err != nil {
			return err
		}
		sep = ",\n"
	}
	_, _ = b.WriteString("\n]}\n")
	return b.Flush()
}

func manifestOf(p *event.Progress, profiles []string) manifestFrame {
	f := manifestFrame{Frame: p.Frame, Sequence: p.Sequence, State: p.State(profiles), Revision: p.Revision, Digest: p.Digest}
	if p.Fixed != nil {
		f.Size, f.Master, f.Format = p.Fixed.Size, p.Fixed.Master, p.Fixed.Format.PUID
	}
	for profile, d := range p.Derived {
		if f.Derived == nil {
			f.Derived = map[string][]event.Output{}
		}
		f.Derived[profile], f.Technical = d.Outputs, &d.Technical
	}
	for o, op := range p.Ops {
		if op.Waived {
			f.Waived = append(f.Waived, o)
		}
	}
	slices.Sort(f.Waived)
	if f.State != event.StateDone {
		f.Cases = p.Troubles(profiles)
	}
	return f
}

// writeBag makes the bag of a convergence, with PREMIS from a ledger that has
// read the convergence's own fact.
func (s *Service) writeBag(ctx context.Context, r batchRecord) error {
	scratch, err := os.MkdirTemp(s.State, "bag-")
	if err != nil {
		return fmt.Errorf("capture: bag: %w", err)
	}
	defer os.RemoveAll(scratch) //nolint:errcheck // of no further use
	ctx, cancel := context.WithTimeout(ctx, bagWait)
	defer cancel()
	names, err := s.fetchPremis(ctx, r, scratch)
	if err != nil {
		return fmt.Errorf("capture: bag: premis: %w", err)
	}
	res, err := bag.Write(ctx, bag.Request{
		Store: s.Store, Batch: string(r.Batch),
		Info:   bag.Info{Date: r.At, Convergence: r.Convergence, Agent: "colophon capture " + s.Version},
		Frames: s.bagEntries(r), Metadata: s.bagMetadata(r, scratch, names),
	})
	if err != nil {
		return fmt.Errorf("capture: bag: %w", err)
	}
	s.Log.Info("bag_written", slog.String("batch_id", r.Batch.Display()), slog.Int("convergence", r.Convergence), slog.Int64("files", res.Files), slog.Int64("bytes", res.Bytes))
	return nil
}

func (s *Service) fetchPremis(ctx context.Context, r batchRecord, scratch string) (names []string, err error) {
	err = transfer.Fetch(ctx, s.NC, event.EndpointPremisExport, event.ExportRequest{Kind: "premis", Batch: r.Batch, MinPosition: r.Sequence}, func(file string) (io.WriteCloser, error) {
		name := filepath.Base(file)
		names = append(names, name)
		return os.OpenFile(filepath.Join(scratch, name), os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o600)
	})
	return names, err
}

// bagEntries are the done frames, in order; a discarded one is not bagged.
func (s *Service) bagEntries(r batchRecord) iter.Seq2[bag.Entry, error] {
	return func(yield func(bag.Entry, error) bool) {
		for p, err := range s.view.frames(r.Batch, "") {
			if err == nil && p.State(r.Profiles) != event.StateDone {
				continue
			}
			e := bag.Entry{Frame: string(p.Frame)}
			if err == nil {
				e.Files = bagFiles(&p.Progress)
			}
			if !yield(e, err) || err != nil {
				return
			}
		}
	}
}

func bagFiles(p *event.Progress) []bag.File {
	files := []bag.File{{Key: p.Fixed.Master, Digest: storage.Digest(p.Digest), Size: p.Fixed.Size}}
	profiles := make([]string, 0, len(p.Derived))
	for name := range p.Derived {
		profiles = append(profiles, name)
	}
	slices.Sort(profiles)
	for _, name := range profiles {
		outputs := p.Derived[name].Outputs
		for _, o := range outputs {
			f := bag.File{Profile: name, Ext: filepath.Ext(o.Key), Key: o.Key, Digest: storage.Digest(o.Digest), Size: o.Size}
			if len(outputs) > 1 {
				f.Page = o.Key[strings.LastIndexByte(o.Key, '/')+1:]
			}
			files = append(files, f)
		}
	}
	return files
}

func (s *Service) bagMetadata(r batchRecord, scratch string, names []string) iter.Seq2[bag.TagFile, error] {
	return func(yield func(bag.TagFile, error) bool) {
		if !yield(bag.TagFile{Name: "manifest.json", Write: func(w io.Writer) error { return s.manifest(w, r) }}, nil) {
			return
		}
		for _, n := range names {
			copyFile := func(w io.Writer) error {
				f, err := os.Open(filepath.Join(scratch, n))
				if err != nil {
					return err
				}
				defer f.Close() //nolint:errcheck // only read
				_, err = io.Copy(w, f)
				return err
			}
			if !yield(bag.TagFile{Name: "premis/" + n, Write: copyFile}, nil) {
				return
			}
		}
	}
}
