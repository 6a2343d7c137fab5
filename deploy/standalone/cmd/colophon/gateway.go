package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"golang.org/x/sync/errgroup"

	"colophon/deploy/gateway"
	"colophon/deploy/standalone"
	"colophon/shared/event"
	"colophon/shared/profile"
	"colophon/shared/retry"
)

type gatewayCmd struct {
	Hotfolder hotFolderCmd `cmd:"" help:"Take in what scan software writes into a folder: each subfolder is a batch."`
	SANE      saneCmd      `cmd:"" name:"sane" help:"Scan with a device of SANE, and scan again what the line asks for."`
}

// gatewayFlags are what both gateways are told.
type gatewayFlags struct {
	Name        string   `help:"Name of this gateway: it publishes below it."`
	Spool       string   `help:"Folder for what the broker does not take yet; it outlives this process." type:"path"`
	Operator    string   `help:"Who scans (a pseudonym)."`
	RetryPolicy string   `help:"File with the retry policy (JSON) of new batches." type:"existingfile"`
	Profiles    []string `help:"Derivatives that new batches want; default: the line's."`
	policy      []byte
}

func (f *gatewayFlags) check() (err error) {
	if f.RetryPolicy != "" {
		if f.policy, err = os.ReadFile(f.RetryPolicy); err != nil {
			return err
		}
		if _, err := retry.Parse(f.policy); err != nil {
			return fmt.Errorf("%w: %w", standalone.ErrUsage, err)
		}
	}
	for _, p := range f.Profiles {
		if _, ok := profile.Named(p); !ok {
			return fmt.Errorf("%w: there is no profile %s", standalone.ErrUsage, p)
		}
	}
	return nil
}

// speak runs a gateway on a connection to the line: the one of --nats, which
// comes back by itself, or else the archive's, which this process may have to
// take over. work returns when it is done, or when its context ends.
func (f *gatewayFlags) speak(s *session, root string, work func(context.Context, *gateway.Gateway) error) error {
	for {
		err := f.once(s, root, work)
		if !errors.Is(err, errTakeOver) || s.Err() != nil {
			return err
		}
		s.log.Info("taking_over")
	}
}

func (f *gatewayFlags) once(s *session, root string, work func(context.Context, *gateway.Gateway) error) error {
	nc, lost, release, err := f.connect(s, root)
	if err != nil {
		return err
	}
	defer release() //nolint:errcheck // what was sent is sent
	g, err := gateway.New(gateway.Config{Name: f.Name, NC: nc, Spool: f.Spool, Log: s.log})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(s)
	defer cancel()
	run, ctx := errgroup.WithContext(ctx)
	run.Go(func() error { return g.Run(ctx) })
	run.Go(func() error {
		select {
		case <-lost:
			return errTakeOver
		case <-ctx.Done():
			return nil
		}
	})
	run.Go(func() error {
		defer cancel()
		err := work(ctx, g)
		for err == nil && ctx.Err() == nil && g.Spooled() > 0 { // done, once the broker has it all
			select {
			case <-time.After(100 * time.Millisecond):
			case <-ctx.Done():
			}
		}
		return err
	})
	if err := run.Wait(); err != nil && (s.Err() == nil || !errors.Is(err, context.Canceled)) {
		return err
	}
	return nil
}

// connect gives a connection, and what tells that it will not come back.
func (f *gatewayFlags) connect(s *session, root string) (*nats.Conn, <-chan struct{}, func() error, error) {
	if s.NATS.URL == "" {
		a, err := s.open(root)
		if err != nil {
			return nil, nil, nil, err
		}
		return a.NC, a.Done(), a.Close, nil
	}
	// A gateway works while the broker is away, so this does not wait for it.
	opts := []nats.Option{
		nats.Name("colophon-" + f.Name), nats.CustomInboxPrefix("_INBOX_" + event.Encode(f.Name)), nats.MaxReconnects(-1), nats.ReconnectWait(250 * time.Millisecond),
		nats.RetryOnFailedConnect(true), nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			s.log.Error("broker_error", slog.Any("error", err))
		}),
	}
	if s.NATS.Creds != "" {
		o, err := nats.NkeyOptionFromSeed(s.NATS.Creds)
		if err != nil {
			return nil, nil, nil, fmt.Errorf("nkey seed: %w", err)
		}
		opts = append(opts, o)
	}
	if s.NATS.CA != "" {
		opts = append(opts, nats.RootCAs(s.NATS.CA))
	}
	nc, err := nats.Connect(s.NATS.URL, opts...)
	if err != nil {
		return nil, nil, nil, err
	}
	return nc, nil, func() error { nc.Close(); return nil }, nil
}

