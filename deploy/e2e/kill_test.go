package e2e

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"
)

// seed of a random test: COLOPHON_E2E_SEED repeats one.
func seed(t testing.TB) uint64 {
	t.Helper()
	s := uint64(time.Now().UnixNano())
	if v := os.Getenv("COLOPHON_E2E_SEED"); v != "" {
		var err error
		s, err = strconv.ParseUint(v, 10, 64)
		ok(t, err)
	}
	t.Logf("COLOPHON_E2E_SEED=%d", s)
	return s
}

// TestKill kills the ingest at ten random moments and runs it until it is
// done: nothing is lost, nothing stands twice, nothing is left over.
func TestKill(t *testing.T) {
	t.Parallel()
	killed(t, 40, 10, 1500*time.Millisecond)
}

func killed(t *testing.T, n, kills int, within time.Duration) {
	r := rand.New(rand.NewPCG(seed(t), 0))
	dir := pages(t, n)
	var frames []frame
	for i := range n {
		frames = append(frames, frame{pageName(i), tiffPage(uint64(i) + 1000)})
	}
	twin := frame{"0002 twin.tif", frames[1].data}
	put(t, dir, twin.name, twin.data)
	frames = append(frames, twin)

	calm := newArchive(t)
	calm.ingest(dir).converged(n + 1)

	a := newArchive(t)
	struck := 0
	for range kills {
		p := a.startIngest(dir)
		select {
		case <-time.After(30*time.Millisecond + time.Duration(r.Int64N(int64(within)))): // the moment is the test
		case <-p.done:
		}
		if p.running() {
			struck++
		}
		p.kill()
	}
	t.Logf("%d of %d kills struck a running process", struck, kills)
	var o outcome
	for run := range 4 { // a file that was alone at each kill may have used its attempts up
		if o = a.ingest(dir); o.code == 0 {
			break
		}
		t.Logf("run %d after the kills: %s", run+1, o.stdout)
	}
	o.converged(n + 1)
	a.judge("vol", frames, "retry", "quarantine", "unquarantine")
	same(t, "bytes", a.digests("masters", "derivatives"), calm.digests("masters", "derivatives"))
	a.ingest(dir).converged(n+1).counts(0, 0, n+1, 0)
}
