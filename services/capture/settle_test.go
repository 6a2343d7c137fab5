package capture

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"colophon/shared/event"
	"colophon/shared/fault"
	"colophon/shared/testkit"
)

// In virtual time: how long a file with a given story is waited for.
func TestSettling(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		what   string
		age    time.Duration   // of the file's time when the wait begins
		writes []time.Duration // later ones, from the beginning of the wait
		want   time.Duration
	}{
		{"old", time.Hour, nil, 0},
		{"just old enough", settleTime, nil, 0},
		{"young", 500 * time.Millisecond, nil, 1500 * time.Millisecond},
		{"this very moment", 0, nil, settleTime},
		{"written on and on", 0, []time.Duration{time.Second, 2 * time.Second, 3500 * time.Millisecond, 5 * time.Second}, 7 * time.Second},
		{"written after it looked settled", time.Minute, []time.Duration{time.Second}, 0},
		{"of a clock ahead", -time.Hour, nil, settleTime},
		{"of a clock a little ahead", -time.Second, nil, settleTime},
		{"written under a clock ahead", -time.Hour, []time.Duration{time.Second, 3 * time.Second}, 6 * time.Second},
	} {
		t.Run(c.what, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "a.tif")
			write(t, path, "x")
			roots := rootsOf(t, filepath.Dir(path))
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				set := func(content string) {
					testkit.OK(t, os.WriteFile(path, []byte(content), 0o600))
					then := time.Now().Add(-c.age)
					testkit.OK(t, os.Chtimes(path, then, then))
				}
				set("x")
				go func() {
					for n, at := range c.writes {
						time.Sleep(at - time.Since(start)) // virtual: when the writer writes
						set("xyzxyzxyz"[:n+2])
					}
				}()
				f := &frames{inputs: inputs{roots: roots}}
				testkit.OK(t, f.settled(t.Context(), []string{fileURI(path + ".missing"), fileURI(path)}))
				expect(t, "waited", time.Since(start), c.want)
				for _, at := range c.writes {
					time.Sleep(max(0, at-time.Since(start)))
				}
				synctest.Wait()
			})
		})
	}
}

func TestSettlingEnds(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a.tif")
	write(t, path, "x")
	f := &frames{inputs: inputs{roots: rootsOf(t, filepath.Dir(path))}}
	testkit.OK(t, f.settled(t.Context(), []string{fileURI(path + ".missing")})) // Act says what is wrong
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := f.settled(ctx, []string{fileURI(path)}); err == nil {
		t.Error("a stop does not end the wait")
	}
}

func TestFit(t *testing.T) {
	t.Parallel()
	young := event.SourceStat{Size: 3, ModTime: time.Now().Add(-time.Second)}
	plain, vouched := &frameIn{}, &frameIn{}
	vouched.Size, vouched.SHA256 = size(3), testkit.Digest("abc")
	expect(t, "touched between the wait and the reading", fault.Of(fit(plain, young, time.Since(young.ModTime))).Code, fault.SourceUnsettled)
	testkit.OK(t, fit(vouched, young, time.Since(young.ModTime)))
	young.ModTime = time.Now().Add(time.Hour)
	testkit.OK(t, fit(plain, young, time.Since(young.ModTime)))
}

// inBubble runs f in virtual time.
func inBubble(t *testing.T, f func()) {
	t.Helper()
	synctest.Test(t, func(*testing.T) { f() })
}
