package capture

import (
	"errors"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"colophon/shared/event"
	"colophon/shared/fault"
	"colophon/shared/testkit"
)

func write(t testing.TB, path, content string) {
	t.Helper()
	testkit.OK(t, os.MkdirAll(filepath.Dir(path), 0o755))
	testkit.OK(t, os.WriteFile(path, []byte(content), 0o644))
}

func fileURI(path string) string { return (&url.URL{Scheme: "file", Path: path}).String() }

func rootsOf(t testing.TB, paths ...string) *Roots {
	t.Helper()
	r := new(Roots)
	t.Cleanup(func() { testkit.OK(t, r.Close()) })
	for _, p := range paths {
		testkit.OK(t, r.Add(p))
	}
	return r
}

// opened gives what is read from a source, or the code of its refusal. No
// refusal names a folder of the machine.
func opened(t testing.TB, r *Roots, uri string) string {
	t.Helper()
	f, st, err := r.Open(uri)
	if err != nil {
		var e *fault.Error
		if !errors.As(err, &e) {
			t.Fatalf("%s: no fault: %v", uri, err)
		}
		if strings.Contains(e.Message, os.TempDir()) || strings.Contains(e.Message, "/") || fault.Clean(e.Message) != e.Message {
			t.Errorf("%s: the message tells of the machine: %q", uri, e.Message)
		}
		return string(e.Code)
	}
	defer f.Close() //nolint:errcheck // only read
	data, err := io.ReadAll(f)
	testkit.OK(t, err)
	if st.Size != int64(len(data)) || st.Inode == 0 || st.ModTime.IsZero() {
		t.Errorf("%s: looked at as %+v", uri, st)
	}
	return string(data)
}

