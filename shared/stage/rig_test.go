package stage_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"colophon/shared/event"
	"colophon/shared/stage"
	"colophon/shared/testkit"
)

const consumer = "deriver-jp2"

// rig is a world for one test: a real broker, a disk, a scripted worker, and
// the stage that a test starts, stops and crashes.
type rig struct {
	*testing.T
	broker *testkit.Broker
	nc     *nats.Conn
	js     jetstream.JetStream
	disk   *testkit.Disk
	worker *testkit.Deriver
	log    *testkit.Logbook
	faults *testkit.Faults // between the stage and what it calls
	config stage.Config
	wrap   func(stage.Completed) stage.Completed // of the memory; nil: as it is

	registry *prometheus.Registry
	metrics  *stage.Metrics
	stage    *stage.Stage[event.FrameFixed, event.Derived]
	end      context.CancelFunc
	ended    chan error
}

// world runs a test in virtual time, on a real broker.
func world(t *testing.T, test func(r *rig)) {
	t.Parallel()
	dir := testkit.TempDir(t)
	synctest.Test(t, func(t *testing.T) { test(newRig(t, dir)) })
}

// realWorld runs a test in real time: connections that come back share timers
// with the whole process (nats.go pools them), which no bubble allows.
func realWorld(t *testing.T, test func(r *rig)) {
	t.Parallel()
	test(newRig(t, testkit.TempDir(t)))
}

// killableWorld is a realWorld whose broker is a process of its own.
func killableWorld(t *testing.T, test func(r *rig)) {
	t.Parallel()
	test(newRigOn(t, testkit.StartChildBroker(t, testkit.TempDir(t))))
}

func TestMain(m *testing.M) {
	testkit.Children(map[string]func([]string){"broker": testkit.BrokerProgram})
	os.Exit(m.Run())
}

func newRig(t *testing.T, dir string) *rig {
	t.Helper()
	return newRigOn(t, testkit.StartBroker(t, dir))
}

func newRigOn(t *testing.T, broker *testkit.Broker) *rig {
	t.Helper()
	r := &rig{T: t, log: &testkit.Logbook{}, disk: testkit.NewDisk(t), worker: &testkit.Deriver{Profile: "jp2"}, faults: &testkit.Faults{}}
	r.broker = broker
	r.broker.Provision("jp2")
	r.nc, r.js = r.broker.Connect()
	r.config = stage.Config{
		Service: "deriver", Instance: "test", Agent: event.Agent{Name: "deriver", Version: "test"},
		Stream: event.StreamIngest, Consumer: consumer, Own: []string{event.SubjectDerivative + ".jp2"}, Concurrency: 4,
	}
	t.Cleanup(func() {
		r.stop()
		r.nc.Close()
		r.broker.Stop()
		r.disk.Close()
		if t.Failed() {
			t.Log(r.log.String())
		}
	})
	return r
}

// start starts a fresh stage on the same disk and streams.
func (r *rig) start() { r.startWith(r.worker) }

func (r *rig) startWith(w stage.Worker[event.FrameFixed, event.Derived]) {
	r.Helper()
	c := r.config
	r.registry = prometheus.NewRegistry()
	r.metrics = stage.NewMetrics(r.registry)
	c.Log, c.Metrics = r.log.Logger(), r.metrics
	c.JS, c.Completed = r.faults.JetStream(r.js), r.faults.Completed(r.disk.Set)
	if r.wrap != nil {
		c.Completed = r.wrap(c.Completed)
	}
	r.stage = stage.New(c, w)
	var ctx context.Context
	ctx, r.end = context.WithCancel(context.Background())
	r.ended = make(chan error, 1)
	s, ended := r.stage, r.ended
	go func() { ended <- s.Run(ctx) }()
}

// stop ends the stage as a signal would and waits for it.
func (r *rig) stop() {
	r.Helper()
	if r.end == nil {
		return
	}
	r.end()
	r.end = nil
	if err := <-r.ended; err != nil {
		r.Errorf("the stage ended with: %v", err)
	}
}

// crash ends the stage as a kill would: from now on nothing it calls does
// anything. The next start has faults of its own.
func (r *rig) crash() {
	r.Helper()
	r.faults.Kill()
	r.end()
	r.end = nil
	<-r.ended // whatever it says
	r.faults = &testkit.Faults{}
}

