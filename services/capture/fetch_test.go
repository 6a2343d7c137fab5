package capture

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"colophon/services/capture/internal/remote"
	"colophon/shared/event"
	"colophon/shared/fault"
	"colophon/shared/retry"
	"colophon/shared/testkit"
)

// hostileFrames is how many frames the hostile server has.
var hostileFrames = 200

// web serves on loopback, quietly.
func web(t *testing.T, h http.HandlerFunc) *httptest.Server {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.Start()
	t.Cleanup(s.Close)
	return s
}

// asks lets the service ask loopback, within limits.
func (r *rig) asks(l remote.Limits) {
	r.Helper()
	c, err := remote.New(remote.Options{Hosts: []string{"127.0.0.1"}, Limits: l})
	testkit.OK(r, err)
	*r.svc.remote = *c
}

func TestFetch(t *testing.T) {
	r := newRig(t)
	r.hosts = []string{"127.0.0.1"}
	r.start()
	r.opened(20, 2)
	stored := time.Now().Add(-time.Hour).UTC().Truncate(time.Second)
	var looks sync.Map
	s := web(t, func(w http.ResponseWriter, q *http.Request) {
		n, _ := looks.LoadOrStore(q.URL.Path, new(int))
		*n.(*int)++
		switch q.URL.Path {
		case "/a.tif":
			http.ServeContent(w, q, "", stored, strings.NewReader("aaa"))
		case "/young.tif":
			http.ServeContent(w, q, "", time.Now(), strings.NewReader("yyy"))
		case "/chunks.tif":
			_, _ = io.WriteString(w, "c")
			w.(http.Flusher).Flush()
			_, _ = io.WriteString(w, "cc")
		case "/changing.tif":
			w.Header().Set("ETag", fmt.Sprintf(`"%d"`, *n.(*int)))
			_, _ = io.WriteString(w, "ggg")
		case "/empty.tif":
		default:
			http.NotFound(w, q)
		}
	})
	at := func(name string) event.FrameMessage { return r.message(name, s.URL+"/"+name) }

	c := r.take(at("a.tif"))
	expect(t, "digest", c.Digest, testkit.Digest("aaa"))
	expect(t, "source", c.Source, s.URL+"/a.tif")
	if c.Stat == nil || c.Stat.Size != 3 || !c.Stat.ModTime.Equal(stored) {
		t.Errorf("the fact's look at the source: %+v", c.Stat)
	}
	r.staged(c.Staging, "aaa")
	c = r.take(at("chunks.tif"))
	expect(t, "digest of a source of no stated size", c.Digest, testkit.Digest("ccc"))
	if c.Stat != nil {
		t.Errorf("a look that tells nothing is kept: %+v", c.Stat)
	}

	sized := func(name string, n int64, content string) event.FrameMessage {
		m := at(name)
		m.Frame += "-sized"
		m.Size, m.SHA256 = size(n), testkit.Digest(content)
		return m
	}
	expect(t, "vouched for, and young", r.take(sized("young.tif", 3, "yyy")).Digest, testkit.Digest("yyy"))
	for what, x := range map[string]struct {
		m    event.FrameMessage
		code fault.Code
		n    int
	}{
		"young":             {at("young.tif"), fault.SourceUnsettled, 2},
		"changes":           {at("changing.tif"), fault.SourceUnsettled, 2},
		"empty":             {at("empty.tif"), fault.Empty, 1},
		"gone":              {at("gone.tif"), fault.SourceMissing, 1},
		"larger than said":  {sized("a.tif", 2, "aa"), fault.SizeMismatch, 1},
		"smaller than said": {sized("chunks.tif", 9, "c"), fault.SourceUnsettled, 2},
		"larger, in chunks": {sized("changing.tif", 1, "c"), fault.SizeMismatch, 1},
		"another host":      {r.message("h.tif", "http://169.254.169.254/latest"), fault.HostRefused, 1},
	} {
		got := r.refuse(x.m)
		expect(t, what, fault.Code(got.Code), x.code)
		expect(t, what+": attempts", got.Attempt, x.n)
	}

	// The first source that works is taken; where none does, the one that may
	// do better decides.
	m := r.message("several.tif", s.URL+"/gone.tif", fileURI(r.in+"/gone.tif"), s.URL+"/a.tif")
	expect(t, "the third source", r.take(m).Source, s.URL+"/a.tif")
	m = r.message("hopeful.tif", s.URL+"/gone.tif", "http://127.0.0.1:1/a.tif")
	expect(t, "the most hopeful", fault.Code(r.refuse(m).Code), fault.ConnectionRefused)
}

