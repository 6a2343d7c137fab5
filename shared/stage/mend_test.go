package stage_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"colophon/shared/completed"
	"colophon/shared/event"
	"colophon/shared/fault"
	"colophon/shared/stage"
	"colophon/shared/testkit"
	"colophon/shared/topology"
)

// flip flips one bit of a stored message, behind a text in it, while the broker
// is down.
func (r *rig) flip(stream, text string) {
	r.Helper()
	r.broker.Stop()
	blocks, err := filepath.Glob(filepath.Join(r.broker.Dir, "jetstream", "*", "streams", stream, "msgs", "*.blk"))
	testkit.OK(r, err)
	found := 0
	for _, b := range blocks {
		data, err := os.ReadFile(b)
		testkit.OK(r, err)
		if i := bytes.Index(data, []byte(text)); i >= 0 {
			found++
			data[i+len(text)+1] ^= 1
			testkit.OK(r, os.WriteFile(b, data, 0o600))
		}
	}
	r.expect("blocks with "+text, found, 1)
	r.broker.Start()
	testkit.Eventually(r, "the connection", r.nc.IsConnected)
}

// tellHole says what the batch view would say of a message that is unreadable.
func (r *rig) tellHole(stream string, sequence uint64) {
	r.Helper()
	testkit.Publish(r, r.js, event.OpFact{
		Schema: event.SchemaOp, Kind: event.OpHole, Service: "capture", Instance: "x", Counter: sequence, Code: "hole", Reason: "unreadable",
		Detail: map[string]string{"stream": stream, "first": fmt.Sprint(sequence), "last": fmt.Sprint(sequence)}, Agent: event.Agent{Name: "capture"}, At: time.Now().UTC(),
	})
}

// readable lists what a stream still gives out.
func (r *rig) readable(stream string) (out []testkit.Stored) {
	st, err := r.js.Stream(r.Context(), stream)
	testkit.OK(r, err)
	for seq := uint64(1); seq <= st.CachedInfo().State.LastSeq; seq++ {
		if m, err := st.GetMsg(r.Context(), seq); err == nil {
			out = append(out, testkit.Stored{Sequence: m.Sequence, Subject: m.Subject, Header: m.Header, Data: m.Data, Time: m.Time})
		}
	}
	return out
}

func (r *rig) sequenceOf(stream, subject, part string) uint64 {
	r.Helper()
	for _, m := range r.readable(stream) {
		if m.Subject == subject && strings.Contains(m.ID(), part) {
			return m.Sequence
		}
	}
	r.Fatalf("%s has no %s of %s", stream, subject, part)
	return 0
}

// TestAHoleIsMended: a bit flips in a fact of this stage; when the hole is told
// of, the fact is said again, and a follower from the start reads it once.
func TestAHoleIsMended(t *testing.T) {
	for _, how := range []string{"running", "down"} {
		t.Run(how, func(t *testing.T) {
			realWorld(t, func(r *rig) {
				r.start()
				for i := range 6 {
					r.send(fmt.Sprint(i), fmt.Sprint(i), nil)
				}
				r.settled()
				made := event.SubjectDerivative + ".jp2"
				seq := r.sequenceOf(event.StreamIngest, made, "/2#1")
				if how == "down" {
					r.stop()
				}
				r.flip(event.StreamIngest, "@"+testkit.Slot("2").String()+"#1\r\n\r\n") // behind its headers
				r.tellHole(event.StreamIngest, seq)
				if how == "down" {
					r.start()
				}
				says := func() map[string]int {
					n := map[string]int{}
					for _, m := range r.readable(event.StreamIngest) {
						if m.Subject == made {
							n[m.Fact(r).MsgID()]++
						}
					}
					return n
				}
				testkit.Eventually(r, "it is said again", func() bool { return len(says()) == 6 })
				for id, n := range says() {
					r.expect(id, n, 1)
				}
				testkit.Eventually(r, "it is logged", func() bool { return r.log.Count("log_healed") == 1 })
				r.settled()
				r.expect("acts", len(r.worker.Acts()), 6)

				// Told of once more, as by a replica: nothing lacks.
				before := len(r.readable(event.StreamIngest))
				r.tellHole(event.StreamIngest, seq+1000)
				testkit.Eventually(r, "it looks again", func() bool { return r.log.Count("log_healed") == 2 })
				r.expect("messages", len(r.readable(event.StreamIngest)), before+1)

				// A lost disk learns the fact under the id it was made for.
				r.stop()
				r.disk.Close()
				r.disk = testkit.NewDisk(r)
				r.start()
				testkit.Eventually(r, "it is known", func() bool {
					w := testkit.Fixed(testkit.Slot("2"), "2", nil).Work
					known, err := r.disk.Set.HasFact(event.DerivativeMade{Work: w, Derived: event.Derived{Profile: "jp2"}}.MsgID())
					testkit.OK(r, err)
					return known
				})
			})
		})
	}
}

