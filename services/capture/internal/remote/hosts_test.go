package remote

import (
	"context"
	"io"
	"log"
	"net/url"
	"strings"
	"testing"

	"colophon/shared/fault"
)

var quiet = log.New(io.Discard, "", 0)

// TestList: what is on the list may be asked, nothing else, however it is spelled.
func TestList(t *testing.T) {
	t.Parallel()
	h, err := parse([]string{"Scans.Example", "lab.example:8443", "192.168.7.0/24", "10.1.2.3:8080", "[fd00::7]:80", "::1"})
	if err != nil {
		t.Fatal(err)
	}
	for uri, want := range map[string]fault.Code{
		"http://scans.example/a.tif":          "",
		"https://SCANS.example.:9000/a.tif":   "",
		"https://lab.example:8443/":           "",
		"http://192.168.7.200/":               "",
		"http://[::ffff:192.168.7.9]/":        "",
		"http://10.1.2.3:8080/":               "",
		"http://[fd00::7]/":                   "",
		"http://[::1]:9/":                     "",
		"https://lab.example/":                fault.HostRefused,
		"http://10.1.2.3/":                    fault.HostRefused,
		"http://[fd00::7]:81/":                fault.HostRefused,
		"http://192.168.8.1/":                 fault.HostRefused,
		"http://scans.example.evil.test/":     fault.HostRefused,
		"http://evil.test/scans.example":      fault.HostRefused,
		"http://scans.example@evil.test/":     fault.HostRefused,
		"http://evil.test#@scans.example/":    fault.HostRefused,
		"http://evil.test\\@scans.example/":   fault.PathRefused,
		"http://user:pass@scans.example/":     fault.HostRefused,
		"http://127.0.0.1/":                   fault.HostRefused,
		"http://localhost/":                   fault.HostRefused,
		"http://2130706433/":                  fault.HostRefused,
		"http://0177.0.0.1/":                  fault.HostRefused,
		"http://0x7f.0.0.1/":                  fault.HostRefused,
		"http://0x7f000001/":                  fault.HostRefused,
		"http://127.1/":                       fault.HostRefused,
		"http://0/":                           fault.HostRefused,
		"http://[::ffff:127.0.0.1]/":          fault.HostRefused,
		"http://[::ffff:7f00:1]/":             fault.HostRefused,
		"http://[64:ff9b::7f00:1]/":           fault.HostRefused,
		"http://[::]/":                        fault.HostRefused,
		"http://[fe80::1%25lo]/":              fault.HostRefused,
		"http://169.254.169.254/":             fault.HostRefused,
		"http://ⓛocalhost/":                   fault.HostRefused,
		"http:///a.tif":                       fault.HostRefused,
		"http:scans.example":                  fault.HostRefused,
		"http://scans.example:0x50/":          fault.PathRefused,
		"http://scans.example:99999/":         fault.HostRefused,
		"http://scans.example/\r\nHost: evil": fault.PathRefused,
		"ftp://scans.example/":                fault.SchemeRefused,
		"javascript:alert(1)":                 fault.SchemeRefused,
	} {
		got := fault.Code("")
		if u, err := url.Parse(uri); err != nil {
			got = fault.PathRefused
		} else if err := h.check(u); err != nil {
			got = fault.Of(err).Code
		}
		if got != want {
			t.Errorf("%s: %q, want %q", uri, got, want)
		}
	}
	for _, bad := range []string{"", "http://scans.example", "scans.example:0", "scans.example:x", "2130706433", "0177.0.0.1", "127.1", "a..b", "*.example", "a b", "10.0.0.0/99", "sc\x00ans"} {
		if _, err := parse([]string{bad}); err == nil {
			t.Errorf("the list takes %q", bad)
		}
	}
}

// TestReach: the address that is dialled decides, whatever name led to it.
func TestReach(t *testing.T) {
	t.Parallel()
	h, err := parse([]string{"scans.example", "192.168.7.0/24"})
	if err != nil {
		t.Fatal(err)
	}
	for addr, want := range map[string]bool{
		"93.184.216.34:80": true, "[2606:2800:220:1::1]:443": true, "192.168.7.5:80": true, "[::ffff:192.168.7.5]:80": true,
		"127.0.0.1:80": false, "127.9.9.9:80": false, "0.0.0.0:80": false, "10.0.0.1:80": false, "172.16.0.1:80": false, "192.168.8.5:80": false,
		"169.254.169.254:80": false, "100.64.0.1:80": false, "224.0.0.1:80": false, "255.255.255.255:80": false, "240.0.0.1:80": false, "198.18.0.1:80": false,
		"[::1]:80": false, "[::]:80": false, "[::ffff:127.0.0.1]:80": false, "[::ffff:10.0.0.1]:80": false, "[fe80::1%lo]:80": false, "[fc00::1]:80": false,
		"[64:ff9b::7f00:1]:80": false, "[2002:7f00:1::]:80": false, "[2001::1]:80": false, "[ff02::1]:80": false, "[::7f00:1]:80": false, "x": false,
	} {
		if got := h.reach(addr) == nil; got != want {
			t.Errorf("%s: reachable %v, want %v", addr, got, want)
		}
	}
}

// TestNamesOfLoopback: a listed name that leads to loopback is refused when it
// is dialled, also where it did not lead there when it was looked up before:
// there is no before. The list's own loopback entry is what allows it.
func TestNamesOfLoopback(t *testing.T) {
	t.Parallel()
	s := server(t, nil)
	port := s.URL[strings.LastIndexByte(s.URL, ':'):]
	only := hosts{names: []name{{"localhost", 0}}}
	_, err := newClient(only, Options{}).Open(context.Background(), "http://localhost"+port, false)
	if codeOf(err) != fault.HostRefused || !strings.Contains(err.Error(), "not a public address") {
		t.Errorf("a name of loopback: %v", err)
	}
}