// hostile is a server that does all it can to a reader, once or twice a path,
// and then relents; on the paths of wrong bytes it never does.
type hostile struct {
	mu    sync.Mutex
	asked map[string][]time.Time
}

const hostileWays = 8

func (h *hostile) content(i int) []byte { return bytes.Repeat(fmt.Appendf(nil, "frame %d,", i), 2000) }

// wrong reports the paths whose bytes are not the declared ones.
func (h *hostile) wrong(i int) bool { return i%hostileWays == 5 && i%3 == 0 }

// trips is how many attempts at a path fail before one succeeds.
func (h *hostile) trips(i int) int {
	switch i % hostileWays {
	case 0, 1, 2, 3:
		return 1
	}
	return 0 // as it should be; or a transfer that is taken up again within the attempt
}

func (h *hostile) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	i, _ := strconv.Atoi(strings.Trim(q.URL.Path, "/"))
	h.mu.Lock()
	h.asked[q.URL.Path] = append(h.asked[q.URL.Path], time.Now())
	n := len(h.asked[q.URL.Path])
	h.mu.Unlock()
	data := h.content(i)
	if h.wrong(i) {
		data[len(data)/2]++
	}
	whole := func() {
		w.Header().Set("ETag", `"one"`)
		http.ServeContent(w, q, "", time.Time{}, bytes.NewReader(data))
	}
	if n > 1 {
		whole()
		return
	}
	part := func() {
		w.Header().Set("ETag", `"one"`)
		w.Header().Set("Content-Length", strconv.Itoa(len(data)))
		_, _ = w.Write(data[:len(data)/3])
		w.(http.Flusher).Flush()
	}
	switch i % hostileWays {
	case 0:
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(http.StatusServiceUnavailable)
	case 1:
		w.Header().Set("Retry-After", time.Now().Add(2*time.Second).UTC().Format(http.TimeFormat))
		w.WriteHeader(http.StatusTooManyRequests)
	case 2: // reset in the middle of a word; before it, the client itself asks once more
		if c, _, err := w.(http.Hijacker).Hijack(); err == nil {
			_, _ = io.WriteString(c, "HTTP/1.1 200 O")
			_ = c.(*net.TCPConn).CloseWrite()
			_ = c.Close()
		}
	case 3:
		w.WriteHeader(http.StatusBadGateway)
	case 4: // truncated: the connection ends in the middle
		part()
		panic(http.ErrAbortHandler)
	case 6: // stalls in the middle
		part()
		<-q.Context().Done()
	default:
		whole()
	}
}

