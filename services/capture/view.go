package capture

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/nats-io/nats.go/jetstream"

	"colophon/shared/completed"
	"colophon/shared/event"
	"colophon/shared/topology"
)

// view is the batch view: a pure function of the log and of the capture
// messages, kept in Pebble so that a batch's length costs no memory. Its
// positions are stored with what they stand for; nothing in it needs a sync.
type view struct {
	db  *pebble.DB
	log *slog.Logger

	mu      sync.Mutex // one writer: the two followers take turns
	changed news       // spread after each commit
	touched map[event.Name]bool
	discard []event.CaseFact // discards whose staged bytes may go
}

// Keys of the view.
const (
	viewBatch  = "b/" // encoded batch -> batchRecord
	viewSlot   = "s/" // encoded batch / encoded frame -> event.Progress
	viewOrder  = "o/" // encoded batch / order key -> encoded frame
	viewAsked  = "q/" // encoded batch / encoded frame -> asked
	viewPos    = "p/" // stream -> position
	viewMade   = "m/" // encoded batch -> made
	maxPending = 1000 // frames on a page
)

// batchRecord is what the view knows of a batch as a whole.
type batchRecord struct {
	event.BatchFact
	Known       bool         `json:"known"`
	Totals      event.Totals `json:"totals"`
	Convergence int          `json:"convergence"` // number of the last one
	Converged   bool         `json:"converged"`   // and whether it still holds
	At          time.Time    `json:"converged_at,omitzero"`
	Sequence    uint64       `json:"converged_seq,omitempty"` // of its fact
	Changed     time.Time    `json:"changed,omitzero"`
}

// asked is the newest capture message of a slot, kept so that the slot can be
// sent again.
type asked struct {
	Subject string          `json:"subject"`
	Pass    int             `json:"pass"`
	Body    json.RawMessage `json:"body"`
}

// made tells which convergence the bag and the manifest on disk speak of.
type made struct {
	Bag      int    `json:"bag"`
	Manifest int    `json:"manifest"`
	Problem  string `json:"problem,omitempty"`
}

func openView(dir string, log *slog.Logger) (*view, error) {
	db, err := pebble.Open(dir, &pebble.Options{Logger: completed.Logger(log)})
	if err != nil {
		return nil, fmt.Errorf("capture: view: %w", err)
	}
	return &view{db: db, log: log, touched: map[event.Name]bool{}}, nil
}

func openViewReadOnly(dir string) (*pebble.DB, error) {
	db, err := pebble.Open(dir, &pebble.Options{Logger: completed.Logger(nil), ReadOnly: true, ErrorIfNotExists: true})
	if err != nil {
		return nil, fmt.Errorf("capture: view: %w", err)
	}
	return db, nil
}

func (v *view) close() error { return v.db.Close() }

func getJSON(r pebble.Reader, key string, out any) (bool, error) {
	data, closer, err := r.Get([]byte(key))
	if errors.Is(err, pebble.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("capture: view: %w", err)
	}
	err = json.Unmarshal(data, out)
	return true, errors.Join(err, closer.Close())
}

func setJSON(w pebble.Writer, key string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("capture: view: %w", err)
	}
	return w.Set([]byte(key), data, nil)
}

func (v *view) slot(s event.Slot) (event.Progress, bool, error) {
	var p event.Progress
	ok, err := getJSON(v.db, viewSlot+s.String(), &p)
	return p, ok, err
}

func (v *view) batch(b event.Name) (batchRecord, error) {
	var r batchRecord
	_, err := getJSON(v.db, viewBatch+b.Encode(), &r)
	r.Batch = b
	return r, err
}

func (v *view) position(stream string) (completed.Position, error) {
	var p completed.Position
	_, err := getJSON(v.db, viewPos+stream, &p)
	return p, err
}

func (v *view) made(b event.Name) (made, error) {
	var m made
	_, err := getJSON(v.db, viewMade+b.Encode(), &m)
	return m, err
}

// setMade is synced: a bag that is there is not made again.
func (v *view) setMade(b event.Name, m made) error {
	data, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("capture: view: %w", err)
	}
	return v.db.Set([]byte(viewMade+b.Encode()), data, pebble.Sync)
}

