package remote

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"colophon/shared/fault"
)

// hosts is the list of what may be asked. A name on it may be asked under its
// public addresses; an address that is not public must stand on the list
// itself, alone or within a network, whatever name led to it.
type hosts struct {
	names []name
	nets  []network
}

type name struct {
	host string // lower case, no dot at its end
	port uint16 // 0: any
}

type network struct {
	netip.Prefix
	port uint16
}

// parse reads the list: host, host:port, address, [address]:port or
// network/bits. It tells every fault at once.
func parse(list []string) (h hosts, err error) {
	var errs []error
	for _, entry := range list {
		if err := h.add(strings.TrimSpace(entry)); err != nil {
			errs = append(errs, fmt.Errorf("source host %q: %w", entry, err))
		}
	}
	return h, errors.Join(errs...)
}

func (h *hosts) add(entry string) error {
	if p, err := netip.ParsePrefix(entry); err == nil {
		h.nets = append(h.nets, network{Prefix: p.Masked()})
		return nil
	}
	host, port, err := split(entry)
	if err != nil {
		return err
	}
	if a, err := netip.ParseAddr(host); err == nil {
		a = a.Unmap()
		h.nets = append(h.nets, network{netip.PrefixFrom(a, a.BitLen()), port})
		return nil
	}
	n := name{strings.ToLower(strings.TrimSuffix(host, ".")), port}
	if !n.plain() {
		return errors.New("neither a host name nor an address")
	}
	h.names = append(h.names, n)
	if n.host == "localhost" { // a name that can mean nothing else
		h.nets = append(h.nets, network{netip.MustParsePrefix("127.0.0.0/8"), port}, network{netip.MustParsePrefix("::1/128"), port})
	}
	return nil
}

func split(entry string) (host string, port uint16, err error) {
	if _, err := netip.ParseAddr(entry); err == nil || !strings.Contains(entry, ":") {
		return entry, 0, nil
	}
	host, p, err := net.SplitHostPort(entry)
	if err != nil {
		return "", 0, err
	}
	n, err := strconv.ParseUint(p, 10, 16)
	if err != nil || n == 0 {
		return "", 0, fmt.Errorf("%q is not a port", p)
	}
	return host, uint16(n), nil
}

// plain: letters, digits, hyphens and dots. A last label of digits is no name:
// resolvers read 2130706433 and 0177.1 as addresses.
func (n name) plain() bool {
	labels := strings.Split(n.host, ".")
	for _, l := range labels {
		if l == "" || len(l) > 63 || strings.Trim(l, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
			return false
		}
	}
	last := labels[len(labels)-1]
	return strings.Trim(last, "0123456789") != "" && !strings.HasPrefix(last, "0x")
}

// check refuses a URL that is not plainly one of a listed host.
func (h hosts) check(u *url.URL) error {
	switch {
	case u.Scheme != "http" && u.Scheme != "https":
		return fault.New(fault.SchemeRefused, nil, "sources of scheme %q are not taken", fault.Clean(u.Scheme))
	case u.User != nil:
		return fault.New(fault.HostRefused, nil, "the source's URI carries credentials, which would stand in the log for good")
	case u.Opaque != "" || u.Hostname() == "":
		return fault.New(fault.HostRefused, nil, "the source's URI names no host")
	}
	port := uint16(80)
	if u.Scheme == "https" {
		port = 443
	}
	if p := u.Port(); p != "" {
		n, err := strconv.ParseUint(p, 10, 16)
		if err != nil {
			return fault.New(fault.HostRefused, nil, "the source's port is not a number")
		}
		port = uint16(n)
	}
	host := u.Hostname()
	if a, err := netip.ParseAddr(host); err == nil {
		if h.lists(netip.AddrPortFrom(a, port)) {
			return nil
		}
	} else if host = strings.ToLower(strings.TrimSuffix(host, ".")); slices.ContainsFunc(h.names, func(n name) bool {
		return n.host == host && (n.port == 0 || n.port == port)
	}) {
		return nil
	}
	return fault.New(fault.HostRefused, nil, "the host %s is not on the list of those that sources may be read from", fault.Clean(u.Host))
}

// reach refuses an address that is about to be dialled: one that is not public
// must be on the list itself. This is where names that resolve to loopback end,
// and those that resolve to something else the second time.
func (h hosts) reach(address string) error {
	a, err := netip.ParseAddrPort(address)
	if err != nil {
		return fault.New(fault.HostRefused, err, "the source's address cannot be read")
	}
	if public(a.Addr()) || h.lists(a) {
		return nil
	}
	return fault.New(fault.HostRefused, nil, "the source's host leads to %s, which is not a public address and not on the list itself", a.Addr())
}

func (h hosts) lists(a netip.AddrPort) bool {
	addr := a.Addr().Unmap().WithZone("")
	return slices.ContainsFunc(h.nets, func(n network) bool { return n.Contains(addr) && (n.port == 0 || n.port == a.Port()) })
}

// special are networks that are routed nowhere, or to somewhere else than they
// say: shared and documentation space, and the ones that carry an IPv4 address.
var special = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("192.0.0.0/24"), netip.MustParsePrefix("192.0.2.0/24"),
	netip.MustParsePrefix("192.88.99.0/24"), netip.MustParsePrefix("198.18.0.0/15"), netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("203.0.113.0/24"),
	netip.MustParsePrefix("240.0.0.0/4"), netip.MustParsePrefix("::/96"), netip.MustParsePrefix("64:ff9b::/96"), netip.MustParsePrefix("64:ff9b:1::/48"),
	netip.MustParsePrefix("100::/64"), netip.MustParsePrefix("2001::/23"), netip.MustParsePrefix("2001:db8::/32"), netip.MustParsePrefix("2002::/16"), netip.MustParsePrefix("fec0::/10"),
}

func public(a netip.Addr) bool {
	a = a.Unmap()
	return a.IsGlobalUnicast() && !a.IsPrivate() && a.Zone() == "" && !slices.ContainsFunc(special, func(p netip.Prefix) bool { return p.Contains(a) })
}
