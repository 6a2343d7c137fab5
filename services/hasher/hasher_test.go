package hasher

import (
	"context"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"colophon/shared/event"
	"colophon/shared/stage"
	"colophon/shared/testkit"
)

// Two slots with equal bytes, told twice, through a broker: two facts, one
// master, nothing left in staging; a transient fault is tried again.
func TestService(t *testing.T) {
	p := newPlace(t)
	_, js := testkit.NewBroker(t)
	log := &testkit.Logbook{}
	svc, err := New(Config{State: t.TempDir(), Store: p.store, JS: js, Log: log.Logger(), Metrics: stage.NewMetrics(prometheus.NewRegistry()), Instance: "test", Version: "test", Concurrency: 4})
	testkit.OK(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- svc.Run(ctx) }()
	policy := testkit.Policy(2, time.Millisecond)
	damaged := p.captured("damaged.png", png+"x")
	p.overwrite(damaged.Staging, png+"y")
	one := p.captured("a.png", png)
	two := p.captured("b.png", png)
	again := *one
	again.Pass = 2
	for _, c := range []*event.FrameCaptured{one, two, &again, damaged} {
		c.Policy = policy
		testkit.Publish(t, js, *c)
	}
	testkit.Eventually(t, "every message is acked", func() bool { return testkit.Unfinished(t, js, event.StreamIngest, "hasher") == 0 })
	cancel()
	testkit.OK(t, <-ended)
	testkit.OK(t, svc.Close())

	hits := 0
	facts := testkit.ReadAll(t, js, event.StreamIngest, event.SubjectFrameFixed)
	for _, m := range facts {
		f := m.Fact(t).(event.FrameFixed)
		if f.Fixed.StoredDigest != testkit.Digest(png) {
			t.Errorf("%s is fixed as %s", f.Frame, f.Fixed.StoredDigest)
		}
		if f.Hit {
			hits++
		}
	}
	if len(facts) != 3 || hits != 1 {
		t.Errorf("%d facts, %d hits:\n%s", len(facts), hits, log)
	}
	failed := testkit.ReadAll(t, js, event.StreamIngest, event.SubjectAttemptFailed)
	if len(failed) != 1 || failed[0].Fact(t).(event.AttemptFailed).Code != "master-damaged" || len(testkit.ReadAll(t, js, event.StreamDeadLetter)) != 1 {
		t.Errorf("the damaged one: %d failed attempts", len(failed))
	}
	left := 0
	for e, err := range p.store.List(t.Context(), "staging") {
		testkit.OK(t, err)
		if left++; e.Key != damaged.Staging {
			t.Errorf("%s is left in staging", e.Key)
		}
	}
	if left != 1 {
		t.Error("the damaged bytes are gone, and with them the evidence")
	}
}
