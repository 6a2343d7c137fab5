package verify

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"

	"colophon/shared/event"
	"colophon/shared/storage"
)

// stored is a file that facts say is there.
type stored struct {
	Digest event.Digest `json:"d"`           // of its bytes
	Size   int64        `json:"n"`           // bytes
	Key    string       `json:"k,omitempty"` // of a master; a derivative's is the entry's own
	Slot   event.Slot   `json:"s"`           // that named it first
	Master event.Digest `json:"m,omitempty"` // of a derivative
	Seq    uint64       `json:"q"`           // of the fact
}

// agrees judges a fact against those before it.
func (r *logReader) agrees(f event.Fact, m message) error {
	switch f := f.(type) {
	case event.BatchFact:
		return r.batchAgrees(f, m)
	case event.ProfilePinned:
		return r.recipe(f.Name, f.Digest, m, true)
	case event.FrameCaptured:
		return r.capturedAgrees(f, m)
	case event.FrameFixed:
		return r.fixedAgrees(f, m)
	case event.DerivativeMade:
		return r.derivedAgrees(f, m)
	case event.CaseFact:
		return r.caseAgrees(f)
	}
	return nil
}

func sha(data []byte) event.Digest {
	sum := sha256.Sum256(data)
	return event.Digest(hex.EncodeToString(sum[:]))
}

func (r *logReader) batchAgrees(f event.BatchFact, m message) error {
	if len(f.Policy) > 0 && f.PolicyDigest != sha(f.Policy) {
		r.out.drift("policy-digest", logObject(m), "the policy's digest is %s, the fact says %s", sha(f.Policy), f.PolicyDigest)
	}
	b, err := r.slots.batch(f.Batch)
	if err != nil {
		return err
	}
	what, want, states := "declaration", b.Declarations, []string{"opened", "changed"}
	if f.State == "converged" {
		what, want, states = "convergence", b.Convergence+1, []string{"converged"}
	}
	if f.Number > want {
		r.out.damage(what+"-number", logObject(m), "number %d where number %d comes next", f.Number, want)
	}
	if !slices.Contains(states, f.State) || f.State == "opened" && f.Number != 0 {
		r.out.damage("batch-state", logObject(m), "state %q with number %d", f.State, f.Number)
	}
	return nil
}

// recipe: a profile's recipe is pinned for good.
func (r *logReader) recipe(profile string, d event.Digest, m message, pins bool) error {
	was, err := r.mem.get(memRecipe, profile)
	if err != nil {
		return err
	}
	switch {
	case was != nil && event.Digest(was) != d:
		r.out.damage("recipe", logObject(m), "profile %s has recipe %s here and is pinned as %s", profile, d, was)
	case was == nil && pins:
		return r.mem.set(memRecipe, profile, []byte(d))
	case was == nil:
		return r.unpinned(profile, d, m)
	}
	return nil
}

// pinned: one revision of a slot has one digest.
func (r *logReader) pinned(w event.Work, m message) error {
	key := fmt.Sprintf("%s#%d", w.Slot, w.Revision)
	was, err := r.mem.get(memRevision, key)
	if err != nil || was == nil {
		return errorOr(err, func() error { return r.mem.set(memRevision, key, []byte(w.Digest)) })
	}
	if event.Digest(was) != w.Digest {
		r.out.damage("slot-digest", logObject(m), "revision %d of the slot has digest %s here and %s in a fact before", w.Revision, w.Digest, was)
	}
	return nil
}

func errorOr(err error, then func() error) error {
	if err != nil {
		return err
	}
	return then()
}

func (r *logReader) capturedAgrees(f event.FrameCaptured, m message) error {
	if err := r.pinned(f.Work, m); err != nil {
		return err
	}
	if err := r.mem.set(memContent, string(f.Digest)+"/"+f.Slot.String(), nil); err != nil {
		return err
	}
	return r.mem.setJSON(memStaged, f.Staging, f.Slot)
}

