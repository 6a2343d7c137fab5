package verify

import (
	"strconv"
	"time"

	"colophon/shared/event"
	"colophon/shared/schema"
)

// slots replays the log into the progress of every slot, by the function the
// batch view itself is defined by ([event.Progress]).
type slots struct {
	mem     *scratch
	hot     map[event.Slot]*tracked // since the last flush
	batches map[event.Name]*batchState
}

// tracked is a slot in memory.
type tracked struct {
	*event.Progress
	counted bool // in its batch's totals
}

// batchState is what the log says of a batch as a whole.
type batchState struct {
	event.BatchFact           // the declaration that stands
	Known           bool      `json:"known"`
	Declarations    int       `json:"declarations"` // number of the next one
	Convergence     int       `json:"convergence"`  // number of the last one, 0: none
	Seq             uint64    `json:"seq"`          // of its fact
	At              time.Time `json:"converged_at"` // when it was stored
	// Holds tells that nothing has undone the last convergence since: a
	// revision that was accepted, a case about other bytes, a corrected count.
	Holds  bool         `json:"holds"`
	Counts event.Totals `json:"counts"` // of the states, at this point of the log
}

// hotSlots and hotBatches bound what is held in memory, a few MB.
const (
	hotSlots   = 2000
	hotBatches = 500
)

func (s *slots) slot(at event.Slot) (*tracked, error) {
	if t := s.hot[at]; t != nil {
		return t, nil
	}
	if len(s.hot) >= hotSlots {
		if err := s.flush(); err != nil {
			return nil, err
		}
	}
	t := &tracked{Progress: &event.Progress{Slot: at}}
	var err error
	if t.counted, err = s.mem.getJSON(memSlot, at.String(), t.Progress); err != nil {
		return nil, err
	}
	if s.hot == nil {
		s.hot = map[event.Slot]*tracked{}
	}
	s.hot[at] = t
	return t, nil
}

func (s *slots) batch(b event.Name) (*batchState, error) {
	if r := s.batches[b]; r != nil {
		return r, nil
	}
	if len(s.batches) >= hotBatches {
		if err := s.flush(); err != nil {
			return nil, err
		}
	}
	r := &batchState{BatchFact: event.BatchFact{Batch: b}}
	if _, err := s.mem.getJSON(memBatch, b.Encode(), r); err != nil {
		return nil, err
	}
	if s.batches == nil {
		s.batches = map[event.Name]*batchState{}
	}
	s.batches[b] = r
	return r, nil
}

// flush moves what is held in memory to the scratch database.
func (s *slots) flush() error {
	for at, t := range s.hot {
		if err := s.mem.setJSON(memSlot, at.String(), t.Progress); err != nil {
			return err
		}
	}
	for b, r := range s.batches {
		if err := s.mem.setJSON(memBatch, b.Encode(), r); err != nil {
			return err
		}
	}
	clear(s.hot)
	clear(s.batches)
	return nil
}

// asked applies a capture message. One that nobody can read asks for nothing.
func (s *slots) asked(m message) error {
	var f event.FrameMessage
	if event.Unmarshal(m.data, &f) != nil || f.Validate() != nil || schema.Check(m.subject, m.data) != nil {
		return nil
	}
	if _, _, batch, err := event.ParseCaptureSubject(m.subject); err != nil || batch != f.Batch {
		return nil
	}
	pass, err := event.PassOf(m.header.Get(event.HeaderPass), f.Pass)
	if err != nil {
		return nil
	}
	return s.move(f.Slot, func(p *event.Progress) { p.Request(f, pass, m.seq) })
}

// fact applies a fact of the log.
func (s *slots) fact(f event.Fact, m message) error {
	if b, ok := f.(event.BatchFact); ok {
		return s.declared(b, m)
	}
	at, ok := slotOf(f)
	if !ok {
		return nil
	}
	pass, err := strconv.Atoi(m.header.Get(event.HeaderPass))
	if err != nil || pass < 1 {
		pass = 0
	}
	return s.move(at, func(p *event.Progress) { p.Apply(f, m.seq, pass) })
}

// move changes a slot, and its batch's counts with it.
func (s *slots) move(at event.Slot, change func(*event.Progress)) error {
	t, err := s.slot(at)
	if err != nil {
		return err
	}
	b, err := s.batch(at.Batch)
	if err != nil {
		return err
	}
	if t.counted {
		b.Counts.Count(t.State(b.Profiles), -1)
	}
	change(t.Progress)
	t.counted = true
	b.Counts.Count(t.State(b.Profiles), 1)
	s.hot[at] = t // flushed, perhaps, to make room for the batch
	b.weigh()
	return nil
}

// weigh looks whether the last convergence still holds.
func (b *batchState) weigh() {
	b.Counts.Declare(b.Count)
	b.Holds = b.Holds && b.Counts.Converged()
}

func slotOf(f event.Fact) (event.Slot, bool) {
	if w, ok := event.WorkOf(f); ok {
		return w.Slot, w.Batch != "" && w.Frame != ""
	}
	if c, ok := f.(event.CaseFact); ok {
		return c.Slot, c.Batch != "" && c.Frame != ""
	}
	return event.Slot{}, false
}

func (s *slots) declared(f event.BatchFact, m message) error {
	b, err := s.batch(f.Batch)
	if err != nil {
		return err
	}
	switch {
	case f.State == "converged":
		if f.Number > b.Convergence {
			b.Convergence, b.Seq, b.At = f.Number, m.seq, m.stored
			b.Holds = b.Counts.Converged() // what undid it may stand before it
		}
	case !b.Known || f.Number >= b.Number:
		b.BatchFact, b.Known = f, true
		b.Declarations = f.Number + 1
		return s.recount(b)
	}
	return nil
}

// recount counts a batch's slots anew: their states follow its profiles.
func (s *slots) recount(b *batchState) error {
	if err := s.flush(); err != nil {
		return err
	}
	b.Counts = event.Totals{}
	for e, err := range s.mem.each(memSlot, b.Batch.Encode()+"/") {
		if err != nil {
			return err
		}
		p, err := readProgress(e)
		if err != nil {
			return err
		}
		b.Counts.Count(p.State(b.Profiles), 1)
	}
	b.weigh()
	s.batches[b.Batch] = b // flushed above, as it was
	return nil
}

// progress reads a slot as the whole log leaves it; nil where there is none.
func (s *slots) progress(at string) (*event.Progress, error) {
	p := new(event.Progress)
	known, err := s.mem.getJSON(memSlot, at, p)
	if err != nil || !known {
		return nil, err
	}
	return p, nil
}
