package verify

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"colophon/shared/event"
	"colophon/shared/fault"
	"colophon/shared/storage"
)

// OpFixity is the operation of a case that a scheduled check opens.
const OpFixity event.Operation = "event:fixity-check"

// FixityOptions are those of [Fixity].
type FixityOptions struct {
	Archive string
	JS      jetstream.JetStream
	// Publish stores a message and returns once the broker has it, under the id
	// in its header: a message that is stored already is not stored again.
	Publish func(context.Context, *nats.Msg) (*jetstream.PubAck, error)
	Run     string // names the check for good, such as 2027-annual
	Rate    int64  // bytes a second; 0: as fast as the disk gives them
	Agent   event.Agent
	Scratch string
	Now     func() time.Time
}

// FixityReport is what a scheduled check came to.
type FixityReport struct {
	Run     string   `json:"run"`
	Files   int      `json:"files"`   // digests checked now
	Already int      `json:"already"` // digests this run had checked before
	Bytes   int64    `json:"bytes"`   // read now
	Failed  []Failed `json:"failed"`  // of the whole run, also before it was interrupted
}

// Failed is a stored file that is not what it was.
type Failed struct {
	Digest event.Digest `json:"digest"`
	Key    string       `json:"key"`
	Reason string       `json:"reason"`
	Slot   event.Slot   `json:"slot"`
}

// Kinds of the scratch database that only a scheduled check has.
const (
	memStored  = "F/" // digest NUL key -> slot of its first fact
	memChecked = "K/" // digest -> checkedFile, of this run
)

type checkedFile struct {
	Seq    uint64 `json:"s"` // of its fact
	Failed bool   `json:"f,omitempty"`
	Key    string `json:"k,omitempty"`
	Reason string `json:"r,omitempty"`
}

// Fixity reads every stored master and derivative again and tells the log what
// it found, one fact a digest: those become the ledger's fixity checks of this
// run. It is resumed by starting it again, and adds nothing once it is done. A
// file that is damaged or gone is a dead letter too, so that it becomes a case.
func Fixity(ctx context.Context, o FixityOptions) (rep FixityReport, err error) {
	rep = FixityReport{Run: o.Run, Failed: []Failed{}}
	if o.Run == "" || len(o.Run) > 100 {
		return rep, errors.New("verify: a scheduled check needs a run of 1 to 100 bytes")
	}
	j := &judge{Options: Options{JS: o.JS}}
	if j.root, err = os.OpenRoot(o.Archive); err != nil {
		return rep, fmt.Errorf("verify: archive: %w", err)
	}
	defer j.root.Close() //nolint:errcheck // only read from
	if j.mem, err = openScratch(o.Scratch, j.length(ctx)); err != nil {
		return rep, err
	}
	defer func() { err = errors.Join(err, j.mem.close()) }()
	f := &fixity{judge: j, o: o, report: &rep, meter: meter{rate: o.Rate}}
	if err := f.read(ctx); err != nil {
		return rep, fmt.Errorf("verify: fixity: %w", err)
	}
	if err := f.check(ctx); err != nil {
		return rep, fmt.Errorf("verify: fixity: %w", err)
	}
	return rep, nil
}

// fixity is one scheduled check.
type fixity struct {
	*judge
	o      FixityOptions
	report *FixityReport
	number int // of this run among those the log speaks of, from 1
	meter  meter
}

