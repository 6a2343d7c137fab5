package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	broker "colophon/deploy/nats"
	"colophon/deploy/standalone"
	"colophon/shared/event"
	"colophon/shared/profile"
	"colophon/shared/retry"
	"colophon/shared/topology"
)

type serveCmd struct {
	Root   []string  `help:"Folder that file sources may lie in; repeatable. Without it: the folders that earlier commands on this archive were given." type:"existingdir" env:"COLOPHON_ROOTS"`
	Source []string  `name:"source-host" help:"Host that http(s) sources may be read from: name[:port], address[:port] or network/bits; repeatable. Addresses that are not public must stand here themselves." env:"COLOPHON_SOURCE_HOSTS"`
	Listen string    `help:"Address of the broker; other than loopback only with accounts and a certificate." default:"127.0.0.1:4222" env:"COLOPHON_LISTEN"`
	HTTP   string    `name:"http" help:"Address of /livez, /readyz and /metrics; empty: none." default:"127.0.0.1:8080" env:"COLOPHON_HTTP"`
	Door   doorFlags `embed:"" prefix:"listen-"`
}

// doorFlags are who the broker lets in besides this machine's own user.
type doorFlags struct {
	Accounts string `help:"File with the accounts of the broker, as provision --grants writes it." type:"existingfile" env:"COLOPHON_LISTEN_ACCOUNTS"`
	Cert     string `help:"File with the certificate of the broker." type:"existingfile" env:"COLOPHON_LISTEN_CERT"`
	Key      string `help:"File with the key of that certificate." type:"existingfile" env:"COLOPHON_LISTEN_KEY"`
}

// Validate refuses an address that others reach, without all three: kong
// answers it with the status of wrong usage.
func (c *serveCmd) Validate() error {
	return standalone.Door(c.Door).Validate(c.Listen)
}

func (c *serveCmd) Run(s *session) error {
	a, err := standalone.Open(s, standalone.Options{
		Archive: s.Archive, Roots: c.Root, Hosts: append([]string{}, c.Source...), Known: len(c.Root) == 0, Broker: s.NATS, Listen: c.Listen, Door: standalone.Door(c.Door), HTTP: c.HTTP, Origin: s.Origin, LowWater: s.LowWaterMiB << 20, Log: s.line,
	})
	if err != nil {
		return err
	}
	if !a.Own() && s.NATS.URL == "" {
		return errors.Join(standalone.ErrRunning, a.Close())
	}
	s.log.Info("serving")
	select {
	case <-s.Done():
	case <-a.Done():
	}
	return errors.Join(a.Err(), a.Close())
}

type statusCmd struct {
	Batch string `arg:"" optional:"" help:"Batch; without it every batch, a line each."`
	All   bool   `help:"List also the frames that are done."`
}

// statusOut is what status --json prints.
type statusOut struct {
	event.BatchStatus
	Frames []event.FrameStatus `json:"frames"`
}

// batchView is a batch view to look at: of the running line, or, where none
// runs, the stored one. Asking starts no work.
type batchView interface {
	Status(event.Name) (event.BatchStatus, error)
	Frames(event.Name, bool, func(event.FrameStatus) error) error
	Batches() (event.BatchList, error)
}

// running asks a running line.
type running struct {
	s *session
	a *standalone.Archive
}

func (r running) Status(b event.Name) (event.BatchStatus, error) { return r.a.Status(r.s, b) }

func (r running) Frames(b event.Name, undone bool, each func(event.FrameStatus) error) error {
	return r.a.Frames(r.s, b, undone, each)
}

func (r running) Batches() (event.BatchList, error) {
	return r.a.Batches(r.s)
}

func (s *session) look() (batchView, func() error, error) {
	if s.NATS.URL == "" {
		if _, err := os.Stat(s.Archive); err != nil {
			return nil, nil, fmt.Errorf("%w: there is no archive at %s", standalone.ErrUsage, s.Archive)
		}
		if r, release, err := standalone.Look(s.Archive); err == nil {
			return r, release, nil
		}
	}
	a, err := s.existing()
	if err != nil {
		return nil, nil, err
	}
	return running{s, a}, a.Close, nil
}

func (c *statusCmd) Run(s *session) error {
	v, release, err := s.look()
	if err != nil {
		return err
	}
	defer release() //nolint:errcheck // only read
	if c.Batch == "" {
		return c.list(s, v)
	}
	b, err := batchArg(c.Batch)
	if err != nil {
		return err
	}
	st, err := v.Status(b)
	if err != nil {
		return err
	}
	if !st.Known {
		return fmt.Errorf("%w: batch %s is not known", standalone.ErrUsage, b.Display())
	}
	out := statusOut{BatchStatus: st, Frames: []event.FrameStatus{}}
	err = v.Frames(b, !c.All, func(f event.FrameStatus) error {
		out.Frames = append(out.Frames, f)
		return nil
	})
	if err != nil {
		return err
	}
	if err := s.print(out, func() { printStatus(out) }); err != nil {
		return err
	}
	return settled(st)
}

