package premis

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/mod/sumdb/note"

	"colophon/shared/event"

	"colophon/services/premis/internal/checkpoint"
	"colophon/services/premis/internal/export"
	"colophon/services/premis/internal/ledger"
)

// Errors of evidence, for who decides on an exit status.
var (
	ErrUnsigned     = errors.New("no checkpoint has been signed yet")
	ErrInconsistent = checkpoint.ErrInconsistent
	ErrShrunk       = checkpoint.ErrShrunk
	ErrDamaged      = ledger.ErrDamaged
)

// Evidence reads a ledger for people outside: what is signed, and its proofs.
type Evidence struct {
	l      *ledger.Ledger
	tree   checkpoint.Tree
	signed string
	key    string
}

// OpenEvidence opens the ledger in dir, a copy or one that no service has open,
// for reading, and finds the last checkpoint in it. The ledger is proved as at
// every start, and against that checkpoint.
func OpenEvidence(dir string) (*Evidence, error) {
	l, err := ledger.OpenReadOnly(dir, ledger.Options{})
	if err != nil {
		return nil, fmt.Errorf("premis: %w", err)
	}
	e := &Evidence{l: l}
	if err := e.find(); err != nil {
		return nil, fmt.Errorf("premis: %w", errors.Join(err, l.Close()))
	}
	return e, nil
}

func (e *Evidence) find() error {
	for c, err := range e.l.Signed() {
		if err != nil {
			return err
		}
		v, err := note.NewVerifier(c.Key)
		if err != nil {
			continue
		}
		t, err := checkpoint.Open([]byte(c.Note), v)
		if err != nil || t.Origin != e.l.Head().Origin {
			continue
		}
		e.tree, e.signed, e.key = t, c.Note, c.Key
		return checkpoint.Holds(t, e.l.Size(), e.l)
	}
	return nil
}

// Close closes the ledger.
func (e *Evidence) Close() error { return e.l.Close() }

// Position tells where the ledger stands.
func (e *Evidence) Position() Position { return position(e.l.Head()) }

// Signed gives the last checkpoint, the key that verifies it, and the number
// of records it covers; [ErrUnsigned] where there is none.
func (e *Evidence) Signed() (msg, key string, size int64, err error) {
	if e.signed == "" {
		return "", "", 0, fmt.Errorf("premis: %w: one is signed when a batch ends, and once a day", ErrUnsigned)
	}
	return e.signed, e.key, e.tree.Size, nil
}

// Exported says what an export of evidence holds.
type Exported struct {
	Dir     string `json:"dir"`
	Records int64  `json:"records"`
	Later   int64  `json:"later"` // records that the next checkpoint will cover
	Root    string `json:"root"`
	Key     string `json:"key"`
}

// Export writes the evidence in the static layout of C2SP tlog-tiles into dir,
// which must not exist: checkpoint, tile/…, tile/entries/…, and public-key. It
// appears under its name when all of it is written and synced.
func (e *Evidence) Export(ctx context.Context, dir string) (out Exported, err error) {
	msg, key, size, err := e.Signed()
	if err != nil {
		return out, err
	}
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		return out, fmt.Errorf("premis: export: %s: %w", dir, errors.Join(fs.ErrExist, err))
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return out, fmt.Errorf("premis: export: %w", err)
	}
	temp, err := os.MkdirTemp(filepath.Dir(dir), "."+filepath.Base(dir)+".tmp-")
	if err != nil {
		return out, fmt.Errorf("premis: export: %w", err)
	}
	defer os.RemoveAll(temp) //nolint:errcheck // gone after the rename
	write := func(path string, data []byte) error {
		return writeSynced(filepath.Join(temp, filepath.FromSlash(path)), data)
	}
	record := func(n int64) ([]byte, error) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		r, err := e.l.Get(n)
		return r.Bytes, err
	}
	err = checkpoint.Tiles(size, e.l, record, write)
	if err = errors.Join(err, write("public-key", []byte(key+"\n")), write("checkpoint", []byte(msg))); err != nil {
		return out, fmt.Errorf("premis: export: %w", err)
	}
	if err := errors.Join(os.Chmod(temp, 0o755), os.Rename(temp, dir)); err != nil {
		return out, fmt.Errorf("premis: export: %w", err)
	}
	return Exported{Dir: dir, Records: size, Later: e.l.Size() - size, Root: e.tree.Root.String(), Key: key}, nil
}

func writeSynced(path string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Sync(), f.Close())
}

// Offer is what a witness that saw so many records is shown: the last
// checkpoint and the proof that it continues those.
func (e *Evidence) Offer(saw int64) ([]byte, error) {
	msg, _, _, err := e.Signed()
	if err != nil {
		return nil, err
	}
	return checkpoint.Offer(saw, []byte(msg), e.l)
}

// Prove gives the C2SP tlog-proof of one event, by name or record number, and
// the record's bytes.
func (e *Evidence) Prove(name string) (proof, recordBytes []byte, err error) {
	msg, _, _, err := e.Signed()
	if err != nil {
		return nil, nil, err
	}
	n, err := strconv.ParseInt(name, 10, 64)
	if err != nil {
		found := false
		if n, found, err = e.l.Number(name); err != nil || !found {
			return nil, nil, fmt.Errorf("premis: no event %q: %w", name, errors.Join(err, ledger.ErrNoRecord))
		}
	}
	r, err := e.l.Get(n)
	if err != nil {
		return nil, nil, fmt.Errorf("premis: %w", err)
	}
	proof, err = checkpoint.Inclusion(n, []byte(msg), e.l)
	return proof, r.Bytes, err
}

// Step is one record of a batch's story, in words.
type Step = export.Step

// ErrNothing says that the ledger holds nothing of a batch.
var ErrNothing = export.ErrNothing

// Story gives a batch's records in ledger order, in words; [ErrNothing] where
// there are none.
func (e *Evidence) Story(ctx context.Context, b event.Name) iter.Seq2[Step, error] {
	return export.New(e.l.View).Story(ctx, b)
}

// WitnessSaw gives how many records a witness saw last, by its state file; the
// key is the ledger's public one.
func WitnessSaw(state, key string) (int64, error) {
	v, err := note.NewVerifier(key)
	if err != nil {
		return 0, fmt.Errorf("premis: key: %w", err)
	}
	t, err := checkpoint.Witness{State: state, Log: v}.Saw()
	return t.Size, err
}

// Cosigned is what a witness came to.
type Cosigned struct {
	Records int64  `json:"records"`
	Before  int64  `json:"before"` // records seen the last time
	Root    string `json:"root"`
	State   string `json:"state"`
}

// Witnessed checks an offer as the witness whose state and key lie in these
// files, and signs it. [ErrInconsistent] and [ErrShrunk] say that the ledger
// was rewritten or cut: nothing is kept of it.
func Witnessed(state, keyFile, name, logKey string, offer []byte, now func() time.Time) (out Cosigned, err error) {
	v, err := note.NewVerifier(logKey)
	if err != nil {
		return out, fmt.Errorf("premis: key: %w", err)
	}
	w := checkpoint.Witness{State: state, Key: keyFile, Name: name, Log: v, Now: now}
	before, err := w.Saw()
	if err != nil {
		return out, err
	}
	_, t, err := w.Cosign(offer)
	return Cosigned{Records: t.Size, Before: before.Size, Root: t.Root.String(), State: state}, err
}