// TestRolledBackLettersAreHealed: DEADLETTER comes back as an older copy; the
// letters that it lacks are published again, whole, and one whose origin is
// gone as well is told as lost. One that was cleared away long ago stays away.
// So are letters that the stage published and died before it had read them back.
func TestRolledBackLettersAreHealed(t *testing.T) {
	for _, how := range []string{"running", "down", "down and unread"} {
		t.Run(how, func(t *testing.T) {
			copies := testkit.TempDir(t)
			realWorld(t, func(r *rig) {
				r.breaks()
				r.start()
				r.send("cleared", "c", nil)
				r.send("old", "o", nil)
				r.settled()
				st, err := r.js.Stream(r.Context(), event.StreamDeadLetter)
				testkit.OK(r, err)
				testkit.OK(r, st.DeleteMsg(r.Context(), r.sequenceOf(event.StreamDeadLetter, "deadletter.deriver", "/cleared#1")))
				letters := filepath.Join(r.broker.Dir, "jetstream", "$G", "streams", event.StreamDeadLetter)
				read := func() completed.Position {
					pos, err := r.disk.Set.Position("dead:" + consumer)
					testkit.OK(r, err)
					return pos
				}
				testkit.Eventually(r, "the stage has read the first two", func() bool { return read().Sequence == 2 })
				older := read()
				r.broker.Stop()
				testkit.OK(t, os.CopyFS(filepath.Join(copies, "older"), os.DirFS(letters)))
				r.broker.Start()
				testkit.Eventually(r, "the connection", r.nc.IsConnected)
				r.send("new", "n", nil)
				testkit.PublishRaw(r, r.js, event.SubjectFrameFixed, nil, []byte(`{"no":"fact"}`))
				r.settled()
				testkit.Eventually(r, "the letters", func() bool { return len(r.readable(event.StreamDeadLetter)) == 3 })
				testkit.Eventually(r, "the stage has read them", func() bool {
					letters := r.readable(event.StreamDeadLetter)
					return read().Sequence == letters[len(letters)-1].Sequence
				})
				before := map[string]testkit.Stored{}
				for _, l := range r.readable(event.StreamDeadLetter) {
					before[l.ID()] = l
				}
				if how != "running" {
					r.stop()
				}
				if how == "down and unread" {
					testkit.OK(t, r.disk.Set.Learn("dead:"+consumer, nil, nil, older))
				}
				r.broker.Stop()
				testkit.OK(t, os.RemoveAll(letters))
				testkit.OK(t, os.CopyFS(letters, os.DirFS(filepath.Join(copies, "older"))))
				r.broker.Start()
				testkit.Eventually(r, "the connection", r.nc.IsConnected)
				if how != "running" {
					r.start()
				}
				testkit.EventuallyWithin(r, time.Minute, "the letters are healed", func() bool { return r.log.Count("letters_healed") == 1 })
				after := r.readable(event.StreamDeadLetter)
				r.expect("letters", len(after), len(before))
				for _, l := range after {
					was := before[l.ID()]
					r.expect("payload of "+l.ID(), string(l.Data), string(was.Data))
					for h := range was.Header {
						if !strings.HasPrefix(h, "Nats-") {
							r.expect(h, l.Header[h], was.Header[h])
						}
					}
				}
				r.expect("lost", len(r.ops(event.OpLetterLost)), 0)
				if how != "down and unread" { // there the position stands, and nothing tells of a rollback
					r.expect("the stream that was rolled back", r.ops(event.OpRolledBack)[0].Detail["stream"], event.StreamDeadLetter)
				}
				r.settled()
			})
		})
	}
}

