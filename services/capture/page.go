package capture

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"colophon/shared/event"
)

// Bounds of a page. It stays below the broker's message limit of 1 MiB, and
// what is looked through for it is bounded too: a page may have few entries, or
// none, and still a next one.
const (
	maxEntries = 1000
	maxReply   = 700 << 10 // bytes, before the entry that reaches it
	maxLooked  = 5000
)

// page fills up with entries.
type page struct {
	limit, entries, bytes, looked int
}

func newPage(limit int) *page {
	if limit <= 0 || limit > maxEntries {
		limit = maxEntries
	}
	return &page{limit: limit}
}

// add counts an entry by its size on the wire.
func (p *page) add(entry any) error {
	data, err := json.Marshal(entry)
	p.entries++
	p.bytes += len(data) + 1
	return err
}

func (p *page) full() bool {
	p.looked++
	return p.entries >= p.limit || p.bytes >= maxReply || p.looked >= maxLooked
}

// cursorOf says where a page ended, and in which order of the batch.
func cursorOf(order, at string) string {
	return base64.RawURLEncoding.EncodeToString([]byte(order + "\x00" + at))
}

func readCursor(cursor, order string) (string, error) {
	if cursor == "" {
		return "", nil
	}
	data, err := base64.RawURLEncoding.DecodeString(cursor)
	if err != nil {
		return "", badRequest{fmt.Errorf("/after: %w", err)}
	}
	in, at, ok := strings.Cut(string(data), "\x00")
	switch {
	case !ok:
		return "", badRequest{errors.New("/after: not a cursor")}
	case in != order:
		return "", badRequest{fmt.Errorf("/after: the order of the batch was %q and is %q now: begin anew", in, order)}
	}
	return at, nil
}

// pageOfFrames gives the next frames of a batch. A frame whose place does not
// change comes once, whatever happens to the others between two pages.
func (s *Service) pageOfFrames(_ context.Context, in event.BatchRequest) (event.BatchFrames, error) {
	out := event.BatchFrames{Frames: []event.FrameStatus{}}
	l, release := s.view.snapshot()
	defer release()
	r, err := l.batch(in.Batch)
	if err != nil {
		return out, err
	}
	after, err := readCursor(in.After, r.Order)
	if err != nil {
		return out, err
	}
	p := newPage(in.Limit)
	for at, err := range l.frames(in.Batch, after) {
		if err != nil {
			return out, err
		}
		f, err := l.frameStatus(&at.Progress, r.Profiles)
		if err != nil {
			return out, err
		}
		if !in.Undone || f.State != event.StateDone {
			out.Frames = append(out.Frames, f)
			if err := p.add(f); err != nil {
				return out, err
			}
		}
		if p.full() {
			out.Next = cursorOf(r.Order, at.cursor)
			break
		}
	}
	return out, nil
}

func frameStatus(p *event.Progress, profiles []string) event.FrameStatus {
	f := event.FrameStatus{
		Frame: p.Frame, Sequence: p.Sequence, State: p.State(profiles), Pass: max(p.Pass(), 1), Ended: p.Ended, Revision: p.Revision, Digest: p.Digest, Pinned: p.Pinned, Effect: p.Effect,
	}
	if p.Captured != nil {
		f.Source, f.Stat = p.Captured.Source, p.Captured.Stat
	}
	if f.State != event.StateDone {
		f.Troubles = p.Troubles(profiles)
	}
	if f.State == event.StatePending {
		f.Stage = p.Stage(profiles)
	}
	return f
}

// frameStatus is the status of a frame with what only the view's other records know of it.
func (l look) frameStatus(p *event.Progress, profiles []string) (event.FrameStatus, error) {
	f := frameStatus(p, profiles)
	var err, lost error
	f.Rescan, err = l.rescanStatus(p)
	if f.State == event.StatePending {
		var m *resent
		if m, lost = l.sentAgain(p.Slot); m != nil && m.Pass == p.Pass() {
			f.Stuck = &event.StuckStatus{Operation: m.Operation, Since: m.At, Problem: m.Problem}
		}
	}
	return f, errors.Join(err, lost)
}

// list gives the next batches, by their encoded names.
func (s *Service) list(_ context.Context, in event.BatchRequest) (event.BatchList, error) {
	l, release := s.view.snapshot()
	defer release()
	after, err := readCursor(in.After, "batches")
	if err != nil {
		return event.BatchList{}, err
	}
	return l.list(after, newPage(in.Limit))
}

func (l look) list(after string, p *page) (event.BatchList, error) {
	out := event.BatchList{Batches: []event.BatchStatus{}}
	for r, err := range l.batches(after) {
		if err != nil {
			return out, err
		}
		st, err := l.statusOf(r)
		if err != nil {
			return out, err
		}
		out.Batches = append(out.Batches, st)
		if p == nil {
			continue
		}
		if err := p.add(st); err != nil {
			return out, err
		}
		if p.full() {
			out.Next = cursorOf("batches", r.Batch.Encode())
			break
		}
	}
	return out, nil
}
