package quarantine

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/micro"

	"colophon/shared/daemon"
	"colophon/shared/event"
)

func TestSemver(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"dev": "0.0.0+dev", "v1.2.3": "1.2.3", "1.2.3-rc.1+x": "1.2.3-rc.1+x", "": "0.0.0", "main_4 a/b": "0.0.0+main-4-a-b",
	} {
		same(t, in, daemon.Semver(in), want)
	}
}

func TestRequest(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]string{"": "", " 2 \n": "2", `"a@b/c"`: "a@b/c", "a@b/c": "a@b/c", `{"id":"x"}`: "x"} {
		r, err := request([]byte(body))
		ok(t, err)
		same(t, body, r.ID, want)
	}
}

func TestPanicStaysInItsRequest(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	q := w.run(t.TempDir())
	_, err := q.contained(t.Context(), event.CaseRequest{}, func(context.Context, event.CaseRequest) (any, error) { panic("no") })
	if err == nil || !strings.Contains(err.Error(), "failed on this request") {
		t.Errorf("the panic became %v", err)
	}
	m, err := w.nc.Request("$SRV.INFO.quarantine", nil, 10*time.Second)
	ok(t, err)
	for _, want := range []string{micro.InfoResponseType, "quarantine.list", "quarantine.show", "quarantine.replay", "quarantine.discard", "quarantine.rescan", "0.0.0+dev"} {
		if !strings.Contains(string(m.Data), want) {
			t.Errorf("the service does not announce %s: %s", want, m.Data)
		}
	}
	q.end()
	_, err = w.nc.Request("quarantine.list", nil, time.Second)
	if err == nil {
		t.Error("a stopped service answers")
	}
}
