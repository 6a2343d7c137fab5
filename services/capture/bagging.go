package capture

import (
	"context"
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
	"colophon/shared/storage"
	"colophon/shared/transfer"
)

const (
	bagScratch = "bag-"           // begins the names of the folders below State
	premisWait = 30 * time.Minute // for the ledger to catch up and export
	premisIdle = 2 * time.Minute  // without a word from it
)

// errMoved: the batch is not what its bag was to be made of any more. Its next
// convergence has a bag again.
var errMoved = errors.New("the batch moved on")

// bag makes the bag of a convergence, and notes it or why there is none yet.
// t.bagAt and t.bagFail are its own until it has ended.
func (k *keeper) bag(ctx context.Context, r batchRecord, t *task) {
	select {
	case k.places <- struct{}{}:
	case <-ctx.Done():
		return
	}
	err := k.writeBag(ctx, r)
	<-k.places
	if ctx.Err() != nil {
		return
	}
	noted := k.view.note(r.Batch, func(m *made) {
		switch {
		case err == nil:
			m.Bag, m.Problem = r.Convergence, ""
		case !errors.Is(err, errMoved):
			m.Problem = fault.Clean(err.Error())
		}
	})
	if err = errors.Join(err, noted); err == nil || errors.Is(err, errMoved) {
		t.bagFail = 0
	} else {
		t.bagAt = time.Now().Add(backOff(&t.bagFail))
		k.Log.Error("bag_failed", slog.String("batch_id", r.Batch.Display()), slog.Int("convergence", r.Convergence), slog.Any("error", err))
	}
	select {
	case k.ended <- r.Batch:
	case <-ctx.Done():
	}
}

// writeBag makes the bag from one state of the view, with PREMIS from a ledger
// that has read the convergence's own fact.
func (s *Service) writeBag(ctx context.Context, r batchRecord) error {
	if r.Totals.Done == 0 {
		s.Log.Warn("bag_without_frames", slog.String("batch_id", r.Batch.Display()), slog.Int("convergence", r.Convergence))
		return nil // all discarded: there is nothing to put into one
	}
	scratch, err := os.MkdirTemp(s.State, bagScratch)
	if err != nil {
		return fmt.Errorf("capture: bag: %w", err)
	}
	defer os.RemoveAll(scratch) //nolint:errcheck // of no further use; swept at start
	names, err := s.fetchPremis(ctx, r, scratch)
	if err != nil {
		return fmt.Errorf("capture: bag: premis: %w", err)
	}
	l, release := s.view.snapshot()
	defer release()
	now, err := l.batch(r.Batch)
	if err != nil {
		return err
	}
	if !now.Converged || now.Convergence != r.Convergence {
		return errMoved
	}
	res, err := bag.Write(ctx, bag.Request{
		Store: s.Store, Batch: string(r.Batch),
		Info:   bag.Info{Date: now.At, Convergence: now.Convergence, Agent: "colophon capture " + s.Version},
		Frames: bagEntries(l, now), Metadata: bagMetadata(l, now, scratch, names),
	})
	if err != nil {
		return fmt.Errorf("capture: bag: %w", err)
	}
	s.Log.Info("bag_written", slog.String("batch_id", r.Batch.Display()), slog.Int("convergence", r.Convergence), slog.Int64("files", res.Files), slog.Int64("bytes", res.Bytes))
	return nil
}

// fetchPremis asks the ledger, and gives up on one that falls silent.
func (s *Service) fetchPremis(ctx context.Context, r batchRecord, scratch string) (names []string, err error) {
	ctx, end := context.WithTimeout(ctx, premisWait)
	defer end()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silent := time.AfterFunc(premisIdle, func() { cancel(fmt.Errorf("the ledger is silent for %v", premisIdle)) })
	defer silent.Stop()
	err = transfer.Fetch(ctx, s.NC, event.EndpointPremisExport, event.ExportRequest{Kind: "premis", Batch: r.Batch, MinPosition: r.Sequence}, func(file string) (io.WriteCloser, error) {
		name := filepath.Base(file)
		names = append(names, name)
		f, err := os.OpenFile(filepath.Join(scratch, name), os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o600)
		return spoken{f, silent}, err
	})
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return names, err
}

// spoken is a file that the ledger sends: each part of it is a word.
type spoken struct {
	*os.File
	silent *time.Timer
}

func (s spoken) Write(p []byte) (int, error) {
	s.silent.Reset(premisIdle)
	return s.File.Write(p)
}

// bagEntries are the done frames, in order; a discarded one is not bagged.
func bagEntries(l look, r batchRecord) iter.Seq2[bag.Entry, error] {
	return func(yield func(bag.Entry, error) bool) {
		for p, err := range l.frames(r.Batch, "") {
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
	for _, name := range profilesOf(p) {
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

// profilesOf lists the profiles that a slot has derivatives of, sorted.
func profilesOf(p *event.Progress) []string {
	profiles := make([]string, 0, len(p.Derived))
	for name := range p.Derived {
		profiles = append(profiles, name)
	}
	slices.Sort(profiles)
	return profiles
}

func bagMetadata(l look, r batchRecord, scratch string, names []string) iter.Seq2[bag.TagFile, error] {
	return func(yield func(bag.TagFile, error) bool) {
		if !yield(bag.TagFile{Name: "manifest.json", Write: func(w io.Writer) error { return writeManifest(w, l, r) }}, nil) {
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
