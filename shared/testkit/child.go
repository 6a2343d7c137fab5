package testkit

import (
	"bufio"
	"os"
	"os/exec"
	"syscall"
	"testing"
)

const childEnv = "COLOPHON_TEST_CHILD"

// Children runs the part of a test binary that is a process of its own: call
// it from TestMain before m.Run. It returns only in the parent.
func Children(programs map[string]func(args []string)) {
	if p, ok := programs[os.Getenv(childEnv)]; ok {
		p(os.Args[1:])
		os.Exit(0)
	}
}

// Child is this test binary, run again as another program.
type Child struct {
	tb    testing.TB
	cmd   *exec.Cmd
	lines *bufio.Scanner
}

// StartChild starts a program that [Children] knows.
func StartChild(tb testing.TB, program string, args ...string) *Child {
	tb.Helper()
	self, err := os.Executable()
	OK(tb, err)
	c := &Child{tb: tb, cmd: exec.Command(self, args...)}
	c.cmd.Env = append(os.Environ(), childEnv+"="+program)
	c.cmd.Stderr = os.Stderr
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := c.cmd.StdoutPipe()
	OK(tb, err)
	OK(tb, c.cmd.Start())
	c.lines = bufio.NewScanner(out)
	return c
}

// Line gives the next line the child prints; "" when it prints no more.
func (c *Child) Line() string {
	if c.lines.Scan() {
		return c.lines.Text()
	}
	return ""
}

// Kill ends the child as no program can prevent, and gives the rest of what
// it printed.
func (c *Child) Kill() (rest []string) {
	c.tb.Helper()
	OK(c.tb, c.cmd.Process.Kill())
	for c.lines.Scan() {
		rest = append(rest, c.lines.Text())
	}
	_ = c.cmd.Wait() // killed, so never nil
	return rest
}

// Wait waits until the child ends by itself and gives what it printed.
func (c *Child) Wait() (lines []string) {
	c.tb.Helper()
	for c.lines.Scan() {
		lines = append(lines, c.lines.Text())
	}
	OK(c.tb, c.cmd.Wait())
	return lines
}

// Signal sends the child a signal; one that is gone does not hear it.
func (c *Child) Signal(s os.Signal) { _ = c.cmd.Process.Signal(s) }

// Gone reports whether the child's process has ended, and reaps it.
func (c *Child) Gone() bool {
	var status syscall.WaitStatus
	pid, err := syscall.Wait4(c.cmd.Process.Pid, &status, syscall.WNOHANG, nil)
	return err != nil || pid == c.cmd.Process.Pid
}

// End waits for the child and gives the rest of what it printed and its exit
// status.
func (c *Child) End() (lines []string, status int) {
	c.tb.Helper()
	for c.lines.Scan() {
		lines = append(lines, c.lines.Text())
	}
	_ = c.cmd.Wait() // the status says it
	return lines, c.cmd.ProcessState.ExitCode()
}