// TestHostileServer: whatever a server does, each frame comes in exactly once
// and whole, each retry has its fact, Retry-After is kept, and those that were
// turned away together do not come back together.
func TestHostileServer(t *testing.T) {
	r := newRig(t)
	r.hosts = []string{"127.0.0.1"}
	r.start()
	r.asks(remote.Limits{Stall: 500 * time.Millisecond, Pace: 1 << 20})
	h := &hostile{asked: map[string][]time.Time{}}
	s := web(t, h.ServeHTTP)
	policy := retry.Default()
	const initial = 200 * time.Millisecond                                                // well below what the server asks for
	policy.InitialDelay, policy.CircuitFailureThreshold = retry.Duration(initial), 10_000 // the breaker has tests of its own
	body, _ := policy.Canonical()
	r.declare(event.BatchDeclaration{Count: hostileFrames, Policy: body})
	for i := range hostileFrames {
		data := h.content(i)
		m := r.message(fmt.Sprintf("%05d.tif", i), fmt.Sprintf("%s/%d", s.URL, i))
		m.Sequence, m.Size, m.SHA256 = i+1, size(int64(len(data))), testkit.Digest(string(data))
		r.send(m)
	}
	r.settled()

	captured, failed := map[event.Name]int{}, map[event.Name][]event.AttemptFailed{}
	for _, c := range r.captured() {
		captured[c.Frame]++
		i := c.Sequence - 1
		if (c.Digest == c.Declared) == h.wrong(i) {
			t.Errorf("%s: its bytes are right: %v; wrong bytes are sent: %v", c.Frame, c.Digest == c.Declared, h.wrong(i))
		}
		if c.Attempt != h.trips(i)+1 {
			t.Errorf("%s came with attempt %d, want %d", c.Frame, c.Attempt, h.trips(i)+1)
		}
	}
	for _, f := range r.failed() {
		failed[f.Frame] = append(failed[f.Frame], f)
		if f.Decision != event.DecisionRetry {
			t.Errorf("%s: %s %s: %s", f.Frame, f.Decision, f.Code, f.Message)
		}
	}
	var waits []float64
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := range hostileFrames {
		name := event.Name(fmt.Sprintf("%05d.tif", i))
		if captured[name] != 1 || len(failed[name]) != h.trips(i) {
			t.Errorf("%s: captured %d times, %d failed attempts, want 1 and %d", name, captured[name], len(failed[name]), h.trips(i))
			continue
		}
		asked := h.asked[fmt.Sprint("/", i)]
		if h.trips(i) == 0 || len(asked) < 2 {
			continue
		}
		gap, least := asked[1].Sub(asked[0]), initial
		if i%hostileWays < 2 {
			least = time.Second
		}
		if gap < least {
			t.Errorf("%s was asked for again after %v, not %v", name, gap, least)
		}
		waits = append(waits, failed[name][0].NotBefore.Sub(failed[name][0].Ended).Seconds())
	}
	// The random term of a delay is even over the initial one, which divides all
	// else: of n delays, no twentieth of it holds more than its share and six
	// standard deviations.
	bins := make([]int, 20)
	for _, w := range waits {
		bins[int(math.Mod(w, initial.Seconds())/initial.Seconds()*20)%20]++
	}
	n := float64(len(waits))
	most := n/20 + 6*math.Sqrt(n/20*19/20)
	if len(waits) < hostileFrames/3 || float64(slices.Max(bins)) > most {
		t.Errorf("%d retries, by the part of the initial delay that they waited beside: %v, at most %.0f in one", len(waits), bins, most)
	}
	t.Logf("%d frames, %d retries, spread %v", hostileFrames, len(waits), bins)
}

// TestRetryAfterIsNoLockstep: many that are told the same moment come back
// spread behind it.
func TestRetryAfterIsNoLockstep(t *testing.T) {
	t.Parallel()
	p := retry.Default()
	seen := map[time.Duration]bool{}
	for i := range 100 {
		d := p.DelayAtLeast(1, 30*time.Second, func() float64 { return float64(i) / 100 })
		if d < 30*time.Second || d > 31*time.Second {
			t.Fatalf("asked to wait 30 s: %v", d)
		}
		seen[d] = true
	}
	expect(t, "different delays", len(seen), 100)
	expect(t, "its own, where that is longer", p.DelayAtLeast(6, time.Second, func() float64 { return 0 }), 32*time.Second)
}

// TestStopDuringATransfer: a stop lets go of a transfer, and the next start
// takes the frame in with the same attempt.
func TestStopDuringATransfer(t *testing.T) {
	r := newRig(t)
	r.hosts = []string{"127.0.0.1"}
	r.start()
	r.opened(1, 3)
	under := make(chan struct{})
	var once sync.Once
	var hold sync.WaitGroup
	ctx, release := context.WithCancel(context.Background())
	defer release()
	s := web(t, func(w http.ResponseWriter, q *http.Request) {
		hold.Add(1)
		defer hold.Done()
		w.Header().Set("Content-Length", "6")
		_, _ = io.WriteString(w, "abc")
		w.(http.Flusher).Flush()
		once.Do(func() { close(under) })
		select {
		case <-ctx.Done():
			_, _ = io.WriteString(w, "def")
		case <-q.Context().Done():
		}
	})
	m := r.message("a.tif", s.URL+"/a.tif")
	m.Size, m.SHA256 = size(6), testkit.Digest("abcdef")
	r.send(m)
	testkit.Closed(t, "the transfer", under)
	r.stop()
	expect(t, "staged files", len(r.stagedFiles()), 0)
	release()
	r.start()
	r.settled()
	all := r.captured()
	if len(all) != 1 || all[0].Digest != m.SHA256 || all[0].Attempt != 1 || len(r.failed()) != 0 {
		t.Errorf("%+v; failed: %+v", all, r.failed())
	}
}
