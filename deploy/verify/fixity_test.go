package verify

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"colophon/shared/event"
)

// scheduled runs a check; fail ends it at the n-th message that it publishes.
func (w *world) scheduled(run string, fail int) (FixityReport, error) {
	n := 0
	return Fixity(w.Context(), FixityOptions{
		Archive: w.dir, JS: w.js, Run: run, Rate: 1 << 40, Agent: worker, Scratch: w.TempDir(), Now: func() time.Time { return start },
		Publish: func(ctx context.Context, m *nats.Msg) (*jetstream.PubAck, error) {
			if n++; n == fail {
				return nil, errors.New("the broker is away")
			}
			ack, err := w.js.PublishMsg(ctx, m)
			if err == nil && !ack.Duplicate {
				w.told(m, ack)
			}
			return ack, err
		},
	})
}

// told notes the record that a published fact must give.
func (w *world) told(m *nats.Msg, ack *jetstream.PubAck) {
	if ack.Stream != event.StreamIngest {
		return
	}
	var f event.OpFact
	w.ok(json.Unmarshal(m.Data, &f))
	st, err := w.js.Stream(w.Context(), ack.Stream)
	w.ok(err)
	stored, err := st.GetMsg(w.Context(), ack.Sequence)
	w.ok(err)
	r := w.op(f.MsgID(), nil)
	if d := event.Digest(f.Detail["digest"]); d != "" {
		value := map[string]any{"expected": d}
		if f.Detail["value"] != "" {
			value["value"] = f.Detail["value"]
		}
		r = w.event("event:fixity-check:"+string(d)+"+"+f.Detail["run"], "fix", event.Slot{Batch: "unused"}, d, map[string]any{"digest": value})
		delete(r, "slot")
		r["objects"] = []any{map[string]any{"kind": "file", "digest": d, "role": "source"}}
		if f.Code != "" {
			r["outcome"] = "fail"
		}
	}
	w.last = message{seq: ack.Sequence, stored: stored.Time.UTC(), id: m.Header.Get(event.HeaderMsgID)}
	r["sequence"], r["msg_id"], r["recorded"] = w.last.seq, w.last.id, w.last.stored
	w.records = append(w.records, r)
}

func (w *world) letters() uint64 {
	st, err := w.js.Stream(w.Context(), event.StreamDeadLetter)
	w.ok(err)
	return st.CachedInfo().State.Msgs
}

// A scheduled check reads everything once, is resumed where it was interrupted,
// and adds nothing when its run is played again.
func TestScheduledCheck(t *testing.T) {
	t.Parallel()
	w := built(t)
	before := w.letters()
	if _, err := w.scheduled("2027", 3); err == nil {
		t.Fatal("a broker that is away is no error")
	}
	again, err := w.scheduled("2027", 0)
	w.ok(err)
	if again.Files+again.Already != 6 || again.Already != 2 || len(again.Failed) != 0 {
		t.Errorf("resumed: %+v", again)
	}
	once, err := w.scheduled("2027", 0)
	w.ok(err)
	if once.Files != 0 || once.Already != 6 || once.Bytes != 0 {
		t.Errorf("played again: %+v", once)
	}
	if got := w.letters(); got != before {
		t.Errorf("%d dead letters of a sound archive", got-before)
	}
	w.write(w.book())
	if r := w.run(); !r.Clean() {
		t.Errorf("the judge: %v", r.Findings)
	}
}

// A damaged file and one that is gone fail the run, for good, and are dead
// letters: one each, and new ones in the next run.
func TestScheduledCheckFindsDamage(t *testing.T) {
	t.Parallel()
	w := built(t)
	before := w.letters()
	first, third := newPage("", "", 1, "first page"), newPage("", "", 1, "third page")
	path := filepath.Join(w.dir, filepath.FromSlash(first.master()))
	w.ok(os.Chmod(path, 0o644))
	w.ok(os.WriteFile(path, []byte("fIrst page"), 0o644))
	w.ok(os.Remove(filepath.Join(w.dir, filepath.FromSlash(third.access()))))
	for range 2 {
		r, err := w.scheduled("2027", 0)
		w.ok(err)
		if len(r.Failed) != 2 || w.letters() != before+2 {
			t.Fatalf("%+v, %d letters", r, w.letters()-before)
		}
		for _, f := range r.Failed {
			if f.Digest == first.digest() != strings.Contains(f.Reason, "another digest") || f.Digest == third.derived() != strings.Contains(f.Reason, "gone") {
				t.Errorf("%+v", f)
			}
		}
	}
	if _, err := w.scheduled("2028", 0); err != nil || w.letters() != before+4 {
		t.Errorf("the next run: %v, %d letters", err, w.letters()-before)
	}
	st, err := w.js.Stream(t.Context(), event.StreamDeadLetter)
	w.ok(err)
	m, err := st.GetLastMsgForSubject(t.Context(), "deadletter.verify")
	w.ok(err)
	if m.Header.Get(event.HeaderPass) != "2" || m.Header.Get(event.HeaderOperation) != string(OpFixity) || m.Header.Get(event.HeaderFrame) == "" {
		t.Errorf("%v", m.Header)
	}
}
