// Command colophon is gateway, operator's tool and all-in-one server of the
// line. See the README for a first run.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/user"

	"github.com/alecthomas/kong"
	"golang.org/x/term"

	"colophon/deploy/standalone"
	"colophon/shared/daemon"
	"colophon/shared/event"
)

// Exit statuses.
const (
	exitDone      = 0 // done and converged, manifest and bag standing
	exitError     = 1
	exitUsage     = 2
	exitUnsettled = 3 // settled but not converged, or drift
	exitDamage    = 4 // damage found
)

// status is an error that only carries an exit status; what there is to say
// has been said.
type status int

func (s status) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

// globals are the settings of every command.
type globals struct {
	daemon.Flags
	Archive string `help:"Folder of the archive." default:"./archive" type:"path" env:"COLOPHON_ARCHIVE"`
	daemon.NATS
	JSON          bool             `name:"json" help:"Print one JSON object, as the last line of standard output."`
	Actor         string           `help:"Who acts, as the ledger will name them (a pseudonym)." default:"${actor}" env:"COLOPHON_ACTOR"`
	LowWaterMiB   uint64           `name:"low-water-mib" help:"MiB of free space below which no work is taken; 0: the larger of 1 GiB and twice the largest master." default:"0" env:"COLOPHON_LOW_WATER_MIB"`
	Origin        string           `help:"Name of the ledger, fixed at the first start." env:"COLOPHON_ORIGIN"`
	CheckpointKey string           `help:"File of the key that signs the ledger's checkpoints; default: beside the archive's folder." type:"path" env:"COLOPHON_CHECKPOINT_KEY"`
	Version       kong.VersionFlag `help:"Print the version."`
}

type cli struct {
	globals
	Ingest    ingestCmd    `cmd:"" help:"Take a folder of masters in as one batch; again: only what had not finished."`
	Serve     serveCmd     `cmd:"" help:"Run all services in one process."`
	Status    statusCmd    `cmd:"" help:"Tell how far batches are, and what is not done, by name."`
	Retry     retryCmd     `cmd:"" help:"One more pass over what failed."`
	Case      caseCmd      `cmd:"" help:"List and decide the cases in quarantine."`
	Verify    verifyCmd    `cmd:"" help:"Read back everything stored and judge it against ledger and log."`
	Policy    policyCmd    `cmd:"" help:"Show the retry policy of a batch, or compare two."`
	Export    exportCmd    `cmd:"" help:"Write PREMIS, the bag or tables of a batch or digest."`
	Gateway   gatewayCmd   `cmd:"" help:"Speak for devices: a hot folder, a scanner of SANE."`
	Provision provisionCmd `cmd:"" help:"Create the broker's streams and consumers; --check prints what differs."`
	Audit     auditCmd     `cmd:"" help:"Give the ledger's evidence to outsiders, let a witness sign it, make it again from the log."`
	Demo      demoCmd      `cmd:"" help:"Draw a small batch of masters to try things on."`
}

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	var c cli
	options := append(exactArguments(), kong.Name("colophon"), kong.UsageOnError(), kong.Vars{
		"version": daemon.Version, "actor": defaultActor(), "nats_url": "",
		"nats_help": "Broker of a line that runs elsewhere; without it the line runs in this process, with a broker of its own.",
	},
		kong.Description("Takes page images from scanners into a preservation archive. Run a batch again, any number of times: only what had not finished is touched."))
	parser, err := kong.New(&c, options...)
	if err != nil {
		fmt.Fprintln(os.Stderr, "colophon:", err)
		return exitError
	}
	k, err := parser.Parse(args)
	if err != nil {
		fmt.Fprintln(os.Stderr, "colophon:", err)
		return exitUsage
	}
	ctx, stop := daemon.Signals()
	defer stop()
	log := c.logger()
	err = k.Run(&session{ctx, &c.globals, log, log.With(slog.String("service", "colophon"))})
	var code status
	switch {
	case err == nil:
		return exitDone
	case errors.As(err, &code):
		return int(code)
	case errors.Is(err, standalone.ErrUsage):
		fmt.Fprintln(os.Stderr, "colophon:", err)
		return exitUsage
	}
	fmt.Fprintln(os.Stderr, "colophon:", err)
	return exitError
}

// session is what a command runs with.
type session struct {
	context.Context
	*globals
	line *slog.Logger // for the services in this process, which name themselves
	log  *slog.Logger
}

// logger: on a terminal a progress bar and the outcome say what people need,
// so only warnings are logged there unless asked for.
func (g *globals) logger() *slog.Logger {
	f := g.Flags
	if term.IsTerminal(int(os.Stderr.Fd())) && f.LogLevel == slog.LevelInfo {
		f.LogLevel = slog.LevelWarn
	}
	return f.Logger(os.Stderr, "")
}

func defaultActor() string {
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return "unknown"
}

// open opens the archive with the line in it.
func (s *session) open(roots ...string) (*standalone.Archive, error) {
	return standalone.Open(s, standalone.Options{Archive: s.Archive, Roots: roots, Known: true, Broker: s.NATS, Remote: s.NATS.URL != "", Origin: s.Origin, CheckpointKey: s.CheckpointKey, LowWater: s.LowWaterMiB << 20, Log: s.line})
}

// existing is open for commands that only make sense on an archive that is
// there: asking about a batch must not create an archive.
func (s *session) existing() (*standalone.Archive, error) {
	if s.NATS.URL == "" {
		if _, err := os.Stat(s.Archive); err != nil {
			return nil, fmt.Errorf("%w: there is no archive at %s", standalone.ErrUsage, s.Archive)
		}
	}
	return s.open()
}

// print gives one JSON object on the last line, or the text for people.
func (s *session) print(v any, text func()) error {
	if !s.JSON {
		text()
		return nil
	}
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(os.Stdout, string(data))
	return err
}

func batchArg(s string) (event.Name, error) {
	b := event.Name(s)
	if err := event.ValidateBatch(b); err != nil {
		return "", fmt.Errorf("%w: %w", standalone.ErrUsage, err)
	}
	return b, nil
}
