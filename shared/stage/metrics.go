package stage

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are the numbers every stage reports; one set a process.
type Metrics struct {
	messages    *prometheus.CounterVec
	duration    *prometheus.HistogramVec
	redelivery  *prometheus.CounterVec
	duplicates  *prometheus.CounterVec
	attempts    *prometheus.CounterVec
	deadLetters *prometheus.CounterVec
	halts       *prometheus.GaugeVec
}

// NewMetrics registers the metrics of the stages of one process.
func NewMetrics(r prometheus.Registerer) *Metrics {
	m := &Metrics{
		messages:    prometheus.NewCounterVec(prometheus.CounterOpts{Name: "ingest_messages_total", Help: "Messages settled, by consumer and outcome (done, hit)."}, []string{"consumer", "outcome"}),
		duration:    prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "ingest_message_duration_seconds", Help: "From taking a message up to its ack.", Buckets: prometheus.ExponentialBuckets(0.001, 4, 10)}, []string{"consumer"}),
		redelivery:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "ingest_redeliveries_total", Help: "Messages delivered more than once."}, []string{"consumer"}),
		duplicates:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "ingest_publish_duplicates_total", Help: "Publishes that the broker had stored already."}, []string{"consumer"}),
		attempts:    prometheus.NewCounterVec(prometheus.CounterOpts{Name: "ingest_attempts_failed_total", Help: "Failed attempts, by code and decision."}, []string{"consumer", "code", "decision"}),
		deadLetters: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "ingest_dead_letters_total", Help: "Messages given up, by code."}, []string{"consumer", "code"}),
		halts:       prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "ingest_consumer_halted", Help: "1 while the consumer is halted by its surroundings."}, []string{"consumer"}),
	}
	r.MustRegister(m.messages, m.duration, m.redelivery, m.duplicates, m.attempts, m.deadLetters, m.halts)
	return m
}

func (m *Metrics) settled(consumer, outcome string, took time.Duration) {
	m.messages.WithLabelValues(consumer, outcome).Inc()
	m.duration.WithLabelValues(consumer).Observe(took.Seconds())
}

func (m *Metrics) redelivered(consumer string) { m.redelivery.WithLabelValues(consumer).Inc() }

func (m *Metrics) duplicate(consumer string) { m.duplicates.WithLabelValues(consumer).Inc() }

func (m *Metrics) attemptFailed(consumer, code, decision string) {
	m.attempts.WithLabelValues(consumer, code, decision).Inc()
}

func (m *Metrics) deadLetter(consumer, code string) {
	m.deadLetters.WithLabelValues(consumer, code).Inc()
}

func (m *Metrics) halted(consumer string) func(bool) {
	g := m.halts.WithLabelValues(consumer)
	return func(halted bool) {
		if halted {
			g.Set(1)
		} else {
			g.Set(0)
		}
	}
}
