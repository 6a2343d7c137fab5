// Package telemetry tests the alert rules and the dashboard beside it against
// the metrics that the code registers. It is a module of its own, outside
// go.work: it needs Prometheus's parser and nothing else does.
package telemetry
