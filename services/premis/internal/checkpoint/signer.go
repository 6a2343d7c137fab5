package checkpoint

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

// ErrHeld means that another process signs with this key.
var ErrHeld = errors.New("another process holds the signing key")

// Signer signs the checkpoints of one ledger. It holds its key file locked:
// only one process signs. Beside the key it keeps the last checkpoint it
// signed, so that it never signs another history than before, even where the
// ledger and the log were both taken back to an older state.
type Signer struct {
	path   string
	file   *os.File
	signer note.Signer
	public string
}

// OpenSigner opens the key at path, and makes one where there is none; created
// tells that. The public key is written beside it, as <path>.pub.
func OpenSigner(path, origin string) (s *Signer, created bool, err error) {
	private, created, err := keyAt(path, origin)
	if err != nil {
		return nil, false, fmt.Errorf("checkpoint: key: %w", err)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, created, fmt.Errorf("checkpoint: key: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, created, errors.Join(fmt.Errorf("%w: %w", ErrHeld, err), f.Close())
	}
	signer, err := note.NewSigner(private)
	if err != nil {
		return nil, created, errors.Join(fmt.Errorf("checkpoint: key %s: %w", path, err), f.Close())
	}
	if signer.Name() != origin {
		return nil, created, errors.Join(fmt.Errorf("checkpoint: key %s: %w: it signs for %q", path, ErrOrigin, signer.Name()), f.Close())
	}
	public, err := os.ReadFile(path + ".pub")
	if err != nil {
		return nil, created, errors.Join(fmt.Errorf("checkpoint: public key: %w", err), f.Close())
	}
	return &Signer{path: path, file: f, signer: signer, public: strings.TrimSpace(string(public))}, created, nil
}

func keyAt(path, origin string) (private string, created bool, err error) {
	data, err := os.ReadFile(path)
	if err == nil {
		return strings.TrimSpace(string(data)), false, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", false, err
	}
	private, public, err := note.GenerateKey(rand.Reader, origin)
	if err != nil {
		return "", false, err
	}
	// The public half first: a crash between the two leaves no key in use.
	if err := replace(path+".pub", []byte(public+"\n"), 0o644); err != nil {
		return "", false, err
	}
	if err := replace(path, []byte(private+"\n"), 0o600); err != nil {
		return "", false, err
	}
	return private, true, nil
}

// Close gives the key free.
func (s *Signer) Close() error { return s.file.Close() }

// Public is the verifier key, as note.NewVerifier takes it.
func (s *Signer) Public() string { return s.public }

// Verifier checks this signer's signatures.
func (s *Signer) Verifier() (note.Verifier, error) {
	v, err := note.NewVerifier(s.public)
	if err == nil && v.KeyHash() != s.signer.KeyHash() {
		err = fmt.Errorf("checkpoint: %s.pub is not the public half of the key", s.path)
	}
	return v, err
}

// ID names the key: 8 hex digits.
func (s *Signer) ID() string { return fmt.Sprintf("%08x", s.signer.KeyHash()) }

func (s *Signer) lastPath() string { return s.path + ".last" }

// Last gives the last checkpoint that was signed, and when; nil where there is
// none. One that the key does not verify is an error.
func (s *Signer) Last() (msg []byte, t Tree, at time.Time, err error) {
	msg, err = os.ReadFile(s.lastPath())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, t, at, nil
	}
	if err != nil {
		return nil, t, at, fmt.Errorf("checkpoint: %w", err)
	}
	v, err := s.Verifier()
	if err != nil {
		return nil, t, at, err
	}
	if t, err = Open(msg, v); err != nil {
		return nil, t, at, fmt.Errorf("%s: %w", s.lastPath(), err)
	}
	st, err := os.Stat(s.lastPath())
	if err != nil {
		return nil, t, at, fmt.Errorf("checkpoint: %w", err)
	}
	return msg, t, st.ModTime(), nil
}

// Sign signs a tree and keeps the checkpoint beside the key before it gives it
// out. It refuses a tree that does not continue the last one signed.
func (s *Signer) Sign(t Tree, nodes tlog.HashReader) ([]byte, error) {
	_, last, _, err := s.Last()
	if err != nil {
		return nil, err
	}
	if err := Holds(last, t.Size, nodes); err != nil {
		return nil, err
	}
	msg, err := note.Sign(&note.Note{Text: t.Text()}, s.signer)
	if err != nil {
		return nil, fmt.Errorf("checkpoint: sign: %w", err)
	}
	if err := replace(s.lastPath(), msg, 0o644); err != nil {
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	return msg, nil
}

// replace writes a small file whole or not at all, and syncs it.
func replace(path string, data []byte, mode fs.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".tmp-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) //nolint:errcheck // gone after the rename
	_, err = f.Write(data)
	if err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
