package verify

import (
	"fmt"
	"slices"

	"colophon/shared/event"
	"colophon/shared/fault"
)

// completion expects the attempt that succeeded, unless it was the first of
// pass 1; a hit is no attempt.
func (x *expecter) completion(op event.Operation, w event.Work) error {
	if w.Hit || w.Attempt == 0 {
		return nil
	}
	if w.Pass <= 1 && w.Attempt == 1 {
		return x.mem.set(memFirst, string(op)+"@"+w.Slot.String(), nil)
	}
	return x.tried(op, w, material{Outcome: success, Decision: statusSuccess}, false, false)
}

// tried expects an attempt. A real outcome that comes after its attempt was
// reported lost stands beside that report.
func (x *expecter) tried(op event.Operation, w event.Work, m material, lost, late bool) error {
	name := eventName(tRetry, string(op), w.Digest.Content()) + at(w.Slot) + try(w.Pass, w.Attempt)
	if !lost && !late {
		first, known, err := x.find(name)
		if err != nil {
			return err
		}
		late = known && first.Lost
	}
	if late {
		name += "+late"
	}
	return x.addLost(name, m, lost)
}

func (x *expecter) failed(f event.AttemptFailed) error {
	if f.Slot == (event.Slot{}) { // nothing to link to
		return x.op(f.MsgID())
	}
	m := material{Outcome: fail, Decision: statusQuarantined}
	if f.Decision == event.DecisionRetry {
		m.Decision = statusPending
	}
	lost := f.Class == string(fault.Lost)
	if err := x.tried(f.Operation, f.Work, m, lost, f.Late); err != nil {
		return err
	}
	qualifier := at(f.Slot) + pass(f.Pass)
	switch d := f.Digest.Content(); {
	case d == "":
		return nil
	case f.Code == string(fault.DigestMismatch) && !lost:
		m := material{Outcome: fail, Digest: d, Declared: f.Declared.Content()}
		if m.Declared == "" || m.Declared == d { // the fact does not say what was calculated
			m.Digest, m.Declared = "", d
		}
		return x.add(eventName(tFixityCheck, "", d)+qualifier, m)
	case imageFault(f):
		profile, _ := f.Operation.Profile()
		return x.add(eventName(tValidation, profile, d)+qualifier, material{Outcome: fail})
	}
	return nil
}

// lineFaults are the permanent codes by which a derivative fails for what the
// line did or was told, not for what the image is.
var lineFaults = []fault.Code{
	fault.Malformed, fault.UnknownSchema, fault.UnknownProfile, fault.PolicyConflict, fault.BatchInvalid, fault.BatchUndeclared,
	fault.SourceMissing, fault.SourceUnreadable, fault.SourceNotAFile, fault.SourceChanged, fault.PathRefused, fault.SchemeRefused,
	fault.BytesMissing, fault.MasterDamaged, fault.DigestMismatch, fault.SizeMismatch, fault.Conflict, fault.Unclassified,
}

// imageFault reports an attempt that failed for good in the image check.
func imageFault(f event.AttemptFailed) bool {
	_, derivative := f.Operation.Profile()
	return derivative && f.Class == string(fault.Permanent) && !slices.Contains(lineFaults, fault.Code(f.Code))
}

// decided: quarantine's decisions on a case.
func (x *expecter) decided(f event.CaseFact) error {
	if f.Slot == (event.Slot{}) {
		return x.op(f.MsgID())
	}
	name := func(typ string) string {
		return eventName(typ, string(f.Operation), f.Digest.Content()) + at(f.Slot) + pass(max(f.Pass, 1))
	}
	switch f.State {
	case event.CaseOpened:
		return x.add(name(tQuarantine), succeeded)
	case event.CaseReplayed:
		return x.add(name(tUnquarantine), material{Outcome: success, Decision: "replay"})
	case event.CaseRescan:
		return x.add(fmt.Sprintf("%s+%d", name(tAppraisal), f.Number), material{Outcome: success, Decision: "rescan"}) // another decision may follow in the same pass
	case event.CaseDiscarded:
		known, err := x.has(name(tAppraisal))
		if err != nil {
			return err
		}
		if err := x.add(name(tAppraisal), material{Outcome: success, Decision: "discard"}); err != nil {
			return err
		}
		return x.waived(f, known)
	}
	return x.op(f.MsgID()) // resolved: its completion is the event
}