// read learns from the log what is stored, and what this run has checked.
func (f *fixity) read(ctx context.Context) error {
	state, err := f.streamState(ctx, event.StreamIngest)
	if err != nil {
		return err
	}
	runs := map[string]int{}
	err = f.judge.read(ctx, event.StreamIngest, state.LastSeq, func(m message) error {
		fact, err := event.DecodeFact(m.subject, m.data)
		if err != nil {
			return nil //nolint:nilerr // what no fact can be read from is the judge's to tell
		}
		switch fact := fact.(type) {
		case event.FrameFixed:
			return f.stored(fact.Digest, fact.Fixed.Master, fact.Slot)
		case event.DerivativeMade:
			for _, out := range fact.Derived.Outputs {
				if err := f.stored(out.Digest, out.Key, fact.Slot); err != nil {
					return err
				}
			}
		case event.OpFact:
			run := fact.Detail["run"]
			if runs[run] == 0 {
				runs[run] = len(runs) + 1
			}
			if run == f.o.Run && fact.Detail["digest"] != "" {
				return f.mem.setJSON(memChecked, fact.Detail["digest"], checkedFile{m.seq, fact.Code != "", fact.Detail["key"], fact.Reason})
			}
		}
		return nil
	}, event.SubjectFrameFixed, event.SubjectDerivative+".>", event.SubjectOp+"."+event.OpVerified)
	if f.number = runs[f.o.Run]; f.number == 0 {
		f.number = len(runs) + 1
	}
	return err
}

func (f *fixity) stored(d event.Digest, key string, s event.Slot) error {
	at := string(d) + "\x00" + key
	if known, err := f.mem.has(memStored, at); known || err != nil || !d.Valid() {
		return err
	}
	return f.mem.setJSON(memStored, at, s)
}

// check goes through the digests in their order, each with all the places its
// bytes are stored at.
func (f *fixity) check(ctx context.Context) error {
	var at event.Digest
	var places []Failed
	flush := func() error {
		if at == "" {
			return nil
		}
		return f.digest(ctx, at, places)
	}
	for p, err := range f.mem.each(memStored, "") {
		if err != nil {
			return err
		}
		d, key, _ := strings.Cut(string(p.key), "\x00")
		if event.Digest(d) != at {
			if err := flush(); err != nil {
				return err
			}
			at, places = event.Digest(d), nil
		}
		place := Failed{Digest: event.Digest(d), Key: key}
		if err := json.Unmarshal(p.value, &place.Slot); err != nil {
			return err
		}
		places = append(places, place)
	}
	if err := flush(); err != nil {
		return err
	}
	_, err := f.publish(ctx, f.fact("", map[string]string{}, "", fmt.Sprintf("run %s is complete", f.o.Run)))
	return err
}

// digest checks one digest, unless this run has: then only its letter is told
// again, where it failed.
func (f *fixity) digest(ctx context.Context, d event.Digest, places []Failed) error {
	var was checkedFile
	known, err := f.mem.getJSON(memChecked, string(d), &was)
	if err != nil {
		return err
	}
	if known {
		f.report.Already++
		if !was.Failed {
			return nil
		}
		bad := places[0]
		for _, p := range places {
			if p.Key == was.Key {
				bad = p
			}
		}
		bad.Reason = was.Reason
		return f.failed(ctx, bad, was.Seq)
	}
	value, bad := d, Failed{}
	for _, p := range places {
		got, reason, err := f.readAgain(ctx, p)
		if err != nil {
			return err
		}
		if reason != "" && bad.Key == "" {
			value, bad = got, p
			bad.Reason = reason
		}
	}
	f.report.Files++
	code, reason := "", "the stored bytes are those that were recorded"
	if bad.Key != "" {
		code, reason = string(fault.MasterDamaged), bad.Reason
	}
	seq, err := f.publish(ctx, f.fact(string(d), map[string]string{"digest": string(d), "value": string(value), "key": bad.Key}, code, reason))
	if err != nil || bad.Key == "" {
		return err
	}
	return f.failed(ctx, bad, seq)
}

// readAgain hashes one stored file; reason says what is wrong with it.
func (f *fixity) readAgain(ctx context.Context, p Failed) (value event.Digest, reason string, err error) {
	file, err := f.root.Open(p.Key)
	if errors.Is(err, fs.ErrNotExist) {
		return "", "the file is gone", nil
	}
	if err != nil {
		return "", "the file cannot be opened: " + fault.Clean(err.Error()), nil
	}
	defer file.Close() //nolint:errcheck // only read from
	d, n, err := storage.Sum(ctx, f.meter.reader(ctx, file))
	f.report.Bytes += n
	switch {
	case ctx.Err() != nil:
		return "", "", ctx.Err()
	case err != nil:
		return "", fmt.Sprintf("unreadable at byte %d: %s", n, fault.Clean(err.Error())), nil
	case event.Digest(d) != p.Digest:
		return event.Digest(d), fmt.Sprintf("its %d bytes have another digest", n), nil
	}
	return event.Digest(d), "", nil
}

