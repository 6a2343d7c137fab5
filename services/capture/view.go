package capture

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"colophon/shared/completed"
	"colophon/shared/event"
	"colophon/shared/fault"
	"colophon/shared/stage"
	"colophon/shared/topology"
)

// view is the batch view: a pure function of the log and of the capture
// messages, in whatever batches they are read, kept in Pebble so that a batch's
// length costs no memory. Its positions are stored with what they stand for;
// nothing in it needs a sync.
type view struct {
	look // as it is now
	db   *pebble.DB
	log  *slog.Logger

	mu      sync.Mutex // one writer: the two followers take turns
	changed stage.News // spread after each commit
	touched map[event.Name]bool
	pending map[event.Name]bool // batches with pending slots
	noting  sync.Mutex          // orders changes of what is noted of a batch
}

// Keys of the view.
const (
	viewBatch   = "b/" // encoded batch -> batchRecord
	viewSlot    = "s/" // encoded batch / encoded frame -> event.Progress
	viewOrder   = "o/" // encoded batch / order key -> encoded frame
	viewAsked   = "q/" // encoded batch / encoded frame -> asked
	viewPos     = "p/" // stream -> position
	viewMade    = "m/" // encoded batch -> made
	viewUnstage = "u/" // encoded batch / encoded frame: its staged bytes may go
	viewOld     = "v/" // encoded batch / encoded frame: those of the revisions before may go
	viewRescan  = "c/" // encoded batch / encoded frame: it was decided to scan it again
	viewHole    = "h/" // stream / first sequence -> hole
	viewResent  = "r/" // encoded batch / encoded frame / operation # pass -> resent
	viewIssued  = "d/" // encoded batch / encoded frame -> issued
	viewOwed    = "w/" // encoded batch / encoded frame: one of those waits for its answer
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
	Read        read         `json:"read"`
}

// read tells the last message of each stream that touched a batch.
type read struct {
	Fact  uint64 `json:"fact,omitempty"`
	Frame uint64 `json:"frame,omitempty"`
}

// asked is the newest capture message of a slot, kept so that the slot can be
// sent again.
type asked struct {
	ID      string          `json:"id"`
	Subject string          `json:"subject"`
	Pass    int             `json:"pass"`
	Header  nats.Header     `json:"header,omitempty"` // without the broker's own
	Body    json.RawMessage `json:"body"`
}

// made tells what the bag and the manifest on disk speak of.
type made struct {
	Bag      int    `json:"bag"`      // its convergence
	Manifest int    `json:"manifest"` // the convergence of the manifest
	Of       read   `json:"of"`       // what the batch was when the manifest was looked at
	SHA256   string `json:"sha256,omitempty"`
	Problem  string `json:"problem,omitempty"`
}

// openView opens the view in a folder of a file system; nil is the disk.
func openView(fs vfs.FS, dir string, log *slog.Logger) (*view, error) {
	db, err := pebble.Open(dir, &pebble.Options{FS: fs, Logger: completed.Logger(log)})
	if err != nil {
		return nil, fmt.Errorf("capture: view: %w", err)
	}
	v := &view{look: look{db}, db: db, log: log, touched: map[event.Name]bool{}, pending: map[event.Name]bool{}}
	for r, err := range v.batches("") {
		if err != nil {
			return nil, errors.Join(err, db.Close())
		}
		if r.Totals.Pending > 0 {
			v.pending[r.Batch] = true
		}
	}
	return v, nil
}

func openViewReadOnly(dir string) (*view, error) {
	db, err := pebble.Open(dir, &pebble.Options{Logger: completed.Logger(nil), ReadOnly: true, ErrorIfNotExists: true})
	if err != nil {
		return nil, fmt.Errorf("capture: view: %w", err)
	}
	return &view{look: look{db}, db: db}, nil
}

func (v *view) close() error { return v.db.Close() }

// snapshot gives one state of the view, until it is released.
func (v *view) snapshot() (look, func()) {
	s := v.db.NewSnapshot()
	return look{s}, func() { _ = s.Close() } // has nothing to report
}

// note changes what is noted of a batch's manifest and bag; it is synced: a bag
// that is there is not made again.
func (v *view) note(b event.Name, change func(*made)) error {
	v.noting.Lock()
	defer v.noting.Unlock()
	m, err := v.made(b)
	if err != nil {
		return err
	}
	before := m
	change(&m)
	if m == before {
		return nil
	}
	data, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("capture: view: %w", err)
	}
	return v.db.Set([]byte(viewMade+b.Encode()), data, pebble.Sync)
}

