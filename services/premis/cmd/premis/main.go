// Command premis runs the ledger; see package premis.
package main

import (
	"context"
	"errors"
	"os"
	"strings"

	"colophon/services/premis"
	"colophon/shared/daemon"
	"colophon/shared/topology"
)

type settings struct {
	daemon.Base
	State  string `help:"Folder of the ledger." required:"" type:"path" env:"COLOPHON_STATE"`
	Key    string `help:"File of the key that signs checkpoints, outside the ledger's folder; made at the first start. Without it this copy of the ledger signs none." type:"path" env:"COLOPHON_CHECKPOINT_KEY"`
	Origin string `help:"Name of the ledger, fixed at the first start: archive.example.org/colophon." required:"" env:"COLOPHON_ORIGIN"`
}

// Validate reports every fault at once.
func (s *settings) Validate() error { return s.config().Validate() }

func (s *settings) config() premis.Config {
	c := premis.Defaults()
	c.Dir, c.Key, c.Origin, c.Version = s.State, s.Key, strings.TrimSpace(s.Origin), daemon.Semver(daemon.Version)
	return c
}

func main() {
	s := new(settings)
	os.Exit(daemon.Main("premis", "Keeps the preservation ledger: every event once, in log order.", s, &s.Base, s.run))
}

func (s *settings) run(ctx context.Context, e daemon.Env) (err error) {
	c := s.config()
	c.Logger = e.Log
	svc, err := premis.New(c, e.NC)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, svc.Close()) }()
	e.Registry.MustRegister(svc.Collector(), topology.Lag(e.JS, topology.Premis))
	e.Health.Check("ledger", func() error {
		select {
		case <-svc.Ready():
			return nil
		default:
			return errors.New("the log is not read to its end")
		}
	})
	return svc.Run(ctx)
}
