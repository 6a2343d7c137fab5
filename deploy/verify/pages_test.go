package verify

import (
	"fmt"

	"github.com/nats-io/nats.go"

	"colophon/shared/event"
)

// add brings a page all the way; its bytes are new.
func (w *world) add(p page) {
	w.frames = append(w.frames, p)
	w.publish(p.captureFact())
	w.file(p.master(), []byte(p.bytes))
	w.publish(p.fixedFact(1, 1), w.fixedRecords(p)...)
	w.file(p.access(), []byte(p.jp2))
	w.publish(p.derivedFact(1, 1), w.derivedRecords(p)...)
}

// addEqual brings a page whose bytes are held already.
func (w *world) addEqual(p page) {
	w.frames = append(w.frames, p)
	w.publish(p.captureFact())
	w.publish(p.fixedFact(1, 1), w.accession(p))
	d := p.derivedFact(1, 0)
	d.Hit = true
	w.publish(d)
}

// addRetried brings a page whose first attempt at fixity failed.
func (w *world) addRetried(p page) {
	w.frames = append(w.frames, p)
	w.publish(p.captureFact())
	w.publish(p.failedFact(event.Fixity, 1, 1, false), w.retry(p, event.Fixity, 1, 1, "Pending Retry", ""))
	w.file(p.master(), []byte(p.bytes))
	first := fmt.Sprintf("event:retry:fixity:%s@%s#1.1", p.digest(), p.slot)
	w.publish(p.fixedFact(1, 2), append([]map[string]any{w.retry(p, event.Fixity, 1, 2, "Success", first)}, w.fixedRecords(p)...)...)
	w.file(p.access(), []byte(p.jp2))
	w.publish(p.derivedFact(1, 1), w.derivedRecords(p)...)
}

// addReplayed brings a page whose derivative came by a replay from quarantine.
func (w *world) addReplayed(p page) {
	w.frames = append(w.frames, p)
	op := event.Derivative("jp2")
	w.publish(p.captureFact())
	w.file(p.master(), []byte(p.bytes))
	w.publish(p.fixedFact(1, 1), w.fixedRecords(p)...)
	w.publish(p.failedFact(op, 1, 1, true), w.retry(p, op, 1, 1, "Quarantined", ""))
	w.letter(p, op, 1)
	name := fmt.Sprintf(":%s:%s@%s#1", op, p.digest(), p.slot)
	w.publish(p.caseFact(op, 1, event.CaseOpened, 1), w.event("event:quarantine"+name, "qua", p.slot, p.digest(), map[string]any{"case": map[string]any{"id": namespaceOf(origin).id("event:quarantine" + name)}}))
	again := p.fixedFact(1, 1)
	id := event.FixityKey(p.digest(), p.slot).MsgID(p.slot, 2)
	w.send(again.Subject(), nats.Header{event.HeaderMsgID: {id}, event.HeaderPass: {"2"}, event.HeaderActor: {"ann"}}, again)
	released := p.caseFact(op, 1, event.CaseReplayed, 2)
	released.Actor, released.NextPass = "ann", 2
	w.publish(released, w.event("event:unquarantine"+name, "unq", p.slot, p.digest(), map[string]any{"closing": map[string]any{"decision": "replay", "quarantine": namespaceOf(origin).id("event:quarantine" + name)}}))
	w.file(p.access(), []byte(p.jp2))
	first := fmt.Sprintf("event:retry:%s:%s@%s#1.1", op, p.digest(), p.slot)
	w.publish(p.derivedFact(2, 1), append([]map[string]any{w.retry(p, op, 2, 1, "Success", first)}, w.derivedRecords(p)...)...)
	resolved := p.caseFact(op, 1, event.CaseResolved, 3)
	w.publish(resolved, w.op("op:"+resolved.MsgID(), nil))
}