// settled gives the exit status of a batch: 0 only where it converged, and its
// manifest and bag stand.
func settled(st event.BatchStatus) error {
	if !st.Converged || st.Bag < st.Convergence || st.Manifest < st.Convergence {
		return status(exitUnsettled)
	}
	return nil
}

func printStatus(o statusOut) {
	t := o.Totals
	fmt.Printf("%s: %d of %d done", o.Batch.Display(), t.Done, t.Declared)
	if o.Converged {
		fmt.Printf("; converged (%d)", o.Convergence)
	}
	fmt.Printf("; %d failed, %d pending, %d missing, %d discarded\n", t.Failed, t.Pending, t.Missing, t.Discarded)
	if o.Problem != "" {
		fmt.Printf("problem: %s\n", o.Problem)
	}
	for _, f := range o.Frames {
		fmt.Printf("  %s  %s", f.Frame.Display(), f.State)
		if f.Stage != "" {
			fmt.Printf(" at %s", f.Stage)
		}
		for _, k := range f.Troubles {
			fmt.Printf("; %s: %s: %s", k.Operation, k.Code, k.Reason)
			if !k.NotBefore.IsZero() && f.State == event.StatePending {
				fmt.Printf(" (next try %s)", k.NotBefore.Local().Format(time.TimeOnly))
			}
		}
		fmt.Print(asked(f.Rescan), stuck(f.Stuck))
		fmt.Println()
	}
}

// asked tells what a device owes.
func asked(r *event.RescanStatus) string {
	switch {
	case r == nil:
		return ""
	case r.Device == "":
		return fmt.Sprintf("; to be scanned again since %s: %s", since(r.Since), r.Problem)
	}
	return fmt.Sprintf("; asked of %s again since %s (pass %d)", event.Name(r.Device).Display(), since(r.Since), r.Pass)
}

// stuck tells of a frame that no message would have moved.
func stuck(k *event.StuckStatus) string {
	switch {
	case k == nil:
		return ""
	case k.Problem != "":
		return fmt.Sprintf("; stuck since %s: %s", since(k.Since), k.Problem)
	}
	return fmt.Sprintf("; was stuck at %s, sent again %s", k.Operation, since(k.Since))
}

func since(t time.Time) string { return t.Local().Format(time.DateTime) }

func (c *statusCmd) list(s *session, v batchView) error {
	l, err := v.Batches()
	if err != nil {
		return err
	}
	return s.print(l, func() {
		w := tabwriter.NewWriter(os.Stdout, 2, 4, 2, ' ', 0)
		fmt.Fprintln(w, "batch\tdone\tdeclared\tfailed\tpending\tmissing\tdiscarded\tconverged\tproblem")
		for _, b := range l.Batches {
			t := b.Totals
			fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%d\t%d\t%v\t%s\n", b.Batch.Display(), t.Done, t.Declared, t.Failed, t.Pending, t.Missing, t.Discarded, b.Converged, b.Problem)
		}
		_ = w.Flush()
	})
}

type retryCmd struct {
	Batch          string `arg:"" help:"Batch."`
	Note           string `help:"Why." default:"retry"`
	UntilConverged bool   `help:"Repeat only what failed transiently, at most max_attempts passes, the policy's delay between them."`
	Profile        string `help:"Make this derivative too, of every frame that lacks it; the batch wants it from then on."`
}

func (c *retryCmd) Run(s *session) error {
	b, err := batchArg(c.Batch)
	if err != nil {
		return err
	}
	if _, err := os.Stat(s.Archive); err != nil && s.NATS.URL == "" {
		return fmt.Errorf("%w: there is no archive at %s", standalone.ErrUsage, s.Archive)
	}
	a, err := s.open()
	if err != nil {
		return err
	}
	defer a.Close() //nolint:errcheck // what was asked for has been said
	res, err := a.Retry(s, standalone.RetryOptions{Batch: b, Actor: s.Actor, Note: c.Note, UntilConverged: c.UntilConverged, Profile: c.Profile})
	if err != nil {
		return err
	}
	err = s.print(res, func() {
		fmt.Printf("batch %s: %d sent again, %d left; %d of %d done, %d failed\n", b.Display(), res.Dispatched, res.Left, res.Totals.Done, res.Totals.Declared, res.Totals.Failed)
	})
	if err != nil || res.Converged {
		return err
	}
	if !s.JSON {
		fmt.Printf("what is left: colophon --archive %s status %s\n", s.Archive, quote(c.Batch))
	}
	return status(exitUnsettled)
}

