// Package remote reads sources over HTTP and HTTPS: from hosts on a list and
// from nowhere else, within limits of size and time, and whole or not at all. A
// transfer that breaks is taken up again where it broke. The memory of a
// transfer is a connection's, whatever its size.
package remote

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"syscall"
	"time"

	"colophon/shared/fault"
)

// Limits bound one transfer. A zero field has its default.
type Limits struct {
	MaxBytes int64         // of a source: 16 GiB
	Connect  time.Duration // until connected, the handshake included: 10 s
	Answer   time.Duration // from the request to the head of the answer: 30 s
	Stall    time.Duration // in which at least Pace bytes must come: 30 s
	Pace     int64         // bytes: 16 KiB
	Total    time.Duration // of one source, with all that breaks: 1 h
	Resumes  int           // times that a transfer breaks without bringing 1 MiB between: 4
	MaxAfter time.Duration // of a Retry-After: 1 h
}

func (l Limits) withDefaults() Limits {
	set(&l.MaxBytes, 16<<30)
	set(&l.Connect, 10*time.Second)
	set(&l.Answer, 30*time.Second)
	set(&l.Stall, 30*time.Second)
	set(&l.Pace, 16<<10)
	set(&l.Total, time.Hour)
	set(&l.Resumes, 4)
	set(&l.MaxAfter, time.Hour)
	return l
}

func set[T comparable](v *T, to T) {
	var zero T
	if *v == zero {
		*v = to
	}
}

// Options of a client.
type Options struct {
	// Hosts may be asked: host, host:port, address, [address]:port, or
	// network/bits. An address that is not public is dialled only where it
	// stands here itself; a name that leads to it is not enough.
	Hosts  []string
	Limits Limits
	Roots  *x509.CertPool // that servers' certificates lead to; nil: the system's
}

// Client asks the hosts on its list. It is safe for concurrent use.
type Client struct {
	hosts  hosts
	limits Limits
	http   *http.Client
}

// New makes a client; an entry of the list that nobody can read is an error.
func New(o Options) (*Client, error) {
	h, err := parse(o.Hosts)
	if err != nil {
		return nil, fmt.Errorf("remote: %w", err)
	}
	return newClient(h, o), nil
}

func newClient(h hosts, o Options) *Client {
	c := &Client{hosts: h, limits: o.Limits.withDefaults()}
	dialer := &net.Dialer{Timeout: c.limits.Connect, ControlContext: func(_ context.Context, _, address string, _ syscall.RawConn) error { return h.reach(address) }}
	c.http = &http.Client{
		Transport: &http.Transport{ // no proxy: it would dial for us, unchecked
			DialContext: dialer.DialContext, TLSHandshakeTimeout: c.limits.Connect, ResponseHeaderTimeout: c.limits.Answer,
			TLSClientConfig: &tls.Config{RootCAs: o.Roots, MinVersion: tls.VersionTLS12}, DisableCompression: true,
			MaxIdleConnsPerHost: 8, IdleConnTimeout: 30 * time.Second, MaxResponseHeaderBytes: 64 << 10, ReadBufferSize: 64 << 10,
		},
		CheckRedirect: c.redirect,
	}
	return c
}

// Close lets go of idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

const maxRedirects = 5

func (c *Client) redirect(next *http.Request, via []*http.Request) error {
	switch {
	case len(via) > maxRedirects:
		return fault.New(fault.SourceUnreadable, nil, "the source's server redirects more than %d times", maxRedirects)
	case via[0].URL.Scheme == "https" && next.URL.Scheme != "https":
		return fault.New(fault.HostRefused, nil, "the source's server redirects from https to %s", fault.Clean(next.URL.Scheme))
	}
	next.Header.Del("Referer") // may hold a signed address
	return c.hosts.check(next.URL)
}

// request asks for a source's bytes from one on; at 0 for all of them.
func (c *Client) request(ctx context.Context, method, uri string, head http.Header) (*http.Response, error) {
	u, err := url.Parse(uri)
	if err != nil {
		return nil, fault.New(fault.PathRefused, nil, "the source is not a URI")
	}
	if u.Fragment != "" || u.RawFragment != "" {
		return nil, fault.New(fault.PathRefused, nil, "the source has a fragment; a # of a name is written %%23")
	}
	if err := c.hosts.check(u); err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, method, uri, nil)
	if err != nil {
		return nil, fault.New(fault.PathRefused, err, "the source is not a URI that can be asked for")
	}
	for k, v := range head {
		req.Header[k] = v
	}
	req.Header.Set("Accept-Encoding", "identity") // the bytes as they are stored
	req.Header.Set("User-Agent", "colophon-capture")
	resp, err := c.http.Do(req) //nolint:bodyclose // the caller's
	if err != nil {
		return nil, failure(ctx, err)
	}
	return resp, nil
}
