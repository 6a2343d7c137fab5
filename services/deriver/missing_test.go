package deriver

import (
	"flag"
	"os"
	"os/exec"
	"strings"
	"testing"

	"colophon/services/deriver/internal/tifftest"
	"colophon/shared/event"
	"colophon/shared/testkit"
)

func TestMain(m *testing.M) {
	// A child runs one test of this package, in a world of its own.
	if name := os.Getenv("COLOPHON_TEST_ALONE"); name != "" {
		_ = flag.Set("test.run", "^"+name+"$")
	}
	os.Exit(m.Run())
}

// A machine without the encoder halts the consumer and spends nothing; once it
// is installed, the work goes on by itself.
func TestMissingEncoder(t *testing.T) {
	if os.Getenv("COLOPHON_TEST_ALONE") == "" {
		t.Parallel()
		child := testChild(t, "TestMissingEncoder", "PATH="+t.TempDir())
		if out, err := child.CombinedOutput(); err != nil || !strings.Contains(string(out), "PASS") {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	p := newPlace(t)
	p.start()
	testkit.Publish(t, p.js, p.fixed("a.tif", tifftest.File(gray(50))))
	testkit.Eventually(t, "the consumer is halted", func() bool {
		err := p.svc.Health()
		return err != nil && strings.Contains(err.Error(), "encoder-missing") && len(p.ops()) == 1
	})
	if Missing() == nil || p.log.Count("idempotent_execute") != 0 || len(p.derivatives()) != 0 {
		t.Error("it works without an encoder")
	}
	testkit.OK(t, os.Setenv("PATH", os.Getenv("COLOPHON_TEST_PATH"))) // its own process: nobody else sees it
	p.settled()
	if made := p.derivatives(); len(made) != 1 || made[0].Attempt != 1 {
		t.Errorf("made %+v", made)
	}
	testkit.Eventually(t, "the log says that it was halted and resumed", func() bool {
		return strings.Join(p.ops(), " ") == event.OpHalted+" "+event.OpResumed
	})
}

// testChild is this test binary, to run one test under another environment.
func testChild(t *testing.T, name string, env ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), testkit.Must(os.Executable())(t), "-test.v")
	cmd.Env = append(os.Environ(), "COLOPHON_TEST_ALONE="+name, "COLOPHON_TEST_PATH="+os.Getenv("PATH"))
	cmd.Env = append(cmd.Env, env...)
	return cmd
}