// followers are the two readers that feed the view. They are not filtered: a
// sequence that does not come is a hole. caughtUp is told each time the log has
// been read to where it ended when the connection began.
func (v *view) followers(js jetstream.JetStream, caughtUp func()) []*topology.Follower {
	mk := func(stream string) *topology.Follower {
		return &topology.Follower{
			JS: js, Stream: stream, Log: v.log,
			Position:   func() (completed.Position, error) { return v.position(stream) },
			Handle:     func(_ context.Context, batch []topology.Message) error { return v.handle(stream, batch) },
			RolledBack: func(context.Context, completed.Position) error { return v.forgetHoles(stream) },
			CaughtUp: func(context.Context) error {
				if stream == event.StreamIngest {
					caughtUp()
				}
				return nil
			},
		}
	}
	return []*topology.Follower{mk(event.StreamIngest), mk(event.StreamCapture)}
}

func (v *view) handle(stream string, batch []topology.Message) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	c := newChange(v)
	defer c.b.Close() //nolint:errcheck // a committed or abandoned batch has nothing to report
	apply := c.fact
	if stream == event.StreamCapture {
		apply = c.frame
	}
	at, err := v.position(stream)
	if err != nil {
		return err
	}
	last := at.Sequence
	for _, m := range batch {
		if m.Sequence > last+1 {
			if err := putHole(c.b, stream, last+1, m.Sequence-1); err != nil {
				return err
			}
		}
		last = m.Sequence
		if err := apply(m); err != nil {
			return fmt.Errorf("capture: view: message %d of %s: %w", m.Sequence, stream, err)
		}
	}
	if err := c.flush(); err != nil {
		return err
	}
	if err := setJSON(c.b, viewPos+stream, batch[len(batch)-1].Position); err != nil {
		return err
	}
	if err := c.b.Commit(pebble.NoSync); err != nil {
		return fmt.Errorf("capture: view: %w", err)
	}
	for _, n := range c.unread {
		v.log.Error("unreadable_fact", slog.Uint64("sequence", n), slog.String("decision", "passed over"))
	}
	for b, r := range c.batches {
		v.touched[b] = true
		if delete(v.pending, b); r.Totals.Pending > 0 {
			v.pending[b] = true
		}
	}
	v.changed.Spread()
	return nil
}

// take gives the batches touched since the last call.
func (v *view) take() (out []event.Name) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for b := range v.touched {
		out = append(out, b)
	}
	clear(v.touched)
	return out
}

// abreast waits until the view has read the log to where it ends now.
func (v *view) abreast(ctx context.Context, js jetstream.JetStream) error {
	return v.abreastOf(ctx, js, event.StreamIngest)
}

func (v *view) abreastOf(ctx context.Context, js jetstream.JetStream, stream string) error {
	st, err := js.Stream(ctx, stream)
	if err != nil {
		return fault.New(fault.BrokerUnavailable, err, "the broker does not tell where %s ends", stream)
	}
	for end := st.CachedInfo().State.LastSeq; ; {
		next := v.changed.Next()
		read, err := v.hasRead(stream, end)
		if err != nil || read {
			return err
		}
		select {
		case <-next:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// hasRead reports whether the view has read a stream to a sequence, or all of
// it that the stream gives out.
func (v *view) hasRead(stream string, end uint64) (bool, error) {
	p, err := v.position(stream)
	if err != nil || p.Sequence >= end {
		return true, err
	}
	holes, err := v.holes(stream)
	for _, h := range holes {
		if h.First <= p.Sequence+1 && h.Last >= end {
			return true, nil
		}
	}
	return false, err
}

// unmark forgets what was to be done about a slot: it is done.
func (v *view) unmark(list string, s event.Slot) error {
	return v.db.Delete([]byte(list+s.String()), pebble.NoSync)
}

// marked lists the slots that something is to be done about.
func (v *view) marked(list string) (out []event.Slot, err error) {
	err = v.each(list, "", func(key string, _ []byte) error {
		s, err := event.ParseSlot(strings.TrimPrefix(key, list))
		out = append(out, s)
		return err
	})
	return out, err
}

// unsettled lists the batches with pending slots, sorted.
func (v *view) unsettled() []event.Name {
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.Sorted(maps.Keys(v.pending))
}

func setJSON(w pebble.Writer, key string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("capture: view: %w", err)
	}
	return w.Set([]byte(key), data, nil)
}

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
