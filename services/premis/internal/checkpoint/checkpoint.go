// Package checkpoint signs what a ledger holds, and gives the proofs that go
// with it, in the formats of C2SP: tlog-checkpoint, tlog-cosignature,
// tlog-witness, tlog-proof and tlog-tiles. A checkpoint commits to every record
// before it: an outsider who kept one finds any later change.
package checkpoint

import (
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

// Errors of evidence that does not fit together.
var (
	ErrMalformed    = errors.New("malformed checkpoint")
	ErrOrigin       = errors.New("the checkpoint is of another log")
	ErrInconsistent = errors.New("the log does not hold what an earlier checkpoint committed to")
	ErrShrunk       = errors.New("the log is shorter than an earlier checkpoint of it")
)

// Tree is what a checkpoint says.
type Tree struct {
	Origin string
	Size   int64 // records
	Root   tlog.Hash
}

// Text is the signed text: three lines.
func (t Tree) Text() string {
	return fmt.Sprintf("%s\n%d\n%s\n", t.Origin, t.Size, base64.StdEncoding.EncodeToString(t.Root[:]))
}

// ParseText reads what [Tree.Text] writes. Further lines are extensions.
func ParseText(text string) (Tree, error) {
	lines := strings.SplitN(text, "\n", 4)
	if len(lines) < 4 || lines[0] == "" {
		return Tree{}, fmt.Errorf("%w: not three lines", ErrMalformed)
	}
	n, err := strconv.ParseInt(lines[1], 10, 64)
	if err != nil || n < 0 || lines[1] != strconv.FormatInt(n, 10) {
		return Tree{}, fmt.Errorf("%w: size %q", ErrMalformed, lines[1])
	}
	root, err := base64.StdEncoding.DecodeString(lines[2])
	if err != nil || len(root) != tlog.HashSize {
		return Tree{}, fmt.Errorf("%w: root %q", ErrMalformed, lines[2])
	}
	return Tree{lines[0], n, tlog.Hash(root)}, nil
}

// Open reads a checkpoint whose signature v verifies.
func Open(msg []byte, v note.Verifier) (Tree, error) {
	n, err := note.Open(msg, note.VerifierList(v))
	if err != nil {
		return Tree{}, fmt.Errorf("checkpoint: %w", err)
	}
	t, err := ParseText(n.Text)
	if err != nil {
		return t, err
	}
	if t.Origin != v.Name() {
		return t, fmt.Errorf("%w: %q, signed by %q", ErrOrigin, t.Origin, v.Name())
	}
	return t, nil
}

// Unverified reads what a checkpoint says without looking at who signed it.
func Unverified(msg []byte) (Tree, error) {
	text, _, ok := strings.Cut(string(msg), "\n\n")
	if !ok {
		return Tree{}, fmt.Errorf("%w: no signature", ErrMalformed)
	}
	return ParseText(text + "\n")
}

// Holds checks that nodes are those of a log that begins with what t commits
// to. size is how many records the nodes cover.
func Holds(t Tree, size int64, nodes tlog.HashReader) error {
	if t.Size > size {
		return fmt.Errorf("%w: %d records, the checkpoint has %d", ErrShrunk, size, t.Size)
	}
	if t.Size == 0 {
		return nil
	}
	root, err := tlog.TreeHash(t.Size, nodes)
	if err != nil {
		return fmt.Errorf("checkpoint: root at %d: %w", t.Size, err)
	}
	if root != t.Root {
		return fmt.Errorf("%w: at %d records the root is %v, the checkpoint says %v", ErrInconsistent, t.Size, root, t.Root)
	}
	return nil
}
