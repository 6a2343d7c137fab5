package capture

import (
	"fmt"
	"path/filepath"

	"colophon/shared/event"
)

// Reader looks at the batch view of a service that is not running. It changes
// nothing. The view may be a moment behind the log, never ahead of it.
type Reader struct{ view *view }

// OpenReader opens the view in a service's state folder.
func OpenReader(state string) (*Reader, error) {
	v, err := openViewReadOnly(filepath.Join(state, "view"))
	if err != nil {
		return nil, err
	}
	return &Reader{v}, nil
}

// Close releases the view.
func (r *Reader) Close() error { return r.view.close() }

// Status is the batch as the view has it.
func (r *Reader) Status(b event.Name) (event.BatchStatus, error) { return r.view.status(b) }

// Frames goes through a batch's frames in order.
func (r *Reader) Frames(b event.Name, undone bool, each func(event.FrameStatus) error) error {
	rec, err := r.view.batch(b)
	if err != nil {
		return err
	}
	for p, err := range r.view.frames(b, "") {
		if err != nil {
			return fmt.Errorf("capture: frames: %w", err)
		}
		f, err := r.view.frameStatus(&p.Progress, rec.Profiles)
		if err != nil {
			return err
		}
		if undone && f.State == event.StateDone {
			continue
		}
		if err := each(f); err != nil {
			return err
		}
	}
	return nil
}

// Batches lists the batches known.
func (r *Reader) Batches() (event.BatchList, error) { return r.view.list("", nil) }
