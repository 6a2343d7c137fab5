package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"colophon/shared/event"
	"colophon/shared/fault"
	"colophon/shared/testkit"
	"colophon/shared/topology"
)

// feeder is the test device of SANE, with a drive that fails to order: the n-th
// call of scanimage gets the n-th of the arguments, "" for none.
func feeder(t testing.TB, calls ...string) (program string) {
	t.Helper()
	if _, err := exec.LookPath("scanimage"); err != nil {
		t.Fatalf("scanimage is not there; .ci/tools installs it: %v", err)
	}
	dir := t.TempDir()
	write(t, dir+"/sane/dll.conf", []byte("test\n"))
	write(t, dir+"/calls", []byte(strings.Join(calls, "\n")+"\n"))
	program = filepath.Join(dir, "scanimage")
	testkit.OK(t, os.WriteFile(program, []byte(fmt.Sprintf(`#!/bin/sh
export SANE_CONFIG_DIR=%[1]s/sane
n=$(( $(cat %[1]s/n 2>/dev/null || echo 0) + 1 ))
echo $n > %[1]s/n
exec scanimage "$@" $(sed -n "${n}p" %[1]s/calls)
`, dir)), 0o755))
	return program
}

func (l *line) scanner(program, dir string, options ...string) *Scanner {
	return &Scanner{
		Gateway: l.gateway("sane"), SANE: "test:0", Device: "left", Program: program, Dir: dir, Suffix: ".tif", Again: 10 * time.Millisecond, Faults: 3, Log: l.log.Logger(),
		Options: append([]string{"resolution=50", "mode=Color", "depth=8", "source=Automatic Document Feeder", "x=20", "y=20"}, options...),
	}
}

const (
	jammed = "--read-return-value=SANE_STATUS_JAMMED"
	cover  = "--read-return-value=SANE_STATUS_COVER_OPEN"
	ioErr  = "--read-return-value=SANE_STATUS_IO_ERROR"
	busy   = "--read-return-value=SANE_STATUS_DEVICE_BUSY"
)

