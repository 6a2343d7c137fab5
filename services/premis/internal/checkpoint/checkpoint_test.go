package checkpoint

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

const origin = "archive.example.org/colophon"

// history is a log in memory.
type history struct {
	records [][]byte
	nodes   []tlog.Hash
}

func (h *history) ReadHashes(at []int64) ([]tlog.Hash, error) {
	out := make([]tlog.Hash, len(at))
	for i, n := range at {
		if n >= int64(len(h.nodes)) {
			return nil, fmt.Errorf("no node %d", n)
		}
		out[i] = h.nodes[n]
	}
	return out, nil
}

func grown(t *testing.T, size int, mark string) *history {
	t.Helper()
	h := &history{}
	for n := range size {
		text := fmt.Sprintf("record %d", n)
		if n > 4 {
			text += mark
		}
		more, err := tlog.StoredHashes(int64(n), []byte(text), h)
		if err != nil {
			t.Fatal(err)
		}
		h.records, h.nodes = append(h.records, []byte(text)), append(h.nodes, more...)
	}
	return h
}

func (h *history) tree(t *testing.T, size int64) Tree {
	t.Helper()
	root, err := tlog.TreeHash(size, h)
	if err != nil {
		t.Fatal(err)
	}
	return Tree{origin, size, root}
}

