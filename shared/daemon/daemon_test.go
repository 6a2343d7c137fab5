package daemon_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"colophon/shared/daemon"
	"colophon/shared/testkit"
)

func TestMain(m *testing.M) {
	testkit.Children(map[string]func([]string){
		"service": func([]string) {
			var cli struct {
				daemon.Base
				Root string `help:"A setting of its own." required:""`
			}
			os.Exit(daemon.Main("service", "A test's service.", &cli, &cli.Base, func(ctx context.Context, e daemon.Env) error {
				if cli.Root == "fails" {
					return errors.New("the work failed")
				}
				fmt.Println("running", e.NC.IsConnected(), e.Instance)
				<-ctx.Done()
				fmt.Println("stopping")
				return ctx.Err()
			}))
		},
		"stubborn": func([]string) {
			ctx, stop := daemon.Signals()
			defer stop()
			fmt.Println("running")
			<-ctx.Done()
			fmt.Println("stopping, slowly")
			select {}
		},
	})
	os.Exit(m.Run())
}

func TestAProgramRunsAndStops(t *testing.T) {
	t.Parallel()
	b := testkit.StartLoopback(t, testkit.TempDir(t))
	defer b.Stop()
	for _, signal := range []os.Signal{syscall.SIGTERM, syscall.SIGINT} {
		c := testkit.StartChild(t, "service", "--nats", b.URL(), "--http", "127.0.0.1:0", "--instance", "pod-1", "--root", "x")
		if l := c.Line(); l != "running true pod-1" {
			t.Fatalf("says %q", l)
		}
		c.Signal(signal)
		lines, status := c.End()
		if status != 0 || fmt.Sprint(lines) != "[stopping]" {
			t.Errorf("%v: status %d, says %q", signal, status, lines)
		}
	}
}

func TestExitStatus(t *testing.T) {
	t.Parallel()
	b := testkit.StartLoopback(t, testkit.TempDir(t))
	defer b.Stop()
	for want, args := range map[int][]string{
		1: {"--nats", b.URL(), "--http", "", "--root", "fails"},
		2: {"--nats", b.URL(), "--unknown"},
	} {
		if lines, status := testkit.StartChild(t, "service", args...).End(); status != want {
			t.Errorf("%q: status %d, want %d; %q", args, status, want, lines)
		}
	}
	if _, status := testkit.StartChild(t, "service", "--nats", b.URL()).End(); status != 2 {
		t.Errorf("without a required setting: status %d", status)
	}
}

// TestAStopWithoutABroker: a service that still waits for its broker ends too.
func TestAStopWithoutABroker(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0") // nobody answers there
	testkit.OK(t, err)
	addr := l.Addr().String()
	testkit.OK(t, l.Close())
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, _, err := daemon.NATS{URL: "nats://" + addr}.Connect(ctx, "x", (&testkit.Logbook{}).Logger(), new(daemon.Health))
		ended <- err
	}()
	cancel()
	select {
	case err := <-ended:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("ended with %v", err)
		}
	case <-time.After(time.Minute):
		t.Error("waits for the broker for ever")
	}
}

func TestASecondSignalKills(t *testing.T) {
	t.Parallel()
	c := testkit.StartChild(t, "stubborn")
	c.Line()
	c.Signal(syscall.SIGTERM)
	if l := c.Line(); l != "stopping, slowly" {
		t.Fatalf("says %q", l)
	}
	// The program hears no more; the default of the signal ends it.
	testkit.Eventually(t, "the end", func() bool {
		c.Signal(syscall.SIGTERM)
		return c.Gone()
	})
}

func TestTheBrokerIsWaitedForAndComesBack(t *testing.T) {
	t.Parallel()
	b := testkit.StartLoopback(t, testkit.TempDir(t))
	defer b.Stop()
	url := b.URL()
	b.Stop()
	health, log := new(daemon.Health), &testkit.Logbook{}
	connected := make(chan struct{})
	go func() {
		defer close(connected)
		nc, _, err := daemon.NATS{URL: url}.Connect(t.Context(), "x", log.Logger(), health)
		if err != nil {
			t.Error(err)
			return
		}
		t.Cleanup(nc.Close)
	}()
	testkit.Eventually(t, "a start without a broker waits", func() bool {
		select {
		case <-connected:
			t.Fatal("connected to nobody")
		default:
		}
		ready, _ := health.Report()
		return ready // nothing checked yet
	})
	b.Start()
	testkit.Closed(t, "the connection", connected)
	ready := func() bool { ok, _ := health.Report(); return ok }
	if !ready() {
		t.Error("connected and not ready")
	}
	b.Stop()
	testkit.Eventually(t, "not ready", func() bool { return !ready() })
	b.Start()
	testkit.Eventually(t, "ready again", ready)
	testkit.Eventually(t, "the log says so", func() bool { return log.Count("broker_reconnected") >= 1 })
}

// TestADenialFailsReadiness: to a caller it looks like a timeout.
func TestADenialFailsReadiness(t *testing.T) {
	t.Parallel()
	o := testkit.Options(testkit.TempDir(t), -1)
	o.Host = "127.0.0.1"
	o.Users = []*server.User{{Username: "u", Password: "p", Permissions: &server.Permissions{Publish: &server.SubjectPermission{Allow: []string{"allowed"}}}}}
	s, err := server.NewServer(o)
	testkit.OK(t, err)
	s.Start()
	defer s.Shutdown()
	if !s.ReadyForConnections(30 * time.Second) {
		t.Fatal("no server")
	}
	health := new(daemon.Health)
	nc, _, err := daemon.NATS{URL: strings.Replace(s.ClientURL(), "nats://", "nats://u:p@", 1)}.Connect(t.Context(), "x", (&testkit.Logbook{}).Logger(), health)
	testkit.OK(t, err)
	defer nc.Close()
	testkit.OK(t, nc.Publish("denied", nil))
	testkit.Eventually(t, "readiness fails", func() bool {
		ok, report := health.Report()
		return !ok && strings.Contains(report["broker-permission"], "denied")
	})
	r := prometheus.NewRegistry()
	r.MustRegister(health.Denials())
	if m, err := r.Gather(); err != nil || m[0].Metric[0].Counter.GetValue() != 1 {
		t.Errorf("counted: %v (%v)", m, err)
	}
}

