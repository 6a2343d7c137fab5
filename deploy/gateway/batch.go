package gateway

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"colophon/shared/event"
)

// batch is one subfolder of a hot folder.
type batch struct {
	h    *HotFolder
	name string
	id   event.Name
	dir  string

	looks map[string]seen    // files as they were, and since when
	set   int                // masters at the last look
	since time.Time          // of the last change to the folder
	sent  map[string]journal // masters that were published
	count int                // declared by this process

	held    string // why nothing is published
	waiting int    // masters not published
	under   int    // masters published, and not moved
	failed  int    // of them, frames that need a decision
}

type seen struct {
	event.SourceStat
	since time.Time
}

// journal is one published master.
type journal struct {
	Frame    event.Name       `json:"frame"`
	Sequence int              `json:"sequence"`
	Digest   event.Digest     `json:"digest"` // that was declared
	Stat     event.SourceStat `json:"stat"`
}

func (h *HotFolder) open(name string) (*batch, error) {
	b := &batch{h: h, name: name, id: event.Name(name), dir: filepath.Join(h.Dir, name), looks: map[string]seen{}, sent: map[string]journal{}, since: time.Now()}
	if err := event.ValidateBatch(b.id); err != nil {
		return nil, fmt.Errorf("gateway: subfolder %q: %w", name, err)
	}
	data, err := os.ReadFile(b.journal())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("gateway: journal: %w", err)
	}
	for s := bufio.NewScanner(bytes.NewReader(data)); s.Scan(); {
		var j journal
		if json.Unmarshal(s.Bytes(), &j) == nil && j.Frame != "" { // a torn last line is not there
			b.sent[string(j.Frame)] = j
		}
	}
	return b, nil
}

func (b *batch) journal() string { return filepath.Join(b.h.Journal, b.id.Encode()+".jsonl") }

// note writes down what was published. What is lost of it is published again,
// under the same id.
func (b *batch) note(j journal) {
	b.sent[string(j.Frame)] = j
	data, err := json.Marshal(j)
	if err == nil {
		var f *os.File
		if f, err = os.OpenFile(b.journal(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600); err == nil {
			_, err = f.Write(append(data, '\n'))
			err = errors.Join(err, f.Close())
		}
	}
	if err != nil {
		b.h.Log.Warn("journal_not_written", slog.String("batch_id", b.id.Display()), slog.Any("error", err))
	}
}

// forget drops the journal of a folder that is gone.
func (b *batch) forget() error {
	if err := os.Remove(b.journal()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("gateway: journal: %w", err)
	}
	return nil
}

// hold says once why a batch waits for somebody.
func (b *batch) hold(wrong error) {
	why := ""
	if wrong != nil {
		why = wrong.Error()
	}
	if why != "" && why != b.held {
		b.h.Log.Error("batch_held", slog.String("batch_id", b.id.Display()), slog.String("reason", why))
	}
	b.held = why
}

// look does what can be done for the batch now.
func (b *batch) look(ctx context.Context) error {
	l, err := b.h.list(b.dir)
	if err != nil {
		return err
	}
	b.compare(l)
	known, err := b.h.Gateway.Known(ctx, b.id)
	away := errors.Is(err, ErrAway)
	if err != nil && !away {
		return err
	}
	err = nil // what can be said without the line is said
	sums, whole, wrong := b.whole(l)
	if whole && wrong == nil {
		wrong, err = b.publish(ctx, l, known, sums)
	}
	b.hold(wrong)
	b.tally(l, known)
	if away || err != nil {
		return err
	}
	return b.collect(l, known)
}

// compare notes what changed since the last look.
func (b *batch) compare(l listing) {
	now := time.Now()
	looks := map[string]seen{}
	for rel, st := range l.stats {
		s, ok := b.looks[rel]
		if !ok || !s.Same(st) {
			s = seen{st, now}
			b.since = now
		}
		looks[rel] = s
	}
	if len(l.masters) > b.set {
		b.since = now
	}
	b.looks, b.set = looks, len(l.masters)
}

// quiet reports whether a file was left alone for the settle time.
func (b *batch) quiet(rel string) bool { return time.Since(b.looks[rel].since) >= b.h.Settle }

// whole reports whether the batch is complete, as far as can be told: by the
// vendor's lists, by the sentinel, or because nobody touched it for a while. An
// error is something that a person must look at.
func (b *batch) whole(l listing) (map[string]checksum, bool, error) {
	if len(l.masters) == 0 {
		return nil, false, nil
	}
	if len(l.lists) > 0 {
		return b.listed(l)
	}
	if b.h.Sentinel != "" {
		return nil, l.sentinel != nil, nil
	}
	return nil, time.Since(b.since) >= b.h.Settle, nil
}

// listed holds the folder against its lists. Until it was left alone, whatever
// is missing may still come.
func (b *batch) listed(l listing) (map[string]checksum, bool, error) {
	sums := map[string]checksum{}
	var errs []error
	for _, list := range l.lists {
		data, err := readUpTo(filepath.Join(b.dir, list), maxList)
		if err == nil {
			var more map[string]checksum
			more, err = readList(list, data)
			for name, c := range more {
				if before, twice := sums[name]; !twice || before.Algorithm == "md5" {
					sums[name] = c
				}
			}
		}
		errs = append(errs, err)
	}
	verified, missing := 0, 0
	for _, m := range l.masters {
		if _, ok := sums[m]; ok {
			verified++
		} else if !b.h.Partial {
			errs = append(errs, fmt.Errorf("%q is on no list", m))
		}
	}
	for name := range sums {
		if _, ok := l.stats[name]; !ok {
			if _, sent := b.sent[name]; !sent { // or moved already
				missing++
				errs = append(errs, fmt.Errorf("%q is on the list, and not there", name))
			}
		}
	}
	if verified == 0 {
		errs = append(errs, errors.New("the lists name not one of the masters that are there"))
	}
	if err := short(errs); err != nil {
		if time.Since(b.since) < b.h.Settle {
			err = nil
		}
		return nil, false, err
	}
	return sums, true, nil
}

// short joins errors, the first few of them.
func short(errs []error) error {
	all := make([]error, 0, len(errs))
	for _, e := range errs {
		if e != nil {
			all = append(all, e)
		}
	}
	if n := len(all); n > 5 {
		all = append(all[:5], fmt.Errorf("and %d more", n-5))
	}
	return errors.Join(all...)
}

// publish declares the batch and sends each master that was not sent as it is;
// wrong is what a person must look at.
func (b *batch) publish(ctx context.Context, l listing, known Known, sums map[string]checksum) (wrong, err error) {
	if err := b.declare(ctx, l, known); err != nil {
		return nil, err
	}
	next := 0
	for _, f := range known.Frames {
		next = max(next, f.Sequence)
	}
	for _, j := range b.sent {
		next = max(next, j.Sequence)
	}
	var errs []error
	for _, rel := range l.masters {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		j, sent := b.sent[rel]
		if sent && j.Stat.Same(l.stats[rel]) {
			continue
		}
		sequence := j.Sequence // it keeps its place
		if f, ok := known.Frames[event.Name(rel)]; !sent && ok {
			sequence = f.Sequence
		}
		if sequence == 0 { // the first listing gives natural order; what comes late, the end
			next++
			sequence = next
		}
		if err := b.send(ctx, rel, sequence, known, l, sums); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", rel, err))
		}
	}
	return short(errs), nil
}

