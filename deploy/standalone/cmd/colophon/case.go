package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"text/tabwriter"
	"time"

	"colophon/deploy/standalone"
	"colophon/shared/event"
)

type caseCmd struct {
	List    caseListCmd    `cmd:"" help:"List the open cases."`
	Show    caseShowCmd    `cmd:"" help:"Show a case with its evidence and history."`
	Replay  caseReplayCmd  `cmd:"" help:"Send what failed again, under its next pass."`
	Discard caseDiscardCmd `cmd:"" help:"Decide that a frame, a derivative or other bytes are not wanted."`
	Rescan  caseRescanCmd  `cmd:"" help:"Ask for a frame to be scanned again."`
}

// caseFilter selects cases.
type caseFilter struct {
	Batch     string        `help:"Only of this batch."`
	Code      string        `help:"Only with this fault code."`
	Service   string        `help:"Only of this service."`
	Operation string        `help:"Only of this operation."`
	State     string        `help:"Only in this state." enum:",opened,replayed,discarded,rescan-requested,resolved" default:""`
	Older     time.Duration `help:"Only opened that long ago, or longer: 24h, 30m."`
	Newer     time.Duration `help:"Only opened less long ago."`
}

func (f caseFilter) request() event.CaseRequest {
	return event.CaseRequest{
		Batch: event.Name(f.Batch), Code: f.Code, Service: f.Service, Operation: event.Operation(f.Operation), State: f.State,
		OlderThan: event.Duration(f.Older), NewerThan: event.Duration(f.Newer),
	}
}

// Validate refuses what no case can be.
func (f caseFilter) Validate() error {
	if f.Older < 0 || f.Newer < 0 {
		return errors.New("an age is not below zero")
	}
	return nil
}

func (f caseFilter) empty() bool { return f == caseFilter{} }

type caseListCmd struct {
	caseFilter
	All bool `help:"Also closed cases."`
}

func (c *caseListCmd) Run(s *session) error {
	a, err := s.existing()
	if err != nil {
		return err
	}
	defer a.Close() //nolint:errcheck // only read
	req := c.request()
	req.All = c.All
	out := event.CaseList{Cases: []event.Case{}}
	for {
		page, err := standalone.Call[event.CaseList](s, a.Client, event.EndpointQuarantineList, req)
		if err != nil {
			return err
		}
		out.Cases, out.Total = append(out.Cases, page.Cases...), page.Total
		if page.Next == "" {
			break
		}
		req.After = page.Next
	}
	return s.print(out, func() {
		w := tabwriter.NewWriter(os.Stdout, 2, 4, 2, ' ', 0)
		fmt.Fprintln(w, "case\tstate\tcode\tattempts\treason")
		for _, k := range out.Cases {
			fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\n", k.ID, k.State, k.Code, k.Attempts, k.Reason)
		}
		_ = w.Flush()
		fmt.Printf("%d cases\n", out.Total)
	})
}

type caseShowCmd struct {
	Case string `arg:"" help:"Id of the case."`
}

func (c *caseShowCmd) Run(s *session) error {
	a, err := s.existing()
	if err != nil {
		return err
	}
	defer a.Close() //nolint:errcheck // only read
	k, err := standalone.Call[event.Case](s, a.Client, event.EndpointQuarantineShow, event.CaseRequest{ID: c.Case})
	if err != nil {
		return err
	}
	return s.print(k, func() {
		fmt.Printf("%s\n  state      %s\n  batch      %s\n  frame      %s\n  digest     %s\n  service    %s\n  code       %s (%s)\n  reason     %s\n  attempts   %d in pass %d\n  dead letter %d, origin %s\n",
			k.ID, k.State, k.Batch.Display(), k.Frame.Display(), k.Digest, k.Service, k.Code, k.Class, k.Reason, k.Attempts, k.Pass, k.Letter, k.Origin)
		if k.Device != "" {
			fmt.Printf("  device     %s\n", k.Device)
		}
		if k.Detail != "" {
			fmt.Printf("  evidence   %s\n", k.Detail)
		}
		for _, h := range k.History {
			fmt.Printf("  %s  %s  %s %s\n", h.At.Format("2006-01-02 15:04:05"), h.State, h.Actor, h.Note)
		}
	})
}

// decision is what replay, discard and rescan share.
type decision struct {
	caseFilter
	Case   string `arg:"" optional:"" help:"Id of the case; without it all that the filters select."`
	Note   string `help:"Why: it stands in the ledger for good." required:""`
	DryRun bool   `help:"Say what would be done, and do nothing."`
}

type caseReplayCmd struct{ decision }

func (c *caseReplayCmd) Run(s *session) error {
	return c.decide(s, event.EndpointQuarantineReplay, "replayed")
}

type caseDiscardCmd struct{ decision }

func (c *caseDiscardCmd) Run(s *session) error {
	return c.decide(s, event.EndpointQuarantineDiscard, "discarded")
}

type caseRescanCmd struct{ decision }

func (c *caseRescanCmd) Run(s *session) error {
	return c.decide(s, event.EndpointQuarantineRescan, "asked for again")
}

func (d *decision) decide(s *session, endpoint, verb string) error {
	if d.Case == "" && d.empty() {
		return fmt.Errorf("%w: name a case, or filters", standalone.ErrUsage)
	}
	if _, err := os.Stat(s.Archive); err != nil && s.NATS.URL == "" {
		return fmt.Errorf("%w: there is no archive at %s", standalone.ErrUsage, s.Archive)
	}
	a, err := s.open()
	if err != nil {
		return err
	}
	defer a.Close() //nolint:errcheck // what was asked for has been said
	req := d.request()
	req.ID, req.Actor, req.Note, req.DryRun = d.Case, s.Actor, d.Note, d.DryRun
	out, err := a.Decide(s, endpoint, req)
	if err != nil {
		return err
	}
	if err := s.print(out, func() {
		if d.DryRun {
			fmt.Printf("%d eligible, %d not\n", out.Eligible, len(out.Refused))
		} else {
			fmt.Printf("%d %s, %d not\n", len(out.Done), verb, len(out.Refused))
		}
		ids := make([]string, 0, len(out.Refused))
		for id := range out.Refused {
			ids = append(ids, id)
		}
		slices.Sort(ids)
		for _, id := range ids {
			fmt.Printf("  %s: %s\n", id, out.Refused[id])
		}
	}); err != nil {
		return err
	}
	if len(out.Refused) > 0 {
		return status(exitUnsettled)
	}
	return nil
}