// crashAt arms a crash: the first call of that name is where the process
// dies, before or behind its effect. It gives a channel that tells.
func (r *rig) crashAt(call string, behind bool) <-chan struct{} {
	faults, reached := r.faults, make(chan struct{})
	var once atomic.Bool
	at := func(name string) error {
		if name != call || !once.CompareAndSwap(false, true) {
			return nil
		}
		faults.Kill()
		close(reached)
		return testkit.ErrInjected
	}
	if behind {
		faults.Set(nil, at)
	} else {
		faults.Set(at, nil)
	}
	return reached
}

func (r *rig) send(slot, content string, policy []byte) *jetstream.PubAck {
	r.Helper()
	return testkit.Publish(r, r.js, testkit.Fixed(testkit.Slot(slot), content, policy))
}

// settled waits until every message is acked.
func (r *rig) settled() {
	r.Helper()
	testkit.EventuallyWithin(r, 20*time.Minute, "every message is acked", func() bool {
		return testkit.Unfinished(r, r.js, event.StreamIngest, consumer) == 0
	})
}

func (r *rig) facts(subjects ...string) []testkit.Stored {
	r.Helper()
	return testkit.ReadAll(r, r.js, event.StreamIngest, subjects...)
}

func (r *rig) made() []testkit.Stored { return r.facts(event.SubjectDerivative + ".jp2") }

func (r *rig) failed() (out []event.AttemptFailed) {
	for _, m := range r.facts(event.SubjectAttemptFailed) {
		out = append(out, m.Fact(r).(event.AttemptFailed))
	}
	return out
}

func (r *rig) letters() []testkit.Stored { return testkit.ReadAll(r, r.js, event.StreamDeadLetter) }

func (r *rig) expect(what string, got, want any) {
	r.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		r.Fatalf("%s: %v, want %v", what, got, want)
	}
}

// gauges gives a metric's values by one of its labels.
func (r *rig) gauges(name, label string) map[string]float64 {
	r.Helper()
	families, err := r.registry.Gather()
	testkit.OK(r, err)
	out := map[string]float64{}
	for _, f := range families {
		for _, m := range f.Metric {
			for _, l := range m.Label {
				if f.GetName() == name && l.GetName() == label {
					out[l.GetValue()] = m.Gauge.GetValue()
				}
			}
		}
	}
	return out
}

// calls lists what the stage called, without pulls and heartbeats.
func (r *rig) calls() string {
	var out []string
	for _, c := range r.faults.Calls() {
		if !strings.HasPrefix(c, "fetch") && c != "in-progress" && c != "attempt read" {
			out = append(out, strings.TrimPrefix(c, "publish ingest."))
		}
	}
	return strings.Join(out, ", ")
}

// once checks that every message was told of exactly once: one derivative fact
// for each slot, attempts that failed numbered from 1 without gaps, nothing
// unacked.
func (r *rig) once(slots ...string) {
	r.Helper()
	r.settled()
	count := map[string]int{}
	for _, m := range r.made() {
		count[m.ID()]++
		if f := m.Fact(r).(event.DerivativeMade); m.ID() != f.MsgID() {
			r.Errorf("%s is stored as %s", f.MsgID(), m.ID())
		}
	}
	for _, s := range slots {
		n := 0
		for id, c := range count {
			if strings.Contains(id, "@"+testkit.Slot(s).String()+"#") {
				n += c
			}
		}
		if n != 1 {
			r.Errorf("%s has %d facts: %v", s, n, count)
		}
	}
	// A letter about a slot follows the failed attempt that decided it.
	ends := map[string]int{}
	for _, f := range r.failed() {
		if f.Decision == event.DecisionDeadLetter {
			ends[fmt.Sprintf("%s@%s#%d", f.Operation, f.Slot, f.Pass)]++
		}
	}
	for _, l := range r.letters() {
		h := l.Header
		pass := h.Get(event.HeaderOperation) + "@" + h.Get(event.HeaderBatch) + "/" + h.Get(event.HeaderFrame) + "#" + h.Get(event.HeaderPass)
		if h.Get(event.HeaderFrame) != "" && ends[pass] != 1 {
			r.Errorf("%s has a letter and %d attempts that say so", pass, ends[pass])
		}
	}
	last := map[string]int{}
	for _, f := range r.failed() {
		key := fmt.Sprintf("%s:%s@%s#%d", f.Operation, f.Digest, f.Slot, f.Pass)
		if f.Attempt != last[key]+1 {
			r.Errorf("%s: attempt %d follows %d", key, f.Attempt, last[key])
		}
		last[key] = f.Attempt
	}
}
