package topology_test

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"colophon/shared/testkit"
	"colophon/shared/topology"
)

// TestLag: what waits and what is in work, as the broker tells it.
func TestLag(t *testing.T) {
	t.Parallel()
	b, js := testkit.NewBroker(t, profiles...)
	publish(t, js, "ingest.frame.captured", 0, 5)
	cons, err := js.Consumer(t.Context(), "INGEST", topology.Hasher)
	testkit.OK(t, err)
	batch, err := cons.Fetch(2, jetstream.FetchMaxWait(time.Minute))
	testkit.OK(t, err)
	for range batch.Messages() {
	}
	r := prometheus.NewPedanticRegistry()
	testkit.OK(t, r.Register(topology.Lag(js, topology.Hasher, topology.DeriverConsumer("jp2"), topology.Quarantine)))
	got := map[string]float64{}
	read := func() {
		t.Helper()
		clear(got)
		families, err := r.Gather()
		testkit.OK(t, err)
		for _, f := range families {
			for _, m := range f.Metric {
				got[f.GetName()+" "+m.Label[0].GetValue()] = m.Gauge.GetValue()
			}
		}
	}
	read()
	for name, want := range map[string]float64{
		"ingest_consumer_pending hasher": 3, "ingest_consumer_ack_pending hasher": 2, "ingest_consumer_pending deriver-jp2": 0, "ingest_consumer_pending quarantine": 0,
	} {
		if v, ok := got[name]; !ok || v != want {
			t.Errorf("%s is %v (%v), want %v", name, v, ok, want)
		}
	}
	b.Stop()
	if read(); len(got) > 0 { // the others are read all the same
		t.Errorf("without a broker: %v", got)
	}
}
