package e2e

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// binDir holds the programs under test, built anew for each test run.
var binDir string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	flag.Parse()
	if !slices.ContainsFunc(os.Args, func(s string) bool { return strings.HasPrefix(s, "-test.parallel") }) {
		// The tests mostly wait: for ack waits, syncs and delays.
		if err := flag.Set("test.parallel", "6"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	var err error
	if binDir, err = os.MkdirTemp("", "colophon-e2e-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(binDir) //nolint:errcheck // of no further use
	// Children that run as another user must reach the programs.
	if err := os.Chmod(binDir, 0o755); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if err := build("colophon", "./deploy/standalone/cmd/colophon"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// build makes one program, with the flags of the Makefile so that its cache
// serves.
func build(name, pkg string, flags ...string) error {
	root, err := filepath.Abs("../..")
	if err != nil {
		return err
	}
	args := append([]string{"build", "-trimpath", "-ldflags", "-X colophon/shared/daemon.Version=e2e", "-o", filepath.Join(binDir, name)}, flags...)
	cmd := exec.Command("go", append(args, pkg)...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", pkg, err, out.String())
	}
	return nil
}

// program gives the path of a program under test.
func program(name string) string { return filepath.Join(binDir, name) }

var crashing = sync.OnceValue(func() error {
	return build("colophon-crashpoints", "./deploy/standalone/cmd/colophon", "-tags", "crashpoints")
})

// crashProgram is colophon with its crash points.
func crashProgram(t testing.TB) string {
	t.Helper()
	if err := crashing(); err != nil {
		t.Fatal(err)
	}
	return program("colophon-crashpoints")
}

var services = sync.OnceValue(func() error {
	for _, s := range serviceNames {
		if err := build(s, "./services/"+s+"/cmd/"+s); err != nil {
			return err
		}
	}
	return nil
})

var serviceNames = []string{"capture", "hasher", "deriver", "premis", "quarantine"}
