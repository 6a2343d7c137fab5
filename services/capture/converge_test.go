package capture

import (
	"fmt"
	"testing"
	"time"

	"colophon/shared/completed"
	"colophon/shared/event"
	"colophon/shared/testkit"
	"colophon/shared/topology"
)

// work makes the facts of one frame that goes down the line.
func work(n, revision int, content string) []event.Fact {
	w := event.Work{Schema: event.SchemaFrameCaptured, Slot: message(n).Slot, Sequence: n, Revision: revision, Digest: testkit.Digest(content), Pass: revision, Attempt: 1}
	captured := event.FrameCaptured{Work: w}
	w.Schema = event.SchemaFrameFixed
	fixed := event.FrameFixed{Work: w, Fixed: event.Fixed{StoredDigest: w.Digest}}
	w.Schema = event.SchemaDerivative
	return []event.Fact{captured, fixed, event.DerivativeMade{Work: w, Derived: event.Derived{Profile: "jp2"}}}
}

func declared1(number, count int) event.BatchFact {
	f := opened5(event.OrderSequence)
	f.Count, f.Number = count, number
	if number > 0 {
		f.State = "changed"
	}
	return f
}

func converged1(number int) event.BatchFact {
	f := declared1(0, 1)
	f.State, f.Number = "converged", number
	return f
}

// What a batch is said to be does not depend on where the commits of the view
// end: it is the same for every cut of these stories.
func TestConvergenceInAnyCommits(t *testing.T) {
	t.Parallel()
	type story []event.Fact
	tell := func(parts ...any) (out story) {
		for _, p := range parts {
			switch p := p.(type) {
			case []event.Fact:
				out = append(out, p...)
			case event.Fact:
				out = append(out, p)
			}
		}
		return out
	}
	for _, c := range []struct {
		what      string
		story     story
		converged bool
		number    int
	}{
		{"done, not told", tell(declared1(0, 1), work(1, 1, "x")), false, 0},
		{"done and told", tell(declared1(0, 1), work(1, 1, "x"), converged1(1)), true, 1},
		{"told twice", tell(declared1(0, 1), work(1, 1, "x"), converged1(1), converged1(1)), true, 1},
		{"a revision behind it", tell(declared1(0, 1), work(1, 1, "x"), converged1(1), work(1, 2, "y")[:1]), false, 1},
		{"a revision that is done", tell(declared1(0, 1), work(1, 1, "x"), converged1(1), work(1, 2, "y")), false, 1},
		{"and told again", tell(declared1(0, 1), work(1, 1, "x"), converged1(1), work(1, 2, "y"), converged1(2)), true, 2},
		{"an old word once more", tell(declared1(0, 1), work(1, 1, "x"), converged1(1), work(1, 2, "y"), converged1(1)), false, 1},
		{"a revision came between", tell(declared1(0, 1), work(1, 1, "x"), work(1, 2, "y")[:1], converged1(1), work(1, 2, "y")[1:]), false, 1},
		{"the count there and back", tell(declared1(0, 1), work(1, 1, "x"), converged1(1), declared1(1, 2), declared1(2, 1)), false, 1},
		{"the same count again", tell(declared1(0, 1), work(1, 1, "x"), converged1(1), declared1(1, 1)), true, 1},
		{"a hit", tell(declared1(0, 1), work(1, 1, "x"), converged1(1), work(1, 1, "x")), true, 1},
		{"a frame too many, and then declared", tell(declared1(0, 1), work(1, 1, "x"), converged1(1), work(2, 1, "x"), declared1(1, 2)), false, 1},
	} {
		for size := 1; size <= len(c.story); size++ {
			s := viewOnly(t)
			for n := 0; n < len(c.story); n += size {
				s.hearTogether(t, n, c.story[n:min(n+size, len(c.story))])
			}
			r, err := s.view.batch("b")
			testkit.OK(t, err)
			what := fmt.Sprintf("%s, %d at once", c.what, size)
			expect(t, what+": converged", r.Converged, c.converged)
			expect(t, what+": number", r.Convergence, c.number)
		}
	}
}

func (s *Service) hearTogether(t *testing.T, after int, facts []event.Fact) {
	t.Helper()
	var batch []topology.Message
	for i, f := range facts {
		pos := completed.Position{Sequence: uint64(after + i + 1), Stored: time.Unix(int64(after+i), 0).UTC()}
		batch = append(batch, topology.Message{Position: pos, Subject: f.Subject(), Data: testkit.JSON(t, f)})
	}
	testkit.OK(t, s.view.handle(event.StreamIngest, batch))
}

// A capture message that is read behind its facts is kept all the same, so
// that the slot can be sent again.
func TestAskedBehindTheFacts(t *testing.T) {
	t.Parallel()
	s := viewOnly(t)
	facts := work(1, 1, "x")
	w := facts[1].(event.FrameFixed).Work
	w.Schema = event.SchemaAttemptFailed
	s.hear(t, declared1(0, 1), facts[0], event.AttemptFailed{Work: w, Operation: event.Fixity, Decision: event.DecisionDeadLetter, Code: "digest-mismatch"})
	again := facts[0].(event.FrameCaptured)
	again.Pass = 2
	s.hear(t, again, message(1))
	a, ok, err := s.view.asked(message(1).Slot)
	testkit.OK(t, err)
	expect(t, "kept", ok && a.Pass == 1, true)
	other := message(1)
	other.Pass = 3
	s.hear(t, other, message(1))
	a, _, err = s.view.asked(message(1).Slot)
	testkit.OK(t, err)
	expect(t, "the newest is kept", a.Pass, 3)
}