func (v *view) asked(s event.Slot) (asked, bool, error) {
	var a asked
	ok, err := getJSON(v.db, viewAsked+s.String(), &a)
	return a, ok, err
}

// followers are the two readers that feed the view.
func (v *view) followers(js jetstream.JetStream) []*topology.Follower {
	mk := func(stream string, filters []string, apply func(*change, topology.Message) error) *topology.Follower {
		return &topology.Follower{
			JS: js, Stream: stream, Filters: filters, Log: v.log,
			Position: func() (completed.Position, error) { return v.position(stream) },
			Handle:   func(_ context.Context, batch []topology.Message) error { return v.handle(stream, batch, apply) },
		}
	}
	return []*topology.Follower{
		mk(event.StreamIngest, nil, (*change).fact),
		mk(event.StreamCapture, []string{event.SubjectCaptureFrame + ".>"}, (*change).frame),
	}
}

func (v *view) handle(stream string, batch []topology.Message, apply func(*change, topology.Message) error) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	c := &change{view: v, b: v.db.NewIndexedBatch(), slots: map[event.Slot]*event.Progress{}, before: map[event.Slot]slotBefore{}, batches: map[event.Name]*batchRecord{}}
	defer c.b.Close() //nolint:errcheck // a committed or abandoned batch has nothing to report
	for _, m := range batch {
		if err := apply(c, m); err != nil {
			return fmt.Errorf("capture: view: message %d of %s: %w", m.Sequence, stream, err)
		}
	}
	if err := c.flush(batch[len(batch)-1].Stored); err != nil {
		return err
	}
	if err := setJSON(c.b, viewPos+stream, batch[len(batch)-1].Position); err != nil {
		return err
	}
	if err := c.b.Commit(pebble.NoSync); err != nil {
		return fmt.Errorf("capture: view: %w", err)
	}
	for b := range c.batches {
		v.touched[b] = true
	}
	v.discard = append(v.discard, c.discard...)
	v.changed.spread()
	return nil
}

// take gives the batches touched, and the discards, since the last call.
func (v *view) take() (out []event.Name, discard []event.CaseFact) {
	v.mu.Lock()
	defer v.mu.Unlock()
	discard, v.discard = v.discard, nil
	for b := range v.touched {
		out = append(out, b)
	}
	clear(v.touched)
	return out, discard
}

// change is one commit of the view in the making.
type change struct {
	view    *view
	b       *pebble.Batch
	slots   map[event.Slot]*event.Progress
	before  map[event.Slot]slotBefore
	batches map[event.Name]*batchRecord
	discard []event.CaseFact
}

type slotBefore struct {
	known bool
	order string
	state event.State
}

func (c *change) batch(b event.Name) (*batchRecord, error) {
	if r := c.batches[b]; r != nil {
		return r, nil
	}
	r := new(batchRecord)
	if _, err := getJSON(c.b, viewBatch+b.Encode(), r); err != nil {
		return nil, err
	}
	r.Batch = b
	c.batches[b] = r
	return r, nil
}

func (c *change) slot(s event.Slot) (*event.Progress, error) {
	if p := c.slots[s]; p != nil {
		return p, nil
	}
	r, err := c.batch(s.Batch)
	if err != nil {
		return nil, err
	}
	p := &event.Progress{Slot: s}
	known, err := getJSON(c.b, viewSlot+s.String(), p)
	if err != nil {
		return nil, err
	}
	c.before[s] = slotBefore{known, orderKey(r.Order, p), p.State(r.Profiles)}
	c.slots[s] = p
	return p, nil
}

// frame applies a capture message: a slot was asked for. A message nobody can
// read changes nothing here; the worker makes a dead letter of it.
func (c *change) frame(m topology.Message) error {
	var f event.FrameMessage
	if event.Unmarshal(m.Data, &f) != nil || f.Validate() != nil {
		return nil
	}
	if _, _, batch, err := event.ParseCaptureSubject(m.Subject); err != nil || batch != f.Batch {
		return nil
	}
	pass, err := event.PassOf(m.Header.Get(event.HeaderPass), f.Pass)
	if err != nil {
		return nil
	}
	p, err := c.slot(f.Slot)
	if err != nil {
		return err
	}
	newest := pass >= p.Requested
	p.Request(f, pass)
	if !newest {
		return nil
	}
	return setJSON(c.b, viewAsked+f.Slot.String(), asked{m.Subject, pass, m.Data})
}

