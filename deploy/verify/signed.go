package verify

import (
	"encoding/base64"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"colophon/shared/event"
)

// signed is one signed checkpoint: it commits to the first size records.
type signed struct {
	size int64
	root tlog.Hash
	at   string // where it stands, for people
}

// checkpoints are those that must hold of the ledger, by size.
type checkpoints struct {
	verifier note.Verifier // of every one; the first key that is seen, where none was given
	bySize   map[int64][]signed
	next     []int64 // sizes still to come, the smallest first
	good     int64   // size of the last one that held
}

// trust takes the public key that was given, and the last checkpoint that was
// signed with it, which lies beside the key and not in the archive.
func (j *judge) trust() error {
	j.signed = &checkpoints{bySize: map[int64][]signed{}}
	if j.Key == "" {
		return nil
	}
	v, err := note.NewVerifier(strings.TrimSpace(j.Key))
	if err != nil {
		return fmt.Errorf("verify: key: %w", err)
	}
	j.signed.verifier = v
	if len(j.Last) > 0 {
		j.checkpoint("the last checkpoint, beside the key", j.Last)
	}
	return nil
}

// checkpointFact takes the checkpoint of a fact, which the ledger has read.
func (j *judge) checkpointFact(f event.OpFact, m message) {
	at := logObject(m)
	text, errNote := base64.RawURLEncoding.DecodeString(f.Detail["note"])
	key, errKey := base64.RawURLEncoding.DecodeString(f.Detail["key"])
	if errNote != nil || errKey != nil {
		j.out.damage("checkpoint-unreadable", at, "it holds no note and key")
		return
	}
	if j.signed.verifier == nil {
		v, err := note.NewVerifier(string(key))
		if err != nil {
			j.out.damage("checkpoint-unreadable", at, "its key: %v", err)
			return
		}
		j.signed.verifier = v
	}
	j.checkpoint(at, text)
}

func (j *judge) checkpoint(at string, text []byte) {
	n, err := note.Open(text, note.VerifierList(j.signed.verifier))
	if err != nil {
		j.out.damage("checkpoint-unsigned", at, "it is not signed with the key %s: %v", j.signed.verifier.Name(), err)
		return
	}
	lines := strings.Split(n.Text, "\n")
	if len(lines) < 4 || lines[0] != j.signed.verifier.Name() {
		j.out.damage("checkpoint-unreadable", at, "it is no checkpoint of %s", j.signed.verifier.Name())
		return
	}
	size, errSize := strconv.ParseInt(lines[1], 10, 64)
	root, errRoot := base64.StdEncoding.DecodeString(lines[2])
	if errSize != nil || errRoot != nil || len(root) != tlog.HashSize || size < 1 {
		j.out.damage("checkpoint-unreadable", at, "size %q, root %q", lines[1], lines[2])
		return
	}
	j.signed.bySize[size] = append(j.signed.bySize[size], signed{size, tlog.Hash(root), at})
}

// begin sorts what was found, before the records are read.
func (c *checkpoints) begin() {
	c.next = nil
	for size := range c.bySize {
		c.next = append(c.next, size)
	}
	slices.Sort(c.next)
}

// reached compares the tree of the records read so far with the checkpoints of
// that size. Where one differs, a record between the last that held and it is
// not the one that was signed for.
func (j *judge) reached(t *tree) {
	c := j.signed
	for len(c.next) > 0 && c.next[0] <= t.size {
		size := c.next[0]
		c.next = c.next[1:]
		if size < t.size {
			continue // records were missing before it: told
		}
		held := true
		for _, s := range c.bySize[size] {
			if t.root(false) == s.root || t.root(true) == s.root {
				continue
			}
			held = false
			j.out.record("checkpoint-root", c.good, "", "%s: the first %d records are not those that were signed; the ones before record %d are", s.at, size, c.good)
		}
		if held {
			c.good = size
		}
	}
}

// beyond tells checkpoints of more records than the ledger has.
func (j *judge) beyond() {
	for _, size := range j.signed.next {
		for _, s := range j.signed.bySize[size] {
			j.out.record("checkpoint-size", j.ledger.head.Size, "", "%s: %d records were signed for, and the ledger has %d: it was cut, or is an older copy", s.at, s.size, j.ledger.head.Size)
		}
	}
}
