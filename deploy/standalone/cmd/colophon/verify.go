package main

import (
	"errors"
	"fmt"
	"os"

	"colophon/deploy/standalone"
	"colophon/deploy/verify"
	"colophon/shared/event"
)

type verifyCmd struct {
	Batch string `help:"Judge the objects, manifest and bag of one batch only; log and ledger are always judged whole."`
}

// Run judges what is stored. It starts no service: a line that does not run
// stays as it is; of one that runs, the ledger's own checkpoint is read.
func (c *verifyCmd) Run(s *session) error {
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
	e, err := standalone.Evidence(s, standalone.Options{Archive: s.Archive, Broker: s.NATS, Log: s.line})
	if err != nil {
		return err
	}
	defer e.Close() //nolint:errcheck // only read
	report, err := verify.Run(s, verify.Options{Archive: s.Archive, JS: e.JS, Ledger: e.Ledger, Origin: s.Origin, Batch: batch})
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
