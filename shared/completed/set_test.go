package completed_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"colophon/shared/completed"
	"colophon/shared/testkit"
)

func done(n int) completed.Completion {
	key := fmt.Sprintf("fixity:%d", n)
	return completed.Completion{
		Tokens: []string{key, key + "@twin"}, Result: []byte(fmt.Sprintf(`{"n":%d}`, n)),
		Fact:    completed.Fact{ID: key + "#1", Subject: "ingest.frame.fixed", Data: []byte("body\x00with a NUL")},
		Attempt: completed.Ended{Key: key, Attempt: completed.Attempt{Number: 1, State: completed.AttemptDone}},
	}
}

// whole checks that a completion is there with all its parts, or not at all.
func whole(t *testing.T, s *completed.Set, n int) bool {
	t.Helper()
	c := done(n)
	parts := 0
	for _, token := range c.Tokens {
		if r, ok, err := s.Result(token); err != nil {
			t.Fatal(err)
		} else if ok && string(r) == string(c.Result) {
			parts++
		}
	}
	if ok := testkit.Must(s.HasFact(c.Fact.ID))(t); ok {
		parts++
	}
	if a := testkit.Must(s.Attempt(c.Attempt.Key))(t); a.State == completed.AttemptDone {
		parts++
	}
	if parts != 0 && parts != 4 {
		t.Fatalf("completion %d is torn: %d of 4 parts", n, parts)
	}
	return parts == 4
}

func TestRecordAndResult(t *testing.T) {
	t.Parallel()
	d := testkit.NewDisk(t)
	defer d.Close()
	if whole(t, d.Set, 1) {
		t.Fatal("an empty set knows it")
	}
	testkit.OK(t, d.Set.Record(done(1)))
	d.Reopen()
	if !whole(t, d.Set, 1) || whole(t, d.Set, 2) {
		t.Fatal("not what was recorded")
	}
	var facts []completed.Fact
	testkit.OK(t, d.Set.Facts(func(f completed.Fact) error {
		facts = append(facts, f)
		return nil
	}))
	if want := done(1).Fact; len(facts) != 1 || facts[0].ID != want.ID || facts[0].Subject != want.Subject || string(facts[0].Data) != string(want.Data) {
		t.Fatalf("facts: %q", facts)
	}
}

// TestPowerCuts cuts the power at every commit of a run: what a synced call
// acknowledged is there, nothing is torn, whatever else the disk kept.
func TestPowerCuts(t *testing.T) {
	t.Parallel()
	const commits = 24
	for seed := range uint64(testkit.Scale(8, 800)) {
		rng := rand.New(rand.NewPCG(seed, 7))
		d := testkit.NewDisk(t)
		learned := 0
		for n := 1; n <= commits; n++ {
			switch n % 4 {
			case 0:
				testkit.OK(t, d.Set.Learn("own", []completed.Completion{done(1000 + n)}, nil, completed.Position{Sequence: uint64(n)}))
				learned = n
			case 1:
				testkit.OK(t, d.Set.SetAttempt("a", completed.Attempt{Number: n, State: completed.AttemptBegun}))
			case 2:
				testkit.OK(t, d.Set.SetDead(completed.Dead{Origin: completed.Origin{Name: fmt.Sprint("S-", n)}, Operations: []string{"fixity"}, Slot: "b/1", Pass: n}))
			default:
				testkit.OK(t, d.Set.Record(done(n)))
			}
			after := d.Cut(rng)
			checkCut(t, after.Set, n, learned)
			after.Close()
		}
		d.Close()
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

func checkCut(t *testing.T, s *completed.Set, n, learned int) {
	t.Helper()
	for k := 1; k <= n; k++ {
		switch k % 4 {
		case 3:
			if !whole(t, s, k) {
				t.Errorf("cut at %d: record %d is lost", n, k)
			}
		case 2:
			if _, ok, err := s.DeadOrigin(fmt.Sprint("S-", k), time.Time{}, ""); err != nil || !ok {
				t.Errorf("cut at %d: dead letter %d is lost", n, k)
			}
			if p := testkit.Must(s.DeadPass("fixity", "b/1"))(t); p < k {
				t.Errorf("cut at %d: dead pass %d", n, p)
			}
		case 1:
			if a := testkit.Must(s.Attempt("a"))(t); a.Number < k {
				t.Errorf("cut at %d: attempt %d", n, a.Number)
			}
		}
	}
	// What a follower learned may be lost, but never its position kept without it.
	p := testkit.Must(s.Position("own"))(t)
	if p.Sequence > uint64(learned) {
		t.Errorf("position %d, learned %d", p.Sequence, learned)
	}
	for k := 4; k <= int(p.Sequence); k += 4 {
		if !whole(t, s, 1000+k) {
			t.Errorf("cut at %d: position %d without %d", n, p.Sequence, k)
		}
	}
}

// TestDeadPassesOnlyGrow in whatever order letters are read, also in one batch.
func TestDeadPassesOnlyGrow(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		d := testkit.NewDisk(t)
		defer d.Close()
		highest := 0
		for range rapid.IntRange(1, 6).Draw(rt, "batches") {
			var batch []completed.Dead
			for _, p := range rapid.SliceOfN(rapid.IntRange(1, 9), 1, 5).Draw(rt, "passes") {
				batch = append(batch, completed.Dead{Origin: completed.Origin{Name: fmt.Sprint("S-", p)}, Operations: []string{"capture", "source-changed"}, Slot: "b/1", Pass: p})
				highest = max(highest, p)
			}
			if len(batch) == 1 {
				testkit.OK(t, d.Set.SetDead(batch[0]))
			} else {
				testkit.OK(t, d.Set.Learn("dead", nil, batch, completed.Position{}))
			}
			for _, op := range batch[0].Operations {
				if got := testkit.Must(d.Set.DeadPass(op, "b/1"))(t); got != highest {
					rt.Fatalf("%s: %d, want %d", op, got, highest)
				}
			}
		}
	})
}

