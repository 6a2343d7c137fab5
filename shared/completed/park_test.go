package completed_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"colophon/shared/completed"
	"colophon/shared/testkit"
)

func parkedMessage(queue, name string, n int) completed.Parked {
	return completed.Parked{
		Queue: queue, Name: name, Origin: fmt.Sprint("CAPTURE-", n), Stored: time.Unix(int64(n), 0).UTC(), MsgID: fmt.Sprint("id ", n), Since: time.Unix(9, 0).UTC(),
		Subject: "capture.frame.g.b", Header: map[string][]string{"H": {"a", "b"}}, Data: fmt.Appendf(nil, "body\x00of %d", n),
	}
}

func TestParkedAreWholeAndInOrder(t *testing.T) {
	t.Parallel()
	d := testkit.NewDisk(t)
	defer func() { d.Close() }()
	names := []string{"a", "a/b", "b", "b~", "", "ä"}
	for n := range 60 {
		testkit.OK(t, d.Set.Park(parkedMessage("q", names[n%6], n)))
		testkit.OK(t, d.Set.Park(parkedMessage("q/2", "a", n)))
	}
	d.Reopen()
	if n := testkit.Must(d.Set.CountParked("q"))(t); n != 60 {
		t.Errorf("%d are parked", n)
	}
	var found []string
	for after := ""; ; {
		page := testkit.Must(d.Set.ParkedFor("q", after, 4))(t)
		if len(page) == 0 {
			break
		}
		found, after = append(found, page...), page[len(page)-1]
		if after == "" { // the first page begins with the empty name
			t.Fatalf("names %q", page)
		}
	}
	if len(found) != 6 {
		t.Errorf("names %q", found)
	}
	for i, name := range names {
		var all []completed.Parked
		for after := uint64(0); ; {
			page := testkit.Must(d.Set.Parked("q", name, after, 3))(t)
			if len(page) == 0 {
				break
			}
			all, after = append(all, page...), page[len(page)-1].Number
		}
		if len(all) != 10 {
			t.Fatalf("%q has %d", name, len(all))
		}
		for j, p := range all {
			want := parkedMessage("q", name, j*6+i)
			want.Number = p.Number
			if fmt.Sprint(p) != fmt.Sprint(want) {
				t.Fatalf("%v, want %v", p, want)
			}
		}
	}
}

func TestAParkedMessageIsThereOnce(t *testing.T) {
	t.Parallel()
	d := testkit.NewDisk(t)
	defer func() { d.Close() }()
	p := parkedMessage("q", "a", 1)
	is := func(p completed.Parked) bool {
		return testkit.Must(d.Set.IsParked(p.Queue, p.Origin, p.Stored, p.MsgID))(t)
	}
	testkit.OK(t, d.Set.Park(p))
	testkit.OK(t, d.Set.Park(p))
	moved := p
	moved.Name = "b"
	testkit.OK(t, d.Set.Park(moved))
	if n := testkit.Must(d.Set.CountParked("q"))(t); n != 1 || !is(p) {
		t.Fatalf("%d are parked", n)
	}
	// After a rollback of its stream a sequence names another message.
	other := p
	other.Stored, other.MsgID = p.Stored.Add(time.Second), "another"
	if is(other) {
		t.Error("another message of that sequence is taken for it")
	}
	testkit.OK(t, d.Set.Park(other))
	if n := testkit.Must(d.Set.CountParked("q"))(t); n != 2 {
		t.Errorf("%d are parked", n)
	}
	for _, name := range []string{"a", "b"} {
		for _, p := range testkit.Must(d.Set.Parked("q", name, 0, 10))(t) {
			testkit.OK(t, d.Set.Unpark(p))
			testkit.OK(t, d.Set.Unpark(p))
		}
	}
	if n := testkit.Must(d.Set.CountParked("q"))(t); n != 0 || is(p) || is(other) {
		t.Errorf("%d are parked still", n)
	}
}

// TestParkingSurvivesAPowerCut: what was parked is there, what was taken out is
// not.
func TestParkingSurvivesAPowerCut(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		d := testkit.NewDisk(t)
		rng := rand.New(rand.NewPCG(seed, 3))
		there := map[int]bool{}
		for range 30 {
			n := rng.IntN(10)
			if there[n] {
				testkit.OK(t, d.Set.Unpark(parkedMessage("q", fmt.Sprint(n%3), n)))
			} else {
				testkit.OK(t, d.Set.Park(parkedMessage("q", fmt.Sprint(n%3), n)))
			}
			there[n] = !there[n]
		}
		after := d.Cut(rng)
		for n := range 10 {
			p := parkedMessage("q", "", n)
			if is := testkit.Must(after.Set.IsParked("q", p.Origin, p.Stored, p.MsgID))(t); is != there[n] {
				t.Errorf("seed %d: message %d is parked: %v, want %v", seed, n, is, there[n])
			}
		}
		d.Close()
		after.Close()
	}
}

func TestLetters(t *testing.T) {
	t.Parallel()
	d := testkit.NewDisk(t)
	defer func() { d.Close() }()
	for i := range 5 {
		testkit.OK(t, d.Set.SetDead(completed.Dead{Origin: completed.Origin{Name: fmt.Sprint("INGEST-", i), LetterID: fmt.Sprint("dead:", i), Letter: uint64(i)}, Operations: []string{"x"}, Slot: "b/f", Pass: i}))
	}
	n := 0
	testkit.OK(t, d.Set.Letters(func(o completed.Origin) error {
		if o.LetterID != fmt.Sprint("dead:", o.Letter) {
			t.Errorf("%v", o)
		}
		n++
		return nil
	}))
	if n != 5 {
		t.Errorf("%d letters", n)
	}
}
