package completed_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"colophon/shared/completed"
	"colophon/shared/testkit"
)

func TestMain(m *testing.M) {
	testkit.Children(map[string]func([]string){"recorder": recorder})
	os.Exit(m.Run())
}

// recorder records for good, with eight writers, and prints each number when
// the set has acknowledged it.
func recorder(args []string) {
	s, err := completed.Open(args[0], completed.Options{})
	if err != nil {
		panic(err)
	}
	from, err := strconv.Atoi(args[1])
	if err != nil {
		panic(err)
	}
	var mu sync.Mutex
	for w := range 8 {
		go func() {
			for n := from + w; ; n += 8 {
				if err := s.Record(done(n)); err != nil {
					panic(err)
				}
				mu.Lock()
				fmt.Println(n)
				mu.Unlock()
			}
		}()
	}
	select {}
}

// TestKill kills a real process at random moments: what it said was recorded
// is there, whole.
func TestKill(t *testing.T) {
	t.Parallel()
	dir := testkit.TempDir(t)
	rng := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 0))
	var acked []int
	kills := testkit.Scale(4, 200)
	for k := range kills {
		from := 1 + k*1_000_000
		c := testkit.StartChild(t, "recorder", dir, strconv.Itoa(from))
		lines := []string{c.Line()} // it is at work
		for range rng.IntN(150) {
			lines = append(lines, c.Line())
		}
		for _, l := range append(lines, c.Kill()...) {
			n, err := strconv.Atoi(l)
			testkit.OK(t, err)
			acked = append(acked, n)
		}
		s, err := completed.Open(dir, completed.Options{})
		testkit.OK(t, err)
		for _, n := range acked {
			if !whole(t, s, n) {
				t.Errorf("%d was acknowledged and is lost", n)
			}
		}
		testkit.OK(t, s.Close())
	}
	t.Logf("%d acknowledged, %d kills", len(acked), kills)
}
