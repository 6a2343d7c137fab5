package verify

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"colophon/shared/event"
	"colophon/shared/topology"
)

// judgeLetters looks whether each dead letter that is still there has its
// case in the log, or its slot moved on meanwhile.
func (j *judge) judgeLetters(ctx context.Context) error {
	state, err := j.streamState(ctx, event.StreamDeadLetter)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		j.out.drift("letters-missing", event.StreamDeadLetter, "the broker has no such stream")
		return nil
	}
	if err != nil {
		return err
	}
	return j.read(ctx, event.StreamDeadLetter, state.LastSeq, func(m message) error {
		l, err := readLetter(m)
		if !j.chosen(l.slot.Batch) {
			return nil
		}
		if err != nil {
			j.out.drift("letter-unreadable", l.object, "it says nothing readable: %v", err)
		}
		j.out.checked.Letters++
		return j.letter(l, m.seq > j.limits.letters)
	})
}

// taken is how far quarantine has dealt with the dead letters.
func (j *judge) taken(ctx context.Context) (uint64, error) {
	c, err := j.JS.Consumer(ctx, event.StreamDeadLetter, topology.Quarantine)
	if errors.Is(err, jetstream.ErrConsumerNotFound) || errors.Is(err, jetstream.ErrStreamNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("consumer %s: %w", topology.Quarantine, err)
	}
	return c.CachedInfo().AckFloor.Stream, nil
}

// letter is a dead letter, as far as its case is named by it.
type letter struct {
	object    string
	caseID    string
	slot      event.Slot
	operation event.Operation
	pass      int
}

// readLetter reads a dead letter. One that says nothing readable is a case of
// its own all the same.
func readLetter(m message) (letter, error) {
	l := letter{object: fmt.Sprintf("DEADLETTER %d %s", m.seq, m.id)}
	batch, errBatch := event.DecodeName(m.header.Get(event.HeaderBatch))
	frame, errFrame := event.DecodeName(m.header.Get(event.HeaderFrame))
	p, errPass := strconv.Atoi(m.header.Get(event.HeaderPass))
	op, origin := event.Operation(m.header.Get(event.HeaderOperation)), m.header.Get(event.HeaderOrigin)
	err := errors.Join(errBatch, errFrame, errPass)
	if op == "" || origin == "" {
		err = errors.Join(err, errors.New("operation or origin is missing"))
	}
	if err != nil {
		service := strings.TrimPrefix(m.subject, event.SubjectDeadLetter+".")
		origin = fmt.Sprintf("%s-%d", event.StreamDeadLetter, m.seq)
		l.operation, l.pass = event.Decode(service), 1
		l.caseID = event.CaseID(l.operation, event.Slot{}, origin)
		return l, err
	}
	l.slot, l.operation, l.pass = event.Slot{Batch: batch, Frame: frame}, op, p
	l.caseID = event.CaseID(op, l.slot, origin)
	return l, nil
}

// letter judges one letter; fresh tells that quarantine has not acknowledged
// it yet.
func (j *judge) letter(l letter, fresh bool) error {
	if err := j.highest(memLetter, l.caseID, l.pass); err != nil {
		return err
	}
	var opened int
	if _, err := j.mem.getJSON(memCase, l.caseID, &opened); err != nil {
		return err
	}
	if opened >= max(l.pass, 1) {
		return nil
	}
	moved, err := j.movedOn(l)
	switch {
	case err != nil:
		return err
	case moved:
	case fresh:
		j.out.note("letter-fresh", l.object, "quarantine has not opened its case yet")
	default:
		j.out.damage("letter-without-case", l.object, "quarantine has acknowledged it, and the log has no case %s of pass %d", l.caseID, l.pass)
	}
	return nil
}

// movedOn reports whether the operation is complete, or in a later pass.
func (j *judge) movedOn(l letter) (bool, error) {
	p, err := j.slots.progress(l.slot.String())
	if err != nil || p == nil {
		return false, err
	}
	o := p.Ops[l.operation]
	return o != nil && (o.Done || o.Pass > l.pass), nil
}

// highest keeps the larger of two passes.
func (j *judge) highest(kind, key string, pass int) error {
	var was int
	if _, err := j.mem.getJSON(kind, key, &was); err != nil {
		return err
	}
	return j.mem.setJSON(kind, key, max(was, pass, 1))
}
