// Command capture runs the first stage of the line; see package capture.
package main

import (
	"context"
	"errors"
	"os"
	"time"

	"colophon/services/capture"
	"colophon/shared/daemon"
	"colophon/shared/profile"
	"colophon/shared/retry"
	"colophon/shared/stage"
	"colophon/shared/storage"
	"colophon/shared/topology"
)

type settings struct {
	daemon.Base
	Archive     string   `help:"Folder of the archive." required:"" type:"path" env:"COLOPHON_ARCHIVE"`
	State       string   `help:"Folder of this service's databases." required:"" type:"path" env:"COLOPHON_STATE"`
	Root        []string `help:"Folder that file sources may lie in; repeatable." type:"path" env:"COLOPHON_ROOTS"`
	SourceHost  []string `help:"Host that http(s) sources may be read from: name[:port], address[:port] or network/bits; repeatable. Addresses that are not public must stand here themselves." env:"COLOPHON_SOURCE_HOSTS"`
	Profiles    []string `help:"Profiles of a batch that names none." default:"jp2" env:"COLOPHON_DEFAULT_PROFILES"`
	Policy      string   `help:"File with the retry policy (JSON) of batches that bring none." type:"path" env:"COLOPHON_POLICY"`
	LowWaterMiB uint64   `name:"low-water-mib" help:"MiB of free space below which no work is taken; 0: the larger of 1 GiB and twice the largest master." default:"0" env:"COLOPHON_LOW_WATER_MIB"`
	Concurrency int      `help:"Files read at once." default:"8" env:"COLOPHON_CONCURRENCY"`

	Reconcile time.Duration `help:"How often to look for slots, files and dispatches that no message will bring." default:"1m" env:"COLOPHON_RECONCILE"`

	policy retry.Policy
}

// Validate reports every fault at once.
func (s *settings) Validate() error {
	var errs []error
	if s.Reconcile <= 0 {
		errs = append(errs, errors.New("--reconcile is not above 0"))
	}
	if s.Concurrency < 1 {
		errs = append(errs, errors.New("--concurrency is below 1"))
	}
	for _, p := range s.Profiles {
		if _, ok := profile.Named(p); !ok {
			errs = append(errs, errors.New("--profiles: there is no profile "+p))
		}
	}
	for _, r := range s.Root {
		if info, err := os.Stat(r); err != nil || !info.IsDir() {
			errs = append(errs, errors.New("--root: "+r+" is not a folder"))
		}
	}
	s.policy = retry.Default()
	if s.Policy != "" {
		data, err := os.ReadFile(s.Policy)
		if err == nil {
			s.policy, err = retry.Parse(data)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func main() {
	s := new(settings)
	os.Exit(daemon.Main("capture", "Takes the bytes of declared frames into staging, and keeps the batch view.", s, &s.Base, s.run))
}

func (s *settings) run(ctx context.Context, e daemon.Env) (err error) {
	store, err := storage.Open(s.Archive, storage.WithLowWater(s.LowWaterMiB<<20))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	roots := new(capture.Roots)
	defer func() { err = errors.Join(err, roots.Close()) }()
	for _, r := range s.Root {
		if err := roots.Add(r); err != nil {
			return err
		}
	}
	metrics := stage.NewMetrics(e.Registry)
	e.Health.Note("breakers", metrics.Breakers)
	svc, err := capture.New(capture.Config{
		State: s.State, Store: store, Roots: roots, Hosts: s.SourceHost, NC: e.NC, JS: e.JS, Log: e.Log, Metrics: metrics, Instance: e.Instance, Version: daemon.Version,
		Concurrency: s.Concurrency, Policy: s.policy, Profiles: s.Profiles, Reconcile: s.Reconcile,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, svc.Close()) }()
	e.Registry.MustRegister(topology.Lag(e.JS, topology.CaptureBatch, topology.CaptureFrame, topology.CaptureFault))
	e.Health.Check("archive", store.CheckSpace)
	e.Health.Check("work", svc.Health)
	return svc.Run(ctx)
}