func (r *logReader) fixedAgrees(f event.FrameFixed, m message) error {
	if err := r.pinned(f.Work, m); err != nil {
		return err
	}
	if f.Fixed.StoredDigest != f.Digest {
		r.out.damage("fixed-digest", logObject(m), "the stored bytes have %s, pinned is %s", f.Fixed.StoredDigest, f.Digest)
	}
	if want := storage.MasterKey(storage.Digest(f.Digest)); f.Fixed.Master != want {
		r.out.damage("fixed-key", logObject(m), "the master belongs under %q, not %q", want, f.Fixed.Master)
	}
	if f.Fixed.Size != f.Captured.Size {
		r.out.damage("fixed-size", logObject(m), "%d bytes were captured, %d are fixed", f.Captured.Size, f.Fixed.Size)
	}
	if d := f.Captured.Declared; d != "" && d != f.Digest {
		r.out.drift("fixed-declared", logObject(m), "fixed as %s though %s was declared", f.Digest, d)
	}
	var was stored
	known, err := r.mem.getJSON(memMaster, string(f.Digest), &was)
	if err != nil {
		return err
	}
	if known && was.Size != f.Fixed.Size {
		r.out.damage("fixed-size", logObject(m), "%d bytes here, %d in fact %d", f.Fixed.Size, was.Size, was.Seq)
	}
	if known {
		return nil
	}
	return r.mem.setJSON(memMaster, string(f.Digest), stored{Digest: f.Digest, Size: f.Fixed.Size, Key: f.Fixed.Master, Slot: f.Slot, Seq: m.seq})
}

func (r *logReader) derivedAgrees(f event.DerivativeMade, m message) error {
	d := f.Derived
	if fixed, err := r.mem.get(memMaster, string(f.Digest)); err != nil || fixed == nil {
		if err != nil {
			return err
		}
		if err := r.later(early{Master: f.Digest}, m); err != nil {
			return err
		}
	}
	if err := r.pinned(f.Work, m); err != nil {
		return err
	}
	if err := r.recipe(d.Profile, d.RecipeDigest, m, false); err != nil {
		return err
	}
	if len(d.Outputs) == 0 {
		r.out.damage("derivative-empty", logObject(m), "the derivative has no file")
	}
	for i, o := range d.Outputs {
		ext := ".jp2"
		if o.Format.MIME == "image/jpeg" {
			ext = ".jpg"
		}
		want := storage.DerivativeKey(d.Profile, storage.Digest(f.Digest), ext)
		if len(d.Outputs) > 1 {
			want = fmt.Sprintf("%s/%04d%s", storage.DerivativeKey(d.Profile, storage.Digest(f.Digest), ""), i+1, ext)
		}
		if o.Key != want || o.Page != i+1 {
			r.out.damage("derivative-key", logObject(m), "file %d belongs under %q as page %d, not %q as page %d", i+1, want, i+1, o.Key, o.Page)
		}
		if err := r.output(f, o, m); err != nil {
			return err
		}
	}
	return nil
}

// output: one store key has one content, whichever slot speaks of it.
func (r *logReader) output(f event.DerivativeMade, o event.Output, m message) error {
	var was stored
	known, err := r.mem.getJSON(memOutput, o.Key, &was)
	if err != nil {
		return err
	}
	if known && (was.Digest != o.Digest || was.Size != o.Size) {
		r.out.damage("derivative-digest", logObject(m), "%q is %s (%d bytes) here and %s (%d bytes) in fact %d", o.Key, o.Digest, o.Size, was.Digest, was.Size, was.Seq)
	}
	if known {
		return nil
	}
	return r.mem.setJSON(memOutput, o.Key, stored{Digest: o.Digest, Size: o.Size, Slot: f.Slot, Master: f.Digest, Seq: m.seq})
}

// caseAgrees remembers the highest pass that a case was opened for.
func (r *logReader) caseAgrees(f event.CaseFact) error {
	if f.State != event.CaseOpened {
		return nil
	}
	var pass int
	if _, err := r.mem.getJSON(memCase, f.ID, &pass); err != nil {
		return err
	}
	return r.mem.setJSON(memCase, f.ID, max(pass, f.Pass, 1))
}
