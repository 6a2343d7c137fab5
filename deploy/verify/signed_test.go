package verify

import (
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/mod/sumdb/note"

	"colophon/shared/event"
)

// signedWorld is an archive of one page with a checkpoint of its first records
// in the log, and another, the last, beside the key.
func signedWorld(t *testing.T) (w *world, key string, last []byte) {
	t.Helper()
	w = newWorld(t)
	private, key, err := note.GenerateKey(rand.Reader, origin)
	w.ok(err)
	signer, err := note.NewSigner(private)
	w.ok(err)
	sign := func() []byte {
		h := w.book().head
		msg, err := note.Sign(&note.Note{Text: fmt.Sprintf("%s\n%d\n%s\n", origin, h.Size, h.Root)}, signer)
		w.ok(err)
		return msg
	}
	w.pin()
	w.open("b", 1)
	f := event.OpFact{Schema: event.SchemaOp, Kind: event.OpCheckpoint, Service: "premis", Instance: "k", Counter: uint64(len(w.records)), Agent: worker, At: start,
		Detail: map[string]string{"note": base64.RawURLEncoding.EncodeToString(sign()), "key": base64.RawURLEncoding.EncodeToString([]byte(key))}}
	w.publish(f, w.op(f.MsgID(), nil))
	p := newPage("b", "1", 1, "one")
	w.file(p.master(), []byte(p.bytes))
	w.file(p.access(), []byte(p.jp2))
	w.publish(p.captureFact())
	w.publish(p.fixedFact(1, 1), w.fixedRecords(p)...)
	w.publish(p.derivedFact(1, 1), w.derivedRecords(p)...)
	return w, key, sign()
}

func kinds(r Report) string {
	var out []string
	for _, f := range r.Findings {
		if f.Severity == Damage {
			out = append(out, f.Kind)
		}
	}
	return strings.Join(out, " ")
}

// An insider without the key may write the ledger anew, tree, root and all:
// what was signed tells, and from which record on.
func TestSignedCheckpoints(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		spoil func(w *world, b *book)
		want  string
		bad   int64 // number of the first bad record; -1: none
	}{
		"as it was": {func(*world, *book) {}, "", -1},
		"a record before the first checkpoint": {func(_ *world, b *book) {
			b.records[1] = []byte(strings.Replace(string(b.records[1]), "It happened.", "It happened so.", 1))
		}, "checkpoint-root", 0},
		"a record behind the first checkpoint": {func(_ *world, b *book) {
			b.records[6] = []byte(strings.Replace(string(b.records[6]), "It happened.", "It happened so.", 1))
		}, "checkpoint-root", 3},
		"two records in another order": {func(_ *world, b *book) {
			b.records[4], b.records[5] = b.records[5], b.records[4]
			for name, n := range b.names {
				if n == 4 || n == 5 {
					b.names[name] = 9 - n
				}
			}
		}, "checkpoint-root", 3},
		"cut": {func(_ *world, b *book) { b.records = b.records[:len(b.records)-1] }, "checkpoint-size", -2},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			w, key, last := signedWorld(t)
			b := w.book()
			c.spoil(w, b)
			b.grow(w)
			w.write(b)
			r := w.run(func(o *Options) { o.Key, o.Last = key, last })
			if got := kinds(r); c.want == "" && got != "" || !strings.Contains(got, c.want) {
				t.Errorf("found %q, not %q", got, c.want)
			}
			if c.bad >= 0 && (r.FirstBad == nil || r.FirstBad.Number != c.bad) {
				t.Errorf("first bad record %+v, not %d", r.FirstBad, c.bad)
			}
		})
	}
}

// Whatever bit of a checkpoint is changed, it is found.
func TestAnyBitOfALastCheckpoint(t *testing.T) {
	t.Parallel()
	w, key, last := signedWorld(t)
	w.write(w.book())
	bits := len(last) * 8
	for bit := 0; bit < bits; bit += 61 { // each run reads the whole archive
		spoiled := append([]byte(nil), last...)
		spoiled[bit/8] ^= 1 << (bit % 8)
		if r := w.run(func(o *Options) { o.Key, o.Last = key, spoiled }); !r.Damaged() {
			t.Errorf("bit %d of %q", bit, last)
		}
	}
	_, other, err := note.GenerateKey(rand.Reader, origin)
	w.ok(err)
	if r := w.run(func(o *Options) { o.Key = other }); !strings.Contains(kinds(r), "checkpoint-unsigned") {
		t.Errorf("another key: %q", kinds(r))
	}
}