// TestSANE: ten pages of a real driver through the whole line, with every fault
// a feeder has on the way; then a page is asked for again, and the batch
// converges anew.
func TestSANE(t *testing.T) {
	t.Parallel()
	dir := testkit.TempDir(t)
	l := whole(t, "--root", dir)
	s := l.scanner(feeder(t, "--batch-count=4", jammed, cover, "", ioErr), dir)
	s.Policy = testkit.Policy(3, 10*time.Millisecond)
	testkit.OK(t, s.Batch(t.Context(), "ten", 10))
	k := l.until("the batch converges", "ten", func(k Known) bool { return k.Converged && k.Bag == k.Convergence })
	if k.Totals.Done != 10 || k.Count != 10 {
		t.Fatalf("%+v", k.Totals)
	}
	for i := range 10 {
		name := frameOf(i+1, ".tif")
		data, err := os.ReadFile(filepath.Join(dir, "ten", string(name)))
		testkit.OK(t, err)
		if f := k.Frames[name]; f.Pinned != testkit.Digest(string(data)) || f.Sequence != i+1 {
			t.Errorf("%s: %+v", name, f)
		}
	}
	want := []string{"p0005.tif device-jam 1", "p0005.tif device-cover-open 2"}
	var got []string
	for _, f := range l.facts(event.SubjectAttemptFailed) {
		f := f.(event.AttemptFailed)
		got = append(got, fmt.Sprint(f.Frame, " ", f.Code, " ", f.Attempt))
		if f.Device != "left" || f.Pass != 0 || f.Operation != event.Capture {
			t.Errorf("%+v", f)
		}
	}
	if strings.Join(got, ",") != strings.Join(want, ",") {
		t.Errorf("attempts %q, want %q", got, want)
	}
	fixed := l.facts(event.SubjectFrameFixed)[0].(event.FrameFixed)
	if c := fixed.Captured; c.Device != "left" || c.Acquisition["protocol"] != "sane" || c.Acquisition["resolution"] != "50" || c.Declared != fixed.Digest {
		t.Errorf("what the scan was made with: %+v", c)
	}

	// The line asks for a page again; the feeder fails once, then scans another
	// picture.
	s.Options = append(s.Options, "test-picture=Color pattern")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Obey(ctx) }()
	before := k.Frames["p0003.tif"].Pinned
	d := event.Dispatch{
		Schema: event.SchemaDispatch, Slot: event.Slot{Batch: "ten", Frame: "p0003.tif"}, Sequence: 3, Device: "left", Pass: 2, Number: 1, Replaces: before,
		Reason: "a rescan was asked for", Actor: "op-7", At: time.Now().UTC(),
	}
	testkit.PublishRaw(t, l.js, d.Subject(), nats.Header{event.HeaderMsgID: {d.MsgID()}}, testkit.JSON(t, d))
	k = l.until("the batch converges again", "ten", func(k Known) bool {
		f := k.Frames["p0003.tif"]
		return k.Converged && k.Convergence == 2 && f.Revision == 2 && f.Pinned != before
	})
	testkit.Eventually(t, "the dispatch is acked", func() bool {
		return testkit.Unfinished(t, l.js, event.StreamDispatch, topology.DispatchConsumer("left")) == 0
	})
	for _, f := range l.facts(event.SubjectFrameCaptured) {
		if f := f.(event.FrameCaptured); f.Revision == 2 && (f.Replaces != before || f.Pass != 2 || f.Frame != "p0003.tif") {
			t.Errorf("%+v", f)
		}
	}
	failed := l.facts(event.SubjectAttemptFailed)
	if f := failed[len(failed)-1].(event.AttemptFailed); len(failed) != 3 || f.Frame != "p0003.tif" || fault.Code(f.Code) != fault.IOError {
		t.Errorf("the fault on the way: %+v", f)
	}
	for _, m := range testkit.ReadAll(t, l.js, event.StreamCapture) {
		var f event.FrameMessage
		if json.Unmarshal(m.Data, &f) == nil && f.Pass == 2 && f.Answers != d.MsgID() {
			t.Errorf("the answer names %q", f.Answers)
		}
	}
	cancel()
	testkit.OK(t, <-ended)

	verified := exec.Command(program(t, "colophon", "./deploy/standalone/cmd/colophon"), "--archive", filepath.Join(l.dir, "archive"), "--json", "verify")
	if out, err := verified.CombinedOutput(); err != nil {
		t.Errorf("verify: %v\n%s", err, out)
	}
}

// TestSANEGivesUp: a device that keeps failing ends the batch with what is
// there; run again, it goes on behind the last page. What scanimage says beside
// its exit status counts for nothing.
func TestSANEGivesUp(t *testing.T) {
	t.Parallel()
	dir := testkit.TempDir(t)
	l := front(t, dir)
	s := l.scanner(feeder(t, "--batch-count=2", busy, busy, busy, ""), dir)
	if err := s.Batch(t.Context(), "b", 0); err != nil {
		t.Fatal("the feeder's two pages are a batch: ", err)
	}
	if k := l.until("two pages", "b", func(k Known) bool { return k.Frames["p0002.tif"].Pinned != "" }); k.Count != 2 {
		t.Errorf("%d frames are declared", k.Count)
	}
	err := s.Batch(t.Context(), "b", 5)
	if err == nil || !strings.Contains(err.Error(), ErrDevice.Error()) {
		t.Fatalf("a device that is always busy: %v", err)
	}
	if got := files(t, filepath.Join(dir, "b")); len(got) != 2 {
		t.Errorf("%d pages", len(got))
	}
	testkit.OK(t, s.Batch(t.Context(), "b", 5))
	k := l.until("five pages", "b", func(k Known) bool { return k.Frames["p0005.tif"].Pinned != "" })
	if k.Count != 5 || len(k.Frames) != 5 {
		t.Errorf("%d declared, %d frames", k.Count, len(k.Frames))
	}
	testkit.Eventually(t, "three reports", func() bool { return len(l.facts(event.SubjectAttemptFailed)) == 3 })
	captured := map[event.Name]int{}
	for _, f := range l.facts(event.SubjectFrameCaptured) {
		captured[f.(event.FrameCaptured).Frame]++
	}
	for name, n := range captured {
		if n != 1 {
			t.Errorf("%s was captured %d times", name, n)
		}
	}
}

