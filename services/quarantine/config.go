package quarantine

import (
	"errors"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"colophon/shared/event"
)

// Config is what the service is told and handed. [Default] fills what has a
// default.
type Config struct {
	State    string      // folder; the store stands in its subfolder "quarantine"
	Instance string      // of the service: a pod's name
	Agent    event.Agent // that its facts name

	// ReplayWait bounds how long a replay waits for the broker to take the
	// original message; past it the decision is refused, nothing is recorded.
	ReplayWait time.Duration
	// ReadWait bounds how long a decision waits until the log is read to its
	// end. Past it, it goes by what was read: at worst a case opens that closes
	// at the next fact.
	ReadWait time.Duration

	NC       *nats.Conn
	JS       jetstream.JetStream
	Log      *slog.Logger
	Register prometheus.Registerer // nil: no metrics
	Now      func() time.Time
}

// Default gives the settings that need no choice.
func Default() Config {
	return Config{
		Instance: Name, Agent: event.Agent{Name: "colophon-" + Name}, ReplayWait: 20 * time.Second, ReadWait: 5 * time.Second,
		Log: slog.New(slog.DiscardHandler), Now: time.Now,
	}
}

// Validate reports every fault at once.
func (c Config) Validate() error {
	var errs []error
	need := func(ok bool, what string) {
		if !ok {
			errs = append(errs, errors.New("quarantine: "+what))
		}
	}
	need(c.State != "", "no state folder is given")
	need(c.Instance != "", "the instance has no name")
	need(c.Agent.Name != "", "the agent has no name")
	need(c.ReplayWait > 0, "the wait for a replay is not above zero")
	need(c.ReadWait > 0, "the wait for the log is not above zero")
	need(c.NC != nil, "no connection is given")
	need(c.JS != nil, "no JetStream is given")
	need(c.Log != nil, "no logger is given")
	need(c.Now != nil, "no clock is given")
	return errors.Join(errs...)
}

// LogValue implements [slog.LogValuer].
func (c Config) LogValue() slog.Value {
	return slog.GroupValue(
		slog.String("state", c.State), slog.String("instance", c.Instance), slog.String("agent", c.Agent.Name+" "+c.Agent.Version),
		slog.Duration("replay_wait", c.ReplayWait), slog.Duration("read_wait", c.ReadWait),
	)
}
