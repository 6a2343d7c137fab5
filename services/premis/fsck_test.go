//go:build soak

package premis_test

import (
	"context"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"colophon/services/premis"
)

// tessera is an outsider's checker. On damage this version reports it and then
// hangs: it runs under a time limit, and anything but its word of success is a
// failure.
const tessera = "github.com/transparency-dev/tessera/cmd/fsck@v1.0.4"

func fsck(t *testing.T, dir string, limit time.Duration) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	c := exec.CommandContext(ctx, filepath.Join(os.Getenv("GOBIN"), "fsck"), "--storage_url=file://"+dir+"/", "--public_key="+filepath.Join(dir, "public-key"), "--ui=false")
	c.WaitDelay = time.Second
	out, err := c.CombinedOutput()
	t.Logf("%v\n%s", err, out)
	return err == nil && strings.Contains(string(out), "Successfully fsck'd log")
}

// TestOutsidersToolAcceptsTheEvidence needs the Go module proxy, or the module
// in the cache. The log has more than one full tile.
func TestOutsidersToolAcceptsTheEvidence(t *testing.T) {
	bin := t.TempDir()
	t.Setenv("GOBIN", bin)
	build := exec.Command("go", "install", tessera)
	build.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", tessera, err, out)
	}
	w := newWorld(t)
	w.key = filepath.Join(t.TempDir(), "key")
	_, stop := w.start(slog.New(slog.DiscardHandler))
	w.publish(story("b", 80)...)
	w.signedAt(700)
	stop()
	e, err := premis.OpenEvidence(w.dir)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	dir := filepath.Join(t.TempDir(), "evidence")
	if _, err := e.Export(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	if !fsck(t, dir, time.Minute) {
		t.Error("sound evidence is not accepted")
	}
	for _, file := range []string{"tile/entries/001", "tile/0/000", "checkpoint"} {
		path := filepath.Join(dir, file)
		sound, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		spoiled := append([]byte(nil), sound...)
		spoiled[len(spoiled)/2] ^= 1
		if err := os.WriteFile(path, spoiled, 0o644); err != nil {
			t.Fatal(err)
		}
		if fsck(t, dir, 10*time.Second) {
			t.Errorf("%s is damaged, and the evidence is accepted", file)
		}
		if err := os.WriteFile(path, sound, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
