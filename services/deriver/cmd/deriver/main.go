// Command deriver runs the third stage of the line; see package deriver.
package main

import (
	"context"
	"errors"
	"os"
	"runtime"

	"colophon/services/deriver"
	"colophon/shared/daemon"
	"colophon/shared/profile"
	"colophon/shared/stage"
	"colophon/shared/storage"
	"colophon/shared/topology"
)

type settings struct {
	daemon.Base
	Archive     string   `help:"Folder of the archive." required:"" type:"path" env:"COLOPHON_ARCHIVE"`
	State       string   `help:"Folder of this service's databases." required:"" type:"path" env:"COLOPHON_STATE"`
	Scratch     string   `help:"Folder for work under way; emptied at start, of this instance alone." required:"" type:"path" env:"COLOPHON_SCRATCH"`
	Profiles    []string `help:"Profiles that this instance makes; none given: all that there are." env:"COLOPHON_PROFILES"`
	LowWaterMiB uint64   `name:"low-water-mib" help:"MiB of free space below which no work is taken; 0: the larger of 1 GiB and twice the largest master." default:"0" env:"COLOPHON_LOW_WATER_MIB"`
	Concurrency int      `help:"Masters worked on at once; 0: one for each core." default:"0" env:"COLOPHON_CONCURRENCY"`
	MemoryMiB   int64    `name:"memory-mib" help:"MiB that all helper programs together may take." default:"4096" env:"COLOPHON_MEMORY_MIB"`
}

// Validate reports every fault at once.
func (s *settings) Validate() error {
	var errs []error
	if s.Concurrency < 0 {
		errs = append(errs, errors.New("--concurrency is below 0"))
	}
	if s.MemoryMiB < 256 {
		errs = append(errs, errors.New("--memory-mib: less than 256 encodes no page"))
	}
	for _, p := range s.Profiles {
		if !offered(p) {
			errs = append(errs, errors.New("--profiles: there is no profile "+p))
		}
	}
	return errors.Join(errs...)
}

func offered(name string) bool {
	_, ok := profile.Named(name)
	return ok
}

func main() {
	s := new(settings)
	os.Exit(daemon.Main("deriver", "Makes the derivatives of masters, and compares each with its master.", s, &s.Base, s.run))
}

func (s *settings) run(ctx context.Context, e daemon.Env) (err error) {
	store, err := storage.Open(s.Archive, storage.WithLowWater(s.LowWaterMiB<<20))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	if len(s.Profiles) == 0 {
		s.Profiles = profile.Names()
	}
	if s.Concurrency == 0 {
		s.Concurrency = runtime.GOMAXPROCS(0)
	}
	svc, err := deriver.New(deriver.Config{
		State: s.State, Scratch: s.Scratch, Store: store, NC: e.NC, JS: e.JS, Log: e.Log, Metrics: stage.NewMetrics(e.Registry), Instance: e.Instance, Version: daemon.Version,
		Profiles: s.Profiles, Concurrency: s.Concurrency, Memory: s.MemoryMiB << 20,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, svc.Close()) }()
	var consumers []string
	for _, p := range s.Profiles {
		consumers = append(consumers, topology.DeriverConsumer(p))
	}
	e.Registry.MustRegister(topology.Lag(e.JS, consumers...))
	e.Health.Check("archive", store.CheckSpace)
	e.Health.Check("encoder", deriver.Missing)
	e.Health.Check("work", svc.Health)
	return svc.Run(ctx)
}
