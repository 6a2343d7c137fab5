package nats

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	natsgo "github.com/nats-io/nats.go"

	"colophon/shared/daemon"
	"colophon/shared/topology"
)

// secured is a broker with the grants of an installation, as server.conf
// configures it.
type secured struct {
	dir    string // keys
	url    string
	ca     string // file
	access topology.Access
	srv    *server.Server
}

func startSecured(t *testing.T, a topology.Access) *secured {
	t.Helper()
	b := &secured{dir: filepath.Join(t.TempDir(), "keys"), access: a}
	ok(t, Write(b.dir, a))
	var cert, key string
	b.ca, cert, key = certificates(t, t.TempDir())
	conf, err := os.ReadFile("server.conf")
	ok(t, err)
	text := string(conf)
	for from, to := range map[string]string{ // the environment would be shared by all tests of this process
		"$NATS_STORE": quoted(t.TempDir()), "$NATS_CERT\n": quoted(cert) + "\n", "$NATS_CERT_KEY": quoted(key), `http: "127.0.0.1:8222"`: "",
	} {
		if !strings.Contains(text, from) {
			t.Fatalf("server.conf has no %s", from)
		}
		text = strings.ReplaceAll(text, from, to)
	}
	path := filepath.Join(b.dir, "server.conf")
	ok(t, os.WriteFile(path, []byte(text), 0o600))
	o, err := server.ProcessConfigFile(path)
	ok(t, err)
	o.Host, o.Port, o.NoSigs, o.NoLog = "127.0.0.1", server.RANDOM_PORT, true, true
	if !o.SyncAlways {
		t.Error("server.conf does not sync every message")
	}
	b.srv, err = server.NewServer(o)
	ok(t, err)
	b.srv.Start()
	t.Cleanup(func() { b.srv.Shutdown(); b.srv.WaitForShutdown() })
	if !b.srv.ReadyForConnections(time.Minute) {
		t.Fatal("the broker does not get ready")
	}
	b.url = b.srv.ClientURL()
	return b
}

func quoted(s string) string { return `"` + s + `"` }

func (b *secured) connect(t *testing.T, i topology.Identity, opts ...natsgo.Option) *natsgo.Conn {
	t.Helper()
	key, err := natsgo.NkeyOptionFromSeed(SeedFile(b.dir, i))
	ok(t, err)
	nc, err := natsgo.Connect(b.url, append(opts, key, natsgo.RootCAs(b.ca), natsgo.CustomInboxPrefix(i.Inbox()))...)
	ok(t, err)
	t.Cleanup(nc.Close)
	return nc
}

// certificates makes an authority and a certificate of a broker on 127.0.0.1.
func certificates(t *testing.T, dir string) (ca, cert, key string) {
	t.Helper()
	authority, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	ok(t, err)
	root := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	rootDER, err := x509.CreateCertificate(rand.Reader, root, root, &authority.PublicKey, authority)
	ok(t, err)
	own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	ok(t, err)
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "broker"}, NotBefore: root.NotBefore, NotAfter: root.NotAfter,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"localhost"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	leafDER, err := x509.CreateCertificate(rand.Reader, leaf, root, &own.PublicKey, authority)
	ok(t, err)
	ownDER, err := x509.MarshalPKCS8PrivateKey(own)
	ok(t, err)
	ca, cert, key = filepath.Join(dir, "ca.pem"), filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for path, b := range map[string]*pem.Block{ca: {Type: "CERTIFICATE", Bytes: rootDER}, cert: {Type: "CERTIFICATE", Bytes: leafDER}, key: {Type: "PRIVATE KEY", Bytes: ownDER}} {
		ok(t, os.WriteFile(path, pem.EncodeToMemory(b), 0o600))
	}
	return ca, cert, key
}

