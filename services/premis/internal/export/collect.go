package export

import (
	"context"
	"errors"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"colophon/shared/event"

	"colophon/services/premis/internal/ledger"
	"colophon/services/premis/internal/premisxml"
	"colophon/services/premis/internal/record"
)

// collector gathers what one document holds: the numbers of its events, and
// its objects. Whatever an event links to is taken along.
type collector struct {
	x       *Exporter
	numbers map[int64]bool
	known   map[string]bool // identifiers of the events
	files   map[event.Digest]*premisxml.File
	order   []event.Digest
	slots   map[event.Slot]bool
	batches map[event.Name]bool
	frames  int // of the batch, taken so far
}

func (x *Exporter) collect() *collector {
	return &collector{
		x: x, numbers: map[int64]bool{}, known: map[string]bool{}, files: map[event.Digest]*premisxml.File{},
		slots: map[event.Slot]bool{}, batches: map[event.Name]bool{},
	}
}

func (c *collector) empty() bool { return len(c.numbers) == 0 }

func (c *collector) size() int { return len(c.numbers) }

func (c *collector) fresh(numbers []int64) int {
	n := 0
	for _, m := range numbers {
		if !c.numbers[m] {
			n++
		}
	}
	return n
}

func (c *collector) addAll(numbers []int64) error {
	for _, n := range numbers {
		if err := c.add(n); err != nil {
			return err
		}
	}
	return nil
}

// add takes a record into the document. Records that are no PREMIS events
// stay out.
func (c *collector) add(n int64) error {
	if c.numbers[n] {
		return nil
	}
	r, err := c.x.view.Get(n)
	if err != nil {
		return err
	}
	if r.Type == record.Operational {
		return nil
	}
	c.numbers[n] = true
	c.known[c.x.space.Event(r.Name)] = true
	if r.Slot != nil {
		if err := c.place(r.Record); err != nil {
			return err
		}
	}
	for _, d := range r.Files() {
		if err := c.file(d); err != nil {
			return err
		}
	}
	c.learn(r.Record)
	return nil
}

// place takes a record's frame and batch along where it links to them.
func (c *collector) place(r *record.Record) error {
	for _, o := range r.Objects {
		if o.Kind == record.KindFile {
			continue
		}
		s, err := r.Slot.Event()
		if err != nil {
			return err
		}
		c.batches[s.Batch] = true
		if o.Kind == record.KindFrame {
			c.slots[s] = true
		}
	}
	return nil
}

// file takes a file along; what is known of it stands in the record of its
// digest's calculation, its first name in that of its capture.
func (c *collector) file(d event.Digest) error {
	if c.files[d] != nil {
		return nil
	}
	f := &premisxml.File{Digest: d, Size: -1}
	c.files[d], c.order = f, append(c.order, d)
	r, found, err := c.x.view.ByName(record.Name(record.MessageDigest, "", d))
	if err != nil {
		return err
	}
	if found && r.Data.File != nil {
		f.Size, f.Format, f.Originator, f.Application = r.Data.File.Size, r.Data.File.Format, r.Data.File.Originator, r.Data.File.Application
		f.Keys = keys(f.Keys, r.Data.File.Key)
	}
	first, found, err := c.x.view.ByName(record.Name(record.Capture, "", d))
	if err != nil || !found || first.Slot == nil {
		return err
	}
	s, err := first.Slot.Event()
	f.OriginalName = premisxml.Readable(s.Frame)
	return err
}

func keys(have []string, key string) []string {
	if key == "" || slices.Contains(have, key) {
		return have
	}
	return append(have, key)
}