func TestSources(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	in, out := filepath.Join(dir, "in"), filepath.Join(dir, "out")
	for _, name := range []string{
		"a.tif", "sub/b.tif", "a b+%41.tif", "q?x=1.tif", "h#1.tif", "line\nfeed.tif", "bad\xff\xfe.tif", "-rf.tif", "..odd.tif", "escapes", "é.tif",
	} {
		write(t, filepath.Join(in, name), "bytes of "+name)
	}
	write(t, filepath.Join(in, "a.tif?v=1"), "another")
	write(t, filepath.Join(out, "secret"), "secret")
	for link, to := range map[string]string{
		"inside": "a.tif", "up": "sub/../a.tif", "absolute": filepath.Join(in, "sub/b.tif"), "dangling": "nothing", "loop": "loop",
		"out": "../out/secret", "out-absolute": filepath.Join(out, "secret"), "outdir": "../out", "passwd": "/etc/passwd", "chain": "out-absolute",
		"out-missing": "../out/nothing",
	} {
		testkit.OK(t, os.Symlink(to, filepath.Join(in, link)))
	}
	testkit.OK(t, syscall.Mkfifo(filepath.Join(in, "fifo"), 0o644))
	testkit.OK(t, syscall.Mknod(filepath.Join(in, "null"), syscall.S_IFCHR|0o644, 1<<8|3))
	l, err := net.Listen("unix", filepath.Join(in, "socket"))
	testkit.OK(t, err)
	t.Cleanup(func() { _ = l.Close() })

	u := func(name string) string { return fileURI(filepath.Join(in, name)) }
	raw := func(tail string) string { return "file://" + in + "/" + tail }
	r := rootsOf(t, in)
	for _, c := range []struct{ what, uri, want string }{
		{"a file", u("a.tif"), "bytes of a.tif"},
		{"of this host", "file://localhost" + in + "/a.tif", "bytes of a.tif"},
		{"in a folder", u("sub/b.tif"), "bytes of sub/b.tif"},
		{"signs", u("a b+%41.tif"), "bytes of a b+%41.tif"},
		{"question mark", u("q?x=1.tif"), "bytes of q?x=1.tif"},
		{"number sign", u("h#1.tif"), "bytes of h#1.tif"},
		{"line feed", u("line\nfeed.tif"), "bytes of line\nfeed.tif"},
		{"not UTF-8", u("bad\xff\xfe.tif"), "bytes of bad\xff\xfe.tif"},
		{"leading dash", u("-rf.tif"), "bytes of -rf.tif"},
		{"leading dots", u("..odd.tif"), "bytes of ..odd.tif"},
		{"a name like an error", u("escapes"), "bytes of escapes"},
		{"no such escapes", u("escapes from parent"), "source-missing"},
		{"a letter beyond ASCII, bare", raw("é.tif"), "bytes of é.tif"},
		{"a link inside", u("inside"), "bytes of a.tif"},
		{"a link up and down", u("up"), "bytes of a.tif"},
		{"an absolute link inside", u("absolute"), "bytes of sub/b.tif"},

		{"a bare query", raw("a.tif?v=1"), "path-refused"},
		{"an empty query", raw("a.tif?"), "path-refused"},
		{"a bare fragment", raw("a.tif#1"), "path-refused"},
		{"an empty fragment", raw("a.tif#"), "path-refused"},
		{"dots", raw("../out/secret"), "path-refused"},
		{"encoded dots", raw("%2e%2e/out/secret"), "path-refused"},
		{"encoded slashes", raw("..%2Fout%2Fsecret"), "path-refused"},
		{"dots that stay inside", raw("sub/../a.tif"), "path-refused"},
		{"two slashes", raw("/a.tif"), "path-refused"},
		{"a trailing slash", raw("a.tif/"), "path-refused"},
		{"a zero byte", raw("a.tif%00.png"), "path-refused"},
		{"half an encoding", raw("%zz"), "path-refused"},
		{"outside", fileURI(filepath.Join(out, "secret")), "path-refused"},
		{"a folder whose name begins alike", fileURI(in + "side/a.tif"), "path-refused"},
		{"the root itself", fileURI(in), "path-refused"},
		{"the file system's root", "file:///", "path-refused"},
		{"relative", "file:a.tif", "path-refused"},
		{"of another host", "file://elsewhere" + in + "/a.tif", "path-refused"},
		{"with a user", "file://me@localhost" + in + "/a.tif", "path-refused"},
		{"a control character", raw("a\x01.tif"), "path-refused"},
		{"a plain path", in + "/a.tif", "scheme-refused"},
		{"http", "http://localhost" + in + "/a.tif", "scheme-refused"},
		{"s3", "s3://bucket/a.tif", "scheme-refused"},
		{"nothing", "", "scheme-refused"},

		{"a link out", u("out"), "path-refused"},
		{"an absolute link out", u("out-absolute"), "path-refused"},
		{"a chain of links out", u("chain"), "path-refused"},
		{"a folder's link out", u("outdir/secret"), "path-refused"},
		{"a link to a file everybody reads", u("passwd"), "path-refused"},
		{"what is not there outside", u("out-missing"), "path-refused"},
		{"a dangling link", u("dangling"), "source-missing"},
		{"a loop", u("loop"), "source-unreadable"},
		{"missing", u("missing.tif"), "source-missing"},
		{"below a file", u("a.tif/b"), "source-unreadable"},
		{"a name too long", u(strings.Repeat("x", 256)), "source-unreadable"},
		{"a folder", u("sub"), "source-not-a-file"},
		{"a pipe", u("fifo"), "source-not-a-file"},
		{"a device", u("null"), "source-not-a-file"},
		{"a socket", u("socket"), "source-not-a-file"},
	} {
		if got := opened(t, r, c.uri); got != c.want {
			t.Errorf("%s: %q gives %q, want %q", c.what, c.uri, got, c.want)
		}
	}
}

