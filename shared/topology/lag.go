package topology

import (
	"context"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"colophon/shared/event"
)

var (
	pending    = prometheus.NewDesc("ingest_consumer_pending", "Messages that the consumer has not been given yet.", []string{"consumer"}, nil)
	ackPending = prometheus.NewDesc("ingest_consumer_ack_pending", "Messages that the consumer was given and that are not acknowledged.", []string{"consumer"}, nil)
)

// lagWait bounds the question, so that a broker that is away does not keep the
// other metrics of a process from being read.
const lagWait = 2 * time.Second

type lag struct {
	js    jetstream.JetStream
	names []string
}

// Lag asks the broker, when it is collected, how far behind consumers of the
// table are. What cannot be told is left out. A registry takes one of them.
func Lag(js jetstream.JetStream, names ...string) prometheus.Collector { return lag{js, names} }

// Describe implements [prometheus.Collector].
func (lag) Describe(ch chan<- *prometheus.Desc) {
	ch <- pending
	ch <- ackPending
}

// Collect implements [prometheus.Collector].
func (l lag) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), lagWait)
	defer cancel()
	for _, name := range l.names {
		c, err := l.js.Consumer(ctx, streamOf(name), name)
		if err != nil {
			continue
		}
		info := c.CachedInfo()
		ch <- prometheus.MustNewConstMetric(pending, prometheus.GaugeValue, float64(info.NumPending), name)
		ch <- prometheus.MustNewConstMetric(ackPending, prometheus.GaugeValue, float64(info.NumAckPending), name)
	}
}

func streamOf(name string) string {
	for _, c := range Consumers(nil) {
		if c.Name == name {
			return c.Stream
		}
	}
	return event.StreamIngest // a profile's
}
