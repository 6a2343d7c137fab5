package main

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/mod/sumdb/note"

	"colophon/deploy/standalone"
	"colophon/services/premis"
)

type auditCmd struct {
	Export  auditExportCmd  `cmd:"" help:"Write the ledger's evidence for outsiders: signed checkpoint, tree and records, as plain files (C2SP tlog-tiles)."`
	Witness auditWitnessCmd `cmd:"" help:"As a second party: check that the ledger continues what was seen last, and sign that."`
	Prove   auditProveCmd   `cmd:"" help:"Write the proof that one event stands in the ledger (C2SP tlog-proof)."`
	Story   auditStoryCmd   `cmd:"" help:"Tell what happened to a batch, a line a record in the ledger's order: each failure, and the reaction to it."`
	Rebuild auditRebuildCmd `cmd:"" help:"Make the ledger from the log alone and compare it with the one that is there."`
}

// withEvidence opens the ledger for reading; damage is exit status 4.
func (s *session) withEvidence(do func(*premis.Evidence) error) (err error) {
	if _, err := os.Stat(s.Archive); err != nil {
		return fmt.Errorf("%w: there is no archive at %s", standalone.ErrUsage, s.Archive)
	}
	j, err := standalone.Evidence(s, s.judged())
	if err != nil {
		return err
	}
	defer j.Close() //nolint:errcheck // only read
	e, err := premis.OpenEvidence(j.Ledger)
	if err != nil {
		return damaged(err)
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	return damaged(do(e))
}

func (s *session) judged() standalone.Options {
	return standalone.Options{Archive: s.Archive, Broker: s.NATS, Origin: s.Origin, CheckpointKey: s.CheckpointKey, Log: s.line}
}

// damaged tells evidence that does not hold, and gives its exit status.
func damaged(err error) error {
	for _, e := range []error{premis.ErrDamaged, premis.ErrInconsistent, premis.ErrShrunk} {
		if errors.Is(err, e) {
			fmt.Fprintln(os.Stderr, "colophon:", err)
			return status(exitDamage)
		}
	}
	return err
}

type auditExportCmd struct {
	Dir string `arg:"" help:"Folder to make." type:"path"`
}

func (c *auditExportCmd) Run(s *session) error {
	return s.withEvidence(func(e *premis.Evidence) error {
		out, err := e.Export(s, c.Dir)
		if err != nil {
			return err
		}
		return s.print(out, func() {
			fmt.Printf("%d records under a signed checkpoint in %s; %d later ones are left to the next.\n", out.Records, out.Dir, out.Later)
			fmt.Printf("root %s\nkey  %s\nCompare the key with the one you were given when the archive began.\n", out.Root, out.Key)
		})
	})
}

type auditProveCmd struct {
	Event string `arg:"" help:"Name of the event, or its record number."`
	Out   string `help:"File to write; the record goes beside it, as <file>.json." default:"event.tlog-proof" type:"path"`
}

func (c *auditProveCmd) Run(s *session) error {
	return s.withEvidence(func(e *premis.Evidence) error {
		proof, record, err := e.Prove(c.Event)
		if err != nil {
			return err
		}
		if err := errors.Join(os.WriteFile(c.Out, proof, 0o644), os.WriteFile(c.Out+".json", record, 0o644)); err != nil {
			return err
		}
		return s.print(map[string]string{"proof": c.Out, "record": c.Out + ".json"}, func() { fmt.Println(c.Out); fmt.Println(c.Out + ".json") })
	})
}

type auditWitnessCmd struct {
	State  string `help:"File of the last checkpoint seen; what is signed goes into it." default:"colophon.witness" type:"path"`
	Key    string `help:"File of the witness's own key; made at the first use." default:"colophon.witness-key" type:"path"`
	Name   string `help:"Name of the witness, for a new key." default:"witness"`
	LogKey string `help:"Public key of the ledger, or a file of it. Kept beside the state; without it the first one seen is trusted."`
	Offer  string `help:"Only write what the witness needs to this file, to be carried to it. Needs the archive and the witness's state file, not its key." type:"path"`
	From   string `help:"Check an offer that was carried here, instead of the archive." type:"path"`
}

// Run is both ends: with the archive at hand in one step; else --offer beside
// the archive, and --from at the witness: two small files on a stick.
func (c *auditWitnessCmd) Run(s *session) error {
	key, err := c.logKey()
	if err != nil {
		return err
	}
	if c.From != "" {
		offer, err := os.ReadFile(c.From)
		if err != nil {
			return err
		}
		if key == "" {
			return fmt.Errorf("%w: the ledger's public key is not known: give --log-key", standalone.ErrUsage)
		}
		return damaged(c.cosign(s, key, offer))
	}
	return s.withEvidence(func(e *premis.Evidence) error {
		_, own, _, err := e.Signed()
		if err != nil {
			return err
		}
		if key == "" {
			key = own
		}
		saw, err := premis.WitnessSaw(c.State, key)
		if err != nil {
			return err
		}
		offer, err := e.Offer(saw)
		if err != nil {
			return err
		}
		if c.Offer != "" {
			return os.WriteFile(c.Offer, offer, 0o644)
		}
		return c.cosign(s, key, offer)
	})
}

func (c *auditWitnessCmd) cosign(s *session, key string, offer []byte) error {
	out, err := premis.Witnessed(c.State, c.Key, c.Name, key, offer, time.Now)
	if err != nil {
		return err
	}
	if err := os.WriteFile(c.State+".log-key", []byte(key+"\n"), 0o644); err != nil {
		return err
	}
	return s.print(out, func() {
		fmt.Printf("The ledger's %d records continue what was seen before (%d). Signed in %s.\n", out.Records, out.Before, c.State)
	})
}

func (c *auditWitnessCmd) logKey() (string, error) {
	text := c.LogKey
	if text == "" {
		text = c.State + ".log-key"
	}
	if _, err := note.NewVerifier(text); err == nil {
		return text, nil
	}
	data, err := os.ReadFile(text)
	if errors.Is(err, fs.ErrNotExist) && c.LogKey == "" {
		return "", nil
	}
	return strings.TrimSpace(string(data)), err
}

type auditStoryCmd struct {
	Batch string `arg:"" help:"The batch."`
}

// Run reads the ledger alone: nothing is started, and nothing is in the way of
// a line that runs. People get each line as it is read.
func (c *auditStoryCmd) Run(s *session) error {
	b, err := batchArg(c.Batch)
	if err != nil {
		return err
	}
	var all []premis.Step
	out := bufio.NewWriter(os.Stdout)
	err = s.withEvidence(func(e *premis.Evidence) error {
		for step, err := range e.Story(s, b) {
			if errors.Is(err, premis.ErrNothing) {
				return fmt.Errorf("%w: the ledger holds nothing of batch %s", standalone.ErrUsage, b.Display())
			}
			if err != nil {
				return err
			}
			if s.JSON {
				all = append(all, step)
				continue
			}
			fmt.Fprintln(out, storyLine(step))
		}
		return nil
	})
	if err = errors.Join(err, out.Flush()); err != nil || !s.JSON {
		return err
	}
	return s.print(map[string]any{"batch": b, "steps": all}, nil)
}

// storyLine is a step for people: time, frame, operation, pass and attempt, what
// happened, what was decided and by which policy.
func storyLine(t premis.Step) string {
	frame, operation, try := "-", t.Type, "-"
	if t.Frame != "" {
		frame = t.Frame.Display()
	}
	if t.Operation != "" {
		operation = t.Operation
	}
	switch {
	case t.Attempt > 0:
		try = fmt.Sprintf("%d.%d", t.Pass, t.Attempt)
	case t.Pass > 0:
		try = strconv.Itoa(t.Pass)
	}
	line := fmt.Sprintf("%s  %s  %s  %s  %s", t.Time.UTC().Format("2006-01-02T15:04:05.000Z"), frame, operation, try, t.Happened)
	if t.Decided != "" {
		line += "  -> " + t.Decided
	}
	if len(t.Policy) > 12 {
		line += " (policy " + t.Policy[:12] + ")"
	}
	return strings.Map(func(c rune) rune { // a line stays one
		if c < ' ' || c == 0x7f {
			return ' '
		}
		return c
	}, line)
}

type auditRebuildCmd struct {
	Replace bool `help:"Put the new ledger in the place of the old one, which is kept."`
}

func (c *auditRebuildCmd) Run(s *session) error {
	if _, err := os.Stat(s.Archive); err != nil {
		return fmt.Errorf("%w: there is no archive at %s", standalone.ErrUsage, s.Archive)
	}
	out, err := standalone.Rebuild(s, s.judged(), c.Replace)
	if err != nil {
		return damaged(err)
	}
	err = s.print(out, func() {
		fmt.Printf("%d records from the log up to %d, root %s.\n", out.Size, out.Sequence, out.Root)
		switch d := out.Difference; {
		case d == nil:
		case d.SameRoot:
			fmt.Println("The ledger that was there holds the same, in the same order.")
		case d.SameNames():
			fmt.Println("The ledger that was there holds the same events in another order: the log was healed.")
		default:
			for _, n := range d.Only {
				fmt.Println("only in the ledger:", n)
			}
			for _, n := range d.Missing {
				fmt.Println("missing in the ledger:", n)
			}
		}
		if out.Replaced {
			fmt.Println("It stands in", out.Ledger, "now.")
		}
	})
	if err == nil && !out.Agrees() {
		return status(exitDamage)
	}
	return err
}
