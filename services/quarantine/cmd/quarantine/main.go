// Command quarantine keeps the cases of what the line gave up on; see package
// quarantine.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"colophon/shared/daemon"
	"colophon/shared/topology"

	"colophon/services/quarantine"
)

type settings struct {
	daemon.Base
	State string `help:"Folder of the cases; they stand in its subfolder \"quarantine\"." required:"" type:"path" env:"COLOPHON_STATE"`
}

// Validate reports every fault at once.
func (s *settings) Validate() error {
	var errs []error
	if s.Instance == "" {
		errs = append(errs, errors.New("--instance: is empty"))
	}
	if st, err := os.Stat(s.State); err == nil && !st.IsDir() {
		errs = append(errs, fmt.Errorf("--state: %s is no folder", s.State))
	}
	return errors.Join(errs...)
}

func main() {
	s := new(settings)
	os.Exit(daemon.Main(quarantine.Name, "Keeps the cases of what the line gave up on: list, show, replay, discard.", s, &s.Base, s.run))
}

func (s *settings) run(ctx context.Context, e daemon.Env) error {
	c := quarantine.Default()
	c.State, c.Instance, c.NC, c.JS, c.Log, c.Register = s.State, e.Instance, e.NC, e.JS, e.Log, e.Registry
	c.Agent.Version = daemon.Version
	q, err := quarantine.New(c)
	if err != nil {
		return err
	}
	e.Registry.MustRegister(topology.Lag(e.JS, topology.Quarantine))
	e.Health.Check("cases", q.Ready)
	return q.Run(ctx)
}
