package capture

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"colophon/shared/event"
)

// What a frame depends on has a name that a metric may show: no path of the
// machine, no credentials.
func TestWhatAFrameDependsOn(t *testing.T) {
	t.Parallel()
	top := t.TempDir()
	one, two := filepath.Join(top, "secret-a", "scans"), filepath.Join(top, "secret-b", "scans")
	for _, dir := range []string{one, two} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	f := &frames{inputs: inputs{roots: rootsOf(t, one, two)}}
	on := func(device, source string) string {
		return f.Depends(&frameIn{FrameMessage: event.FrameMessage{Device: device, Sources: []string{source}}})
	}
	a, b := on("", fileURI(filepath.Join(one, "x", "1.tif"))), on("", fileURI(filepath.Join(two, "2.tif")))
	if a == b || a != on("", fileURI(filepath.Join(one, "3.tif"))) {
		t.Errorf("folders %q and %q", a, b)
	}
	if !strings.HasPrefix(a, "file:scans-") || strings.Contains(a+b, "secret") || strings.Contains(a+b, "/") {
		t.Errorf("names %q and %q", a, b)
	}
	for _, c := range []struct{ device, source, want string }{
		{"Scanner 1", fileURI(filepath.Join(one, "1.tif")), "device:Scanner%201"},
		{"", "https://user:password@scans.example:8443/a/b.tif?token=x", "https:scans.example:8443"},
		{"", "file:///etc/passwd", ""},
		{"", "%zz", ""},
	} {
		if got := on(c.device, c.source); got != c.want {
			t.Errorf("%q of %q: %q, want %q", c.source, c.device, got, c.want)
		}
	}
}
