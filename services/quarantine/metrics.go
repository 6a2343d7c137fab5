package quarantine

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"colophon/services/quarantine/internal/cases"
)

var (
	openCases = prometheus.NewDesc("quarantine_open_cases", "Cases that wait for a decision, by reason code.", []string{"code"}, nil)
	oldest    = prometheus.NewDesc("quarantine_oldest_open_case_age_seconds", "Age of the oldest case that waits for a decision; 0 when none does.", nil, nil)
	position  = prometheus.NewDesc("quarantine_log_position", "Sequence of the log that the cases stand at.", nil, nil)
)

// collector counts the cases when it is asked.
type collector struct{ q *Service }

// Describe implements [prometheus.Collector].
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	ch <- openCases
	ch <- oldest
	ch <- position
}

// Collect implements [prometheus.Collector].
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	err := c.q.open(func() error {
		codes, age, err := c.count()
		if err != nil {
			return err
		}
		for code, n := range codes {
			ch <- prometheus.MustNewConstMetric(openCases, prometheus.GaugeValue, float64(n), code)
		}
		ch <- prometheus.MustNewConstMetric(oldest, prometheus.GaugeValue, age.Seconds())
		ch <- prometheus.MustNewConstMetric(position, prometheus.GaugeValue, float64(c.q.read.Load()))
		return nil
	})
	if err != nil {
		ch <- prometheus.NewInvalidMetric(openCases, err)
	}
}

func (c *collector) count() (map[string]int, time.Duration, error) {
	codes, now, age := map[string]int{}, c.q.Now(), time.Duration(0)
	err := c.q.store.Each(cases.Query{}, func(id string) (bool, error) {
		r, _, err := c.q.store.Case(id)
		if err != nil {
			return false, err
		}
		codes[r.Code]++
		age = max(age, now.Sub(r.OpenedAt))
		return true, nil
	})
	return codes, age, err
}
