package verify

import (
	"slices"

	"colophon/shared/event"
)

// content is what a slot wants of one content that it holds or held.
type content struct {
	Held     bool     `json:"h,omitempty"` // accessioned
	Profiles []string `json:"p,omitempty"` // as its first accession says
	Waived   []string `json:"w,omitempty"` // discarded by decision
}

// wanted are the profiles left to be made, sorted, each once.
func (c content) wanted() []string {
	out := []string{}
	for _, p := range c.Profiles {
		if !slices.Contains(c.Waived, p) {
			out = append(out, p)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func contentKey(s event.Slot, d event.Digest) string { return s.String() + "/" + string(d) }

func (x *expecter) content(s event.Slot, d event.Digest) (c content, err error) {
	_, err = x.mem.getJSON(memWanted, contentKey(s, d), &c)
	return c, err
}

// holds notes that a slot's content was accessioned.
func (x *expecter) holds(s event.Slot, d event.Digest, profiles []string) error {
	c, err := x.content(s, d)
	if err != nil || c.Held {
		return err
	}
	c.Held, c.Profiles = true, profiles
	return x.want(s, d, c)
}

// want keeps what a slot wants of a content, and adds it to what is enough for
// the content.
func (x *expecter) want(s event.Slot, d event.Digest, c content) error {
	if err := x.mem.setJSON(memWanted, contentKey(s, d), c); err != nil || !c.Held {
		return err
	}
	var sets [][]string
	if _, err := x.mem.getJSON(memEnough, string(d), &sets); err != nil {
		return err
	}
	wanted := c.wanted()
	if slices.ContainsFunc(sets, func(set []string) bool { return slices.Equal(set, wanted) }) {
		return nil
	}
	return x.mem.setJSON(memEnough, string(d), append(sets, wanted))
}

// waived: a derivative that a slot does not wait for any more may have been
// the last of its content. known tells that the decision was there already.
func (x *expecter) waived(f event.CaseFact, known bool) error {
	profile, derivative := f.Operation.Profile()
	d := f.Digest.Content()
	if !derivative {
		return nil
	}
	c, err := x.content(f.Slot, d)
	if err != nil {
		return err
	}
	if !slices.Contains(c.Waived, profile) {
		c.Waived = append(c.Waived, profile)
		if !known {
			if err := x.want(f.Slot, d, c); err != nil {
				return err
			}
		}
	}
	if d == "" || !c.Held {
		return nil
	}
	return x.ingested(d, c.wanted())
}

// ingested: a content is ingested as soon as some slot that holds it lacks
// nothing: each profile of one of the sets is made.
func (x *expecter) ingested(d event.Digest, sets ...[]string) error {
	for _, set := range sets {
		complete := true
		for _, p := range set {
			made, err := x.has(eventName(tMigration, string(event.Derivative(p)), d))
			if err != nil {
				return err
			}
			complete = complete && made
		}
		if complete {
			return x.add(eventName(tIngestion, "", d), succeeded)
		}
	}
	return nil
}
