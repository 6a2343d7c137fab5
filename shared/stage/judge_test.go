package stage_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"colophon/shared/event"
	"colophon/shared/testkit"
)

// judge reads only the streams and what the worker did.
func (s *schedule) judge(repaired bool) {
	s.Helper()
	orders := map[string]testkit.Stored{} // by origin
	for _, m := range s.facts(event.SubjectFrameFixed) {
		orders[fmt.Sprint("INGEST-", m.Sequence)] = m
	}
	made := s.judgeMade()
	dead := s.judgeLetters(orders)
	ends := s.judgeAttempts()
	for _, l := range s.letters() {
		id := strings.Replace(l.ID(), "dead:", "attempt:", 1)
		if pass := id[:strings.LastIndex(id, ".INGEST-")]; !ends[pass] {
			s.Errorf("%s: no attempt says so", l.ID())
		}
	}
	for origin, m := range orders { // KEPT: done, or its own dead letter
		slot := m.Fact(s).(event.FrameFixed).Slot
		if made[slot] == 0 && !dead[origin] && !s.forgotten[origin] {
			s.Errorf("%s (%s) is neither done nor dead", slot, origin)
		}
		if repaired && made[slot] == 0 { // REPAIR
			s.Errorf("%s was sent again after the repair and is not done", slot)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for d, n := range s.done { // ONCE, but for work that a crash did not let tell
		if n > 1+s.crashes {
			s.Errorf("%s was worked %d times in %d crashes", d, n, s.crashes)
		}
	}
}

func (s *schedule) judgeMade() map[event.Slot]int {
	made, outputs := map[event.Slot]int{}, map[string]string{}
	for _, m := range s.made() {
		f := m.Fact(s).(event.DerivativeMade)
		if m.ID() != f.MsgID() {
			s.Errorf("%s is stored as %s", f.MsgID(), m.ID())
		}
		said := fmt.Sprint(f.Derived.Outputs)
		if before, ok := outputs[m.ID()]; ok && before != said {
			s.Errorf("%s says %s and %s", m.ID(), before, said)
		}
		outputs[m.ID()] = said
		made[f.Slot]++
		s.some.count(map[bool]string{true: "hit", false: "made"}[f.Hit])
	}
	return made
}

func (s *schedule) judgeLetters(orders map[string]testkit.Stored) map[string]bool {
	dead, ids := map[string]bool{}, map[string]string{}
	for _, l := range s.letters() {
		origin := l.Header.Get(event.HeaderOrigin)
		if string(l.Data) != string(orders[origin].Data) {
			s.Errorf("the letter of %s has another payload", origin)
		}
		if other, ok := ids[origin]; ok && other != l.ID() {
			s.Errorf("%s has two letters: %s and %s", origin, other, l.ID())
		}
		ids[origin], dead[origin] = l.ID(), true
		s.some.count("letter " + l.Header.Get(event.HeaderCode))
		if l.Header.Get(event.HeaderPass) != "1" {
			s.some.count("letter of a later pass")
		}
	}
	return dead
}

// judgeAttempts: numbers from 1 without gaps in each pass of a slot, the
// policy's limit kept, nothing behind a pass's end, one body for one id.
func (s *schedule) judgeAttempts() (ended map[string]bool) {
	bodies, last := map[string]string{}, map[string]int{}
	ended = map[string]bool{}
	for _, m := range s.facts(event.SubjectAttemptFailed) {
		if before, ok := bodies[m.ID()]; ok {
			if before != string(m.Data) {
				s.Errorf("%s says\n%s\nand\n%s", m.ID(), before, m.Data)
			}
			continue // told again past the window
		}
		bodies[m.ID()] = string(m.Data)
		f := m.Fact(s).(event.AttemptFailed)
		pass := strings.TrimSuffix(m.ID(), fmt.Sprint(".", f.Attempt))
		if f.Attempt != last[pass]+1 || ended[pass] || f.Attempt > f.Limit {
			s.Errorf("%s follows %d (ended: %v, limit %d)", m.ID(), last[pass], ended[pass], f.Limit)
		}
		last[pass], ended[pass] = f.Attempt, f.Decision == event.DecisionDeadLetter
		if f.Code == "timeout" && ended[pass] != (f.Attempt == f.Limit) {
			s.Errorf("%s: %s at %d of %d", m.ID(), f.Decision, f.Attempt, f.Limit)
		}
		s.some.count("failed " + f.Code)
	}
	return ended
}

// sometimes counts what the schedules brought about: a run in which one of
// them never happened has tested less than it seems.
type sometimes struct {
	mu sync.Mutex
	n  map[string]int
}

func (s *sometimes) count(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.n == nil {
		s.n = map[string]int{}
	}
	s.n[what]++
}

func (s *sometimes) judge(t *testing.T, schedules int) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	t.Logf("%d schedules: %v", schedules, s.n)
	for what, among := range map[string]int{ // in so many it happens ten times and more
		"made": 60, "hit": 60, "power cut": 60, "lost disk": 60, "letter truncated": 60, "letter timeout": 60, "failed worker-lost": 60, "failed timeout": 60,
		"parked over a crash": 60, "letter of a later pass": 120,
	} {
		if s.n[what] == 0 && schedules >= among {
			t.Errorf("in %d schedules there was never: %s", schedules, what)
		}
	}
}