func TestNestedRoots(t *testing.T) {
	t.Parallel()
	in := t.TempDir()
	inner := filepath.Join(in, "inner")
	write(t, filepath.Join(in, "a.tif"), "outer")
	write(t, filepath.Join(inner, "a.tif"), "inner")
	testkit.OK(t, os.Symlink("../a.tif", filepath.Join(inner, "link")))
	testkit.OK(t, os.Symlink(inner, filepath.Join(in, "by-name")))

	alone := rootsOf(t, inner)
	if got := opened(t, alone, fileURI(inner+"/link")); got != "path-refused" {
		t.Errorf("a link out of the only root gives %q", got)
	}
	both := rootsOf(t, inner, in, inner)
	for uri, want := range map[string]string{
		fileURI(inner + "/a.tif"): "inner", fileURI(inner + "/link"): "outer", fileURI(in + "/a.tif"): "outer", fileURI(in + "/by-name/a.tif"): "inner",
	} {
		if got := opened(t, both, uri); got != want {
			t.Errorf("%s gives %q, want %q", uri, got, want)
		}
	}
	linked := rootsOf(t, filepath.Join(in, "by-name")) // a root that is a link itself
	if got := opened(t, linked, fileURI(in+"/by-name/a.tif")); got != "inner" {
		t.Errorf("below a root that is a link: %q", got)
	}
	if err := new(Roots).Add(filepath.Join(in, "missing")); err == nil {
		t.Error("a root that is not there was taken")
	}
	all := rootsOf(t, "/")
	if got := opened(t, all, fileURI(in+"/a.tif")); got != "outer" {
		t.Errorf("below the root of everything: %q", got)
	}
}

// A link that is exchanged while it is followed never leads out.
func TestExchangedLink(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	in, out := filepath.Join(dir, "in"), filepath.Join(dir, "out")
	write(t, filepath.Join(in, "good/a.tif"), "good")
	write(t, filepath.Join(out, "a.tif"), "secret")
	r := rootsOf(t, in)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		targets := []string{"good", "../out", out, filepath.Join(in, "good")}
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			tmp := filepath.Join(dir, "tmp")
			if os.Symlink(targets[i%len(targets)], tmp) != nil || os.Rename(tmp, filepath.Join(in, "link")) != nil {
				return
			}
		}
	})
	uri := fileURI(filepath.Join(in, "link/a.tif"))
	seen := map[string]int{}
	for seen["good"] < 500 || seen["path-refused"] < 500 {
		got := opened(t, r, uri)
		seen[got]++
		if got != "good" && got != "path-refused" && got != "source-missing" {
			t.Fatalf("the exchanged link gave %q", got)
		}
	}
	close(stop)
	wg.Wait()
}

func TestUnreadableSource(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "colophon-nobody-")
	testkit.OK(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	testkit.OK(t, os.Chmod(dir, 0o755)) // so that nobody comes in here
	write(t, filepath.Join(dir, "open.tif"), "x")
	testkit.OK(t, os.WriteFile(filepath.Join(dir, "closed.tif"), []byte("x"), 0o600))
	testkit.OK(t, os.Mkdir(filepath.Join(dir, "closed"), 0o700))
	got := asNobody(t, "open", dir, fileURI(dir+"/open.tif"), fileURI(dir+"/closed.tif"), fileURI(dir+"/closed/a.tif"))
	const refused = "source-unreadable the source may not be read by this program\n"
	if got != "open\n"+refused+refused {
		t.Errorf("nobody sees:\n%s", got)
	}
}

func TestPassingFault(t *testing.T) {
	t.Parallel()
	for _, errno := range []syscall.Errno{syscall.EIO, syscall.ESTALE, syscall.EMFILE, syscall.ENFILE, syscall.ETIMEDOUT, syscall.EHOSTDOWN} {
		err := fault.Of(sourceFault(&os.PathError{Op: "open", Path: "/in/a", Err: errno}))
		if err.Class() != fault.Transient {
			t.Errorf("%v is %s: %s", errno, err.Class(), err.Code)
		}
	}
	if c := fault.Of(sourceFault(syscall.EACCES)).Class(); c != fault.Permanent {
		t.Errorf("a refused source is %s", c)
	}
	if StatOf(testkit.Must(os.Stat("."))(t)).Same(event.SourceStat{}) {
		t.Error("a look at a file equals nothing at all")
	}
}
