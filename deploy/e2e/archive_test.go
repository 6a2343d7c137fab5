package e2e

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// archive is one archive folder, and how to run colophon on it.
type archive struct {
	t    testing.TB
	dir  string
	bin  string
	nats string   // an outside broker
	env  []string // of the children, beside a bare one
	attr *syscall.SysProcAttr
}

func newArchive(t testing.TB) *archive {
	t.Helper()
	return &archive{t: t, dir: filepath.Join(tempDir(t), "archive"), bin: program("colophon")}
}

// tempDir is a folder that other users can reach into. It goes with the test.
func tempDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "e2e-")
	ok(t, err)
	ok(t, os.Chmod(dir, 0o755))
	t.Cleanup(func() {
		if t.Failed() && os.Getenv("COLOPHON_E2E_KEEP") != "" {
			t.Logf("kept: %s", dir)
			return
		}
		_ = os.RemoveAll(dir)
	})
	return dir
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eventually looks again and again until a condition holds.
func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !holds(); {
		if time.Now().After(end) {
			t.Fatalf("waited %v for: %s", patience, what)
		}
		time.Sleep(2 * time.Millisecond) // between two looks; the condition decides
	}
}

// start begins a command on the archive.
func (a *archive) start(args ...string) *process {
	a.t.Helper()
	return a.startIn("", args...)
}

func (a *archive) startIn(dir string, args ...string) *process {
	a.t.Helper()
	full := []string{"--archive", a.dir}
	if a.nats != "" {
		full = append(full, "--nats", a.nats)
	}
	return startProcess(a.t, a.bin, dir, a.env, a.attr, append(full, args...)...)
}

// run runs a command to its end.
func (a *archive) run(args ...string) outcome {
	a.t.Helper()
	return a.start(args...).wait()
}

// ingest runs `ingest --json` and reads its object.
func (a *archive) ingest(dir string, args ...string) outcome {
	a.t.Helper()
	return a.startIngest(dir, args...).wait().parsed()
}

func (a *archive) startIngest(dir string, args ...string) *process {
	a.t.Helper()
	return a.start(append([]string{"--json", "ingest", dir}, args...)...)
}
