// Command quarantine keeps the cases of what the line gave up on.
package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/alecthomas/kong"

	"colophon/shared/daemon"

	"colophon/services/quarantine"
)

type flags struct {
	daemon.Flags
	daemon.NATS
	State    string `help:"Folder that the service keeps its state in." required:"" type:"path" env:"COLOPHON_STATE"`
	HTTP     string `name:"http" help:"Address for /livez, /readyz and /metrics; empty for none." env:"COLOPHON_HTTP"`
	Instance string `help:"Name of this instance." default:"quarantine" env:"COLOPHON_INSTANCE"`
}

// Validate implements kong's validation.
func (f *flags) Validate() error {
	var errs []error
	if f.Instance == "" {
		errs = append(errs, errors.New("--instance: is empty"))
	}
	if st, err := os.Stat(f.State); err == nil && !st.IsDir() {
		errs = append(errs, fmt.Errorf("--state: %s is no folder", f.State))
	}
	return errors.Join(errs...)
}

func main() {
	var f flags
	kong.Parse(&f, kong.Name(quarantine.Name), kong.Description("Keeps the cases of what the line gave up on; answers quarantine.list, .show, .replay, .discard."))
	log := f.Logger(os.Stderr, quarantine.Name)
	if err := run(f, log); err != nil {
		log.Error("quarantine_failed", slog.Any("error", err))
		os.Exit(1)
	}
}

func run(f flags, log *slog.Logger) error {
	ctx, stop := daemon.Signals()
	defer stop()
	var health daemon.Health
	registry := daemon.Registry()
	if _, err := daemon.ServeHTTP(ctx, f.HTTP, &health, registry, log); err != nil {
		return err
	}
	nc, js, err := f.Connect(ctx, quarantine.Name, log, &health)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	defer nc.Close()
	c := quarantine.Default()
	c.State, c.Instance, c.NC, c.JS, c.Log, c.Register = f.State, f.Instance, nc, js, log, registry
	c.Agent.Version = daemon.Version
	q, err := quarantine.New(c)
	if err != nil {
		return err
	}
	health.Check("log", q.Ready)
	return q.Run(ctx)
}
