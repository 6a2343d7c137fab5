package stage

import (
	"context"
	"hash/maphash"
	"log/slog"
	"slices"

	"colophon/shared/completed"
)

// healing gathers which facts a rolled-back log still holds while it is read
// again: 8 bytes a fact.
type healing struct {
	subjects []string
	seed     maphash.Seed
	seen     map[uint64]struct{}
}

func newHealing(subjects []string) *healing {
	return &healing{subjects, maphash.MakeSeed(), map[uint64]struct{}{}}
}

// saw notes a fact; on nil, when nothing is being healed, it does nothing.
func (h *healing) saw(id string) {
	if h != nil {
		h.seen[maphash.String(h.seed, id)] = struct{}{}
	}
}

func (h *healing) holds(f completed.Fact) bool {
	_, ok := h.seen[maphash.String(h.seed, f.ID)]
	return ok || !slices.Contains(h.subjects, f.Subject)
}

// heal publishes the facts that this service once published and the log lacks,
// under their own ids.
func (s *Stage[In, Out]) heal(ctx context.Context, lacks *healing) error {
	n := 0
	err := s.Completed.Facts(func(f completed.Fact) error {
		if lacks.holds(f) {
			return nil
		}
		n++
		return s.publish(ctx, f)
	})
	s.Log.Warn("log_healed", slog.String("consumer", s.Consumer), slog.Int("facts", n), slog.Any("error", err))
	return err
}
