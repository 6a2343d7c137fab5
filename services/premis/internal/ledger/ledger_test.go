package ledger_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"colophon/shared/event"

	"colophon/services/premis/internal/facttest"
	"colophon/services/premis/internal/ledger"
	"colophon/services/premis/internal/record"
)

func open(t testing.TB, fs vfs.FS) *ledger.Ledger {
	t.Helper()
	l, err := ledger.Open("ledger", ledger.Options{Origin: facttest.Origin, FS: fs})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func appendAll(t testing.TB, l *ledger.Ledger, entries []ledger.Entry) ledger.Appended {
	t.Helper()
	done, err := l.Append(context.Background(), entries)
	if err != nil {
		t.Fatal(err)
	}
	return done
}

// line is a small log with retries, a case and equal pages.
func line(frames int) *facttest.Log {
	var log facttest.Log
	log.Add(facttest.Opened("b", frames, "jp2"))
	log.Add(event.OpFact{Schema: event.SchemaOp, Kind: event.OpHalted, Service: "hasher", Instance: "one", Counter: 4}, facttest.Verified(facttest.Digest("0"), facttest.Digest("0"), "2027"))
	for i := range frames {
		p := facttest.Page("b", event.Name(fmt.Sprintf("%04d", i)), i+1, fmt.Sprint(i/2))
		jp2 := event.Derivative("jp2")
		log.Add(p.Captured(1, 1), p.Failed(event.Fixity, facttest.Hasher, 1, 1, "transient", "io-error", false), p.Fixed(1, 2))
		if i%3 == 0 {
			log.Add(p.Failed(jp2, facttest.Deriver, 1, 1, "transient", "encoder-failed", true), p.Case(jp2, 1, event.CaseOpened, 1), p.Case(jp2, 1, event.CaseReplayed, 2), p.Derived(2, 1))
			continue
		}
		log.Add(p.Derived(1, 1))
		if i%5 == 4 { // captured again, twice: what the slot holds is kept from commit to commit
			for rev := 2; rev < 4; rev++ {
				again := facttest.Page("b", p.Slot.Frame, p.Sequence, fmt.Sprint("again", i, rev))
				again.Revision = rev
				log.Add(again.Captured(rev, 1), again.Fixed(rev, 1))
			}
		}
	}
	log.Add(facttest.Converged("b", 1, event.Totals{Declared: frames, Done: frames}))
	return &log
}

func TestSameLogSameRoot(t *testing.T) {
	t.Parallel()
	log := line(12)
	whole := open(t, vfs.NewMem())
	defer whole.Close()
	first := appendAll(t, whole, log.Entries)
	if first.Known == 0 || first.New != int(whole.Size()) {
		t.Fatalf("%+v, size %d", first, whole.Size())
	}
	t.Run("again", func(t *testing.T) {
		if done := appendAll(t, whole, log.Entries); done.New != 0 || done.Skipped != len(log.Entries) {
			t.Errorf("%+v", done)
		}
	})
	t.Run("one by one", func(t *testing.T) {
		l := open(t, vfs.NewMem())
		defer l.Close()
		for _, e := range log.Entries {
			appendAll(t, l, []ledger.Entry{e})
		}
		if l.Root() != whole.Root() {
			t.Error("other root")
		}
	})
	t.Run("read again from the beginning", func(t *testing.T) {
		root, at := whole.Root(), whole.Position()
		if err := whole.Rewind(ledger.Position{}); err != nil {
			t.Fatal(err)
		}
		if done := appendAll(t, whole, log.Entries); done.New != 0 || done.Conflicts != 0 || done.Known == 0 {
			t.Errorf("%+v", done)
		}
		if whole.Root() != root || whole.Position() != at {
			t.Errorf("root %v, position %+v", whole.Root(), whole.Position())
		}
	})
	t.Run("every fact twice in the log", func(t *testing.T) {
		l := open(t, vfs.NewMem())
		defer l.Close()
		if done := appendAll(t, l, doubled(log.Entries)); done.Conflicts != 0 {
			t.Errorf("%+v", done)
		}
		a, b := names(t, l), names(t, whole)
		if fmt.Sprint(a) != fmt.Sprint(b) {
			t.Errorf("names differ:\n%v\n%v", a, b)
		}
	})
}

// doubled is a log in which a resent copy follows each fact some way behind,
// under the id that a resend gives it: names come from what a fact says.
func doubled(entries []ledger.Entry) []ledger.Entry {
	var out []ledger.Entry
	add := func(e ledger.Entry) {
		e.Sequence = uint64(len(out) + 1)
		out = append(out, e)
	}
	for i, e := range entries {
		add(e)
		if i >= 5 {
			again := entries[i-5]
			again.MsgID += "!1"
			add(again)
		}
	}
	return out
}

func names(t testing.TB, l *ledger.Ledger) []string {
	t.Helper()
	var out []string
	for n := range l.Size() {
		r, err := l.Get(n)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, r.Name)
	}
	return out
}

