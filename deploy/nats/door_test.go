package nats

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestServeBehindADoor: the all-in-one server lets other machines in by their
// keys, over TLS; without all of that it listens on loopback only.
func TestServeBehindADoor(t *testing.T) {
	t.Parallel()
	ok(t, built())
	dir := t.TempDir()
	archive, demo, keys := filepath.Join(dir, "archive"), filepath.Join(dir, "demo"), filepath.Join(dir, "keys")
	run := func(want int, args ...string) string {
		t.Helper()
		cmd := exec.Command(filepath.Join(bin, "colophon"), append([]string{"--archive", archive}, args...)...)
		out, err := cmd.CombinedOutput()
		if cmd.ProcessState == nil {
			t.Fatal(err)
		}
		if code := cmd.ProcessState.ExitCode(); code != want {
			t.Fatalf("colophon %v: status %d, want %d\n%s", args, code, want, out)
		}
		return string(out)
	}
	run(0, "demo", demo)
	run(2, "provision", "--grants", keys, "--gateway", "a.b")
	run(0, "provision", "--grants", keys, "--gateway", "cli", "--gateway", "room=flatbed,overhead", "--operator", "op")
	conf, err := os.ReadFile(filepath.Join(keys, ConfigFile))
	ok(t, err)
	has(t, string(conf), "capture.frame.room.*", "CREATE.DISPATCH.gateway-overhead.gateway.dispatch.overhead", "_INBOX_op.>")
	ca, cert, key := certificates(t, dir)

	for _, listen := range []string{"0.0.0.0:0", ":0", "[::]:0", "192.0.2.7:4222", "archive.example.org:4222"} {
		if out := run(2, "serve", "--listen", listen, "--http", ""); !strings.Contains(out, "--listen-accounts") {
			t.Errorf("serve --listen %s says %s", listen, out)
		}
	}
	run(2, "serve", "--listen", "127.0.0.1:0", "--listen-cert", cert, "--http", "")

	run(3, "ingest", demo, "--batch", "before") // into streams that the door must not hide
	serve := exec.Command(filepath.Join(bin, "colophon"), "--archive", archive, "serve", "--root", demo, "--listen", "127.0.0.1:0", "--http", "",
		"--listen-accounts", filepath.Join(keys, ConfigFile), "--listen-cert", cert, "--listen-key", key)
	log, err := os.Create(filepath.Join(dir, "log"))
	ok(t, err)
	serve.Stderr = log
	ok(t, serve.Start())
	t.Cleanup(func() {
		_ = serve.Process.Signal(syscall.SIGTERM)
		if err := serve.Wait(); err != nil || t.Failed() {
			said, _ := os.ReadFile(log.Name())
			t.Errorf("serve: %v\n%s", err, said)
		}
	})
	var access struct {
		URL string `json:"url"`
	}
	eventually(t, "the server", func() bool {
		data, err := os.ReadFile(filepath.Join(archive, "state", "broker.json"))
		return err == nil && json.Unmarshal(data, &access) == nil
	})
	_, host, _ := strings.Cut(access.URL, "@")
	as := func(who string) []string {
		return []string{"--nats", "tls://" + host, "--nats-ca", ca, "--nats-nkey", filepath.Join(keys, who+".nk")}
	}
	run(3, append(as("cli"), "ingest", demo, "--batch", "after")...)
	has(t, run(3, append(as("op"), "status", "before")...), "before: ")
	has(t, run(3, "status", "after"), "after: ") // this machine's own user, by the certificate it was told
	run(1, "--nats", "nats://"+host, "--nats-nkey", filepath.Join(keys, "op.nk"), "status", "before")
}