func signer(t *testing.T) *Signer {
	t.Helper()
	s, created, err := OpenSigner(filepath.Join(t.TempDir(), "keys", "key"), origin)
	if err != nil || !created {
		t.Fatal(created, err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func verifier(t *testing.T, s *Signer) note.Verifier {
	t.Helper()
	v, err := s.Verifier()
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func sign(t *testing.T, s *Signer, h *history, size int64) []byte {
	t.Helper()
	msg, err := s.Sign(h.tree(t, size), h)
	if err != nil {
		t.Fatal(err)
	}
	return msg
}

func TestKeyHasOneHolderAndStaysPrivate(t *testing.T) {
	t.Parallel()
	s := signer(t)
	st, err := os.Stat(s.path)
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", st.Mode(), err)
	}
	if _, _, err := OpenSigner(s.path, origin); !errors.Is(err, ErrHeld) {
		t.Errorf("a second holder: %v", err)
	}
	public := s.Public()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	again, created, err := OpenSigner(s.path, origin)
	if err != nil || created || again.Public() != public {
		t.Fatalf("opened again: %v %v", created, err)
	}
	again.Close()
	if _, _, err := OpenSigner(s.path, "else.example/log"); !errors.Is(err, ErrOrigin) {
		t.Errorf("the key of another log: %v", err)
	}
}

// What was signed once binds: neither a shorter nor another history is signed.
func TestOneHistoryIsSigned(t *testing.T) {
	t.Parallel()
	s, h, other := signer(t), grown(t, 20, ""), grown(t, 20, " rewritten")
	first := sign(t, s, h, 9)
	if got, err := Open(first, verifier(t, s)); err != nil || got != h.tree(t, 9) {
		t.Fatalf("%+v %v", got, err)
	}
	if _, err := s.Sign(other.tree(t, 12), other); !errors.Is(err, ErrInconsistent) {
		t.Errorf("another history: %v", err)
	}
	if _, err := s.Sign(h.tree(t, 8), h); !errors.Is(err, ErrShrunk) {
		t.Errorf("a shorter one: %v", err)
	}
	sign(t, s, h, 20)
	if _, last, _, err := s.Last(); err != nil || last.Size != 20 {
		t.Errorf("%+v %v", last, err)
	}
}

func TestAnyBitOfACheckpoint(t *testing.T) {
	t.Parallel()
	s, h := signer(t), grown(t, 9, "")
	msg := sign(t, s, h, 9)
	v := verifier(t, s)
	for bit := range len(msg) * 8 {
		spoiled := bytes.Clone(msg)
		spoiled[bit/8] ^= 1 << (bit % 8)
		if got, err := Open(spoiled, v); err == nil && got != h.tree(t, 9) {
			t.Fatalf("bit %d: %+v", bit, got)
		} else if err == nil && !strings.Contains(string(spoiled), "\n\n") {
			t.Fatalf("bit %d changed nothing", bit)
		}
	}
}

func TestInclusion(t *testing.T) {
	t.Parallel()
	s, h := signer(t), grown(t, 21, "")
	msg := sign(t, s, h, 21)
	for n, r := range h.records {
		file, err := Inclusion(int64(n), msg, h)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := CheckInclusion(file, r, verifier(t, s)); err != nil || got != int64(n) {
			t.Fatalf("record %d: %d %v", n, got, err)
		}
		if _, err := CheckInclusion(file, append(bytes.Clone(r), '!'), verifier(t, s)); err == nil {
			t.Fatalf("record %d: other bytes are proved", n)
		}
	}
}

func TestWitness(t *testing.T) {
	t.Parallel()
	s, h, other := signer(t), grown(t, 30, ""), grown(t, 30, " rewritten")
	dir := t.TempDir()
	at := time.Unix(1_764_000_000, 0)
	w := Witness{State: filepath.Join(dir, "state"), Key: filepath.Join(dir, "key"), Name: "w.example/w1", Log: verifier(t, s), Now: func() time.Time { return at }}
	see := func(h *history, msg []byte) error {
		saw, err := w.Saw()
		if err != nil {
			t.Fatal(err)
		}
		offer, err := Offer(saw.Size, msg, h)
		if err != nil {
			return err
		}
		cosigned, now, err := w.Cosign(offer)
		if err != nil {
			return err
		}
		vkey, err := os.ReadFile(w.Key + ".pub")
		if err != nil {
			t.Fatal(err)
		}
		if when, err := CheckCosignature(cosigned, string(vkey)); err != nil || !when.Equal(at) {
			t.Fatalf("cosignature: %v %v", when, err)
		}
		if got, err := Open(cosigned, w.Log); err != nil || got != now {
			t.Fatalf("the log's own signature: %v", err)
		}
		return nil
	}
	for _, size := range []int64{7, 7, 8, 23} {
		if err := see(h, sign(t, s, h, size)); err != nil {
			t.Fatalf("at %d: %v", size, err)
		}
	}
	// An insider with the key rewrites history, or puts an older copy back.
	insider := func(h *history, size int64) []byte {
		msg, err := note.Sign(&note.Note{Text: h.tree(t, size).Text()}, s.signer)
		if err != nil {
			t.Fatal(err)
		}
		return msg
	}
	if err := see(other, insider(other, 28)); !errors.Is(err, ErrInconsistent) {
		t.Errorf("rewritten: %v", err)
	}
	if err := see(h, insider(h, 20)); !errors.Is(err, ErrShrunk) {
		t.Errorf("an older copy: %v", err)
	}
	if err := see(other, insider(other, 23)); !errors.Is(err, ErrInconsistent) {
		t.Errorf("two roots at one size: %v", err)
	}
	if saw, err := w.Saw(); err != nil || saw.Size != 23 {
		t.Errorf("what was refused is kept: %+v %v", saw, err)
	}
}

// The layout holds every hash where golang.org/x/mod's tiles expect it, and
// every record in its bundle.
func TestTiles(t *testing.T) {
	t.Parallel()
	for _, size := range []int64{1, 255, 256, 257, 70_000} {
		h := grown(t, int(size), "")
		files := map[string][]byte{}
		err := Tiles(size, h, func(n int64) ([]byte, error) { return h.records[n], nil }, func(path string, data []byte) error {
			files[path] = bytes.Clone(data)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		seen := 0
		for _, tile := range tlog.NewTiles(tileHeight, 0, size) {
			want, err := tlog.ReadTileData(tile, h)
			if err != nil {
				t.Fatal(err)
			}
			path := strings.Replace(tile.Path(), "tile/8/", "tile/", 1)
			if !bytes.Equal(files[path], want) {
				t.Fatalf("size %d: %s differs", size, path)
			}
			seen++
		}
		n := 0
		for path, data := range files {
			if !strings.HasPrefix(path, "tile/entries/") {
				seen--
				continue
			}
			for len(data) > 0 {
				length := binary.BigEndian.Uint16(data)
				data = data[2+length:]
				n++
			}
		}
		if seen != 0 || n != int(size) {
			t.Errorf("size %d: %d tiles too few, %d records", size, seen, n)
		}
	}
}