func TestConflictStandsBesideTheFirst(t *testing.T) {
	t.Parallel()
	l := open(t, vfs.NewMem())
	defer l.Close()
	p := facttest.Page("b", "0001", 1, "one")
	other := p.Derived(1, 1)
	other.Derived.Outputs[0].Digest = facttest.Digest("other bytes")
	var log facttest.Log
	log.Add(p.Fixed(1, 1), p.Derived(1, 1))
	appendAll(t, l, log.Entries)
	size := l.Size()
	log.Add(other, other)
	done := appendAll(t, l, log.Entries)
	if done.Conflicts != 1 || l.Size() != size+2 { // and the digest of the other bytes
		t.Fatalf("%+v, %d records more", done, l.Size()-size)
	}
	name := record.Name(record.Migration, "derivative:jp2", p.Digest)
	first, found, err := l.ByName(name)
	if err != nil || !found || first.Data.Derivation.Outputs[0].Digest != p.Derived(1, 1).Derived.Outputs[0].Digest {
		t.Errorf("the first changed: %v %v", found, err)
	}
	c, err := l.Get(size)
	if err != nil {
		t.Fatal(err)
	}
	if c.Type != "conflict" || c.Outcome != "warning" || c.Data.Conflict.Name != name || c.Data.Conflict.First.Equal(c.Data.Conflict.Other) {
		t.Errorf("%+v", c.Record)
	}
}

func TestTimesAndVersionsAreNoConflict(t *testing.T) {
	t.Parallel()
	l := open(t, vfs.NewMem())
	defer l.Close()
	p := facttest.Page("b", "0001", 1, "one")
	again := p.Fixed(1, 1)
	again.Agent.Version, again.Ended = "9.9.9", again.Ended.Add(time.Hour)
	var log facttest.Log
	if done := appendAll(t, l, log.Add(p.Fixed(1, 1), again).Entries); done.Conflicts != 0 || done.Known != 5 {
		t.Errorf("%+v", done)
	}
}

func TestUnknownSchemaStopsBehindWhatIsRead(t *testing.T) {
	t.Parallel()
	l := open(t, vfs.NewMem())
	defer l.Close()
	log := line(2)
	log.Entries[3].Data = bytes.Replace(log.Entries[3].Data, []byte("/v1"), []byte("/v9"), 1)
	_, err := l.Append(t.Context(), log.Entries)
	if !errors.Is(err, event.ErrUnknownSchema) {
		t.Fatalf("got %v", err)
	}
	if at := l.Position().Sequence; at != 3 {
		t.Errorf("position %d", at)
	}
}

func TestUnreadableMessageIsRecorded(t *testing.T) {
	t.Parallel()
	l := open(t, vfs.NewMem())
	defer l.Close()
	log := line(1)
	log.Entries[1].Data = []byte(`{"schema":`)
	appendAll(t, l, log.Entries)
	r, err := l.Get(2)
	if err != nil || r.Type != record.Operational {
		t.Errorf("%v %+v", err, r.Record)
	}
}

func TestEntriesOutOfOrderAreRefused(t *testing.T) {
	t.Parallel()
	l := open(t, vfs.NewMem())
	defer l.Close()
	e := line(1).Entries
	e[0], e[1] = e[1], e[0]
	if _, err := l.Append(t.Context(), e); !errors.Is(err, ledger.ErrOrder) || l.Size() != 0 {
		t.Errorf("%v, size %d", err, l.Size())
	}
}

func TestIndexes(t *testing.T) {
	t.Parallel()
	l := open(t, vfs.NewMem())
	defer l.Close()
	appendAll(t, l, line(4).Entries)
	var batch int64
	for _, err := range l.ByBatch("b") {
		if err != nil {
			t.Fatal(err)
		}
		batch++
	}
	if batch != l.Size()-2 { // a halt and a scheduled check are no batch's
		t.Errorf("%d of %d records are the batch's", batch, l.Size())
	}
	var frames []string
	for f, err := range l.Frames("b") {
		if err != nil {
			t.Fatal(err)
		}
		frames = append(frames, f)
	}
	if fmt.Sprint(frames) != "[0000 0001 0002 0003]" {
		t.Errorf("frames %v", frames)
	}
	count := map[string]int{}
	for n, err := range l.ByDigest(facttest.Digest("0")) {
		if err != nil {
			t.Fatal(err)
		}
		r, err := l.Get(n)
		if err != nil {
			t.Fatal(err)
		}
		count[r.Type]++
	}
	if count["accession"] != 2 || count["capture"] != 1 || count["retry"] == 0 {
		t.Errorf("of the digest: %v", count)
	}
}

