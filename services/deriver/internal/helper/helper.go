// Package helper runs other programs as limited children: each in a process
// group of its own, with bounds on memory, CPU time, file size and wall clock,
// and gone when this process is gone. Whatever a child does, it can cost one
// job, not the service.
package helper

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// ErrMissing says that a program is not installed.
var ErrMissing = errors.New("program is not installed")

// Limits bound a child. Zero means no limit of that kind.
type Limits struct {
	Memory int64         // bytes of address space (RLIMIT_AS)
	CPU    time.Duration // processor time, rounded up to seconds (RLIMIT_CPU)
	File   int64         // bytes of any one file it writes (RLIMIT_FSIZE)
	Wall   time.Duration // from start to end
}

// Command is one run of a program.
type Command struct {
	Program string // a name to be found on PATH, or a path
	Args    []string
	Dir     string    // working directory, also its TMPDIR
	Stdin   io.Reader // nil: nothing. An *os.File is handed over as it is
	Stdout  io.Writer // nil: kept in Outcome, up to maxCapture
	Limits  Limits
}

// maxCapture bounds what is kept of a child's output, in bytes.
const maxCapture = 16 << 10

// pipeDelay is how long the pipes of a killed child may stay open, should a
// grandchild hold them.
const pipeDelay = 5 * time.Second

// Outcome is what a child that ended by itself, successfully, said.
type Outcome struct {
	Stdout, Stderr string // the last maxCapture bytes
}

// Failure is a child that did not succeed, whatever the reason.
type Failure struct {
	Program string
	Status  int            // exit status; -1 if it was killed
	Signal  syscall.Signal // that killed it, or 0
	Wall    bool           // it was killed because its time was up
	Stderr  string
}

func (f *Failure) Error() string {
	switch {
	case f.Wall:
		return f.Program + ": killed when its time was up"
	case f.Signal != 0:
		return f.Program + ": killed by " + f.Signal.String()
	}
	return f.Program + ": exit status " + strconv.Itoa(f.Status)
}

// limited sets the limits in the child itself, before the program begins:
// nothing of it ever runs without them. ulimit counts memory in KiB and files
// in blocks of 512 bytes (dash, and bash called as sh). It can fail only where
// the service itself has been given less, which then holds for the child too.
const limited = `ulimit -c 0
[ "$1" = 0 ] || ulimit -v "$1" 2>/dev/null
[ "$2" = 0 ] || ulimit -t "$2" 2>/dev/null
[ "$3" = 0 ] || ulimit -f "$3" 2>/dev/null
shift 3
exec "$@"`

// Run runs c to its end. The error is ErrMissing (wrapped), a *Failure, or the
// context's own error if ctx ended first. When Run returns, no process of the
// child's group is left.
func Run(ctx context.Context, c Command) (Outcome, error) {
	program, err := exec.LookPath(c.Program)
	if err != nil {
		return Outcome{}, fmt.Errorf("%s: %w", c.Program, errors.Join(ErrMissing, err))
	}
	if err := ctx.Err(); err != nil {
		return Outcome{}, err
	}
	inner, cancel := ctx, context.CancelFunc(func() {})
	if c.Limits.Wall > 0 {
		inner, cancel = context.WithTimeout(ctx, c.Limits.Wall)
	}
	defer cancel()

	var stdout, stderr tail
	cmd := command(inner, program, c)
	cmd.Stderr = &stderr
	if cmd.Stdout = c.Stdout; c.Stdout == nil {
		cmd.Stdout = &stdout
	}
	err = runLocked(cmd)
	if ctx.Err() != nil {
		return Outcome{}, ctx.Err()
	}
	out := Outcome{Stdout: stdout.String(), Stderr: stderr.String()}
	if err == nil {
		return out, nil
	}
	return out, failure(c.Program, cmd, err, inner.Err() != nil, out.Stderr)
}

// command prepares the child.
func command(ctx context.Context, program string, c Command) *exec.Cmd {
	l := c.Limits
	args := []string{
		"-c", limited, "sh",
		strconv.FormatInt((l.Memory+1023)/1024, 10),
		strconv.FormatInt(int64((l.CPU+time.Second-1)/time.Second), 10),
		strconv.FormatInt((l.File+511)/512, 10),
		program,
	}
	cmd := exec.CommandContext(ctx, "/bin/sh", append(args, c.Args...)...)
	cmd.Dir, cmd.Stdin = c.Dir, c.Stdin
	// Nothing of the service's environment is the child's business.
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "TMPDIR=" + c.Dir}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = pipeDelay
	return cmd
}

// runLocked runs cmd from one thread that lives as long as the child: the
// death signal is sent when the thread that started the child ends.
func runLocked(cmd *exec.Cmd) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := cmd.Run()
	if cmd.Process != nil {
		// What the child may have left behind in its group.
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	}
	return err
}

func failure(program string, cmd *exec.Cmd, err error, wall bool, stderr string) error {
	f := &Failure{Program: program, Status: -1, Wall: wall, Stderr: stderr}
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		if wall {
			return f
		}
		return fmt.Errorf("%s: %w", program, err)
	}
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		f.Signal = status.Signal()
	} else {
		f.Status = exit.ExitCode()
	}
	return f
}

// tail keeps the last maxCapture bytes written to it.
type tail struct{ buf bytes.Buffer }

func (t *tail) Write(p []byte) (int, error) {
	n := len(p)
	if len(p) > maxCapture {
		p = p[len(p)-maxCapture:]
	}
	if over := t.buf.Len() + len(p) - maxCapture; over > 0 {
		t.buf.Next(over)
	}
	t.buf.Write(p) // never fails
	return n, nil
}

func (t *tail) String() string { return strings.ToValidUTF8(t.buf.String(), "\uFFFD") }
