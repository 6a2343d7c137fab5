package checkpoint

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

// cosignatureV1 is the algorithm byte of C2SP tlog-cosignature.
const cosignatureV1 = 4

// Witness is a second party: it keeps the last checkpoint that it saw of one
// log, and puts its name only to one that continues it.
type Witness struct {
	State string // file of the last checkpoint seen
	Key   string // file of the witness's own key; made where there is none
	Name  string // of the witness, for a new key
	Log   note.Verifier
	Now   func() time.Time
}

// Saw gives the checkpoint that the witness saw last; the zero one where it
// has seen none.
func (w Witness) Saw() (Tree, error) {
	msg, err := os.ReadFile(w.State)
	if errors.Is(err, fs.ErrNotExist) {
		return Tree{}, nil
	}
	if err != nil {
		return Tree{}, fmt.Errorf("witness: %w", err)
	}
	t, err := Open(msg, w.Log)
	if err != nil {
		return t, fmt.Errorf("witness: %s: %w", w.State, err)
	}
	return t, nil
}

// Cosign checks an offer against what was seen last, keeps the new checkpoint
// with the witness's signature and gives it. An offer of a log that was
// rewritten or cut is [ErrInconsistent] or [ErrShrunk]: nothing is kept.
func (w Witness) Cosign(offer []byte) (cosigned []byte, now Tree, err error) {
	old, proof, msg, err := parseOffer(offer)
	if err != nil {
		return nil, now, err
	}
	if now, err = Open(msg, w.Log); err != nil {
		return nil, now, err
	}
	saw, err := w.Saw()
	if err != nil {
		return nil, now, err
	}
	switch {
	case now.Size < saw.Size:
		return nil, now, fmt.Errorf("%w: it has %d records, and had %d", ErrShrunk, now.Size, saw.Size)
	case old != saw.Size:
		return nil, now, fmt.Errorf("witness: the offer speaks of %d records, the last checkpoint seen of %d: make it anew", old, saw.Size)
	case now.Size == saw.Size && now.Root != saw.Root && saw.Size > 0:
		return nil, now, fmt.Errorf("%w: two roots at %d records", ErrInconsistent, now.Size)
	case saw.Size > 0 && now.Size > saw.Size:
		if err := tlog.CheckTree(proof, now.Size, now.Root, saw.Size, saw.Root); err != nil {
			return nil, now, fmt.Errorf("%w: from %d to %d records: %w", ErrInconsistent, saw.Size, now.Size, err)
		}
	}
	line, err := w.signature(now)
	if err != nil {
		return nil, now, err
	}
	cosigned = append(msg[:len(msg):len(msg)], line...)
	if err := replace(w.State, cosigned, 0o644); err != nil {
		return nil, now, fmt.Errorf("witness: %w", err)
	}
	return cosigned, now, nil
}

// signature is the witness's line: cosignature/v1, with the time.
func (w Witness) signature(t Tree) (string, error) {
	private, name, err := w.key()
	if err != nil {
		return "", err
	}
	at := w.Now().Unix()
	sig := ed25519.Sign(private, cosigned(at, t))
	blob := binary.BigEndian.AppendUint32(nil, cosignatureID(name, private.Public().(ed25519.PublicKey)))
	blob = binary.BigEndian.AppendUint64(blob, uint64(at))
	return fmt.Sprintf("— %s %s\n", name, base64.StdEncoding.EncodeToString(append(blob, sig...))), nil
}

func cosigned(at int64, t Tree) []byte {
	return fmt.Appendf(nil, "cosignature/v1\ntime %d\n%s", at, t.Text())
}

func cosignatureID(name string, public ed25519.PublicKey) uint32 {
	h := sha256.Sum256(append(append([]byte(name+"\n"), cosignatureV1), public...))
	return binary.BigEndian.Uint32(h[:4])
}

// key reads the witness's key, or makes one: <name>+<seed in base64>. The
// public key is written beside it, as a verifier key of C2SP.
func (w Witness) key() (ed25519.PrivateKey, string, error) {
	data, err := os.ReadFile(w.Key)
	if errors.Is(err, fs.ErrNotExist) {
		return w.newKey()
	}
	if err != nil {
		return nil, "", fmt.Errorf("witness: key: %w", err)
	}
	name, text, ok := strings.Cut(strings.TrimSpace(string(data)), "+")
	seed, err := base64.StdEncoding.DecodeString(text)
	if !ok || err != nil || len(seed) != ed25519.SeedSize {
		return nil, "", fmt.Errorf("witness: key %s: not a key of a witness", w.Key)
	}
	return ed25519.NewKeyFromSeed(seed), name, nil
}

func (w Witness) newKey() (ed25519.PrivateKey, string, error) {
	if w.Name == "" || strings.ContainsAny(w.Name, "+ \n") {
		return nil, "", fmt.Errorf("witness: a new key needs a name without spaces and plus signs, not %q", w.Name)
	}
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, "", fmt.Errorf("witness: key: %w", err)
	}
	vkey := fmt.Sprintf("%s+%08x+%s\n", w.Name, cosignatureID(w.Name, public), base64.StdEncoding.EncodeToString(append([]byte{cosignatureV1}, public...)))
	if err := replace(w.Key+".pub", []byte(vkey), 0o644); err != nil {
		return nil, "", fmt.Errorf("witness: key: %w", err)
	}
	secret := w.Name + "+" + base64.StdEncoding.EncodeToString(private.Seed()) + "\n"
	if err := replace(w.Key, []byte(secret), 0o600); err != nil {
		return nil, "", fmt.Errorf("witness: key: %w", err)
	}
	return private, w.Name, nil
}

// CheckCosignature checks that a witness of a verifier key signed a
// checkpoint, and tells when.
func CheckCosignature(msg []byte, vkey string) (time.Time, error) {
	t, err := Unverified(msg)
	if err != nil {
		return time.Time{}, err
	}
	parts := strings.SplitN(strings.TrimSpace(vkey), "+", 3)
	if len(parts) != 3 {
		return time.Time{}, errors.New("checkpoint: not a verifier key")
	}
	key, err := base64.StdEncoding.DecodeString(parts[2])
	if err != nil || len(key) != 1+ed25519.PublicKeySize || key[0] != cosignatureV1 {
		return time.Time{}, errors.New("checkpoint: not the key of a witness")
	}
	public := ed25519.PublicKey(key[1:])
	for line := range strings.Lines(string(msg)) {
		text, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "— "+parts[0]+" ")
		blob, err := base64.StdEncoding.DecodeString(text)
		if !ok || err != nil || len(blob) != 4+8+ed25519.SignatureSize || binary.BigEndian.Uint32(blob) != cosignatureID(parts[0], public) {
			continue
		}
		at := int64(binary.BigEndian.Uint64(blob[4:]))
		if ed25519.Verify(public, cosigned(at, t), blob[12:]) {
			return time.Unix(at, 0), nil
		}
	}
	return time.Time{}, fmt.Errorf("checkpoint: no cosignature of %s", parts[0])
}
