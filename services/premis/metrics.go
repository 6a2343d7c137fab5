package premis

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

var (
	records   = prometheus.NewDesc("premis_ledger_records", "Records of the ledger.", nil, nil)
	logAt     = prometheus.NewDesc("premis_log_position", "Sequence of the log that the ledger stands at.", nil, nil)
	unsigned  = prometheus.NewDesc("premis_unsigned_records", "Records behind the last signed checkpoint, where this copy of the ledger signs.", nil, nil)
	signedAge = prometheus.NewDesc("premis_checkpoint_age_seconds", "Time since the last checkpoint was signed, where this copy of the ledger signs; since its start before the first.", nil, nil)
)

// collector tells of the ledger when it is asked.
type collector struct{ s *Service }

// Collector gives the numbers of the ledger.
func (s *Service) Collector() prometheus.Collector { return collector{s} }

// Describe implements [prometheus.Collector].
func (c collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{records, logAt, unsigned, signedAge} {
		ch <- d
	}
}

// Collect implements [prometheus.Collector].
func (c collector) Collect(ch chan<- prometheus.Metric) {
	head := c.s.ledger.Head()
	gauge := func(d *prometheus.Desc, v float64) { ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v) }
	gauge(records, float64(head.Size))
	gauge(logAt, float64(c.s.ledger.Position().Sequence))
	if c.s.signer == nil {
		return
	}
	_, last, at, err := c.s.signer.Last()
	if err != nil {
		ch <- prometheus.NewInvalidMetric(signedAge, err)
		return
	}
	if at.IsZero() {
		at = c.s.started
	}
	gauge(unsigned, float64(max(0, head.Size-last.Size)))
	gauge(signedAge, time.Since(at).Seconds())
}
