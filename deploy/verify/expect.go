package verify

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"colophon/shared/event"
)

// expecter is the mapping of MAPPING section 3, written a second time: from
// the log alone it says which events the ledger must hold, no more and no
// less, and what their material fields are.
type expecter struct {
	mem *scratch
	m   message
}

// expectation is an event that must be in the ledger.
type expectation struct {
	Seq      uint64    `json:"s"` // of the fact that tells it first
	Stored   time.Time `json:"t"`
	MsgID    string    `json:"i"`
	Material material  `json:"m"`
	Lost     bool      `json:"l,omitempty"` // an attempt that was reported lost
}

// held is the highest revision of a slot that was accessioned.
type held struct {
	Revision int          `json:"r"`
	Digest   event.Digest `json:"d"`
}

// fact takes one fact, in log order.
func (x *expecter) fact(f event.Fact, m message) error {
	x.m = m
	switch f := f.(type) {
	case event.BatchFact:
		return x.batch(f)
	case event.FrameCaptured:
		return x.completion(event.Capture, f.Work)
	case event.FrameFixed:
		return x.fixed(f)
	case event.DerivativeMade:
		return x.derived(f)
	case event.AttemptFailed:
		return x.failed(f)
	case event.CaseFact:
		return x.decided(f)
	case event.ProfilePinned:
		return x.add("op:"+f.MsgID(), material{Digest: f.Digest.Content()})
	}
	if o, ok := f.(event.OpFact); ok {
		return x.operational(o)
	}
	return x.op(f.MsgID())
}

// op expects a record of something that is no event about an object.
func (x *expecter) op(id string) error {
	return x.add("op:"+strings.TrimPrefix(id, "op:"), material{})
}

// unreadable expects the record of a message that is no fact.
func (x *expecter) unreadable(m message) error {
	x.m = m
	return x.op(fmt.Sprintf("unreadable:%x", sha256.Sum256(m.data)))
}

func (x *expecter) add(name string, m material) error { return x.addLost(name, m, false) }

// addLost expects an event once. A second telling with other material fields
// is a conflict, which the ledger must have recorded.
func (x *expecter) addLost(name string, m material, lost bool) error {
	first, known, err := x.find(name)
	if err != nil {
		return err
	}
	if !known {
		return x.mem.setJSON(memName, name, expectation{x.m.seq, x.m.stored, x.m.id, m, lost})
	}
	if first.Material.equal(m, true) {
		return nil
	}
	return x.mem.set(memOther, name+"\x00"+m.hash(), []byte(first.Material.differs(m)))
}

func (x *expecter) find(name string) (e expectation, known bool, err error) {
	data, err := x.mem.get(memName, name)
	if err != nil || data == nil {
		return e, false, err
	}
	return e, true, json.Unmarshal(data, &e)
}

func (x *expecter) has(name string) (bool, error) { return x.mem.has(memName, name) }

func (x *expecter) batch(f event.BatchFact) error {
	s := event.Slot{Batch: f.Batch}
	switch f.State {
	case "opened":
		if err := x.add(eventName(tIngestionStart, "", "")+at(s), succeeded); err != nil {
			return err
		}
		return x.add(eventName(tPolicyAssignment, "", "")+at(s), material{Outcome: success, Digest: sha(f.Policy)})
	case "converged":
		name := eventName(tIngestionEnd, "", "") + at(s)
		if f.Number > 1 {
			name += pass(f.Number)
		}
		return x.add(name, succeeded)
	}
	return x.op(f.MsgID())
}

// fixed: capture, digest, declared digest, format and accession; and what the
// new revision took the place of.
func (x *expecter) fixed(f event.FrameFixed) error {
	if err := x.completion(event.Fixity, f.Work); err != nil {
		return err
	}
	d := f.Digest
	type expected struct {
		name string
		m    material
	}
	events := []expected{
		{eventName(tCapture, "", d), material{Outcome: success, Digest: d}},
		{eventName(tDigest, "", d), material{Outcome: success, Digest: d, Size: f.Fixed.Size}},
	}
	if declared := f.Captured.Declared.Content(); declared == d {
		events = append(events, expected{eventName(tFixityCheck, "", d), material{Outcome: success, Digest: d, Declared: d}})
	} else if declared != "" {
		events = append(events, expected{eventName(tFixityCheck, "", d) + at(f.Slot) + pass(f.Pass), material{Outcome: fail, Digest: d, Declared: declared}})
	}
	for _, e := range events {
		if err := x.add(e.name, e.m); err != nil {
			return err
		}
	}
	if err := x.identified(f); err != nil {
		return err
	}
	if err := x.accessioned(f); err != nil {
		return err
	}
	c, err := x.content(f.Slot, d)
	if err != nil {
		return err
	}
	return x.ingested(d, c.wanted())
}

// identified: an unknown format is a warning, told once for a content.
func (x *expecter) identified(f event.FrameFixed) error {
	name := eventName(tIdentification, "", f.Digest)
	puid := f.Fixed.Format.PUID
	if puid != "" && !strings.EqualFold(puid, "UNKNOWN") {
		return x.add(name, material{Outcome: success, PUID: puid})
	}
	return x.warn(name, at(f.Slot)+pass(f.Pass), material{Outcome: warning, PUID: "UNKNOWN"})
}

// warn expects a warning about content, from the first of its slots only.
func (x *expecter) warn(name, qualifier string, m material) error {
	told, err := x.mem.has(memWarned, name)
	if err != nil || told {
		return err
	}
	if err := x.add(name+qualifier, m); err != nil {
		return err
	}
	return x.mem.set(memWarned, name, nil)
}

func (x *expecter) accessioned(f event.FrameFixed) error {
	was, err := x.held(f.Slot)
	if err != nil {
		return err
	}
	name := eventName(tAccession, "", f.Digest) + at(f.Slot)
	if f.Revision > 1 {
		name += revision(f.Revision)
	}
	known, err := x.has(name)
	if err != nil {
		return err
	}
	if err := x.add(name, succeeded); err != nil {
		return err
	}
	if was.Digest.Valid() && was.Digest != f.Digest && was.Revision < f.Revision {
		gone := eventName(tDeaccession, "", was.Digest) + at(f.Slot) + revision(f.Revision)
		if err := x.add(gone, material{Outcome: success, Digest: f.Digest}); err != nil {
			return err
		}
	}
	if known {
		return nil
	}
	if now := max(f.Revision, 1); now >= was.Revision {
		if err := x.mem.setJSON(memHeld, f.Slot.String(), held{now, f.Digest}); err != nil {
			return err
		}
	}
	return x.holds(f.Slot, f.Digest, f.Profiles)
}

func (x *expecter) held(s event.Slot) (h held, err error) {
	_, err = x.mem.getJSON(memHeld, s.String(), &h)
	return h, err
}
