// Command hasher runs the second stage of the line; see package hasher.
package main

import (
	"context"
	"errors"
	"os"

	"colophon/services/hasher"
	"colophon/shared/daemon"
	"colophon/shared/stage"
	"colophon/shared/storage"
	"colophon/shared/topology"
)

type settings struct {
	daemon.Base
	Archive     string `help:"Folder of the archive." required:"" type:"path" env:"COLOPHON_ARCHIVE"`
	State       string `help:"Folder of this service's database." required:"" type:"path" env:"COLOPHON_STATE"`
	LowWaterMiB uint64 `name:"low-water-mib" help:"MiB of free space below which no work is taken; 0: the larger of 1 GiB and twice the largest master." default:"0" env:"COLOPHON_LOW_WATER_MIB"`
	Concurrency int    `help:"Files read at once." default:"8" env:"COLOPHON_CONCURRENCY"`
}

// Validate reports every fault at once.
func (s *settings) Validate() error {
	if s.Concurrency < 1 {
		return errors.New("--concurrency is below 1")
	}
	return nil
}

func main() {
	s := new(settings)
	os.Exit(daemon.Main("hasher", "Pins the digest of captured frames and promotes them to masters.", s, &s.Base, s.run))
}

func (s *settings) run(ctx context.Context, e daemon.Env) (err error) {
	store, err := storage.Open(s.Archive, storage.WithLowWater(s.LowWaterMiB<<20))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	svc, err := hasher.New(hasher.Config{
		State: s.State, Store: store, NC: e.NC, JS: e.JS, Log: e.Log, Metrics: stage.NewMetrics(e.Registry), Instance: e.Instance, Version: daemon.Version, Concurrency: s.Concurrency,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, svc.Close()) }()
	e.Registry.MustRegister(topology.Lag(e.JS, topology.Hasher))
	e.Health.Check("archive", store.CheckSpace)
	e.Health.Check("work", svc.Health)
	return svc.Run(ctx)
}
