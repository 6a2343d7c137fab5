package standalone

import (
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"net"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// Door is what lets other machines reach the embedded broker: accounts, as
// `colophon provision --grants` writes them, and a certificate. Without them it
// listens on loopback only.
type Door struct {
	Accounts string // file
	Cert     string // file
	Key      string // file
}

// Validate tells why an address cannot be served, or nil.
func (d Door) Validate(listen string) error {
	all := d.Accounts != "" && d.Cert != "" && d.Key != ""
	if !all && d != (Door{}) {
		return errors.New("accounts, certificate and key go together")
	}
	if all || listen == "" {
		return nil
	}
	h, _, err := net.SplitHostPort(listen)
	if err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	if ip := net.ParseIP(h); h != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return fmt.Errorf("--listen %s: other machines reach this address: give --listen-accounts, --listen-cert and --listen-key (colophon provision --grants writes the accounts)", listen)
	}
	return nil
}

// door is a [Door] that was read.
type door struct {
	accounts string
	tls      *tls.Config
	leaf     [sha256.Size]byte
}

func (d Door) open(listen string) (*door, error) {
	if err := d.Validate(listen); err != nil {
		return nil, fmt.Errorf("standalone: %w", err)
	}
	if d.Accounts == "" {
		return nil, nil
	}
	pair, err := tls.LoadX509KeyPair(d.Cert, d.Key)
	if err != nil {
		return nil, fmt.Errorf("standalone: certificate: %w", err)
	}
	return &door{d.Accounts, &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair}}, sha256.Sum256(pair.Certificate[0])}, nil
}

// admit puts users and certificate into a server's options. The password of
// this run opens everything: it is known to this process and to its own user.
func (d *door) admit(o *server.Options) error {
	if d == nil {
		return nil
	}
	read, err := server.ProcessConfigFile(d.accounts)
	if err != nil {
		return fmt.Errorf("standalone: accounts: %w", err)
	}
	if len(read.Nkeys) == 0 {
		return fmt.Errorf("standalone: accounts: %s has no users with nkeys", d.accounts)
	}
	for _, u := range read.Nkeys {
		u.Account = nil // of the archive's own streams, which stand in the server's default account
	}
	o.Nkeys = read.Nkeys
	o.TLSConfig, o.TLSTimeout = d.tls, 5
	return nil
}

func (d *door) digest() string {
	if d == nil {
		return ""
	}
	return hex.EncodeToString(d.leaf[:])
}

// reachable is an address of this machine that a listener on host answers.
func reachable(host string) string {
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		return "127.0.0.1"
	}
	return host
}

// pin makes a client of this machine believe the one certificate that the
// running line has told, whoever signed it and whatever name it is for.
func (a access) pin() nats.Option {
	if a.Certificate == "" {
		return func(*nats.Options) error { return nil }
	}
	return nats.Secure(&tls.Config{
		MinVersion: tls.VersionTLS13, InsecureSkipVerify: true, //nolint:gosec // the certificate itself is compared
		VerifyConnection: func(c tls.ConnectionState) error {
			if len(c.PeerCertificates) > 0 {
				if sum := sha256.Sum256(c.PeerCertificates[0].Raw); hex.EncodeToString(sum[:]) == a.Certificate {
					return nil
				}
			}
			return errors.New("standalone: the broker's certificate is another one")
		},
	})
}
