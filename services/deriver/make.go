package deriver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"

	"github.com/nats-io/nats.go"
	"golang.org/x/sync/semaphore"

	"colophon/services/deriver/internal/derive"
	"colophon/shared/completed"
	"colophon/shared/event"
	"colophon/shared/fault"
	"colophon/shared/stage"
	"colophon/shared/storage"

	"colophon/shared/profile"
)

// maker is the worker of one profile.
type maker struct {
	store   *storage.Store
	set     *completed.Set
	log     *stage.Log
	scratch string
	recipe  profile.Recipe
	pinned  event.ProfilePinned // as it is or will be in the log
	agent   event.Agent
	total   int64 // bytes of memory that helpers may take together
	memory  *semaphore.Weighted
	cores   *semaphore.Weighted

	pinning sync.Mutex // one publishes the recipe, the others wait
	mu      sync.Mutex
	held    event.Digest // of the recipe that the log holds under the name, once known
}

// made is what is kept of a derivative: the facts' own result.
type made struct {
	event.Derived
	Helpers []event.Agent `json:"helpers"`
}

func newMaker(s *Service, r profile.Recipe, set *completed.Set, memory, cores *semaphore.Weighted) (*maker, error) {
	canonical, err := r.Canonical()
	if err != nil {
		return nil, fmt.Errorf("deriver: recipe %s: %w", r.Name, err)
	}
	digest, err := r.Digest()
	if err != nil {
		return nil, fmt.Errorf("deriver: recipe %s: %w", r.Name, err)
	}
	agent := event.Agent{Name: "deriver", Version: s.Version}
	return &maker{
		store: s.Store, set: set, log: stage.NewLog(s.JS, s.Log), scratch: s.Scratch, recipe: r, agent: agent, total: s.Memory, memory: memory, cores: cores,
		pinned: event.ProfilePinned{Schema: event.SchemaProfilePinned, Name: r.Name, Recipe: canonical, Digest: event.Digest(digest), Agent: agent},
	}, nil
}

func (m *maker) Decode(_ string, _ nats.Header, data []byte) (*event.FrameFixed, error) {
	f, err := event.DecodeFact(event.SubjectFrameFixed, data)
	if err != nil {
		return nil, err
	}
	in := f.(event.FrameFixed)
	if err := in.Slot.Validate(); err != nil {
		return nil, err
	}
	if !in.Digest.Valid() || in.Fixed.Master != storage.MasterKey(storage.Digest(in.Digest)) {
		return nil, errors.New("/digest: a fixed frame needs its digest and the master of that digest")
	}
	return &in, nil
}

// Wants leaves alone what the batch does not want of this profile.
func (m *maker) Wants(in *event.FrameFixed) bool { return slices.Contains(in.Profiles, m.recipe.Name) }

func (m *maker) Work(in *event.FrameFixed) event.Work { return in.Work }

func (m *maker) Key(in *event.FrameFixed) event.Key {
	return event.DerivativeKey(m.recipe.Name, in.Digest)
}

// Act encodes in scratch and stores what passed its gate under the master's
// digest: all pages or none. What an earlier try stored is found there, byte
// for byte the same.
func (m *maker) Act(ctx context.Context, in *event.FrameFixed, w event.Work) (made, error) {
	if err := m.ensurePinned(ctx); err != nil {
		return made{}, err
	}
	path, err := m.store.FilePath(in.Fixed.Master)
	if err != nil {
		return made{}, err
	}
	there, err := m.store.Exists(in.Fixed.Master)
	if err != nil {
		return made{}, err // the archive's own trouble
	}
	if !there {
		return made{}, fault.New(fault.BytesMissing, nil, "the master is not in the archive")
	}
	// One master at a time for each core, whatever profiles wait: helpers have
	// one thread.
	if err := m.cores.Acquire(ctx, 1); err != nil {
		return made{}, err
	}
	defer m.cores.Release(1)
	res, err := derive.Derive(ctx, derive.Request{
		Path: path, Digest: string(in.Digest), Name: string(in.Frame), Recipe: m.recipe, Attempt: w.Attempt, Scratch: m.scratch, Reserve: m.reserve,
	})
	if err != nil {
		// The master is opened by its path: an archive that is gone looks like a
		// master that cannot be read.
		if gone := m.store.CheckSpace(); errors.Is(gone, storage.ErrUnavailable) {
			return made{}, gone
		}
		return made{}, faultOf(err)
	}
	defer res.Close() //nolint:errcheck // scratch is swept at start
	outputs, err := m.keep(ctx, in.Digest, res.Outputs)
	if err != nil {
		return made{}, scratchFault(err)
	}
	out := made{Derived: event.Derived{
		Profile: m.recipe.Name, RecipeDigest: m.pinned.Digest, Arguments: res.Args, Outputs: outputs, Technical: technical(res.Technical),
	}}
	for _, w := range res.Warnings {
		out.Findings = append(out.Findings, event.Finding(w))
	}
	for _, h := range res.Helpers {
		out.Helpers = append(out.Helpers, event.Agent{Name: h.Name, Version: h.Version})
	}
	return out, nil
}

