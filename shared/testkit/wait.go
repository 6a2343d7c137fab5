package testkit

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
)

// patience bounds every wait of a test. It is long because only a broken
// program ever waits for it.
const patience = 60 * time.Second

// Eventually waits until a condition holds, and fails the test when it never does.
func Eventually(tb testing.TB, what string, holds func() bool) {
	tb.Helper()
	EventuallyWithin(tb, patience, what, holds)
}

// EventuallyWithin is [Eventually] for a condition that must hold in time.
func EventuallyWithin(tb testing.TB, within time.Duration, what string, holds func() bool) {
	tb.Helper()
	pause := max(2*time.Millisecond, within/5000)
	for end := time.Now().Add(within); !holds(); {
		if time.Now().After(end) {
			tb.Fatalf("waited %v for: %s", within, what)
		}
		time.Sleep(pause) // between two looks; the condition decides
	}
}

// Closed waits for a channel to close.
func Closed(tb testing.TB, what string, c <-chan struct{}) {
	tb.Helper()
	select {
	case <-c:
	case <-time.After(patience):
		tb.Fatalf("waited %v for: %s", patience, what)
	}
}

// OK fails the test on an error.
func OK(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// Must fails the test on an error and gives the value.
func Must[T any](v T, err error) func(testing.TB) T {
	return func(tb testing.TB) T {
		tb.Helper()
		OK(tb, err)
		return v
	}
}

// Logbook collects what a program logs.
type Logbook struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

// Write implements [io.Writer]; with COLOPHON_TEST_LOG set, to stderr as well.
func (l *Logbook) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if os.Getenv("COLOPHON_TEST_LOG") != "" {
		fmt.Fprint(os.Stderr, string(p)) //nolint:errcheck // a convenience
	}
	return l.buf.Write(p)
}

// Logger writes into the book.
func (l *Logbook) Logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// Count tells how many lines hold a text.
func (l *Logbook) Count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for line := range strings.Lines(l.buf.String()) {
		if strings.Contains(line, text) {
			n++
		}
	}
	return n
}

func (l *Logbook) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// TempDir is a folder for one test, in memory where the machine has such a
// place: a kill loses nothing there, and the broker's syncs cost nothing.
func TempDir(tb testing.TB) string {
	tb.Helper()
	const memory = "/dev/shm"
	dir, err := os.MkdirTemp(memory, "colophon-test-")
	if err != nil {
		return tb.TempDir()
	}
	tb.Cleanup(func() { _ = os.RemoveAll(dir) }) // nothing to report: it is gone or swept at boot
	return dir
}

// Scale gives the size of a random test: quick on every change, soak with
// COLOPHON_SOAK set.
func Scale(quick, soak int) int {
	if os.Getenv("COLOPHON_SOAK") != "" {
		return soak
	}
	return quick
}