// learn takes from a record what it says of files beyond its links.
func (c *collector) learn(r *record.Record) {
	if t := r.Data.Technical; t != nil && c.files[r.Digest] != nil && c.files[r.Digest].Application == nil {
		c.files[r.Digest].Application = application(t)
	}
	if r.Type != record.Migration.Label || r.Data.Derivation == nil {
		return
	}
	for _, o := range r.Data.Derivation.Outputs {
		if f := c.files[o.Digest]; f != nil {
			f.Keys = keys(f.Keys, o.Key)
		}
	}
	id := c.x.space.Event(r.Name)
	master := c.files[r.Digest]
	for _, o := range r.Objects {
		if o.Kind != record.KindFile || o.Role != record.Outcome || master == nil {
			continue
		}
		made := c.files[o.Digest]
		master.Relations = append(master.Relations, premisxml.Relation{Kind: premisxml.IsSourceOf, Object: c.x.space.File(o.Digest), Event: id})
		made.Relations = append(made.Relations, premisxml.Relation{Kind: premisxml.HasSource, Object: c.x.space.File(r.Digest), Event: id})
	}
}

// application is the program that made a master, as the master says itself.
func application(t *event.Technical) *record.Application {
	name := t.Software
	if name == "" {
		name = strings.TrimSpace(t.Make + " " + t.Model)
	}
	if name == "" {
		return nil
	}
	return &record.Application{Name: name, Date: date(t.DateTime)}
}

// date reads the day from TIFF's "2025:11:24 08:02:15".
func date(s string) string {
	if len(s) < 10 || s[4] != ':' || s[7] != ':' {
		return ""
	}
	day := s[:4] + "-" + s[5:7] + "-" + s[8:10]
	if t, err := time.Parse(time.DateOnly, day); err != nil || t.Year() == 0 { // scanners write 0000:00:00
		return ""
	}
	return day
}

// document closes the collection.
func (c *collector) document(ctx context.Context) (premisxml.Document, error) {
	d := premisxml.Document{Origin: c.x.origin, Known: c.known}
	frames, err := c.frameObjects()
	if err != nil {
		return d, err
	}
	d.Frames = frames
	for _, digest := range c.order {
		d.Files = append(d.Files, c.files[digest])
	}
	d.Batches = slices.Sorted(maps.Keys(c.batches))
	d.Events = c.events(ctx)
	return d, nil
}

// frameObjects are the frames, in the order of their batches, and the
// relations between them and the files that represent them.
func (c *collector) frameObjects() ([]premisxml.Frame, error) {
	var out []premisxml.Frame
	for s := range c.slots {
		held, err := c.x.view.Slot(s.Batch.Encode(), s.Frame.Encode())
		if err != nil {
			return nil, err
		}
		f := premisxml.Frame{Slot: s}
		if held != nil {
			f.Sequence = held.Sequence
			if c.files[held.Digest] != nil {
				f.File = held.Digest
			}
		}
		c.batches[s.Batch] = true
		out = append(out, f)
	}
	slices.SortFunc(out, func(a, b premisxml.Frame) int {
		if n := strings.Compare(string(a.Slot.Batch), string(b.Slot.Batch)); n != 0 {
			return n
		}
		if a.Sequence != b.Sequence {
			return a.Sequence - b.Sequence
		}
		return strings.Compare(string(a.Slot.Frame), string(b.Slot.Frame))
	})
	for _, f := range out {
		if file := c.files[f.File]; file != nil {
			file.Relations = append(file.Relations, premisxml.Relation{Kind: premisxml.Represents, Object: c.x.space.Frame(f.Slot)})
		}
	}
	return out, nil
}

// events reads the events again, one at a time.
func (c *collector) events(ctx context.Context) iter.Seq2[premisxml.Event, error] {
	numbers := slices.Sorted(maps.Keys(c.numbers))
	return func(yield func(premisxml.Event, error) bool) {
		for _, n := range numbers {
			r, err := c.x.view.Get(n)
			if err = errors.Join(err, ctx.Err()); err != nil {
				yield(premisxml.Event{}, err)
				return
			}
			if !yield(premisxml.Event{Record: r.Record, Number: n, LeafHash: ledger.LeafHash(r.Bytes)}, nil) {
				return
			}
		}
	}
}
