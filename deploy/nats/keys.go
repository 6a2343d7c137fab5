package nats

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/nats-io/nkeys"

	"colophon/shared/topology"
)

// ConfigFile is the name of the accounts in a folder of keys.
const ConfigFile = "accounts.conf"

// SeedFile is where the secret seed of an identity lies in a folder of keys.
func SeedFile(dir string, i topology.Identity) string { return filepath.Join(dir, i.Name+".nk") }

// Write makes a folder of keys and grants: a seed for each identity that has
// none yet, for its owner only, and the accounts for the server, which hold
// public keys. Doing it again keeps every seed.
func Write(dir string, a topology.Access) error {
	if err := a.Validate(); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("nats: keys: %w", err)
	}
	public := map[string]string{}
	for _, i := range a.Identities {
		key, err := seed(SeedFile(dir, i))
		if err != nil {
			return fmt.Errorf("nats: key of %s: %w", i.Name, err)
		}
		public[i.Name] = key
	}
	var b bytes.Buffer
	if err := Config(&b, a, func(i topology.Identity) string { return public[i.Name] }); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, ConfigFile), b.Bytes(), 0o600); err != nil {
		return fmt.Errorf("nats: %w", err)
	}
	return nil
}

// seed reads a seed, or makes it, and gives the public key.
func seed(path string) (string, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return newSeed(path)
	}
	if err != nil {
		return "", err
	}
	pair, err := nkeys.FromSeed(bytes.TrimSpace(data))
	if err != nil {
		return "", err
	}
	defer pair.Wipe()
	return pair.PublicKey()
}

func newSeed(path string) (string, error) {
	pair, err := nkeys.CreateUser()
	if err != nil {
		return "", err
	}
	defer pair.Wipe()
	s, err := pair.Seed()
	if err != nil {
		return "", err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return "", err
	}
	_, err = f.Write(append(s, '\n'))
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return "", err
	}
	return pair.PublicKey()
}
