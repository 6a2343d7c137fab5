package mapping

import (
	"fmt"
	"strconv"

	"colophon/shared/event"

	"colophon/services/premis/internal/record"
)

// kept: a stored file was read again, or a copy of it elsewhere was. The run or
// the store is the slot in the name: a run that is played again adds nothing.
// False where the fact names no file. Whether the ledger knows the file yet
// makes no difference: a log that is read again must give the same names.
func (m *mapper) kept(o event.OpFact) bool {
	t, slot := record.FixityCheck, o.Detail["run"]
	if o.Kind == event.OpReplicated {
		t, slot = record.Replication, o.Detail["store"]
	}
	d, value := event.Digest(o.Detail["digest"]), event.Digest(o.Detail["value"]).Content()
	if !d.Valid() || slot == "" || len(slot) > 200 {
		return false
	}
	r := m.event(t, record.Name(t, "", d)+record.Run(event.Encode(slot)), o.At, event.Slot{})
	r.Digest, r.Objects = d, []record.Object{file(d, record.Source)}
	r.Agents = []record.Agent{software(o.Agent, record.Implementer)}
	r.Detail = fmt.Sprintf("Stored file read again and its digest compared, run %s.", text(slot))
	if t == record.Replication {
		r.Detail = fmt.Sprintf("Copy in store %s read back and its digest compared.", text(slot))
	}
	r.Note = "Digests are equal."
	if value != d || o.Code != "" {
		r.Outcome, r.Note = record.Fail, "Digests differ. "
		if value == "" {
			r.Note = "The file could not be read. "
		}
		r.Note = or(text(r.Note+sentence(text(o.Reason))), "Digests differ.")
	}
	r.Data.Digest = &record.Digest{Value: value, Expected: d, ExpectedFrom: "ledger"}
	r.Data.Op = bounded(map[string]string{"run": o.Detail["run"], "store": o.Detail["store"], "code": o.Code})
	return true
}

// removed: the staged bytes of a discarded slot are gone. Masters and
// derivatives never are. False where the fact names no slot and decision.
func (m *mapper) removed(o event.OpFact) bool {
	b, errBatch := event.DecodeName(o.Detail["batch"])
	f, errFrame := event.DecodeName(o.Detail["frame"])
	rev, errRev := strconv.Atoi(o.Detail["revision"])
	pass, errPass := strconv.Atoi(o.Detail["pass"])
	op := event.Operation(o.Detail["operation"])
	if errBatch != nil || errFrame != nil || errRev != nil || errPass != nil || b == "" || f == "" || op == "" || rev < 1 || pass < 1 {
		return false
	}
	s, d := event.Slot{Batch: b, Frame: f}, event.Digest(o.Detail["digest"]).Content()
	r := m.event(record.Deletion, record.Name(record.Deletion, "", d)+record.At(s)+revision(rev), o.At, s)
	r.Digest, r.Slot.Revision, r.Objects = d, rev, []record.Object{frame(record.Source)}
	if actor := o.Detail["actor"]; actor != "" {
		r.Agents = append(r.Agents, person(actor, record.Authorizer))
	}
	r.Agents = append(r.Agents, software(o.Agent, record.Implementer))
	r.Detail = fmt.Sprintf("Staged bytes of frame %s of batch %s removed: the frame was discarded.", shown(f), shown(b))
	appraisal := m.Space.Event(record.Name(record.Appraisal, string(op), d) + record.At(s) + record.Pass(pass))
	r.Note = "By appraisal event " + appraisal + "."
	r.Data.Removed = &record.Removed{Appraisal: appraisal}
	return true
}
