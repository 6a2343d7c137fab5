package export

import (
	"maps"
	"slices"

	"colophon/shared/event"

	"colophon/services/premis/internal/mapping"
	"colophon/services/premis/internal/record"
)

// batch takes a batch's own events: all of them, or only the policy's, to
// which every attempt refers.
func (c *collector) batch(b event.Name, all bool) error {
	for n, err := range c.x.view.ByFrame(b.Encode(), "") {
		if err != nil {
			return err
		}
		if !all {
			r, err := c.x.view.Get(n)
			if err != nil {
				return err
			}
			if r.Type != record.PolicyAssignment.Label {
				continue
			}
		}
		if err := c.add(n); err != nil {
			return err
		}
	}
	return nil
}

// frameEvents lists the numbers of a frame's events and of the events of the
// content it holds or held, in ledger order.
func (c *collector) frameEvents(batch, frame string) ([]int64, error) {
	var out []int64
	var contents []event.Digest
	profiles := map[string]bool{}
	for n, err := range c.x.view.ByFrame(batch, frame) {
		if err != nil {
			return nil, err
		}
		r, err := c.x.view.Get(n)
		if err != nil {
			return nil, err
		}
		if r.Type == record.Operational {
			continue
		}
		out = append(out, n)
		if r.Type == record.Accession.Label && !slices.Contains(contents, r.Digest) {
			contents = append(contents, r.Digest)
		}
		if r.Data.Accession != nil {
			for _, p := range r.Data.Accession.Profiles {
				profiles[p] = true
			}
		}
	}
	for _, d := range contents {
		numbers, err := c.contentEvents(d, profiles)
		if err != nil {
			return nil, err
		}
		out = append(out, numbers...)
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// contentEvents lists the events of a content by their names, whichever frame
// brought it first: a blank page that ten thousand frames hold costs each of
// them no more than any other.
func (c *collector) contentEvents(d event.Digest, profiles map[string]bool) ([]int64, error) {
	names := []string{
		record.Name(record.Capture, "", d), record.Name(record.MessageDigest, "", d), record.Name(record.FixityCheck, "", d),
		record.Name(record.FormatIdentification, "", d), record.Name(record.Ingestion, "", d),
	}
	marks := []string{mapping.Mark(record.FormatIdentification, "", d)}
	for _, t := range []record.Type{record.FixityCheck, record.Replication} {
		for name, err := range c.x.view.Names(record.Name(t, "", d) + record.Run("")) { // of runs and stores
			if err != nil {
				return nil, err
			}
			names = append(names, name)
		}
	}
	for p := range profiles {
		names = append(names, record.Name(record.Validation, p, d))
		marks = append(marks, mapping.Mark(record.Validation, p, d))
		made, err := c.migration(p, d)
		if err != nil {
			return nil, err
		}
		names = append(names, made...)
	}
	return c.find(names, marks)
}

// migration names a derivative's making and the digests of what was made.
func (c *collector) migration(profile string, d event.Digest) ([]string, error) {
	name := record.Name(record.Migration, string(event.Derivative(profile)), d)
	r, found, err := c.x.view.ByName(name)
	if err != nil || !found {
		return nil, err
	}
	out := []string{name}
	for _, o := range r.Objects {
		if o.Kind == record.KindFile && o.Role == record.Outcome {
			out = append(out, record.Name(record.MessageDigest, "", o.Digest))
		}
	}
	return out, nil
}

func (c *collector) find(names, marks []string) ([]int64, error) {
	var out []int64
	for _, name := range names {
		n, found, err := c.x.view.Number(name)
		if err != nil {
			return nil, err
		}
		if found {
			out = append(out, n)
		}
	}
	for _, mark := range marks {
		n, found, err := c.x.view.Warning(mark)
		if err != nil {
			return nil, err
		}
		if found {
			out = append(out, n)
		}
	}
	return out, nil
}

// content takes every event about a file or linking to it.
func (c *collector) content(d event.Digest) error {
	for n, err := range c.x.view.ByDigest(d) {
		if err != nil {
			return err
		}
		if err := c.add(n); err != nil {
			return err
		}
	}
	for _, f := range slices.Clone(c.order) { // the digests of what was made
		n, found, err := c.x.view.Number(record.Name(record.MessageDigest, "", f))
		if err != nil {
			return err
		}
		if found {
			if err := c.add(n); err != nil {
				return err
			}
		}
	}
	return nil
}

// around takes what happened to the frames that hold a file before it was
// hashed, and their batches' own events.
func (c *collector) around(d event.Digest) error {
	batches := map[event.Name]bool{}
	for _, s := range slices.Collect(maps.Keys(c.slots)) {
		batches[s.Batch] = true
		for n, err := range c.x.view.ByFrame(s.Batch.Encode(), s.Frame.Encode()) {
			if err != nil {
				return err
			}
			r, err := c.x.view.Get(n)
			if err != nil {
				return err
			}
			if r.Digest == "" || r.Digest == d {
				if err := c.add(n); err != nil {
					return err
				}
			}
		}
	}
	for b := range batches {
		if err := c.batch(b, true); err != nil {
			return err
		}
	}
	return nil
}
