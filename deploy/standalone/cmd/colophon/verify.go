package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"colophon/deploy/standalone"
	"colophon/deploy/verify"
	"colophon/shared/daemon"
	"colophon/shared/event"
)

type verifyCmd struct {
	Fixity bool   `help:"Scheduled check: read every stored file again, write what was found into the ledger under --run, open a case of each file that is damaged. Start it again to resume."`
	Run_   string `name:"run" help:"Name of a scheduled check, for good: 2027-annual." placeholder:"ID"`
	Rate   int64  `help:"MiB a second that a scheduled check reads at most; 0: as fast as the disk gives them." default:"50"`
	Batch  string `help:"Judge the objects, manifest and bag of one batch only; log and ledger are always judged whole."`
}

// Run judges what is stored. It starts no service: a line that does not run
// stays as it is; of one that runs, the ledger's own checkpoint is read.
func (c *verifyCmd) Run(s *session) error {
	if c.Fixity || c.Run_ != "" {
		return c.scheduled(s)
	}
	var batch event.Name
	if c.Batch != "" {
		b, err := batchArg(c.Batch)
		if err != nil {
			return err
		}
		batch = b
	}
	if _, err := os.Stat(s.Archive); err != nil {
		return fmt.Errorf("%w: there is no archive at %s", standalone.ErrUsage, s.Archive)
	}
	key := s.judged().SigningKey()
	public, errKey := readIf(key + ".pub")
	last, errLast := readIf(key + ".last") // before the ledger is copied, which goes on
	if err := errors.Join(errKey, errLast); err != nil {
		return err
	}
	e, err := standalone.Evidence(s, standalone.Options{Archive: s.Archive, Broker: s.NATS, Log: s.line})
	if err != nil {
		return err
	}
	defer e.Close() //nolint:errcheck // only read
	report, err := verify.Run(s, verify.Options{
		Archive: s.Archive, JS: e.JS, Ledger: e.Ledger, Origin: s.Origin, Batch: batch, Key: string(public), Last: last,
	})
	if err != nil {
		return err
	}
	var failed error
	if err := s.print(report, func() { failed = verify.WriteText(os.Stdout, report) }); err != nil || failed != nil {
		return errors.Join(err, failed)
	}
	switch {
	case report.Damaged():
		return status(exitDamage)
	case report.Drifted():
		return status(exitUnsettled)
	}
	return nil
}

// readIf reads a file that need not be there.
func readIf(path string) ([]byte, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return data, err
}

// scheduled is a fixity check whose findings become events. It needs the line,
// which takes them in.
func (c *verifyCmd) scheduled(s *session) error {
	if !c.Fixity || c.Run_ == "" || c.Batch != "" || c.Rate < 0 {
		return fmt.Errorf("%w: a scheduled check is --fixity --run ID, of the whole archive", standalone.ErrUsage)
	}
	a, err := s.existing()
	if err != nil {
		return err
	}
	defer a.Close() //nolint:errcheck // what counts is stored
	report, err := verify.Fixity(s, verify.FixityOptions{
		Archive: s.Archive, JS: a.JS, Publish: a.Store, Run: c.Run_, Rate: c.Rate << 20,
		Agent: event.Agent{Name: "verify", Version: daemon.Version}, Now: time.Now,
	})
	if err != nil {
		return err
	}
	if err := a.TakenIn(s); err != nil {
		return err
	}
	err = s.print(report, func() {
		fmt.Printf("Run %s: %d files checked, %d of them before, %d bytes read now.\n", report.Run, report.Files+report.Already, report.Already, report.Bytes)
		for _, f := range report.Failed {
			fmt.Printf("DAMAGED %s (%s of %s): %s\n", f.Key, f.Slot.Frame.Display(), f.Slot.Batch.Display(), f.Reason)
		}
	})
	if err == nil && len(report.Failed) > 0 {
		return status(exitDamage)
	}
	return err
}