// declare says how many frames there are, where that is news: those that are
// there, those published and those known. A file that is gone does not shrink
// the batch.
func (b *batch) declare(ctx context.Context, l listing, known Known) error {
	all := map[event.Name]bool{}
	for f := range known.Frames {
		all[f] = true
	}
	for f := range b.sent {
		all[event.Name(f)] = true
	}
	for _, m := range l.masters {
		all[event.Name(m)] = true
	}
	count := max(len(all), known.Count)
	if known.Known && known.Count == count || !known.Known && b.count == count {
		return nil
	}
	d := event.BatchDeclaration{Batch: b.id, Count: count, Order: event.OrderNatural, Operator: b.h.Operator}
	if b.h.Device != "" {
		d.Devices = []string{b.h.Device}
	}
	if known.Known { // policy and profiles are pinned
		d.Order, d.Profiles, d.Devices, d.Follows = known.Order, known.Profiles, nil, &known.Number
	} else {
		d.Policy, d.Profiles = b.h.Policy, b.h.Profiles
	}
	if err := b.h.Gateway.Declare(ctx, d, known.Declarations()); err != nil {
		return err
	}
	b.count = count
	return nil
}

// send publishes one master. Its digest is of what was read, and the line
// compares; a vendor's SHA-256 goes out as the vendor's, also where the file
// does not have it: then the line keeps the evidence.
func (b *batch) send(ctx context.Context, rel string, sequence int, known Known, l listing, sums map[string]checksum) error {
	st := l.stats[rel]
	if _, ok := sums[rel]; !ok && !b.quiet(rel) && (l.sentinel == nil || st.Change.After(l.sentinel.Change)) {
		return nil // only time, or the sentinel behind it, tells that it is whole
	}
	path := filepath.Join(b.dir, rel)
	m5, s256, now, err := digests(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // renamed meanwhile
	}
	if err == nil && !now.Same(st) {
		err = errBusy
	}
	if errors.Is(err, errBusy) { // it is looked at anew
		delete(b.looks, rel)
		return nil
	}
	if err != nil {
		return err
	}
	digest, by := event.Digest(hex.EncodeToString(s256)), b.h.Gateway.Name
	if c, ok := sums[rel]; ok {
		by = "vendor's list " + filepath.Base(c.List)
		if !c.matches(m5, s256) {
			switch {
			case !b.quiet(rel):
				return nil // may still be written to
			case c.Algorithm == "md5":
				return fmt.Errorf("its MD5 is %x, and %s in %s", m5, c.Hex, c.List)
			}
			digest = event.Digest(c.Hex)
		}
	}
	j := journal{event.Name(rel), sequence, digest, st}
	pass := 1
	if f, ok := known.Frames[event.Name(rel)]; ok {
		pass = max(1, f.Pass)
		if f.Pinned == digest || f.Digest == digest && f.State == event.StatePending { // the line has these bytes
			b.note(j)
			return nil
		}
		if f.State == event.StateFailed {
			pass = f.Pass + 1
		}
	}
	size := st.Size
	m := event.FrameMessage{
		Slot: event.Slot{Batch: b.id, Frame: event.Name(rel)}, Sequence: sequence, Sources: []string{fileURI(path)}, Size: &size, SHA256: digest, DeclaredBy: by,
		Pass: pass, Device: b.h.Device, Operator: b.h.Operator, ScannedAt: st.ModTime, Acquisition: map[string]string{"protocol": "hot-folder"},
	}
	if err := b.h.Gateway.Frame(ctx, m); err != nil {
		return err
	}
	b.note(j)
	return nil
}
