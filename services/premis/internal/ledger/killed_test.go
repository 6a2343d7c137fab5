package ledger_test

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"golang.org/x/mod/sumdb/tlog"

	"colophon/services/premis/internal/facttest"
	"colophon/services/premis/internal/ledger"
)

// childDir tells a process that it is the one to be killed.
const childDir = "COLOPHON_LEDGER_CHILD"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childDir); dir != "" {
		if err := appendUntilKilled(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// killLog is the log that is appended while somebody kills.
func killLog() []ledger.Entry { return line(120).Entries }

// appendUntilKilled appends in random pieces, and says how far it is sure of.
func appendUntilKilled(dir string) error {
	l, err := ledger.Open(dir, ledger.Options{Origin: facttest.Origin})
	if err != nil {
		return err
	}
	entries := killLog()
	for at := int(l.Position().Sequence); at < len(entries); {
		n := min(1+rand.IntN(12), len(entries)-at)
		before := l.Size()
		if _, err := l.Append(context.Background(), entries[at:at+n]); err != nil {
			return err
		}
		if at += n; l.Size() > before { // a position without a record may be read again
			fmt.Println(at)
		}
	}
	return l.Close()
}

// TestKilled kills a process that appends, over and over: the tree recomputes,
// nothing that was acknowledged is gone, and what is there is what an
// undisturbed ledger holds at that position.
func TestKilled(t *testing.T) {
	t.Parallel()
	killed(t, 20)
}

func killed(t *testing.T, kills int) {
	t.Helper()
	whole := open(t, vfs.NewMem())
	defer whole.Close()
	roots := map[uint64]tlog.Hash{0: {}}
	for _, e := range killLog() {
		appendAll(t, whole, []ledger.Entry{e})
		roots[e.Sequence] = whole.Root()
	}
	finished := 0
	dir := filepath.Join(t.TempDir(), "ledger")
	for n := 0; n < kills; {
		acked, whole := runAndKill(t, dir)
		if !whole {
			n++
		}
		l, err := ledger.Open(dir, ledger.Options{Origin: facttest.Origin})
		if err != nil {
			t.Fatalf("kill %d: %v", n, err)
		}
		at := l.Position().Sequence
		if at < acked {
			t.Errorf("kill %d: position %d, acknowledged %d", n, at, acked)
		}
		if l.Root() != roots[at] {
			t.Errorf("kill %d: another root at %d", n, at)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		if whole {
			finished++
			dir = filepath.Join(t.TempDir(), fmt.Sprint(finished))
		}
	}
	t.Logf("%d kills, %d logs read to their end", kills, finished)
}

// runAndKill runs a child until it has told a few positions and some more time
// has passed, kills it, and gives the last position that it told. whole says
// that it came to its end before.
func runAndKill(t *testing.T, dir string) (acked uint64, whole bool) {
	t.Helper()
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), childDir+"="+dir)
	c.Stderr = os.Stderr
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for range 1 + rand.IntN(6) {
		if !lines.Scan() {
			break
		}
		acked = position(t, lines.Text())
	}
	timer := time.AfterFunc(time.Duration(rand.IntN(8000))*time.Microsecond, func() { _ = c.Process.Kill() })
	defer timer.Stop()
	for lines.Scan() {
		acked = position(t, lines.Text())
	}
	return acked, c.Wait() == nil
}

func position(t *testing.T, text string) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(strings.TrimSpace(text), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