type hotFolderCmd struct {
	gatewayFlags
	Dir          string        `arg:"" help:"Folder; what the log holds is moved to done/ in it." type:"path"`
	Settle       time.Duration `help:"How long a subfolder must have been left alone, where neither a list of checksums nor the sentinel says that it is whole." default:"10s"`
	Rescan       time.Duration `help:"Between two looks at the folder." default:"5s"`
	Sentinel     string        `help:"Name of a file that says that its subfolder is whole."`
	Ignore       []string      `help:"Pattern of names, or of paths below the batch, to leave alone; repeatable."`
	PartialLists bool          `help:"Lists of checksums may leave files out."`
	Device       string        `help:"Device that the scans come from."`
	Once         bool          `help:"End when nothing more will move by itself: 0 when all is taken in, 3 when something waits for a decision."`
}

func (c *hotFolderCmd) Run(s *session) error {
	if info, err := os.Stat(c.Dir); err != nil || !info.IsDir() {
		return fmt.Errorf("%w: %s is not a folder", standalone.ErrUsage, c.Dir)
	}
	if err := c.check(); err != nil {
		return err
	}
	for _, p := range c.Ignore {
		if _, err := path.Match(p, ""); err != nil {
			return fmt.Errorf("%w: --ignore %q: %w", standalone.ErrUsage, p, err)
		}
	}
	state := filepath.Join(c.Dir, ".colophon")
	if c.Name == "" {
		c.Name = "hotfolder"
	}
	if c.Spool == "" {
		c.Spool = filepath.Join(state, "spool")
	}
	var sum gateway.Summary
	err := c.speak(s, c.Dir, func(ctx context.Context, g *gateway.Gateway) (err error) {
		h := &gateway.HotFolder{
			Gateway: g, Dir: c.Dir, Journal: filepath.Join(state, "journal"), Settle: c.Settle, Rescan: c.Rescan, Sentinel: c.Sentinel, Ignore: c.Ignore,
			Partial: c.PartialLists, Device: c.Device, Operator: c.Operator, Policy: c.policy, Profiles: c.Profiles, Log: s.log,
		}
		sum, err = h.Run(ctx, c.Once)
		return err
	})
	if err == nil && c.Once && s.Err() == nil && sum.Waiting+sum.Sent+sum.Held > 0 {
		fmt.Printf("%d masters wait, %d frames need a decision, %d batches are held\n", sum.Waiting, sum.Failed, sum.Held)
		return status(exitUnsettled)
	}
	return err
}

type saneCmd struct {
	gatewayFlags
	Source  string        `arg:"" name:"device" help:"SANE's name of the device, as scanimage -L lists it."`
	Device  string        `help:"The line's name of the device; default: SANE's."`
	Dir     string        `help:"Folder that pages are kept in." required:"" type:"path"`
	Batch   string        `help:"Batch to scan; without it, only what the line asks for."`
	Count   int           `help:"Pages of the batch; 0: what lies in the feeder."`
	Option  []string      `help:"Option of the device, name=value; repeatable." sep:"none"`
	Obey    bool          `help:"Behind the batch, go on with what the line asks for."`
	Again   time.Duration `help:"How long the device is left alone behind a fault." default:"10s"`
	Faults  int           `help:"Faults without a page between that end a batch." default:"30"`
	Program string        `help:"scanimage." default:"scanimage" env:"COLOPHON_SCANIMAGE"`
}

func (c *saneCmd) Run(s *session) error {
	if err := c.check(); err != nil {
		return err
	}
	if c.Count < 0 || c.Faults < 1 {
		return fmt.Errorf("%w: --count is below 0, or --faults below 1", standalone.ErrUsage)
	}
	if err := os.MkdirAll(c.Dir, 0o755); err != nil {
		return err
	}
	if c.Device == "" {
		c.Device = c.Source
	}
	if c.Name == "" {
		c.Name = "sane"
	}
	if c.Spool == "" {
		c.Spool = filepath.Join(c.Dir, ".spool")
	}
	var options []string
	for _, o := range c.Option {
		name, _, ok := strings.Cut(o, "=")
		if !ok || name == "" || strings.HasPrefix(name, "-") || strings.HasPrefix(name, "batch") || name == "format" {
			return fmt.Errorf("%w: --option %q: not name=value of the device", standalone.ErrUsage, o)
		}
		options = append(options, o)
	}
	return c.speak(s, c.Dir, func(ctx context.Context, g *gateway.Gateway) error {
		sc := &gateway.Scanner{
			Gateway: g, SANE: c.Source, Device: c.Device, Program: c.Program, Options: options, Dir: c.Dir, Suffix: ".tif", Again: c.Again, Faults: c.Faults,
			Operator: c.Operator, Policy: c.policy, Profiles: c.Profiles, Log: s.log,
		}
		if c.Batch != "" {
			batch, err := batchArg(c.Batch)
			if err == nil {
				err = sc.Batch(ctx, batch, c.Count)
			}
			if err == nil && s.NATS.URL == "" { // the line may be this process, and end with it
				err = g.Settled(ctx, batch)
			}
			if err != nil || !c.Obey {
				return err
			}
		}
		return sc.Obey(ctx)
	})
}
