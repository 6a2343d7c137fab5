package capture

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"colophon/shared/fault"
	"colophon/shared/testkit"
)

func TestMain(m *testing.M) {
	testkit.Children(map[string]func([]string){"open": openAsNobody})
	// Before flags are read, so that others can be asked for. Most tests wait
	// for syncs and for pulls to end; Pebble checks itself under the race
	// detector, and is slow there.
	for name, value := range map[string]string{"test.parallel": "12", "rapid.checks": "25"} {
		if err := flag.Set(name, value); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}

// openAsNobody tells what a process without privileges makes of a source.
func openAsNobody(args []string) {
	roots := new(Roots)
	if err := roots.Add(args[0]); err != nil {
		fmt.Println(err)
		return
	}
	for _, uri := range args[1:] {
		f, _, err := roots.Open(uri)
		if err != nil {
			fmt.Println(fault.Of(err).Code, fault.Of(err).Message)
			continue
		}
		_ = f.Close()
		fmt.Println("open")
	}
}

// asNobody runs this test binary as a user who owns nothing.
func asNobody(t *testing.T, program string, args ...string) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Fatal("only root can become nobody")
	}
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), "COLOPHON_TEST_CHILD="+program)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return string(out)
}
