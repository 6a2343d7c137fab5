package remote

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"colophon/shared/fault"
)

// server answers on loopback.
func server(t *testing.T, h http.HandlerFunc) *httptest.Server {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.Config.ErrorLog = quiet
	s.Start()
	t.Cleanup(s.Close)
	return s
}

func client(t *testing.T, l Limits, hosts ...string) *Client {
	t.Helper()
	c, err := New(Options{Hosts: hosts, Limits: l})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func read(c *Client, uri string, sized bool) ([]byte, error) {
	b, err := c.Open(context.Background(), uri, sized)
	if err != nil {
		return nil, err
	}
	defer b.Close() //nolint:errcheck // only read
	return io.ReadAll(b)
}

func codeOf(err error) fault.Code {
	if err == nil {
		return ""
	}
	if errors.Is(err, ErrChanged) {
		return "changed"
	}
	return fault.Of(err).Code
}

// pattern is n bytes that differ wherever they are.
func pattern(n int) []byte {
	var b bytes.Buffer
	for i := 0; b.Len() < n; i++ {
		sum := sha256.Sum256(fmt.Append(nil, i))
		b.Write(sum[:])
	}
	return b.Bytes()[:n]
}

// cut breaks the connection off behind n bytes of body.
type cut struct {
	http.ResponseWriter
	left int
}

func (c *cut) Write(p []byte) (int, error) {
	if len(p) > c.left {
		_, _ = c.ResponseWriter.Write(p[:c.left])
		c.ResponseWriter.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}
	c.left -= len(p)
	return c.ResponseWriter.Write(p)
}

// TestResume: a transfer that breaks comes whole all the same, by ranges where
// the server knows them, and from the start where it does not.
func TestResume(t *testing.T) {
	t.Parallel()
	data := pattern(300_000)
	stored := time.Now().Add(-time.Hour)
	for _, x := range []struct {
		name   string
		ranges bool
		head   func(http.Header)
		asked  string // the second request's Range
	}{
		{"an entity tag", true, func(h http.Header) { h.Set("ETag", `"v1"`) }, "bytes=100000-"},
		{"a weak tag and a time", true, func(h http.Header) { h.Set("ETag", `W/"v1"`) }, "bytes=100000-"},
		{"no ranges", false, func(http.Header) {}, ""},
	} {
		t.Run(x.name, func(t *testing.T) {
			t.Parallel()
			var n atomic.Int32
			var asked atomic.Value
			s := server(t, func(w http.ResponseWriter, r *http.Request) {
				x.head(w.Header())
				if n.Add(1) == 1 {
					w = &cut{w, 100_000}
				} else {
					asked.Store(r.Header.Get("Range"))
				}
				if !x.ranges {
					w.Header().Set("Content-Length", fmt.Sprint(len(data)))
					_, _ = w.Write(data)
					return
				}
				http.ServeContent(w, r, "", stored, bytes.NewReader(data))
			})
			got, err := read(client(t, Limits{}, "127.0.0.1"), s.URL, false)
			if err != nil || !bytes.Equal(got, data) {
				t.Errorf("%d bytes, %v", len(got), err)
			}
			if a, _ := asked.Load().(string); n.Load() != 2 || !x.ranges && a != "" || x.ranges && !strings.HasPrefix(a, "bytes=") {
				t.Errorf("%d requests, the second for %q", n.Load(), a)
			}
		})
	}
}

// TestChanged: a source that became another one is never glued to what was read.
func TestChanged(t *testing.T) {
	t.Parallel()
	a, b := pattern(200_000), bytes.Repeat([]byte("b"), 200_000)
	for _, x := range []struct {
		name  string
		after func(w http.ResponseWriter, r *http.Request)
	}{
		{"another tag", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("ETag", `"v2"`)
			http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(b))
		}},
		{"a server that lies about the range", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Range", "bytes 0-9/200000")
			w.WriteHeader(http.StatusPartialContent)
			_, _ = w.Write(b[:10])
		}},
		{"another size behind the range", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Range", "bytes "+strings.TrimPrefix(r.Header.Get("Range"), "bytes=")+"299999/300000")
			w.WriteHeader(http.StatusPartialContent)
			_, _ = w.Write(b)
		}},
		{"no tag any more, other bytes of the same size", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "200000")
			_, _ = w.Write(b)
		}},
		{"shorter", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusRequestedRangeNotSatisfiable) }},
	} {
		t.Run(x.name, func(t *testing.T) {
			t.Parallel()
			var n atomic.Int32
			s := server(t, func(w http.ResponseWriter, r *http.Request) {
				if n.Add(1) > 1 {
					x.after(w, r)
					return
				}
				w.Header().Set("ETag", `"v1"`)
				http.ServeContent(&cut{w, 50_000}, r, "", time.Time{}, bytes.NewReader(a))
			})
			if got, err := read(client(t, Limits{}, "127.0.0.1"), s.URL, false); codeOf(err) != "changed" {
				t.Errorf("%d bytes, %v", len(got), err)
			}
		})
	}
}

