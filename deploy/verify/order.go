package verify

import (
	"iter"

	"colophon/shared/event"
)

// ordered gives the frames of the batch at hand, one at a call, in the batch's
// order. stop must be called.
func (b *batch) ordered() (next func() (event.Name, bool, error), stop func()) {
	step, stop := iter.Pull2(b.mem.each(memOrder, ""))
	return func() (event.Name, bool, error) {
		p, err, ok := step()
		if !ok || err != nil {
			return "", false, err
		}
		return event.Name(p.value), true, nil
	}, stop
}

// frames gives the slots of the batch at hand in its order.
func (b *batch) frames() iter.Seq2[*event.Progress, error] {
	return func(yield func(*event.Progress, error) bool) {
		for p, err := range b.mem.each(memOrder, "") {
			var s *event.Progress
			if err == nil {
				s, err = b.slots.progress(event.Slot{Batch: b.name, Frame: event.Name(p.value)}.String())
			}
			if err == nil && s == nil {
				continue
			}
			if !yield(s, err) || err != nil {
				return
			}
		}
	}
}