// fact applies a fact of the log.
func (c *change) fact(m topology.Message) error {
	f, err := event.DecodeFact(m.Subject, m.Data)
	if err != nil {
		return err // never guessed at
	}
	if b, ok := f.(event.BatchFact); ok {
		return c.declared(b, m)
	}
	s, ok := slotOf(f)
	if !ok {
		return nil
	}
	p, err := c.slot(s)
	if err != nil {
		return err
	}
	pass := 0
	if h := m.Header.Get(event.HeaderPass); h != "" {
		if pass, err = event.PassOf(h, 0); err != nil {
			pass = 0
		}
	}
	p.Apply(f, m.Sequence, pass)
	if d, ok := f.(event.CaseFact); ok && d.State == event.CaseDiscarded {
		if _, derivative := d.Operation.Profile(); !derivative {
			c.discard = append(c.discard, d)
		}
	}
	return nil
}

func slotOf(f event.Fact) (event.Slot, bool) {
	if w, ok := event.WorkOf(f); ok {
		return w.Slot, w.Frame != ""
	}
	if c, ok := f.(event.CaseFact); ok {
		return c.Slot, c.Frame != ""
	}
	return event.Slot{}, false
}

// declared applies a declaration or a convergence. The states of the slots
// follow the profiles, so those of a changed batch are counted anew.
func (c *change) declared(f event.BatchFact, m topology.Message) error {
	r, err := c.batch(f.Batch)
	if err != nil {
		return err
	}
	if f.State == "converged" {
		if f.Number > r.Convergence {
			r.Convergence, r.Converged, r.At, r.Sequence = f.Number, true, m.Stored, m.Sequence
		}
		return nil
	}
	if r.Known && f.Number < r.Number {
		return nil
	}
	r.BatchFact, r.Known = f, true
	return c.recount(r)
}

func (c *change) recount(r *batchRecord) error {
	if err := c.store(); err != nil {
		return err
	}
	r.Totals = event.Totals{}
	prefix := viewSlot + r.Batch.Encode() + "/"
	order := viewOrder + r.Batch.Encode() + "/"
	if err := c.b.DeleteRange([]byte(order), upper(order), nil); err != nil {
		return err
	}
	it, err := c.b.NewIter(&pebble.IterOptions{LowerBound: []byte(prefix), UpperBound: upper(prefix)})
	if err != nil {
		return err
	}
	defer it.Close() //nolint:errcheck // its error is read below
	for it.First(); it.Valid(); it.Next() {
		var p event.Progress
		if err := json.Unmarshal(it.Value(), &p); err != nil {
			return err
		}
		r.Totals.Count(p.State(r.Profiles), 1)
		if err := c.b.Set([]byte(order+orderKey(r.Order, &p)), []byte(p.Frame), nil); err != nil {
			return err
		}
	}
	return it.Error()
}

// store writes the slots changed so far and moves their batches' counts.
func (c *change) store() error {
	for s, p := range c.slots {
		r, was := c.batches[s.Batch], c.before[s]
		if was.known {
			r.Totals.Count(was.state, -1)
		}
		r.Totals.Count(p.State(r.Profiles), 1)
		order := viewOrder + s.Batch.Encode() + "/"
		now := orderKey(r.Order, p)
		if was.known && was.order != now {
			if err := c.b.Delete([]byte(order+was.order), nil); err != nil {
				return err
			}
		}
		if !was.known || was.order != now {
			if err := c.b.Set([]byte(order+now), []byte(s.Frame), nil); err != nil {
				return err
			}
		}
		if err := setJSON(c.b, viewSlot+s.String(), p); err != nil {
			return err
		}
	}
	clear(c.slots)
	clear(c.before)
	return nil
}

func (c *change) flush(at time.Time) error {
	if err := c.store(); err != nil {
		return err
	}
	for b, r := range c.batches {
		r.Totals.Declare(r.Count)
		r.Converged = r.Converged && r.Totals.Converged()
		r.Changed = at
		if err := setJSON(c.b, viewBatch+b.Encode(), r); err != nil {
			return err
		}
	}
	return nil
}

