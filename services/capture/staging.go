package capture

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"

	"colophon/shared/event"
	"colophon/shared/storage"
)

// stagedBytes lists the staged files of a batch by the frame they are of, as
// their names spell it.
func (s *Service) stagedBytes(ctx context.Context, b event.Name) (map[string][]string, error) {
	out := map[string][]string{}
	for e, err := range s.Store.List(ctx, storage.StagingFolder(string(b))) {
		if err != nil {
			return nil, err
		}
		frame, _ := stagedName(e.Key)
		out[frame] = append(out[frame], e.Key)
	}
	return out, nil
}

// stagedName takes a staging key apart: <frame>.r<revision>.<digest>. An
// encoded frame holds no dot.
func stagedName(key string) (frame string, revision int) {
	parts := strings.SplitN(key[strings.LastIndexByte(key, '/')+1:], ".", 3)
	if len(parts) < 3 {
		return "", 0
	}
	revision, _ = strconv.Atoi(strings.TrimPrefix(parts[1], "r"))
	return parts[0], revision
}

func stagedFrame(f event.Name) string {
	frame, _ := stagedName(storage.StagingName(string(f), 1, ""))
	return frame
}

// unstage removes the staged bytes that nobody needs any more. Decisions let go
// those of a discarded slot, and the other bytes that came for a done one; not
// those of the revision that stands. A revision that is fixed lets go those
// before it, and not earlier: hasher may still be reading them. Masters are
// never removed.
func (s *Service) unstage(ctx context.Context) error {
	decided := func(p *event.Progress, key string, _ int) bool {
		return p.Discarded || p.Captured == nil || key != p.Captured.Staging
	}
	superseded := func(p *event.Progress, _ string, revision int) bool { return p.Fixed != nil && revision < p.Revision }
	return errors.Join(s.unstageMarked(ctx, viewUnstage, decided), s.unstageMarked(ctx, viewOld, superseded))
}

func (s *Service) unstageMarked(ctx context.Context, list string, goes func(p *event.Progress, key string, revision int) bool) error {
	slots, err := s.view.marked(list)
	if err != nil {
		return err
	}
	batches := map[event.Name]map[string][]string{}
	var errs []error
	for _, slot := range slots {
		if batches[slot.Batch] == nil {
			if batches[slot.Batch], err = s.stagedBytes(ctx, slot.Batch); err != nil {
				return err
			}
		}
		p, _, err := s.view.slot(slot)
		if err != nil {
			return err
		}
		err = nil
		for _, key := range batches[slot.Batch][stagedFrame(slot.Frame)] {
			if _, revision := stagedName(key); goes(&p, key, revision) {
				err = errors.Join(err, s.Store.Remove(key))
				s.Log.Info("unstaged", slog.String("batch_id", slot.Batch.Display()), slog.String("frame_id", slot.Frame.Display()), slog.Int("revision", revision))
			}
		}
		if err == nil {
			err = s.view.unmark(list, slot)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// sweep removes what is left in staging of a converged batch: bytes of done
// slots whose hasher ended before it tidied up, and of discarded ones. A slot's
// next revision, on its way in, is left alone. Whoever still asks for the bytes
// of a done slot finds the master.
func (s *Service) sweep(ctx context.Context, l look, r batchRecord) error {
	left, err := s.stagedBytes(ctx, r.Batch)
	if err != nil {
		return fmt.Errorf("capture: sweep: %w", err)
	}
	if len(left) == 0 {
		return nil
	}
	for p, err := range l.frames(r.Batch, "") {
		if err != nil {
			return fmt.Errorf("capture: sweep: %w", err)
		}
		for _, key := range left[stagedFrame(p.Frame)] {
			if _, revision := stagedName(key); !p.Discarded && revision > p.Revision {
				continue
			}
			if err := s.Store.Remove(key); err != nil {
				return fmt.Errorf("capture: sweep: %w", err)
			}
		}
	}
	return nil
}
