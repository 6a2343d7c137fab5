package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/alecthomas/kong"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
)

// Base are the settings of every service program; embed it in the program's
// own.
type Base struct {
	Flags
	NATS
	HTTP     string           `name:"http" help:"Address of /livez, /readyz and /metrics; empty: none." default:":8080" env:"COLOPHON_HTTP"`
	Instance string           `help:"Name of this instance, such as the pod's." env:"COLOPHON_INSTANCE,HOSTNAME" default:"${hostname}"`
	Version  kong.VersionFlag `help:"Print the version."`
}

// Env is what a service program runs with.
type Env struct {
	Base
	Log      *slog.Logger
	NC       *nats.Conn
	JS       jetstream.JetStream
	Health   *Health
	Registry *prometheus.Registry
}

// Main is the program around a service: it reads flags and environment into
// settings, refuses them with all their faults at once, connects, answers for
// its health, runs until a signal, and gives the exit status: 0 after a
// graceful stop, 1 after a failure, 2 for wrong usage. settings is a pointer
// to a struct that embeds base; if it has a Validate method kong calls it.
func Main(name, about string, settings any, base *Base, run func(context.Context, Env) error) int {
	host, err := os.Hostname()
	if err != nil {
		host = name
	}
	parser, err := kong.New(settings, kong.Name(name), kong.Description(about), kong.UsageOnError(), kong.Vars{
		"version": Version, "hostname": host, "nats_help": "Broker to connect to.", "nats_url": "nats://127.0.0.1:4222",
	})
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		return 1
	}
	if _, err := parser.Parse(os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		return 2
	}
	log := base.Logger(os.Stderr, name)
	ctx, stop := Signals()
	defer stop()
	log.Info("starting", slog.String("version", Version), slog.Any("settings", settings))
	if err := serve(ctx, name, *base, log, run); err != nil && !errors.Is(err, context.Canceled) {
		log.Error("failed", slog.Any("error", err))
		return 1
	}
	log.Info("stopped")
	return 0
}

func serve(ctx context.Context, name string, base Base, log *slog.Logger, run func(context.Context, Env) error) error {
	e := Env{Base: base, Log: log, Health: new(Health), Registry: Registry()}
	e.Registry.MustRegister(e.Health.Denials())
	if _, err := ServeHTTP(ctx, base.HTTP, e.Health, e.Registry, log); err != nil {
		return err
	}
	nc, js, err := base.Connect(ctx, name, log, e.Health)
	if err != nil {
		return err
	}
	defer nc.Close()
	e.NC, e.JS = nc, js
	return run(ctx, e)
}