// TestARefusedSubscriptionIsAskedForAgain: once it is granted, nobody has to
// restart the program.
func TestARefusedSubscriptionIsAskedForAgain(t *testing.T) {
	t.Parallel()
	o := testkit.Options(testkit.TempDir(t), -1)
	o.Host = "127.0.0.1"
	user := func(deny ...string) []*server.User {
		return []*server.User{{Username: "u", Password: "p", Permissions: &server.Permissions{Subscribe: &server.SubjectPermission{Allow: []string{">"}, Deny: deny}}}}
	}
	o.Users = user("orders")
	s, err := server.NewServer(o)
	testkit.OK(t, err)
	s.Start()
	defer s.Shutdown()
	if !s.ReadyForConnections(30 * time.Second) {
		t.Fatal("no server")
	}
	health := &daemon.Health{DenialHolds: 600 * time.Millisecond}
	nc, _, err := daemon.NATS{URL: strings.Replace(s.ClientURL(), "nats://", "nats://u:p@", 1)}.Connect(t.Context(), "x", (&testkit.Logbook{}).Logger(), health)
	testkit.OK(t, err)
	defer nc.Close()
	got := make(chan struct{}, 100)
	_, err = nc.Subscribe("orders", func(*nats.Msg) { got <- struct{}{} })
	testkit.OK(t, err)
	refusals := health.Denials()
	testkit.Eventually(t, "refused, and asked for again", func() bool { return testutil.ToFloat64(refusals) >= 3 })
	ready := func() bool { ok, _ := health.Report(); return ok }
	testkit.Eventually(t, "not ready", func() bool { return !ready() })
	now := o.Clone()
	now.Users = user("other")
	testkit.OK(t, s.ReloadOptions(now))
	testkit.Eventually(t, "ready again", ready)
	testkit.Eventually(t, "it hears", func() bool {
		testkit.OK(t, nc.Publish("orders", nil))
		return len(got) > 0
	})
	testkit.Eventually(t, "ready for good", ready)
}

func TestThePages(t *testing.T) {
	t.Parallel()
	var health daemon.Health
	health.Check("disk", func() error { return nil })
	ctx, cancel := context.WithCancel(t.Context())
	addr, err := daemon.ServeHTTP(ctx, "127.0.0.1:0", &health, daemon.Registry(), (&testkit.Logbook{}).Logger())
	testkit.OK(t, err)
	get := func(path string) (int, string) {
		t.Helper()
		r, err := http.Get("http://" + addr.String() + path)
		testkit.OK(t, err)
		defer r.Body.Close() //nolint:errcheck // read to the end
		body, err := io.ReadAll(r.Body)
		testkit.OK(t, err)
		return r.StatusCode, string(body)
	}
	if code, body := get("/readyz"); code != 200 || strings.TrimSpace(body) != `{"disk":"ok"}` {
		t.Errorf("ready: %d %s", code, body)
	}
	health.Note("breakers", func() string { return "open: device:a" })
	health.Note("nothing", func() string { return "" })
	if code, body := get("/readyz"); code != 200 || strings.TrimSpace(body) != `{"breakers":"open: device:a","disk":"ok"}` {
		t.Errorf("ready, with a note: %d %s", code, body)
	}
	health.Note("breakers", func() string { return "" })
	health.Check("disk", func() error { return errors.New("full") })
	health.Fail("broker", errors.New("denied"))
	if code, body := get("/readyz"); code != 503 || strings.TrimSpace(body) != `{"broker":"denied","disk":"full"}` {
		t.Errorf("not ready: %d %s", code, body)
	}
	if code, _ := get("/livez"); code != 200 {
		t.Errorf("alive: %d", code)
	}
	if _, body := get("/metrics"); !strings.Contains(body, `ingest_build_info{go_version="go`) || !strings.Contains(body, "go_goroutines") {
		t.Errorf("metrics: %.300s", body)
	}
	if _, err := daemon.ServeHTTP(ctx, addr.String(), &health, daemon.Registry(), (&testkit.Logbook{}).Logger()); err == nil {
		t.Error("two listen on one address")
	}
	cancel()
	testkit.Eventually(t, "the page is gone", func() bool {
		_, err := http.Get("http://" + addr.String() + "/livez") //nolint:bodyclose // until it fails
		return err != nil
	})
	if a, err := daemon.ServeHTTP(ctx, "", &health, nil, nil); a != nil || err != nil {
		t.Errorf("an empty address serves %v, %v", a, err)
	}
}

func TestLogsAreDataOffATerminal(t *testing.T) {
	t.Parallel()
	f, err := os.CreateTemp(testkit.TempDir(t), "log")
	testkit.OK(t, err)
	daemon.Flags{}.Logger(f, "hasher").Info("started", "n", 3)
	data, err := os.ReadFile(f.Name())
	testkit.OK(t, err)
	var line map[string]any
	if err := json.Unmarshal(bytes.TrimSpace(data), &line); err != nil || line["service"] != "hasher" || line["msg"] != "started" || line["n"] != 3.0 {
		t.Errorf("%s (%v)", data, err)
	}
}
