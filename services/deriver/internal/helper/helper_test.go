package helper_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"colophon/services/deriver/internal/helper"
)

func shell(t *testing.T, script string, l helper.Limits) (helper.Outcome, error) {
	t.Helper()
	return helper.Run(t.Context(), helper.Command{Program: "sh", Args: []string{"-c", script}, Dir: t.TempDir(), Limits: l})
}

func TestSuccess(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	_, err := helper.Run(t.Context(), helper.Command{
		Program: "cat", Dir: t.TempDir(), Stdin: strings.NewReader("through"), Stdout: &out,
		Limits: helper.Limits{Memory: 1 << 30, CPU: time.Minute, File: 1 << 20, Wall: time.Minute},
	})
	if err != nil || out.String() != "through" {
		t.Fatalf("got %q, %v", out.String(), err)
	}
}

// TestFailures: each way of failing is a failure, and says which.
func TestFailures(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		script string
		limits helper.Limits
		check  func(f *helper.Failure) bool
	}{
		"status":    {"echo why >&2; exit 3", helper.Limits{}, func(f *helper.Failure) bool { return f.Status == 3 && f.Stderr == "why\n" }},
		"signal":    {"kill -SEGV $$", helper.Limits{}, func(f *helper.Failure) bool { return f.Signal == syscall.SIGSEGV }},
		"killed":    {"kill -KILL $$", helper.Limits{}, func(f *helper.Failure) bool { return f.Signal == syscall.SIGKILL && f.Status == -1 }},
		"wall":      {"sleep 1000", helper.Limits{Wall: 50 * time.Millisecond}, func(f *helper.Failure) bool { return f.Wall }},
		"cpu":       {"while :; do :; done", helper.Limits{CPU: time.Second}, func(f *helper.Failure) bool { return f.Signal != 0 }},
		"file size": {"exec dd if=/dev/zero of=big bs=1024 count=4096", helper.Limits{File: 1 << 20}, func(f *helper.Failure) bool { return f.Signal == syscall.SIGXFSZ || f.Status > 0 }},
		"memory":    {"exec dd if=/dev/zero of=/dev/null bs=200M count=1", helper.Limits{Memory: 100 << 20}, func(f *helper.Failure) bool { return f.Status > 0 }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := shell(t, tt.script, tt.limits)
			var f *helper.Failure
			if !errors.As(err, &f) || !tt.check(f) {
				t.Fatalf("got %v (%+v)", err, f)
			}
		})
	}
}

func TestFileLimitIsKept(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	_, err := helper.Run(t.Context(), helper.Command{
		Program: "dd", Args: []string{"if=/dev/zero", "of=big", "bs=1024", "count=4096"}, Dir: dir, Limits: helper.Limits{File: 1 << 20},
	})
	if err == nil {
		t.Error("a file beyond the limit was written")
	}
	if st, err := os.Stat(filepath.Join(dir, "big")); err != nil || st.Size() > 1<<20 {
		t.Errorf("the file has %v, %v", st, err)
	}
}

func TestMissing(t *testing.T) {
	t.Parallel()
	_, err := helper.Run(t.Context(), helper.Command{Program: "no-such-program-here", Dir: t.TempDir()})
	if !errors.Is(err, helper.ErrMissing) {
		t.Fatalf("got %v", err)
	}
}

func TestCancelled(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	pr, pw, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer pr.Close()
	go func() { // as soon as the child says that it runs
		_, _ = pr.Read(make([]byte, 1))
		cancel()
	}()
	_, err = helper.Run(ctx, helper.Command{Program: "sh", Args: []string{"-c", "echo; sleep 1000"}, Dir: t.TempDir(), Stdout: pw})
	pw.Close()
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
}

// TestNoneLeft: a child's own children do not outlive it.
func TestNoneLeft(t *testing.T) {
	t.Parallel()
	out, err := shell(t, "sleep 1000 >/dev/null 2>&1 & echo $!", helper.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(out.Stdout))
	if err != nil {
		t.Fatal(err)
	}
	// The signal is sent before Run returns; the kernel needs a moment to end
	// the process, and its state may then be that of a zombie.
	for deadline := time.Now().Add(10 * time.Second); alive(pid); {
		if time.Now().After(deadline) {
			t.Fatal("a grandchild is still running")
		}
	}
}

func alive(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err == nil && !strings.Contains(string(stat), ") Z ")
}

func TestOutputIsCapped(t *testing.T) {
	t.Parallel()
	out, err := shell(t, "yes | head -c 3000000; echo end; yes | head -c 3000000 >&2; echo end >&2", helper.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{out.Stdout, out.Stderr} {
		if len(s) > 16<<10 || !strings.HasSuffix(s, "end\n") {
			t.Errorf("kept %d bytes, ending in %q", len(s), s[max(0, len(s)-5):])
		}
	}
}

func TestEnvironmentIsBare(t *testing.T) {
	t.Setenv("COLOPHON_SECRET", "secret")
	out, err := shell(t, "env", helper.Limits{})
	if err != nil || strings.Contains(out.Stdout, "secret") {
		t.Errorf("the child sees %s (%v)", out.Stdout, err)
	}
}