// TestALetterWithoutItsOrigin is told as lost when it is gone itself.
func TestALetterWithoutItsOrigin(t *testing.T) {
	realWorld(t, func(r *rig) {
		r.breaks()
		r.start()
		for i := range 3 {
			r.send(fmt.Sprint(i), fmt.Sprint(i), nil)
		}
		r.settled()
		testkit.Eventually(r, "the letters", func() bool { return len(r.letters()) == 3 })
		r.stop()
		letter := r.sequenceOf(event.StreamDeadLetter, "deadletter.deriver", "/1#1")
		r.flip(event.StreamIngest, "fixity:"+string(testkit.Digest("1"))+"@"+testkit.Slot("1").String()+"#1\r\n\r\n")
		st, err := r.js.Stream(r.Context(), event.StreamDeadLetter)
		testkit.OK(r, err)
		testkit.OK(r, st.DeleteMsg(r.Context(), letter))
		r.start()
		r.tellHole(event.StreamDeadLetter, letter)
		testkit.Eventually(r, "it is told", func() bool { return r.count(event.SubjectOp+"."+event.OpLetterLost) == 1 })
		r.expect("logged", r.log.Count("letter_lost"), 1)
	})
}

func (r *rig) count(subject string) (n int) {
	for _, m := range r.readable(event.StreamIngest) {
		if m.Subject == subject {
			n++
		}
	}
	return n
}

// TestTheLargestFactsLetterFits: a work order of the largest size that the log
// takes, from a slot with the longest names, that fails with as much evidence
// as there can be.
func TestTheLargestFactsLetterFits(t *testing.T) {
	world(t, func(r *rig) {
		r.worker.Script = func(context.Context, event.FrameFixed, event.Work) error {
			f := fault.New("truncated", nil, "%s", strings.Repeat("é", 100_000))
			f.Detail = strings.Repeat("ü\n", 100_000)
			return f
		}
		f := testkit.Fixed(event.Slot{Batch: event.Name(strings.Repeat("ü", 127)), Frame: event.Name(strings.Repeat("ö", 2048))}, "one", nil)
		f.Captured.Acquisition = map[string]string{"note": ""}
		room := topology.MaxFactSize - len(testkit.JSON(r, f))
		f.Captured.Acquisition["note"] = strings.Repeat("x", room)
		fact, err := stage.NewLog(r.js, r.log.Logger()).Encode(f)
		testkit.OK(r, err)
		r.expect("size", len(fact.Data), topology.MaxFactSize)
		testkit.Publish(r, r.js, f)
		r.start()
		r.settled()
		letters := r.letters()
		r.expect("letters", len(letters), 1)
		r.expect("payload", string(letters[0].Data) == string(fact.Data), true)
		r.expect("failed attempts", len(r.failed()), 1)
		size := len(letters[0].Data)
		for h, v := range letters[0].Header {
			size += len(h) + len(v[0]) + 4
		}
		if most := int(r.nc.MaxPayload()); size > most*3/4 {
			r.Errorf("a letter of %d bytes, the broker takes %d", size, most)
		}

		// A raw message with an id that no letter could repeat.
		testkit.PublishRaw(r, r.js, f.Subject(), nats.Header{event.HeaderMsgID: {strings.Repeat("i", 60_000)}}, testkit.JSON(r, testkit.Fixed(testkit.Slot("2"), "two", nil)))
		r.settled()
		r.expect("letters", len(r.letters()), 2)
		r.expect("halts", r.log.Count("consumer_halted"), 0)

		// One byte more is refused before it is published; so is what comes raw.
		f.Captured.Acquisition["note"] += "x"
		_, err = stage.NewLog(r.js, r.log.Logger()).Encode(f)
		r.expect("code", fault.Of(err).Code, "fact-too-large")
		r.expect("class", fault.Of(err).Class(), fault.Permanent)
		if _, err := r.js.Publish(r.Context(), event.SubjectFrameFixed, make([]byte, topology.MaxLogSize+1)); err == nil {
			r.Error("the log takes a message whose letter might not fit")
		}
	})
}

// TestAFactThatIsTooLargeEndsThePass.
func TestAFactThatIsTooLargeEndsThePass(t *testing.T) {
	world(t, func(r *rig) {
		w := &talkative{r.worker}
		r.send("1.tif", "one", nil)
		r.startWith(w)
		r.once()
		r.expect("letters", len(r.letters()), 1)
		r.expect("code", r.letters()[0].Header.Get(event.HeaderCode), "fact-too-large")
		f := r.failed()
		r.expect("failed attempts", []any{len(f), f[0].Attempt, f[0].Decision}, []any{1, 1, event.DecisionDeadLetter})
		if r.stage.Halted() != nil {
			r.Error("one fact halts the consumer")
		}
	})
}

// talkative is a worker with much to say.
type talkative struct{ *testkit.Deriver }

func (w *talkative) Fact(in event.FrameFixed, out event.Derived, work event.Work) event.Fact {
	f := w.Deriver.Fact(in, out, work).(event.DerivativeMade)
	f.Derived.Arguments = []string{strings.Repeat("x", topology.MaxFactSize)}
	return f
}
