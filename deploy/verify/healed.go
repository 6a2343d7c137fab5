package verify

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"colophon/shared/event"
)

// healing is what the log tells of its own losses. Services that find the log
// rolled back or with a hole tell it again what it lacks, each by itself and all
// at once: the ledger keeps the order and the places of the log that is gone. It
// is then held against the log by the set of its names and their contents, and
// no longer by order and place.
type healing struct {
	by    string    // the first fact that tells of a loss; empty: none does
	holes []stretch // told
	gaps  []stretch // met
	moved int       // records that speak of another place in the log
}

// stretch is a run of sequences, both ends counted.
type stretch struct{ first, last uint64 }

// healed reports whether order and place say nothing any more.
func (j *judge) healed() bool { return j.healing.by != "" }

// loss takes a fact that tells of a loss of INGEST; other streams have no order
// that the ledger could keep.
func (h *healing) loss(f event.OpFact, m message) {
	stream := f.Detail["stream"]
	switch f.Kind {
	case event.OpRolledBack:
		if stream != "" && stream != event.StreamIngest {
			return
		}
	case event.OpHole:
		first, errFirst := strconv.ParseUint(f.Detail["first"], 10, 64)
		last, errLast := strconv.ParseUint(f.Detail["last"], 10, 64)
		if stream != event.StreamIngest || errFirst != nil || errLast != nil || last < first {
			return
		}
		h.holes = append(h.holes, stretch{first, last})
	default:
		return
	}
	h.by = cmp.Or(h.by, logObject(m))
}

// told reports whether facts tell of each sequence of a gap.
func (h *healing) told(gap stretch) bool {
	next := gap.first
	for _, hole := range h.holes {
		if hole.first <= next && next <= hole.last {
			next = hole.last + 1
		}
	}
	return next > gap.last
}

// judgeGaps reports what the log lacks. Of a hole that was told and healed
// nothing is lost: what it held stands again behind it, else the events that it
// gave are reported where names are judged.
func (j *judge) judgeGaps() {
	h := &j.healing
	slices.SortFunc(h.holes, func(a, b stretch) int { return cmp.Compare(a.first, b.first) })
	for _, g := range h.gaps {
		object, text := fmt.Sprintf("INGEST %d", g.first), "the message is missing or cannot be read"
		if g.last > g.first {
			text = fmt.Sprintf("%d messages, up to %d, are missing or cannot be read", g.last-g.first+1, g.last)
		}
		if h.told(g) {
			j.out.note("log-hole", object, "%s; a fact tells so", text)
			continue
		}
		j.out.damage("log-gap", object, "%s", text)
	}
}

// early is a fact that stands before the one it rests on.
type early struct {
	Master  event.Digest `json:"m,omitempty"`
	Profile string       `json:"p,omitempty"`
	Recipe  event.Digest `json:"d,omitempty"`
	Object  string       `json:"o"`
}

// later has a fact judged at the log's end: services that tell a log again do
// so at the same time, so that a derivative may come before its master.
func (r *logReader) later(e early, m message) error {
	e.Object = logObject(m)
	return r.mem.setJSON(memEarly, number(int64(m.seq)), e) //nolint:gosec // far below
}

// unpinned takes a recipe that no fact has pinned yet, once for a profile.
func (r *logReader) unpinned(profile string, d event.Digest, m message) error {
	key := "recipe/" + profile
	var first early
	known, err := r.mem.getJSON(memEarly, key, &first)
	if err != nil || known && first.Recipe == d {
		return err
	}
	if known {
		r.out.damage("recipe", logObject(m), "profile %s has recipe %s here and %s in %s", profile, d, first.Recipe, first.Object)
		return nil
	}
	return r.mem.setJSON(memEarly, key, early{Profile: profile, Recipe: d, Object: logObject(m)})
}

// judgeEarly judges the facts that came before what they rest on.
func (r *logReader) judgeEarly() error {
	for p, err := range r.mem.each(memEarly, "") {
		if err != nil {
			return err
		}
		var e early
		if err := json.Unmarshal(p.value, &e); err != nil {
			return fmt.Errorf("scratch: %w", err)
		}
		kind, key := memMaster, string(e.Master)
		if e.Profile != "" {
			kind, key = memRecipe, e.Profile
		}
		there, err := r.mem.get(kind, key)
		switch {
		case err != nil:
			return err
		case e.Profile == "" && there == nil:
			r.out.damage("derivative-master", e.Object, "made from master %s, which no fact has fixed", e.Master)
		case e.Profile != "" && there == nil:
			r.out.drift("recipe", e.Object, "profile %s is pinned nowhere", e.Profile)
		case e.Profile != "" && event.Digest(there) != e.Recipe:
			r.out.damage("recipe", e.Object, "profile %s has recipe %s here and is pinned as %s", e.Profile, e.Recipe, there)
		}
	}
	return nil
}

// otherFrame reports whether a warning about content is told of another of the
// frames that hold it: of which is a matter of the log's order.
func (m *merge) otherFrame() (bool, error) {
	base, _, ok := strings.Cut(m.name, "@")
	if !ok || !m.j.healed() {
		return false, nil
	}
	warned, err := m.j.mem.has(memWarned, base)
	if err != nil || !warned {
		return false, err
	}
	n := 0
	for _, err := range m.j.mem.each(memRecord, base+"@") {
		if err != nil {
			return false, err
		}
		n++
	}
	return n == 1, nil
}

// judgeHealing says by what the ledger was held against the log.
func (j *judge) judgeHealing() {
	if j.ledger != nil && j.healed() {
		j.out.note("log-healed", j.healing.by, "the log lost messages, and was told again: the ledger is held against it by the set of events and their contents, not by their order; %d records speak of a place in the log that is gone", j.healing.moved)
	}
}