func (f *fixity) fact(digest string, detail map[string]string, code, reason string) event.OpFact {
	detail["run"] = f.o.Run
	instance := f.o.Run
	if digest != "" {
		instance += ":" + digest
	}
	return event.OpFact{
		Schema: event.SchemaOp, Kind: event.OpVerified, Service: "verify", Instance: instance, Counter: 1, Code: code, Reason: reason,
		Detail: detail, Agent: f.o.Agent, At: f.o.Now().UTC(),
	}
}

func (f *fixity) publish(ctx context.Context, fact event.OpFact) (uint64, error) {
	data, err := json.Marshal(fact)
	if err != nil {
		return 0, err
	}
	ack, err := f.o.Publish(ctx, &nats.Msg{Subject: fact.Subject(), Header: nats.Header{event.HeaderMsgID: {fact.MsgID()}}, Data: data})
	if err != nil {
		return 0, err
	}
	return ack.Sequence, nil
}

// failed writes the dead letter of a file that is not what it was. Its origin
// is the check's own fact, which nobody works on; the pass counts the runs, so
// that a later run's finding is a new one.
func (f *fixity) failed(ctx context.Context, bad Failed, seq uint64) error {
	f.report.Failed = append(f.report.Failed, bad)
	origin := fmt.Sprintf("%s-%d", event.StreamIngest, seq)
	st, err := f.JS.Stream(ctx, event.StreamIngest)
	if err != nil {
		return err
	}
	m, err := st.GetMsg(ctx, seq)
	if err != nil {
		return fmt.Errorf("the fact of %s: %w", bad.Digest, err)
	}
	h := nats.Header{}
	for k, v := range map[string]string{
		event.HeaderMsgID:   event.DeadLetterID(OpFixity, bad.Digest, bad.Slot, f.number, origin),
		event.HeaderService: "verify", event.HeaderOperation: string(OpFixity), event.HeaderDigest: string(bad.Digest),
		event.HeaderBatch: bad.Slot.Batch.Encode(), event.HeaderFrame: bad.Slot.Frame.Encode(), event.HeaderPass: strconv.Itoa(f.number),
		event.HeaderAttempts: "1", event.HeaderClass: string(fault.Permanent), event.HeaderCode: string(fault.MasterDamaged),
		event.HeaderMessage: url.PathEscape(fmt.Sprintf("%s: %s (run %s)", bad.Key, bad.Reason, f.o.Run)),
		event.HeaderOrigin:  origin, event.HeaderOriginID: m.Header.Get(event.HeaderMsgID), event.HeaderOriginSub: m.Subject,
		event.HeaderOriginAt: m.Time.UTC().Format(time.RFC3339Nano),
	} {
		h.Set(k, v)
	}
	_, err = f.o.Publish(ctx, &nats.Msg{Subject: event.DeadLetterSubject("verify"), Header: h, Data: m.Data})
	return err
}

// meter bounds how fast files are read.
type meter struct {
	rate  int64
	spent int64
	since time.Time
}

func (m *meter) reader(ctx context.Context, r io.Reader) io.Reader {
	if m.rate <= 0 {
		return r
	}
	if m.since.IsZero() {
		m.since = time.Now()
	}
	return metered{m, ctx, r}
}

type metered struct {
	*meter
	ctx context.Context
	r   io.Reader
}

func (m metered) Read(b []byte) (int, error) {
	n, err := m.r.Read(b)
	m.spent += int64(n)
	due := m.since.Add(time.Duration(float64(m.spent) / float64(m.rate) * float64(time.Second)))
	if wait := time.Until(due); wait > 0 {
		t := time.NewTimer(wait)
		defer t.Stop()
		select {
		case <-t.C:
		case <-m.ctx.Done():
			return n, m.ctx.Err()
		}
	}
	return n, err
}