func TestAwait(t *testing.T) {
	t.Parallel()
	l := open(t, vfs.NewMem())
	defer l.Close()
	entries := line(2).Entries
	done := make(chan error, 1)
	go func() { done <- l.Await(t.Context(), entries[len(entries)-1].Sequence) }()
	appendAll(t, l, entries[:3])
	appendAll(t, l, entries[3:])
	if err := <-done; err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := l.Await(ctx, 1<<40); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestOriginIsForGood(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	l := open(t, fs)
	appendAll(t, l, line(1).Entries)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := ledger.Open("ledger", ledger.Options{Origin: "else.example", FS: fs}); !errors.Is(err, ledger.ErrOrigin) {
		t.Errorf("got %v", err)
	}
}

func TestDamageIsFoundAtOpen(t *testing.T) {
	t.Parallel()
	for what, harm := range map[string]func(*pebble.DB, *rand.Rand) error{
		"a bit of a node": func(db *pebble.DB, rng *rand.Rand) error {
			key := binary.BigEndian.AppendUint64([]byte{'h'}, uint64(rng.IntN(60)))
			data, closer, err := db.Get(key)
			if err != nil {
				return err
			}
			data = bytes.Clone(data)
			data[rng.IntN(32)] ^= 1 << rng.IntN(8)
			return errors.Join(closer.Close(), db.Set(key, data, pebble.Sync))
		},
		"a node gone": func(db *pebble.DB, rng *rand.Rand) error {
			return db.Delete(binary.BigEndian.AppendUint64([]byte{'h'}, uint64(rng.IntN(60))), pebble.Sync)
		},
		"the last record gone": func(db *pebble.DB, _ *rand.Rand) error {
			it, err := db.NewIter(&pebble.IterOptions{LowerBound: []byte{'e'}, UpperBound: []byte{'f'}})
			if err != nil {
				return err
			}
			it.Last()
			key := bytes.Clone(it.Key())
			return errors.Join(it.Close(), db.Delete(key, pebble.Sync))
		},
		"a record behind the last": func(db *pebble.DB, _ *rand.Rand) error {
			it, err := db.NewIter(&pebble.IterOptions{LowerBound: []byte{'e'}, UpperBound: []byte{'f'}})
			if err != nil {
				return err
			}
			it.Last()
			n := binary.BigEndian.Uint64(it.Key()[1:])
			return errors.Join(it.Close(), db.Set(binary.BigEndian.AppendUint64([]byte{'e'}, n+1), []byte("{}"), pebble.Sync))
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			fs := vfs.NewMem()
			l := open(t, fs)
			appendAll(t, l, line(6).Entries)
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			db, err := pebble.Open("ledger", &pebble.Options{FS: fs, Logger: quiet{}})
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(harm(db, rand.New(rand.NewPCG(7, 7))), db.Close()); err != nil {
				t.Fatal(err)
			}
			if _, err := ledger.Open("ledger", ledger.Options{Origin: facttest.Origin, FS: fs}); !errors.Is(err, ledger.ErrDamaged) {
				t.Errorf("got %v", err)
			}
		})
	}
}

type quiet struct{}

func (quiet) Infof(string, ...any)      {}
func (quiet) Errorf(string, ...any)     {}
func (quiet) Fatalf(f string, a ...any) { panic(fmt.Sprintf(f, a...)) }

func TestCheckpointIsReadOnly(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	l := open(t, fs)
	defer l.Close()
	entries := line(4).Entries
	appendAll(t, l, entries[:10])
	root := l.Root()
	if err := l.Checkpoint("copy"); err != nil {
		t.Fatal(err)
	}
	appendAll(t, l, entries[10:])
	c, err := ledger.OpenReadOnly("copy", ledger.Options{FS: fs})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if c.Root() != root || c.Position().Sequence != 10 {
		t.Errorf("root %v, position %d", c.Root(), c.Position().Sequence)
	}
	if _, err := c.Append(t.Context(), entries[10:]); !errors.Is(err, ledger.ErrReadOnly) {
		t.Errorf("append: %v", err)
	}
}