// TestWhoIsRefused: in the clear, under another authority, without a key, and
// with an unknown one.
func TestWhoIsRefused(t *testing.T) {
	t.Parallel()
	b := startSecured(t, Example())
	gateway := b.access.Identities[6]
	key, err := natsgo.NkeyOptionFromSeed(SeedFile(b.dir, gateway))
	ok(t, err)
	other := filepath.Join(t.TempDir(), "other")
	ok(t, Write(other, Example()))
	unknown, err := natsgo.NkeyOptionFromSeed(SeedFile(other, gateway))
	ok(t, err)
	wrong, _, _ := certificates(t, t.TempDir())
	for name, c := range map[string]struct {
		opts []natsgo.Option
		want string
	}{
		"no authority":      {[]natsgo.Option{key}, "x509: certificate signed by unknown authority"},
		"another authority": {[]natsgo.Option{key, natsgo.RootCAs(wrong)}, "x509: certificate signed by unknown authority"},
		"no key":            {[]natsgo.Option{natsgo.RootCAs(b.ca)}, "Authorization Violation"},
		"an unknown key":    {[]natsgo.Option{unknown, natsgo.RootCAs(b.ca)}, "Authorization Violation"},
		"a password":        {[]natsgo.Option{natsgo.UserInfo("capture", "x"), natsgo.RootCAs(b.ca)}, "Authorization Violation"},
	} {
		nc, err := natsgo.Connect(b.url, append(c.opts, natsgo.MaxReconnects(0))...)
		if err == nil {
			nc.Close()
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	if answer := plain(t, b.srv.Addr().String()); strings.Contains(answer, "+OK") || strings.Contains(answer, "PONG") {
		t.Errorf("a client in the clear is served: %q", answer)
	}
	for name, c := range map[string]daemon.NATS{ // a program ends with the reason, instead of waiting for better times
		"no authority": {Creds: SeedFile(b.dir, gateway)}, "another authority": {Creds: SeedFile(b.dir, gateway), CA: wrong},
		"no key": {CA: b.ca}, "an unknown key": {Creds: SeedFile(other, gateway), CA: b.ca},
	} {
		c.URL = b.url
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		_, _, err := c.Connect(ctx, "cli", slog.New(slog.DiscardHandler), new(daemon.Health))
		if err == nil || ctx.Err() != nil {
			t.Errorf("a program with %s: %v", name, err)
		}
		cancel()
	}
	b.connect(t, gateway) // and the right one is let in
}

// plain speaks the protocol in the clear.
func plain(t *testing.T, addr string) string {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	ok(t, err)
	defer c.Close() //nolint:errcheck // of no further use
	ok(t, c.SetDeadline(time.Now().Add(20*time.Second)))
	_, err = c.Write([]byte("CONNECT {\"verbose\":true}\r\nPING\r\n"))
	ok(t, err)
	var all []byte
	for buf := make([]byte, 4096); ; {
		n, err := c.Read(buf)
		all = append(all, buf[:n]...)
		if err != nil {
			if os.IsTimeout(err) {
				t.Error("a client in the clear is kept")
			}
			return string(all)
		}
	}
}

// TestSeedsStay: writing the grants again changes no key, and nobody else can
// read one.
func TestSeedsStay(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "keys")
	ok(t, Write(dir, Example()))
	before := seeds(t, dir)
	conf, err := os.ReadFile(filepath.Join(dir, ConfigFile))
	ok(t, err)
	a := Example()
	a.Identities = append(a.Identities, topology.Identity{Kind: topology.KindGateway, Name: "scanroom2"})
	ok(t, Write(dir, a))
	after := seeds(t, dir)
	for name, seed := range before {
		if after[name] != seed {
			t.Errorf("%s has another key", name)
		}
		if strings.Contains(string(conf), seed) {
			t.Errorf("the secret of %s stands in %s", name, ConfigFile)
		}
	}
	if len(after) != len(before)+1 {
		t.Errorf("%d seeds, then %d", len(before), len(after))
	}
}

func seeds(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	files, err := filepath.Glob(filepath.Join(dir, "*.nk"))
	ok(t, err)
	for _, f := range files {
		info, err := os.Stat(f)
		ok(t, err)
		if info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v", f, info.Mode())
		}
		data, err := os.ReadFile(f)
		ok(t, err)
		out[filepath.Base(f)] = strings.TrimSpace(string(data))
	}
	return out
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func closed(t testing.TB, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(time.Minute):
		t.Fatalf("%s did not come within a minute", what)
	}
}