// orderKey gives the place of a slot in its batch: by declared sequence, or by
// the natural order of names; arrival never gives it.
func orderKey(order string, p *event.Progress) string {
	key := event.NaturalKey(string(p.Frame))
	if order == event.OrderNatural {
		return string(key)
	}
	return string(binary.BigEndian.AppendUint64(nil, uint64(p.Sequence))) + string(key) //nolint:gosec // a sequence is at least 1
}

func upper(prefix string) []byte {
	b := []byte(prefix)
	b[len(b)-1]++
	return b
}

// batches goes through all batches.
func (v *view) batches() iter.Seq2[batchRecord, error] {
	return func(yield func(batchRecord, error) bool) {
		it, err := v.db.NewIter(&pebble.IterOptions{LowerBound: []byte(viewBatch), UpperBound: upper(viewBatch)})
		if err != nil {
			yield(batchRecord{}, err)
			return
		}
		defer it.Close() //nolint:errcheck // its error is read below
		for it.First(); it.Valid(); it.Next() {
			var r batchRecord
			if err := json.Unmarshal(it.Value(), &r); err != nil {
				yield(r, err)
				return
			}
			if !yield(r, nil) {
				return
			}
		}
		if err := it.Error(); err != nil {
			yield(batchRecord{}, err)
		}
	}
}

// frames goes through a batch's slots in its order, from behind a cursor. It
// reads one state of the view, whatever happens meanwhile.
func (v *view) frames(b event.Name, after string) iter.Seq2[frameAt, error] {
	return func(yield func(frameAt, error) bool) {
		snap := v.db.NewSnapshot()
		defer snap.Close() //nolint:errcheck // a snapshot has nothing to report
		prefix := viewOrder + b.Encode() + "/"
		it, err := snap.NewIter(&pebble.IterOptions{LowerBound: []byte(prefix + after), UpperBound: upper(prefix)})
		if err != nil {
			yield(frameAt{}, err)
			return
		}
		defer it.Close() //nolint:errcheck // its error is read below
		for it.First(); it.Valid(); it.Next() {
			at := strings.TrimPrefix(string(it.Key()), prefix)
			if at == after {
				continue
			}
			f := frameAt{cursor: at}
			frame, err := it.ValueAndErr()
			if err == nil {
				_, err = getJSON(snap, viewSlot+event.Slot{Batch: b, Frame: event.Name(frame)}.String(), &f.Progress)
			}
			if !yield(f, err) || err != nil {
				return
			}
		}
		if err := it.Error(); err != nil {
			yield(frameAt{}, err)
		}
	}
}

// frameAt is a slot and its place.
type frameAt struct {
	event.Progress
	cursor string
}

// status is a batch at one position of the log.
func (v *view) status(b event.Name) (event.BatchStatus, error) {
	// The positions first: what they stand for is then in what is read after.
	log, err := v.position(event.StreamIngest)
	if err != nil {
		return event.BatchStatus{}, err
	}
	asked, err := v.position(event.StreamCapture)
	if err != nil {
		return event.BatchStatus{}, err
	}
	r, err := v.batch(b)
	if err != nil {
		return event.BatchStatus{}, err
	}
	st, err := v.statusOf(r)
	st.Position, st.CapturePosition = log.Sequence, asked.Sequence
	return st, err
}

func (v *view) statusOf(r batchRecord) (event.BatchStatus, error) {
	m, err := v.made(r.Batch)
	if err != nil {
		return event.BatchStatus{}, err
	}
	return event.BatchStatus{
		Batch: r.Batch, Known: r.Known, Number: r.Number, Count: r.Count, Order: r.Order, Profiles: r.Profiles, PolicyDigest: r.PolicyDigest, Policy: r.Policy,
		Totals: r.Totals, Settled: r.Totals.Settled(), Converged: r.Converged, Convergence: r.Convergence,
		Bag: m.Bag, Manifest: m.Manifest, Problem: m.Problem, Changed: r.Changed,
	}, nil
}

func (v *view) list() (event.BatchList, error) {
	out := event.BatchList{Batches: []event.BatchStatus{}}
	for r, err := range v.batches() {
		if err != nil {
			return out, err
		}
		st, err := v.statusOf(r)
		if err != nil {
			return out, err
		}
		out.Batches = append(out.Batches, st)
	}
	return out, nil
}