// TestAnswers: what a server does, and what it is called.
func TestAnswers(t *testing.T) {
	t.Parallel()
	status := func(code int, head ...string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			for i := 0; i+1 < len(head); i += 2 {
				w.Header().Set(head[i], head[i+1])
			}
			w.WriteHeader(code)
		}
	}
	now := time.Now().UTC().Truncate(time.Second)
	quick := Limits{MaxBytes: 1 << 20, Answer: 300 * time.Millisecond, Stall: 300 * time.Millisecond, Resumes: 1}
	for _, x := range []struct {
		name  string
		do    http.HandlerFunc
		sized bool
		code  fault.Code
		after time.Duration
	}{
		{"429 with seconds", status(429, "Retry-After", "7"), false, fault.TooManyRequests, 7 * time.Second},
		{"503 with a date", status(503, "Retry-After", now.Add(time.Minute).Format(http.TimeFormat), "Date", now.Format(http.TimeFormat)), false, fault.Unavailable, time.Minute},
		{"503 for years", status(503, "Retry-After", "99999999"), false, fault.Unavailable, time.Hour},
		{"503 with nonsense", status(503, "Retry-After", "-soon"), false, fault.Unavailable, 0},
		{"502", status(502), false, fault.BadGateway, 0},
		{"504", status(504), false, fault.GatewayTimeout, 0},
		{"408", status(408), false, fault.Timeout, 0},
		{"404", status(404), false, fault.SourceMissing, 0},
		{"410", status(410), false, fault.SourceMissing, 0},
		{"401", status(401), false, fault.SourceRefused, 0},
		{"403", status(403, "Retry-After", "5"), false, fault.SourceRefused, 0},
		{"500", status(500), false, fault.SourceUnreadable, 0},
		{"204", status(204), false, fault.SourceUnreadable, 0},
		{"206 unasked", status(206), false, fault.SourceUnreadable, 0},
		{"encoded", status(200, "Content-Encoding", "gzip"), false, fault.SourceUnreadable, 0},
		{"too large by its word", status(200, "Content-Length", "1048577"), false, fault.SizeMismatch, 0},
		{"endless", func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				if _, err := w.Write(make([]byte, 32<<10)); err != nil {
					return
				}
			}
		}, false, fault.SizeMismatch, 0},
		{"silent", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, false, fault.Timeout, 0},
		{"stalls", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "1000")
			_, _ = w.Write(make([]byte, 10))
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		}, false, fault.Timeout, 0},
		{"drips", func(w http.ResponseWriter, r *http.Request) { // slow loris: a byte now and then, for ever
			w.Header().Set("Content-Length", "1000000")
			for r.Context().Err() == nil {
				_, _ = w.Write([]byte{0})
				w.(http.Flusher).Flush()
				time.Sleep(20 * time.Millisecond) // the drip itself
			}
		}, false, fault.Timeout, 0},
		{"resets before its answer", func(w http.ResponseWriter, _ *http.Request) { reset(w) }, false, fault.ConnectionReset, 0},
		{"always breaks off", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000")
			_, _ = (&cut{w, 10}).Write(make([]byte, 1000))
		}, false, fault.ConnectionReset, 0},
		{"no end that could be told", raw("HTTP/1.0 200 OK\r\n\r\nhalf"), false, fault.SourceUnreadable, 0},
		{"no end, but its size is declared", raw("HTTP/1.0 200 OK\r\n\r\nhalf"), true, "", 0},
		{"no HTTP", raw("SSH-2.0-OpenSSH_9.2\r\n"), false, fault.SourceUnreadable, 0},
		{"a head without end", func(w http.ResponseWriter, r *http.Request) {
			c, _, _ := w.(http.Hijacker).Hijack()
			defer c.Close() //nolint:errcheck // the test's end
			for i := 0; i < 100_000; i++ {
				if _, err := fmt.Fprintf(c, "X-%d: %s\r\n", i, strings.Repeat("x", 1000)); err != nil {
					return
				}
			}
		}, false, fault.SourceUnreadable, 0},
	} {
		t.Run(x.name, func(t *testing.T) {
			t.Parallel()
			s := server(t, x.do)
			_, err := read(client(t, quick, "127.0.0.1"), s.URL+"/a.tif", x.sized)
			if got := codeOf(err); got != x.code {
				t.Fatalf("%q (%v), want %q", got, err, x.code)
			}
			if err != nil && fault.Of(err).After != x.after {
				t.Errorf("after %v, want %v", fault.Of(err).After, x.after)
			}
		})
	}
}

