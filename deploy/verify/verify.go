// Package verify is the judge: it reads what an archive has stored, and says
// whether all of it agrees. It imports no service; what it knows of PREMIS
// words, of the ledger's format and of the mapping from facts to events was
// written a second time on purpose, so that one mistake is not made twice.
//
// It reads masters, derivatives, staging, manifests and bags below the archive
// folder; the ledger (a Pebble folder, opened for reading only); and the
// streams INGEST, DEADLETTER and, for what was asked for, CAPTURE. It changes
// nothing of them. The order:
//
//	log      sequences, message ids, facts that agree with one another
//	ledger   records, tree, index, names against the mapping, retry chains
//	objects  every byte of masters and derivatives against its digest
//	letters  each dead letter has its case
//	batches  manifest and bag against the batch's replayed facts
//
// Everything is streamed; what must be remembered is in a temporary Pebble, so
// memory does not grow with the archive. A live archive may be judged: what is
// under way is a note, never damage.
package verify

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"colophon/shared/event"
)

// Options of [Run].
type Options struct {
	Archive string              // the archive folder
	JS      jetstream.JetStream // of the broker that holds the log
	// Ledger is the folder of the ledger: a checkpoint, or that of a service
	// that is not running. Empty: the ledger is not judged.
	Ledger string
	// Origin that the ledger must have. Empty: the one it says itself.
	Origin string
	// Key is the public key that the ledger's checkpoints are signed with. Empty:
	// the key of the first one, so that only a change of keys is seen.
	Key string
	// Last is the last checkpoint that was signed, which is kept apart from the
	// archive, as read before the ledger was copied; needs Key. Empty: not judged.
	Last []byte
	// Workers is how many files are hashed at once; default: one a processor.
	Workers int
	// Batch judges only the objects, the manifest, the bag and the dead letters
	// of one batch. Log and ledger are always judged whole.
	Batch event.Name
	// Scratch is where the temporary database is made; default: the system's
	// folder for such files. It takes about 1 KB a fact.
	Scratch string
	// Now gives the time; default: the system's. It stands in the report, and
	// tells an object that appeared meanwhile from one that was there.
	Now func() time.Time
}

func (o Options) withDefaults() (Options, error) {
	if o.Archive == "" {
		return o, errors.New("verify: no archive folder was given")
	}
	if o.JS == nil {
		return o, errors.New("verify: no JetStream was given")
	}
	if o.Workers < 1 {
		o.Workers = runtime.GOMAXPROCS(0)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return o, nil
}

// judge is one run.
type judge struct {
	Options
	root    *os.Root
	mem     *scratch
	out     *reporter
	ledger  *ledger // nil: not judged
	limits  window  // of the log
	slots   *slots
	signed  *checkpoints
	healing healing
	started time.Time
}

// window is the part of the log that is judged.
type window struct {
	last    uint64 // sequence at the start of the run
	ledger  uint64 // the ledger speaks of facts up to here
	letters uint64 // dead letters that quarantine had dealt with before that
}

// Run judges an archive. Its error means that it could not judge: the archive
// or the broker is not there, or ctx ended; what is wrong with the archive is
// in the report. A report that comes with an error is not complete.
func Run(ctx context.Context, o Options) (rep Report, err error) {
	if o, err = o.withDefaults(); err != nil {
		return rep, err
	}
	j := &judge{Options: o, out: newReporter(), started: o.Now()}
	if j.root, err = os.OpenRoot(o.Archive); err != nil {
		return rep, fmt.Errorf("verify: archive: %w", err)
	}
	defer j.root.Close() //nolint:errcheck // only read from
	if j.mem, err = openScratch(o.Scratch, j.length(ctx)); err != nil {
		return rep, err
	}
	defer func() { err = errors.Join(err, j.mem.close()) }()
	j.slots = &slots{mem: j.mem}
	if err := j.trust(); err != nil {
		return rep, err
	}
	err = j.run(ctx)
	return j.report(), err
}

// run is the order.
func (j *judge) run(ctx context.Context) (err error) {
	defer func() {
		switch p := recover().(type) {
		case nil:
		case fatalStore:
			err = fmt.Errorf("verify: %w", p)
		default:
			panic(p)
		}
	}()
	j.openLedger()
	defer j.closeLedger()
	for _, step := range []struct {
		name  string
		judge func(context.Context) error
	}{
		{"log", j.judgeLog},
		{"ledger", j.judgeLedger},
		{"objects", j.judgeObjects},
		{"dead letters", j.judgeLetters},
		{"batches", j.judgeBatches},
	} {
		if err := step.judge(ctx); err != nil {
			return fmt.Errorf("verify: %s: %w", step.name, err)
		}
		if ctx.Err() != nil {
			return fmt.Errorf("verify: %s: %w", step.name, context.Cause(ctx))
		}
	}
	return nil
}

// length guesses how long the log is; that it cannot be read is told later.
func (j *judge) length(ctx context.Context) uint64 {
	state, err := j.streamState(ctx, event.StreamIngest)
	if err != nil {
		return 0
	}
	return state.LastSeq
}

// chosen reports whether a batch is among those to judge.
func (j *judge) chosen(b event.Name) bool { return j.Batch == "" || j.Batch == b }
