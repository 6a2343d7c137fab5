package gateway

import (
	"bytes"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"colophon/shared/event"
	"colophon/shared/fault"
	"colophon/shared/testkit"
)

// TestWeb: frames from a web server that breaks off, turns away and lies, all
// the way: only those with wrong bytes are quarantined, each once.
func TestWeb(t *testing.T) {
	t.Parallel()
	const frames = 24
	wrong := func(i int) bool { return i%8 == 5 }
	asked := make([]atomic.Int32, frames)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		i, err := strconv.Atoi(strings.Trim(r.URL.Path, "/.tif"))
		if err != nil || i < 0 || i >= frames {
			http.NotFound(w, r)
			return
		}
		data := tiff(i)
		if wrong(i) {
			data[len(data)-5]++
		}
		if n := asked[i].Add(1); n == 1 {
			switch i % 4 {
			case 1:
				w.Header().Set("Retry-After", "1")
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			case 2:
				w.Header().Set("ETag", `"one"`)
				w.Header().Set("Content-Length", strconv.Itoa(len(data)))
				_, _ = w.Write(data[:len(data)/2])
				w.(http.Flusher).Flush()
				panic(http.ErrAbortHandler)
			}
		}
		w.Header().Set("ETag", `"one"`)
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
	}))
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.Start()
	defer s.Close()
	l := whole(t, "--source-host", strings.TrimPrefix(s.URL, "http://"))
	g := l.gateway("web")
	policy := testkit.Policy(4, 200*time.Millisecond)
	testkit.OK(t, g.Declare(t.Context(), event.BatchDeclaration{Batch: "web", Count: frames, Policy: policy}, 0))
	for i := range frames {
		data := tiff(i)
		size := int64(len(data))
		testkit.OK(t, g.Frame(t.Context(), event.FrameMessage{
			Slot: event.Slot{Batch: "web", Frame: event.Name(fmt.Sprintf("%d.tif", i))}, Sequence: i + 1, Pass: 1, Sources: []string{fmt.Sprintf("%s/%d.tif", s.URL, i)},
			Size: &size, SHA256: testkit.Digest(string(data)), DeclaredBy: "web",
		}))
	}
	k := l.until("the batch settles", "web", func(k Known) bool { return k.Settled && k.Totals.Declared == frames })
	if k.Totals.Failed != 3 || k.Totals.Done != frames-3 {
		t.Errorf("%+v", k.Totals)
	}
	for i := range frames {
		f := k.Frames[event.Name(fmt.Sprintf("%d.tif", i))]
		if wrong(i) != (f.State == event.StateFailed) || wrong(i) && f.Troubles[0].Code != string(fault.DigestMismatch) {
			t.Errorf("%s: %s %+v", f.Frame, f.State, f.Troubles)
		}
	}
	letters := map[string]int{}
	for _, m := range testkit.ReadAll(t, l.js, event.StreamDeadLetter) {
		letters[m.Header.Get(event.HeaderFrame)]++
	}
	if len(letters) != 3 || letters["5%2Etif"] != 1 || letters["13%2Etif"] != 1 || letters["21%2Etif"] != 1 {
		t.Errorf("dead letters: %v", letters)
	}
	retries := 0
	for _, f := range l.facts(event.SubjectAttemptFailed) {
		if f := f.(event.AttemptFailed); f.Decision == event.DecisionRetry {
			retries++
			if f.NotBefore.Sub(f.Ended) < time.Second {
				t.Errorf("%s is tried again after %v; the server asked for a second", f.Frame, f.NotBefore.Sub(f.Ended))
			}
		}
	}
	if retries != frames/4 {
		t.Errorf("%d retries in the log, want %d", retries, frames/4)
	}
}

// TestCommand: the command line's own hot folder, on the line that it finds
// running: what is good is taken in, other bytes for a done frame wait for a
// decision, and nothing is overwritten.
func TestCommand(t *testing.T) {
	t.Parallel()
	dir := testkit.TempDir(t)
	hot := mkdir(t, dir, "hot")
	l := whole(t)
	archive := filepath.Join(l.dir, "archive")
	run := func(args ...string) (string, int) {
		t.Helper()
		cmd := exec.Command(program(t, "colophon", "./deploy/standalone/cmd/colophon"), append([]string{"--archive", archive, "--low-water-mib", "1"}, args...)...)
		var out, logs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &logs
		_ = cmd.Run() // the status says it
		if cmd.ProcessState.ExitCode() == 1 {
			t.Errorf("%v: %s", args, logs.String())
		}
		return out.String(), cmd.ProcessState.ExitCode()
	}
	once := func() (string, int) {
		t.Helper()
		return run("gateway", "hotfolder", hot, "--once", "--settle", "300ms", "--rescan", "50ms", "--operator", "op-7")
	}
	write(t, hot+"/b/1.tif", tiff(1))
	write(t, hot+"/b/2.tif", tiff(2))
	if out, code := once(); code != 0 {
		t.Fatalf("exit status %d: %s", code, out)
	}
	if got := files(t, hot+"/done"); len(got) != 2 || !bytes.Equal(got["b/1.tif"], tiff(1)) {
		t.Errorf("%d files in done/", len(got))
	}
	l.until("the batch converges", "b", func(k Known) bool { return k.Converged })
	write(t, hot+"/b/1.tif", tiff(99))
	if out, code := once(); code != 3 || !strings.Contains(out, "1 frames need a decision") {
		t.Errorf("other bytes for a done frame: exit status %d: %s", code, out)
	}
	if got := files(t, hot+"/done"); len(got) != 2 || !bytes.Equal(got["b/1.tif"], tiff(1)) {
		t.Error("done/ was overwritten")
	}
	if got, err := os.ReadFile(hot + "/b/1.tif"); err != nil || !bytes.Equal(got, tiff(99)) {
		t.Errorf("the other bytes are gone: %v", err)
	}
	for _, args := range [][]string{
		{"gateway", "hotfolder", hot + "/nosuch"}, {"gateway", "hotfolder", hot, "--ignore", "[a"}, {"gateway", "sane", "test:0"},
		{"gateway", "sane", "test:0", "--dir", dir, "--option", "batch=/etc/x"}, {"gateway", "sane", "test:0", "--dir", dir, "--count", "-1", "--batch", "b"},
	} {
		if out, code := run(args...); code != 2 {
			t.Errorf("%v: exit status %d: %s", args, code, out)
		}
	}
}