// TestScanimage: what its exit status means, and what it does not.
func TestScanimage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, x := range []struct {
		script string
		pages  int
		kind   string
		fails  bool
	}{
		{`echo %s/p1.tif; echo "1 page scanned" >&2; exit 7`, 1, "", false},
		{`echo "1 page scanned" >&2; exit 7`, 0, "", false},
		{`echo "Batch terminated, 1 page scanned" >&2; exit 6`, 0, event.FaultJam, true},
		{`echo %s/p1.tif; exit 8`, 1, event.FaultCoverOpen, true},
		{`exit 9`, 0, event.FaultIO, true},
		{`exit 3`, 0, event.FaultBusy, true},
		{`exit 1`, 0, "", true},
		{`echo /etc/passwd; exit 0`, 0, "", true},
		{`echo %[1]s/p2.tif; exit 0`, 0, "", true},
		{`kill -9 $$`, 0, "", true},
	} {
		p := filepath.Join(dir, "scanimage")
		script := x.script
		if strings.Contains(script, "%") {
			script = fmt.Sprintf(script, dir)
		}
		testkit.OK(t, os.WriteFile(p+".new", []byte("#!/bin/sh\n"+script+"\n"), 0o755))
		testkit.OK(t, os.Rename(p+".new", p))
		s := &Scanner{SANE: "x", Program: p}
		pages, err := s.scan(t.Context(), filepath.Join(dir, "p%d.tif"), 1, 0, func(int, string) error { return nil })
		kind := ""
		if d, ok := err.(*deviceError); ok { //nolint:errorlint // as it comes
			kind = d.kind
		}
		if pages != x.pages || kind != x.kind || (err != nil) != x.fails {
			t.Errorf("%s: %d pages, %v", x.script, pages, err)
		}
	}
}

// TestSANEOverTheNetwork: the same device behind saned, in a network of its own.
func TestSANEOverTheNetwork(t *testing.T) {
	t.Parallel()
	dir := testkit.TempDir(t)
	for name, text := range map[string]string{"srv/dll.conf": "test", "srv/saned.conf": "127.0.0.1", "cli/dll.conf": "net", "cli/net.conf": "127.0.0.1"} {
		write(t, filepath.Join(dir, name), []byte(text+"\n"))
	}
	p := filepath.Join(dir, "scanimage")
	testkit.OK(t, os.WriteFile(p, []byte(`#!/bin/sh
exec unshare -n sh -c 'PATH=$PATH:/usr/sbin:/sbin
ip link set lo up
SANE_CONFIG_DIR=$0/srv saned -l -b 127.0.0.1 -p 6566 >/dev/null 2>&1 &
export SANE_CONFIG_DIR=$0/cli
until scanimage -L 2>/dev/null | grep -q net:; do sleep 0.1; done
scanimage "$@"
rc=$?
kill $!
exit $rc' `+dir+` "$@"
`), 0o755))
	s := &Scanner{SANE: "net:127.0.0.1:test:0", Program: p, Options: []string{"resolution=50", "x=10", "y=10"}}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	pages, err := s.scan(ctx, filepath.Join(dir, "p%d.tif"), 1, 3, func(int, string) error { return nil })
	if err != nil || pages != 3 || len(files(t, dir)["p3.tif"]) == 0 {
		t.Errorf("%d pages, %v", pages, err)
	}
	s.Options = append(s.Options, strings.TrimPrefix(jammed, "--"))
	pages, err = s.scan(ctx, filepath.Join(dir, "q%d.tif"), 1, 3, func(int, string) error { return nil })
	if d, ok := err.(*deviceError); !ok || d.kind != event.FaultJam || pages != 0 { //nolint:errorlint // as it comes
		t.Errorf("a jam far away: %d pages, %v", pages, err)
	}
}
