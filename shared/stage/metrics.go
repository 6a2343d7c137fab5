package stage

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"colophon/shared/retry"
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
	waiting     *prometheus.GaugeVec
	breakers    *prometheus.GaugeVec

	mu      sync.Mutex
	watched []*retry.Breakers
	alarms  *prometheus.CounterVec
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
	m.alarms = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "ingest_alarms_total", Help: "What somebody must look at, by kind (hole, stuck, ...)."}, []string{"kind"})
	m.waiting = prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "ingest_messages_parked", Help: "Messages that wait in the service's own store, acknowledged."}, []string{"consumer"})
	m.breakers = prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "ingest_breaker_state", Help: "Circuit breaker of a dependency that failed lately: 0 closed, 1 half-open, 2 open."}, []string{"consumer", "dependency"})
	r.MustRegister(m.waiting, m.breakers)
	r.MustRegister(m.alarms, m.messages, m.duration, m.redelivery, m.duplicates, m.attempts, m.deadLetters, m.halts)
	return m
}

func (m *Metrics) settled(consumer, outcome string, took time.Duration) {
	m.messages.WithLabelValues(consumer, outcome).Inc()
	m.duration.WithLabelValues(consumer).Observe(took.Seconds())
}

// Alarm counts something that somebody must look at.
func (m *Metrics) Alarm(kind string) { m.alarms.WithLabelValues(kind).Inc() }

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

func (m *Metrics) parked(consumer string) func(float64) {
	return m.waiting.WithLabelValues(consumer).Add
}

// breaker keeps the gauge of a consumer's dependencies; there are as many
// labels as breakers, which are bounded.
func (m *Metrics) breaker(consumer string) func(string, retry.State) {
	return func(dependency string, s retry.State) {
		if s == retry.Forgotten {
			m.breakers.DeleteLabelValues(consumer, dependency)
			return
		}
		m.breakers.WithLabelValues(consumer, dependency).Set(float64(s))
	}
}

// watch names a stage's open breakers while it runs.
func (m *Metrics) watch(b *retry.Breakers) (stop func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.watched = append(m.watched, b)
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.watched = slices.DeleteFunc(m.watched, func(o *retry.Breakers) bool { return o == b })
	}
}

// Breakers names the dependencies of this process that nothing is asked of at
// the moment, for its readiness page; "" when all answer.
func (m *Metrics) Breakers() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var open []string
	for _, b := range m.watched {
		open = append(open, b.Open()...)
	}
	if len(open) == 0 {
		return ""
	}
	return "open: " + strings.Join(open, ", ")
}
