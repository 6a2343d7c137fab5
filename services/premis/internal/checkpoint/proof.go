package checkpoint

import (
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

// proofHeader begins a C2SP tlog-proof file.
const proofHeader = "c2sp.org/tlog-proof@v1"

// Inclusion is a C2SP tlog-proof: that record index stands in the log of a
// checkpoint.
func Inclusion(index int64, msg []byte, nodes tlog.HashReader) ([]byte, error) {
	t, err := Unverified(msg)
	if err != nil {
		return nil, err
	}
	proof, err := tlog.ProveRecord(t.Size, index, nodes)
	if err != nil {
		return nil, fmt.Errorf("checkpoint: proof of record %d of %d: %w", index, t.Size, err)
	}
	return fmt.Appendf(nil, "%s\nindex %d\n%s\n%s", proofHeader, index, hashLines(proof), msg), nil
}

// CheckInclusion checks a tlog-proof file of a record's bytes, and gives the
// record's number.
func CheckInclusion(file, recordBytes []byte, v note.Verifier) (int64, error) {
	head, msg, ok := strings.Cut(string(file), "\n\n")
	lines := strings.Split(head, "\n")
	if !ok || len(lines) < 2 || lines[0] != proofHeader {
		return 0, fmt.Errorf("checkpoint: not a %s file", proofHeader)
	}
	number, ok := strings.CutPrefix(lines[1], "index ")
	index, err := strconv.ParseInt(number, 10, 64)
	if !ok || err != nil {
		return 0, fmt.Errorf("checkpoint: %s: no index", proofHeader)
	}
	proof, err := parseHashes(lines[2:])
	if err != nil {
		return 0, err
	}
	t, err := Open([]byte(msg), v)
	if err != nil {
		return 0, err
	}
	if err := tlog.CheckRecord(proof, t.Size, t.Root, index, tlog.RecordHash(recordBytes)); err != nil {
		return 0, fmt.Errorf("checkpoint: record %d: %w", index, err)
	}
	return index, nil
}

// Offer is what a witness is shown, the body of C2SP tlog-witness's
// add-checkpoint: a checkpoint, and the proof that it continues the log of an
// older size.
func Offer(old int64, msg []byte, nodes tlog.HashReader) ([]byte, error) {
	t, err := Unverified(msg)
	if err != nil {
		return nil, err
	}
	if old > t.Size {
		return nil, fmt.Errorf("%w: the witness saw %d records, the checkpoint has %d", ErrShrunk, old, t.Size)
	}
	var proof tlog.TreeProof
	if old > 0 && old < t.Size {
		if proof, err = tlog.ProveTree(t.Size, old, nodes); err != nil {
			return nil, fmt.Errorf("checkpoint: proof from %d to %d: %w", old, t.Size, err)
		}
	}
	return fmt.Appendf(nil, "old %d\n%s\n%s", old, hashLines(proof), msg), nil
}

func parseOffer(offer []byte) (old int64, proof tlog.TreeProof, msg []byte, err error) {
	head, rest, ok := strings.Cut(string(offer), "\n\n")
	lines := strings.Split(head, "\n")
	number, isOld := strings.CutPrefix(lines[0], "old ")
	if !ok || !isOld {
		return 0, nil, nil, fmt.Errorf("%w: not an offer to a witness", ErrMalformed)
	}
	if old, err = strconv.ParseInt(number, 10, 64); err != nil || old < 0 {
		return 0, nil, nil, fmt.Errorf("%w: old size %q", ErrMalformed, number)
	}
	proof, err = parseHashes(lines[1:])
	return old, proof, []byte(rest), err
}

func hashLines(hashes []tlog.Hash) string {
	var b strings.Builder
	for _, h := range hashes {
		b.WriteString(base64.StdEncoding.EncodeToString(h[:]))
		b.WriteByte('\n')
	}
	return b.String()
}

func parseHashes(lines []string) ([]tlog.Hash, error) {
	var out []tlog.Hash
	for _, l := range lines {
		h, err := base64.StdEncoding.DecodeString(l)
		if err != nil || len(h) != tlog.HashSize {
			return nil, fmt.Errorf("%w: hash %q", ErrMalformed, l)
		}
		out = append(out, tlog.Hash(h))
	}
	return out, nil
}