// keep stores the pages: one file, or a folder that appears at once.
func (m *maker) keep(ctx context.Context, d event.Digest, pages []derive.Output) ([]event.Output, error) {
	out := make([]event.Output, len(pages))
	for i, p := range pages {
		out[i] = event.Output{Page: p.Page, Digest: event.Digest(p.SHA256), Size: p.Size, PSNR: p.PSNR, Exact: p.Exact, Format: formatOf(m.recipe)}
	}
	ext := m.recipe.Extension()
	if len(pages) == 1 {
		out[0].Key = storage.DerivativeKey(m.recipe.Name, storage.Digest(d), ext)
		_, err := m.store.WriteFile(ctx, pages[0].Path, out[0].Key, storage.Options{Expect: storage.Digest(pages[0].SHA256)})
		return out, err
	}
	folder := storage.DerivativeKey(m.recipe.Name, storage.Digest(d), "")
	parts := make([]storage.Part, len(pages))
	for i, p := range pages {
		name := fmt.Sprintf("%04d", p.Page) + ext
		parts[i] = storage.Part{Name: name, Open: func() (io.ReadCloser, error) { return os.Open(p.Path) }}
		out[i].Key = folder + "/" + name
	}
	_, _, err := m.store.WriteDir(ctx, folder, parts, storage.Options{})
	return out, err
}

func formatOf(r profile.Recipe) event.Format {
	f := event.Format{PUID: "x-fmt/392", Name: "JP2 (JPEG 2000 part 1)", MIME: "image/jp2", Basis: "made by this archive"}
	if r.Encoder == profile.JPEG {
		f.PUID, f.Name, f.MIME = "fmt/44", "JPEG File Interchange Format 1.02", "image/jpeg"
	}
	return f
}

// reserve admits helpers by the memory they will take together.
func (m *maker) reserve(ctx context.Context, bytes int64) (func(), error) {
	bytes = min(bytes, m.total)
	if err := m.memory.Acquire(ctx, bytes); err != nil {
		return nil, err
	}
	return func() { m.memory.Release(bytes) }, nil
}

// scratchFault names what is wrong with scratch files on their way into the
// archive: neither the master nor the archive is at fault.
func scratchFault(err error) error {
	var source *storage.SourceError
	var digest *storage.DigestError
	if errors.As(err, &source) || errors.As(err, &digest) {
		return fault.New(fault.ReadFailed, err, "a scratch file could not be read back as it was written")
	}
	return err
}

func faultOf(err error) error {
	var f *derive.Fault
	if !errors.As(err, &f) {
		return err
	}
	e := fault.New(fault.Code(f.Code), err, "%s", f.Message)
	e.Detail = f.Stderr
	return e
}

func technical(t derive.Technical) event.Technical {
	return event.Technical{
		Format: t.Format, Width: t.Width, Height: t.Height, BitsPerSample: t.BitsPerSample, Samples: t.Samples, ColourSpace: t.ColourSpace,
		Compression: t.Compression, ICCName: t.ICCName, XResolution: t.XResolution, YResolution: t.YResolution, Unit: string(t.Unit),
		Pages: t.Pages, Orientation: t.Orientation, Make: t.Make, Model: t.Model, Software: t.Software, DateTime: t.DateTime,
	}
}

func (m *maker) Fact(_ *event.FrameFixed, out made, w event.Work) event.Fact {
	w.Schema, w.Helpers = event.SchemaDerivative, out.Helpers
	return event.DerivativeMade{Work: w, Derived: out.Derived}
}

func (m *maker) Tokens(in *event.FrameFixed, _ made) []string { return []string{m.Key(in).String()} }

func (m *maker) Learn(f event.Fact) ([]string, made, bool) {
	switch f := f.(type) {
	case event.ProfilePinned:
		return m.learnPin(f)
	case event.DerivativeMade:
		return []string{event.DerivativeKey(f.Derived.Profile, f.Digest).String()}, made{f.Derived, f.Helpers}, true
	}
	return nil, made{}, false
}

// Still believes a hit while the derivative is there.
func (m *maker) Still(_ context.Context, _ *event.FrameFixed, out made, _ event.Work) (bool, error) {
	for _, o := range out.Outputs {
		if there, err := m.store.Exists(o.Key); err != nil || !there {
			return false, err
		}
	}
	return len(out.Outputs) > 0, nil
}

func (m *maker) Finish(context.Context, *event.FrameFixed, made) error { return nil }

// Probe: a log that holds another recipe halts the consumer before it takes
// anything, and for as long as this build runs.
func (m *maker) Probe(_ context.Context, deep bool) error {
	if err := derive.Probe(m.recipe); err != nil {
		return faultOf(err)
	}
	if _, err := m.pinHeld(); err != nil {
		return err
	}
	err := m.store.CheckSpace()
	if err == nil && deep {
		err = m.store.Check()
	}
	if err != nil {
		return fault.Of(err)
	}
	return nil
}
