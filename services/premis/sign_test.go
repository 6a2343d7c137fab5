package premis_test

import (
	"encoding/base64"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/mod/sumdb/note"

	"colophon/shared/event"
	"colophon/shared/testkit"

	"colophon/services/premis"
	"colophon/services/premis/internal/checkpoint"
	"colophon/services/premis/internal/facttest"
)

// signedAt waits for a checkpoint among the ledger's records and gives it.
func (w *world) signedAt(size int64) (c premis.Checkpoint) {
	w.t.Helper()
	testkit.Eventually(w.t, "a signed checkpoint", func() bool {
		c = premis.Checkpoint{}
		w.ask("premis.checkpoint", &c)
		if err := os.RemoveAll(c.Dir); err != nil {
			w.t.Fatal(err)
		}
		t, err := checkpoint.Unverified([]byte(c.Signed))
		return err == nil && t.Size >= size
	})
	return c
}

// A checkpoint is signed when a batch ends, enters the ledger through the log,
// and is what the ledger is proved against at the next start.
func TestACheckpointIsSignedWhenABatchEnds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.key = filepath.Join(t.TempDir(), "key")
	_, stop := w.start(nil)
	w.publish(story("b", 3)...)
	c := w.signedAt(1)
	v, err := note.NewVerifier(c.Key)
	if err != nil {
		t.Fatal(err)
	}
	tree, err := checkpoint.Open([]byte(c.Signed), v)
	if err != nil || tree.Origin != facttest.Origin || tree.Size >= c.Size {
		t.Fatalf("%+v %v", tree, err)
	}
	stop()

	// Another copy that follows the log has the same root; it signs nothing.
	home, own := w.dir, w.key
	w.dir, w.key = t.TempDir(), ""
	s, stop := w.start(nil)
	testkit.Eventually(t, "the position", func() bool { return s.Position().Size == c.Size })
	if s.Position().Root != c.Root {
		t.Error("a second copy has another root")
	}
	stop()
	w.dir, w.key = home, own

	// What was signed lies beside the key: a changed bit of it is found.
	last, err := os.ReadFile(w.key + ".last")
	if err != nil {
		t.Fatal(err)
	}
	spoiled := strings.Replace(string(last), "\n", "\n1", 1)
	if err := os.WriteFile(w.key+".last", []byte(spoiled), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := premis.New(premis.Config{Dir: w.dir, Origin: facttest.Origin, Key: w.key}, w.nc); err == nil {
		t.Error("a changed last checkpoint is taken")
	}
}

// A ledger that holds another history than was signed does not start.
func TestAnotherHistoryIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.key = filepath.Join(t.TempDir(), "key")
	_, stop := w.start(nil)
	w.publish(story("b", 2)...)
	w.signedAt(1)
	stop()
	other := newWorld(t)
	other.publish(story("c", 9)...)
	s, stop := other.start(nil)
	testkit.Eventually(t, "the position", func() bool { return s.Position().Size > 60 })
	stop()
	if _, err := premis.New(premis.Config{Dir: other.dir, Origin: facttest.Origin, Key: w.key}, w.nc); !errors.Is(err, premis.ErrInconsistent) {
		t.Errorf("got %v", err)
	}
}

// An older copy of the ledger reads the log on to the signed root, and signs
// nothing before; without the log that it had, a witness tells.
func TestAnOlderCopyComesToTheSignedRoot(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.key = filepath.Join(t.TempDir(), "key")
	s, stop := w.start(nil)
	at := w.publish(story("b", 2)...)
	testkit.Eventually(t, "the position", func() bool { return s.Position().Sequence >= at })
	var old premis.Checkpoint
	w.ask("premis.checkpoint", &old)
	older := filepath.Join(t.TempDir(), "older")
	if err := os.CopyFS(older, os.DirFS(old.Dir)); err != nil {
		t.Fatal(err)
	}
	w.publish(facttest.Converged("b", 2, event.Totals{Declared: 2, Done: 2}))
	c := w.signedAt(old.Size + 1)
	stop()

	w.dir = older
	log := &shouts{}
	s, stop = w.start(slog.New(slog.NewTextHandler(log, nil)))
	testkit.Eventually(t, "the position", func() bool { return s.Position().Size >= c.Size })
	if !log.has("ledger_behind_checkpoint") || s.Position().Root != c.Root {
		t.Errorf("told: %v, root %s", log.has("ledger_behind_checkpoint"), s.Position().Root)
	}
	stop()
}

// Copies that a reader left are gone at the next start.
func TestLeftCopiesAreRemoved(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, stop := w.start(nil)
	var c premis.Checkpoint
	w.ask("premis.checkpoint", &c)
	keep := filepath.Join(filepath.Dir(c.Dir), "somebody-elses")
	if err := os.Mkdir(keep, 0o755); err != nil {
		t.Fatal(err)
	}
	stop()
	_, stop = w.start(nil)
	defer stop()
	if _, err := os.Stat(c.Dir); !os.IsNotExist(err) {
		t.Errorf("the copy: %v", err)
	}
	if _, err := os.Stat(keep); err != nil {
		t.Errorf("another folder: %v", err)
	}
}

// The ledger is a function of the log: made from it alone it has the same
// root; evidence exported of it names what a changed record would break.
func TestRebuildAndExport(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.key = filepath.Join(t.TempDir(), "key")
	_, stop := w.start(nil)
	w.publish(story("b", 4)...)
	w.signedAt(1)
	stop()
	made := filepath.Join(t.TempDir(), "made")
	p, err := premis.Rebuild(t.Context(), w.js, made, facttest.Origin, slog.New(slog.NewTextHandler(io.Discard, nil)))
	if err != nil {
		t.Fatal(err)
	}
	a, errA := premis.OpenEvidence(w.dir)
	b, errB := premis.OpenEvidence(made)
	if err := errors.Join(errA, errB); err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	defer b.Close()
	if d, err := premis.Differ(a, b); err != nil || !d.SameRoot || p.Root != a.Position().Root {
		t.Errorf("%+v %v", d, err)
	}
	out := filepath.Join(t.TempDir(), "evidence")
	if _, err := a.Export(t.Context(), out); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Export(t.Context(), out); err == nil {
		t.Error("an export is written over another")
	}
	proof, bytes, err := a.Prove("event:ingestion-end:@b")
	if err != nil {
		t.Fatal(err)
	}
	_, key, _, err := a.Signed()
	if err != nil {
		t.Fatal(err)
	}
	v, err := note.NewVerifier(key)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := checkpoint.CheckInclusion(proof, bytes, v); err != nil {
		t.Error(err)
	}
}

// A log that was rolled back is told again what was signed: the ledger has it,
// and what it has must be in the log.
func TestCheckpointsAreToldAgainAfterARollback(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.key = filepath.Join(t.TempDir(), "key")
	_, stop := w.start(nil)
	facts := story("b", 2)
	w.publish(facts...)
	c := w.signedAt(1)
	stop()
	if err := w.js.DeleteStream(t.Context(), event.StreamIngest); err != nil {
		t.Fatal(err)
	}
	w.provision()
	w.publish(facts...)
	_, stop = w.start(nil)
	defer stop()
	st, err := w.js.Stream(t.Context(), event.StreamIngest)
	if err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the checkpoint in the log", func() bool {
		m, err := st.GetLastMsgForSubject(t.Context(), event.SubjectOp+"."+event.OpCheckpoint)
		return err == nil && strings.Contains(string(m.Data), base64.RawURLEncoding.EncodeToString([]byte(c.Signed)))
	})
}