func reset(w http.ResponseWriter) {
	c, _, err := w.(http.Hijacker).Hijack()
	if err == nil {
		_ = c.(*net.TCPConn).SetLinger(0)
		_ = c.Close()
	}
}

// raw answers with bytes, and ends the connection.
func raw(answer string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		c, _, err := w.(http.Hijacker).Hijack()
		if err == nil {
			_, _ = io.WriteString(c, answer)
			_ = c.Close()
		}
	}
}

// TestTotal: no transfer outlives its time, however briskly it goes on.
func TestTotal(t *testing.T) {
	t.Parallel()
	s := server(t, func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			if _, err := w.Write(make([]byte, 1<<10)); err != nil {
				return
			}
			w.(http.Flusher).Flush()
		}
	})
	began := time.Now()
	_, err := read(client(t, Limits{Total: 300 * time.Millisecond}, "127.0.0.1"), s.URL, true)
	if codeOf(err) != fault.Timeout || time.Since(began) > 30*time.Second {
		t.Errorf("%v after %v", err, time.Since(began))
	}
}

// TestMemory: an endless source costs no memory, and ends at the limit.
func TestMemory(t *testing.T) {
	t.Parallel()
	block := make([]byte, 1<<20)
	s := server(t, func(w http.ResponseWriter, _ *http.Request) {
		for {
			if _, err := w.Write(block); err != nil {
				return
			}
		}
	})
	b, err := client(t, Limits{MaxBytes: 256 << 20}, "127.0.0.1").Open(t.Context(), s.URL, true)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close() //nolint:errcheck // only read
	n, err := io.Copy(io.Discard, struct{ io.Reader }{b})
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	if codeOf(err) != fault.SizeMismatch || n < 255<<20 || m.HeapInuse > 128<<20 {
		t.Errorf("%d bytes, %v, heap %d", n, err, m.HeapInuse)
	}
}

// TestRedirects: one may lead to a listed host only, and never out of https.
func TestRedirects(t *testing.T) {
	t.Parallel()
	target := server(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "bytes") })
	port := target.URL[strings.LastIndexByte(target.URL, ':'):]
	s := server(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, r.URL.Query().Get("to"), http.StatusFound)
	})
	own := "127.0.0.1" + s.URL[strings.LastIndexByte(s.URL, ':'):]
	for _, x := range []struct {
		to    string
		hosts []string
		code  fault.Code
	}{
		{target.URL, []string{own, "127.0.0.1" + port}, ""},
		{target.URL, []string{own}, fault.HostRefused},
		{"http://localhost" + port, []string{own}, fault.HostRefused},
		{"http://[::1]" + port, []string{own}, fault.HostRefused},
		{"http://2130706433" + port, []string{own}, fault.HostRefused},
		{"http://169.254.169.254/latest/meta-data", []string{own}, fault.HostRefused},
		{"http://user:secret@127.0.0.1" + port, []string{own, "127.0.0.1"}, fault.HostRefused},
		{"file:///etc/passwd", []string{own}, fault.SchemeRefused},
		{"gopher://127.0.0.1" + port, []string{own, "127.0.0.1"}, fault.SchemeRefused},
		{"/round?to=/round", []string{own}, fault.SourceUnreadable},
	} {
		got, err := read(client(t, Limits{}, x.hosts...), s.URL+"/?to="+url.QueryEscape(x.to), false)
		if codeOf(err) != x.code || err == nil && string(got) != "bytes" {
			t.Errorf("to %s: %q, %v; want %q", x.to, got, err, x.code)
		}
	}

	plain := server(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "bytes") })
	tls := httptest.NewTLSServer(http.RedirectHandler(plain.URL, http.StatusFound))
	t.Cleanup(tls.Close)
	pool := x509.NewCertPool()
	pool.AddCert(tls.Certificate())
	c, err := New(Options{Hosts: []string{"127.0.0.1"}, Roots: pool})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := read(c, tls.URL, false); codeOf(err) != fault.HostRefused {
		t.Errorf("https to http: %v", err)
	}
}

func TestTLS(t *testing.T) {
	t.Parallel()
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "bytes") }))
	s.Config.ErrorLog = quiet
	s.StartTLS()
	t.Cleanup(s.Close)
	if _, err := read(client(t, Limits{}, "127.0.0.1"), s.URL, false); codeOf(err) != fault.SourceRefused {
		t.Errorf("an unknown authority: %v", err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(s.Certificate())
	c, err := New(Options{Hosts: []string{"127.0.0.1", "localhost"}, Roots: pool})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := read(c, s.URL, false); string(got) != "bytes" {
		t.Errorf("%q, %v", got, err)
	}
	other := strings.Replace(s.URL, "127.0.0.1", "localhost", 1) // not a name of the certificate
	if _, err := read(c, other, false); codeOf(err) != fault.SourceRefused {
		t.Errorf("another name: %v", err)
	}
}
