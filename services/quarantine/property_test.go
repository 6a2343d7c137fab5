package quarantine

import (
	"encoding/json"
	"fmt"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	"colophon/shared/event"
)

// modelled is a slot's derivative as the model knows it.
type modelled struct {
	slot      event.Slot
	done      bool
	dead      int  // highest pass with a dead letter
	pass      int  // highest pass that a fact spoke of
	sent      int  // highest pass that a replay was published for
	discarded bool // since the last dead letter
}

// open is what the models of the design demand: KEPT and CLOSED in one.
func (m *modelled) open() bool {
	return m.dead > 0 && !m.done && !m.discarded && m.pass <= m.dead && m.sent <= m.dead
}

// schedule drives one quarantine and the model with the same steps.
type schedule struct {
	w     *world
	t     *rapid.T
	q     *instance
	state string
	slots []*modelled
	n     uint64
}

func (s *schedule) step(what int, m *modelled) string {
	switch what {
	case 0, 1, 9: // a message fails, under one more than the highest dead pass or the pass that was sent
		pass := max(m.dead+1, m.sent, m.pass)
		s.n++
		s.w.fail(m.slot, digest(1), pass, s.n)
		m.dead, m.pass, m.discarded = pass, max(m.pass, pass), false
		return "fail"
	case 2, 10: // the work of any pass completes
		pass := max(m.dead, m.sent, 1)
		s.w.fact(derived(m.slot, digest(1), 1, pass))
		m.done, m.pass = true, max(m.pass, pass)
		return "complete"
	case 3: // a later pass begins, by a raw replay or a re-run
		f := attempt(jp2, m.slot, digest(1), 1, max(m.dead, m.pass)+1)
		f.Decision = event.DecisionRetry
		s.w.fact(f)
		m.pass = f.Pass
		return "later pass"
	case 4, 11: // an operator replays, whatever the state
		open := m.open()
		s.decide("quarantine.replay", m, open)
		if open {
			m.sent = m.dead + 1
		}
		return "replay"
	case 5:
		open := m.open()
		s.decide("quarantine.discard", m, open)
		m.discarded = m.discarded || open
		return "discard"
	case 12: // an operator asks for a rescan, which leaves the case open for others
		s.decide("quarantine.rescan", m, m.open())
		return "rescan"
	case 6: // restarted on its store
		s.q.end()
		s.q = s.w.run(s.state)
		return "restart"
	case 7: // restarted on an empty one
		s.q.end()
		s.state = s.state + "x"
		s.q = s.w.run(s.state)
		return "lost disk"
	case 8: // the last dead letter comes again
		if m.dead > 0 {
			s.w.dead(dead{op: jp2, slot: m.slot, digest: digest(1), revision: 1, pass: m.dead, origin: fixed(m.slot, digest(1), 1, 1), n: s.n + 1000})
		}
		return "letter again"
	}
	return ""
}

func (s *schedule) decide(subject string, m *modelled, eligible bool) {
	if m.dead == 0 {
		return
	}
	s.w.quiet(s.q)
	d := get[event.CaseDecision](s.w, subject, event.CaseRequest{ID: caseOf(m.slot), Actor: "ann", Note: "n"})
	if got := d.Eligible == 1; got != eligible {
		s.t.Fatalf("%s of %v: %+v, the model says %v", subject, m.slot, d, eligible)
	}
}

func (s *schedule) check() {
	s.w.quiet(s.q)
	for _, m := range s.slots {
		c, found, err := s.q.store.Case(caseOf(m.slot))
		ok(s.w.t, err)
		if found != (m.dead > 0) || c.Open() != m.open() || m.done && found && !c.Settled() {
			s.t.Fatalf("case %+v, but the model says %+v, open %v", c.CaseFact, *m, m.open())
		}
	}
}

// once checks that the log holds each change of each case once, and the store
// the last of them.
func (w *world) once(q *instance) {
	w.t.Helper()
	last := map[string]int{}
	for _, m := range w.messages(event.StreamIngest, event.SubjectCase+".>") {
		var f event.CaseFact
		ok(w.t, json.Unmarshal(m.Data, &f))
		if last[f.ID]++; f.Number != last[f.ID] {
			w.t.Fatalf("change %d of %s comes as %s.%d", last[f.ID], f.ID, f.State, f.Number)
		}
	}
	for id, n := range last {
		c, _, err := q.store.Case(id)
		ok(w.t, err)
		same(w.t, id, c.Number, n)
	}
}

// TestEveryInterleaving runs random schedules of failures, completions, later
// passes, decisions, restarts and lost disks against the model. One broker
// serves all of them, so later ones also read a long log.
func TestEveryInterleaving(t *testing.T) {
	t.Parallel()
	w, state := newWorld(t), t.TempDir()
	q := w.run(state)
	var round atomic.Int64
	rapid.Check(t, func(rt *rapid.T) {
		batch := fmt.Sprintf("b%d", round.Add(1))
		s := &schedule{w: w, t: rt, q: q, state: state, slots: []*modelled{{slot: slotOf(batch, "1")}, {slot: slotOf(batch, "2")}}}
		defer func() { q, state = s.q, s.state }()
		if rapid.Bool().Draw(rt, "devices") { // then failures ask for a rescan by themselves, twice at most
			f := event.BatchFact{Schema: event.SchemaBatch, Batch: event.Name(batch), State: "opened", Devices: []string{"one"}, Policy: []byte(`{"max_attempts":3}`)}
			w.fact(f)
		}
		for range rapid.IntRange(1, 10).Draw(rt, "steps") {
			m := s.slots[rapid.IntRange(0, 1).Draw(rt, "slot")]
			rt.Log(s.step(rapid.IntRange(0, 12).Draw(rt, "step"), m), m.slot)
			if rapid.IntRange(0, 2).Draw(rt, "quiet") == 0 {
				s.check()
			}
		}
		s.check()
	})
	w.once(q)
	q.end()
}