// TestConcurrentCallers: numbers are given once, dead passes and attempts never
// fall back, whoever writes at the same time.
func TestConcurrentCallers(t *testing.T) {
	t.Parallel()
	d := testkit.NewDisk(t)
	defer d.Close()
	var mu sync.Mutex
	given := map[uint64]bool{}
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := range 50 {
				n, err := d.Set.Next("op")
				mu.Lock()
				if err != nil || given[n] {
					t.Errorf("number %d given twice (%v)", n, err)
				}
				given[n] = true
				mu.Unlock()
				dead := completed.Dead{Origin: completed.Origin{Name: fmt.Sprint(w, i)}, Operations: []string{"x"}, Slot: "b/1", Pass: i*8 + w + 1}
				if w%2 == 0 {
					err = d.Set.SetDead(dead)
				} else {
					err = d.Set.Learn(fmt.Sprint(w), nil, []completed.Dead{dead}, completed.Position{})
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if p := testkit.Must(d.Set.DeadPass("x", "b/1"))(t); p != 400 {
		t.Errorf("dead pass %d, want 400", p)
	}
	d.Reopen()
	if n := testkit.Must(d.Set.Next("op"))(t); n != 401 {
		t.Errorf("the next number is %d, want 401", n)
	}
}

func TestWhatAFollowerLearnsOfAttempts(t *testing.T) {
	t.Parallel()
	d := testkit.NewDisk(t)
	defer d.Close()
	learn := func(number int, state string) completed.Attempt {
		t.Helper()
		c := completed.Completion{Attempt: completed.Ended{Key: "k", Attempt: completed.Attempt{Number: number, State: state}}}
		testkit.OK(t, d.Set.Learn("own", []completed.Completion{c}, nil, completed.Position{}))
		return testkit.Must(d.Set.Attempt("k"))(t)
	}
	testkit.OK(t, d.Set.SetAttempt("k", completed.Attempt{Number: 3, State: completed.AttemptBegun, Suspect: true}))
	for _, tc := range []struct {
		number int
		state  string
		want   string
	}{
		{2, completed.AttemptFailed, "3 begun"}, // an older one says nothing new
		{3, completed.AttemptFailed, "3 begun"}, // our own record of the same attempt is the better one
		{3, completed.AttemptReleased, "3 begun"},
		{4, completed.AttemptReleased, "4 released"}, // a replica let go of one
		{4, completed.AttemptFailed, "4 failed"},     // made it after all
		{4, completed.AttemptReleased, "4 failed"},
		{4, completed.AttemptDone, "4 done"}, // but done is done
		{4, completed.AttemptFailed, "4 done"},
		{5, completed.AttemptFailed, "5 failed"}, // a replica went on
	} {
		a := learn(tc.number, tc.state)
		if fmt.Sprint(a.Number, " ", a.State) != tc.want {
			t.Errorf("after %d %s: %d %s, want %s", tc.number, tc.state, a.Number, a.State, tc.want)
		}
		if unsuspected := tc.number == 5 || a.State == completed.AttemptDone; a.Suspect == unsuspected { // until it is done it is worked alone, by whomever
			t.Errorf("after %d %s: suspect %v", tc.number, tc.state, a.Suspect)
		}
	}
}

func TestAnOriginMatchesWhollyOrNot(t *testing.T) {
	t.Parallel()
	d := testkit.NewDisk(t)
	defer d.Close()
	at := time.Date(2026, 11, 30, 1, 2, 3, 456789, time.UTC)
	testkit.OK(t, d.Set.SetDead(completed.Dead{Origin: completed.Origin{Name: "INGEST-7", Stored: at, MsgID: "id", Header: []byte("h")}, Operations: []string{"x"}, Slot: "b/1", Pass: 1}))
	for _, tc := range []struct {
		name, id string
		at       time.Time
		want     bool
	}{
		{"INGEST-7", "id", at.In(time.FixedZone("X", 3600)), true}, {"INGEST-8", "id", at, false},
		{"INGEST-7", "other", at, false}, {"INGEST-7", "id", at.Add(1), false}, {"CAPTURE-7", "id", at, false},
	} {
		if _, ok, err := d.Set.DeadOrigin(tc.name, tc.at, tc.id); err != nil || ok != tc.want {
			t.Errorf("%s %s %v: %v, want %v (%v)", tc.name, tc.id, tc.at, ok, tc.want, err)
		}
	}
}

func TestASetHasItsOwnName(t *testing.T) {
	t.Parallel()
	a, b := testkit.NewDisk(t), testkit.NewDisk(t)
	defer a.Close()
	defer b.Close()
	name := testkit.Must(a.Set.Incarnation())(t)
	a.Reopen()
	if again := testkit.Must(a.Set.Incarnation())(t); name == "" || again != name {
		t.Errorf("%q, then %q", name, again)
	}
	if other := testkit.Must(b.Set.Incarnation())(t); other == name {
		t.Errorf("two sets are called %q", name)
	}
}
