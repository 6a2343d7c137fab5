package verify

import (
	"strconv"

	"colophon/shared/event"
)

// operational expects the record of what a service says of itself. Three kinds
// are events of an object: a scheduled check, a copy read back, and the removal
// of a discarded slot's staged bytes.
func (x *expecter) operational(f event.OpFact) error {
	name, m := "", succeeded
	switch f.Kind {
	case event.OpVerified, event.OpReplicated:
		typ, slot := tFixityCheck, f.Detail["run"]
		if f.Kind == event.OpReplicated {
			typ, slot = tReplication, f.Detail["store"]
		}
		d := event.Digest(f.Detail["digest"])
		if d.Valid() && slot != "" && len(slot) <= 200 {
			name = eventName(typ, "", d) + "+" + event.Encode(slot)
			m.Digest, m.Declared = event.Digest(f.Detail["value"]).Content(), d
			if m.Digest != d || f.Code != "" {
				m.Outcome = fail
			}
		}
	case event.OpDeleted:
		name = deleted(f.Detail)
	}
	if name == "" {
		return x.op(f.MsgID())
	}
	return x.add(name, m)
}

// deleted names the removal of a slot's staged bytes; empty where the fact does
// not say which, or by which decision.
func deleted(detail map[string]string) string {
	b, errBatch := event.DecodeName(detail["batch"])
	f, errFrame := event.DecodeName(detail["frame"])
	rev, errRev := strconv.Atoi(detail["revision"])
	n, errPass := strconv.Atoi(detail["pass"])
	if errBatch != nil || errFrame != nil || errRev != nil || errPass != nil || b == "" || f == "" || detail["operation"] == "" || rev < 1 || n < 1 {
		return ""
	}
	return eventName(tDeletion, "", event.Digest(detail["digest"]).Content()) + at(event.Slot{Batch: b, Frame: f}) + revision(rev)
}