type policyCmd struct {
	Show policyShowCmd `cmd:"" help:"Print the retry policy that a batch is pinned to."`
	Diff policyDiffCmd `cmd:"" help:"Print what differs between the policies of two batches; status 3 if anything does."`
}

type policyShowCmd struct {
	Batch string `arg:"" help:"Batch."`
}

func (s *session) policies(names ...string) ([]event.BatchStatus, error) {
	v, release, err := s.look()
	if err != nil {
		return nil, err
	}
	defer release() //nolint:errcheck // only read
	var out []event.BatchStatus
	for _, n := range names {
		b, err := batchArg(n)
		if err != nil {
			return nil, err
		}
		st, err := v.Status(b)
		if err != nil {
			return nil, err
		}
		if !st.Known {
			return nil, fmt.Errorf("%w: batch %s is not known", standalone.ErrUsage, b.Display())
		}
		out = append(out, st)
	}
	return out, nil
}

func (c *policyShowCmd) Run(s *session) error {
	st, err := s.policies(c.Batch)
	if err != nil {
		return err
	}
	return s.print(struct {
		Policy json.RawMessage `json:"policy"`
		SHA256 event.Digest    `json:"sha256"`
	}{st[0].Policy, st[0].PolicyDigest}, func() {
		var b bytes.Buffer
		_ = json.Indent(&b, st[0].Policy, "", "  ")
		fmt.Printf("%s\nsha256 %s\n", b.String(), st[0].PolicyDigest)
	})
}

type policyDiffCmd struct {
	A string `arg:"" help:"Batch."`
	B string `arg:"" help:"Another batch."`
}

func (c *policyDiffCmd) Run(s *session) error {
	st, err := s.policies(c.A, c.B)
	if err != nil {
		return err
	}
	diff, err := retry.Diff(st[0].Policy, st[1].Policy)
	if err != nil {
		return err
	}
	if err := s.print(struct {
		Diff []retry.Difference `json:"diff"`
	}{diff}, func() {
		for _, d := range diff {
			fmt.Printf("%s: %s, %s\n", d.Field, d.A, d.B)
		}
		if len(diff) == 0 {
			fmt.Println("the same")
		}
	}); err != nil {
		return err
	}
	if len(diff) > 0 {
		return status(exitUnsettled)
	}
	return nil
}

type provisionCmd struct {
	Check    bool     `help:"Change nothing; print what differs from the table."`
	Replicas int      `help:"Replicas of each stream: 3 on a cluster." default:"1" env:"COLOPHON_REPLICAS"`
	Grants   string   `help:"Write keys (NAME.nk, secret, kept where they exist) and the broker's accounts into this folder, and do nothing else." type:"path"`
	Gateway  []string `help:"With --grants: a gateway, NAME or NAME=DEVICE,DEVICE; repeatable." sep:"none" default:"cli"`
	Operator []string `help:"With --grants: an operator; repeatable." default:"operator"`
}

func (c *provisionCmd) grants(s *session) error {
	var gateways, operators []topology.Identity
	for _, g := range c.Gateway {
		name, devices, _ := strings.Cut(g, "=")
		i := topology.Identity{Kind: topology.KindGateway, Name: name}
		if devices != "" {
			i.Devices = strings.Split(devices, ",")
		}
		gateways = append(gateways, i)
	}
	for _, o := range c.Operator {
		operators = append(operators, topology.Identity{Kind: topology.KindOperator, Name: o})
	}
	a := topology.DefaultAccess(profile.Names(), gateways, operators)
	if err := a.Validate(); err != nil {
		return fmt.Errorf("%w: %w", standalone.ErrUsage, err)
	}
	if err := broker.Write(c.Grants, a); err != nil {
		return err
	}
	return s.print(a, func() {
		for _, i := range a.Identities {
			fmt.Printf("%s\t%s\t%s\n", i.Kind, i.Name, broker.SeedFile(c.Grants, i))
		}
	})
}

func (c *provisionCmd) Run(s *session) error {
	if c.Grants != "" {
		return c.grants(s)
	}
	drift, err := standalone.Provision(s, standalone.Options{Archive: s.Archive, Broker: s.NATS, Replicas: c.Replicas, Log: s.log}, c.Check)
	if err != nil {
		return err
	}
	if drift == nil {
		drift = []topology.Drift{}
	}
	err = s.print(struct {
		Drift []topology.Drift `json:"drift"`
	}{drift}, func() {
		for _, d := range drift {
			fmt.Println(d)
		}
		if len(drift) == 0 {
			fmt.Println("streams and consumers are as the table says")
		}
	})
	if err == nil && len(drift) > 0 {
		return status(exitUnsettled)
	}
	return err
}
