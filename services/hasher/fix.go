package hasher

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/nats-io/nats.go"

	"colophon/services/hasher/internal/identify"
	"colophon/shared/event"
	"colophon/shared/fault"
	"colophon/shared/storage"
)

// fixer is the worker: one slot's bytes, read again, hashed and promoted.
type fixer struct {
	store *storage.Store
	ids   identifier
}

// identifier tells a format from content: safe together, safe to repeat.
type identifier interface {
	Identify(ctx context.Context, r io.ReaderAt, size int64, name string) (identify.Format, error)
}

func (f *fixer) Decode(subject string, h nats.Header, data []byte) (*event.FrameCaptured, error) {
	return decode(subject, h, data)
}

func (f *fixer) Work(in *event.FrameCaptured) event.Work { return in.Work }

func (f *fixer) Key(in *event.FrameCaptured) event.Key { return event.FixityKey(in.Digest, in.Slot) }

// Act promotes by a hard link: nothing is copied, and a crash behind it finds
// the master already there.
func (f *fixer) Act(ctx context.Context, in *event.FrameCaptured, _ event.Work) (event.Fixed, error) {
	file, err := f.open(in)
	if err != nil {
		return event.Fixed{}, err
	}
	defer file.Close() //nolint:errcheck // only read
	stored, size, err := storage.Sum(ctx, file)
	if err != nil {
		return event.Fixed{}, err
	}
	if err := compare(in, event.Digest(stored), size); err != nil {
		return event.Fixed{}, err
	}
	format, err := f.ids.Identify(ctx, file, size, string(in.Frame))
	if errors.Is(err, identify.ErrFailed) {
		return event.Fixed{}, fault.New(fault.IdentifyFailed, err, "the format could not be identified")
	}
	if err != nil {
		return event.Fixed{}, err
	}
	key := storage.MasterKey(stored)
	if _, err := f.store.Promote(ctx, in.Staging, key, stored); err != nil {
		return event.Fixed{}, err
	}
	return event.Fixed{StoredDigest: event.Digest(stored), Size: size, Master: key, Format: event.Format(format)}, nil
}

// open opens the staged bytes; where an earlier run removed them already, the
// master that was promoted from them.
func (f *fixer) open(in *event.FrameCaptured) (*os.File, error) {
	file, err := f.store.Open(in.Staging)
	if !errors.Is(err, storage.ErrNotExist) {
		return file, err
	}
	file, err = f.store.Open(storage.MasterKey(storage.Digest(in.Digest)))
	if errors.Is(err, storage.ErrNotExist) {
		return nil, fault.New(fault.BytesMissing, err, "the bytes of the frame are neither in staging nor among the masters")
	}
	return file, err
}

// compare holds the three digests against each other: in transit, stored,
// declared.
func compare(in *event.FrameCaptured, stored event.Digest, size int64) error {
	if stored != in.Digest || size != in.Size {
		return fault.New(fault.MasterDamaged, nil, "the bytes were captured as %s (%d bytes) and are stored as %s (%d bytes)", in.Digest, in.Size, stored, size)
	}
	if in.Declared != "" && in.Declared != stored {
		e := fault.New(fault.DigestMismatch, nil, "the bytes have digest %s, %s was declared", stored, in.Declared)
		e.Declared, e.DeclaredBy = string(in.Declared), in.DeclaredBy
		return e
	}
	return nil
}

func (f *fixer) Fact(in *event.FrameCaptured, out event.Fixed, w event.Work) event.Fact {
	w.Schema = event.SchemaFrameFixed
	if _, version, ok := strings.Cut(out.Format.Signatures, "siegfried "); ok {
		w.Helpers = []event.Agent{{Name: "siegfried", Version: version, Note: out.Format.Signatures}}
	}
	return event.FrameFixed{Work: w, Captured: in.Captured, Fixed: out, Capturer: in.Agent}
}

func (f *fixer) Tokens(in *event.FrameCaptured, _ event.Fixed) []string {
	return []string{f.Key(in).String()}
}

func (f *fixer) Learn(fact event.Fact) ([]string, event.Fixed, bool) {
	c, ok := fact.(event.FrameFixed)
	return []string{event.FixityKey(c.Digest, c.Slot).String()}, c.Fixed, ok
}

// Finish removes the staged bytes: the log has their fixity, the masters have
// them.
func (f *fixer) Finish(_ context.Context, in *event.FrameCaptured, _ event.Fixed) error {
	if err := f.store.Remove(in.Staging); err != nil {
		return fmt.Errorf("hasher: %w", err)
	}
	return nil
}

// Still believes a hit while the master is there, and for a message that
// declares the digest it has, or none: another claim is looked at and refused.
func (f *fixer) Still(_ context.Context, in *event.FrameCaptured, out event.Fixed, _ event.Work) (bool, error) {
	if in.Declared != "" && in.Declared != out.StoredDigest {
		return false, nil
	}
	return f.store.Exists(out.Master)
}

func (f *fixer) Probe(_ context.Context, deep bool) error {
	err := f.store.CheckSpace()
	if err == nil && deep {
		err = f.store.Check()
	}
	if err != nil {
		return fault.Of(err)
	}
	return nil
}
