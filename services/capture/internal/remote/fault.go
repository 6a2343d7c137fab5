package remote

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"time"

	"colophon/shared/fault"
)

// Why a transfer was cut off from this side.
var (
	errStall = errors.New("remote: too little came in the time allowed")
	errTotal = errors.New("remote: the transfer took longer than allowed")
)

// failure names what went wrong between us and a server. What the network does
// passes; what a server is, or says, does not.
func failure(ctx context.Context, err error) error {
	var known *fault.Error
	var dns *net.DNSError
	var ne net.Error
	switch cause := context.Cause(ctx); {
	case errors.As(err, &known):
		return known
	case errors.Is(cause, errStall):
		return fault.New(fault.Timeout, cause, "the source's server sends too little")
	case errors.Is(cause, errTotal):
		return fault.New(fault.Timeout, cause, "the transfer of the source took longer than allowed")
	case ctx.Err() != nil:
		return ctx.Err()
	case untrusted(err):
		return fault.New(fault.SourceRefused, err, "the certificate of the source's server is not trusted")
	case errors.As(err, &dns):
		if dns.IsTimeout {
			return fault.New(fault.Timeout, err, "the name of the source's host was not resolved in time")
		}
		return fault.New(fault.Unavailable, err, "the name of the source's host is not known at the moment")
	case errors.Is(err, syscall.ECONNREFUSED):
		return fault.New(fault.ConnectionRefused, err, "the source's server refuses connections")
	case errors.As(err, &ne) && ne.Timeout():
		return fault.New(fault.Timeout, err, "the source's server did not answer in time")
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.EHOSTDOWN):
		return fault.New(fault.Unavailable, err, "the source's server cannot be reached at the moment")
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed):
		return fault.New(fault.ConnectionReset, err, "the source's server broke the connection off")
	}
	return fault.New(fault.SourceUnreadable, err, "the source's server does not speak as it should")
}

func untrusted(err error) bool {
	var v *tls.CertificateVerificationError
	var h x509.HostnameError
	var u x509.UnknownAuthorityError
	return errors.As(err, &v) || errors.As(err, &h) || errors.As(err, &u)
}

// refused names an answer that brings no bytes.
func (c *Client) refused(r *http.Response) error {
	code := map[int]fault.Code{
		http.StatusUnauthorized: fault.SourceRefused, http.StatusForbidden: fault.SourceRefused, http.StatusProxyAuthRequired: fault.SourceRefused,
		http.StatusUnavailableForLegalReasons: fault.SourceRefused,
		http.StatusNotFound:                   fault.SourceMissing, http.StatusGone: fault.SourceMissing,
		http.StatusRequestTimeout: fault.Timeout, http.StatusTooEarly: fault.TooManyRequests, http.StatusTooManyRequests: fault.TooManyRequests,
		http.StatusBadGateway: fault.BadGateway, http.StatusServiceUnavailable: fault.Unavailable, http.StatusGatewayTimeout: fault.GatewayTimeout,
	}[r.StatusCode]
	if code == "" {
		code = fault.SourceUnreadable
	}
	f := fault.New(code, nil, "the source's server answers %s", strings.TrimSpace(fmt.Sprint(r.StatusCode, " ", http.StatusText(r.StatusCode))))
	if f.Class() == fault.Transient {
		f.After = min(after(r.Header, time.Now()), c.limits.MaxAfter)
	}
	return f
}

// after reads Retry-After, in seconds or as a date of the server's own clock.
func after(h http.Header, now time.Time) time.Duration {
	v := strings.TrimSpace(h.Get("Retry-After"))
	if n, err := strconv.ParseInt(v, 10, 32); err == nil {
		return max(0, time.Duration(n)*time.Second)
	}
	at, err := http.ParseTime(v)
	if err != nil {
		return 0
	}
	if d, err := http.ParseTime(h.Get("Date")); err == nil {
		now = d
	}
	return max(0, at.Sub(now))
}
