package event

import (
	"fmt"
	"strings"
)

// The streams of the line; shared/topology declares them.
const (
	StreamCapture    = "CAPTURE"
	StreamIngest     = "INGEST"
	StreamDeadLetter = "DEADLETTER"
	StreamDispatch   = "DISPATCH"
)

// Subjects of the log, and the roots below which names are added.
const (
	SubjectCaptureBatch   = "capture.batch"
	SubjectCaptureFrame   = "capture.frame"
	SubjectCaptureFault   = "capture.fault"
	SubjectBatch          = "ingest.batch"
	SubjectProfilePinned  = "ingest.profile.pinned"
	SubjectFrameCaptured  = "ingest.frame.captured"
	SubjectFrameFixed     = "ingest.frame.fixed"
	SubjectDerivative     = "ingest.derivative"
	SubjectAttemptFailed  = "ingest.attempt.failed"
	SubjectCase           = "ingest.case"
	SubjectOp             = "ingest.op"
	SubjectDeadLetter     = "deadletter"
	SubjectDispatch       = "gateway.dispatch"
	SubjectBatchOpened    = SubjectBatch + ".opened"
	SubjectBatchChanged   = SubjectBatch + ".changed"
	SubjectBatchConverged = SubjectBatch + ".converged"
)

// CaptureSubject is the subject of a gateway's message of one kind
// ("batch", "frame", "fault") about a batch.
func CaptureSubject(kind, gateway string, batch Name) string {
	return fmt.Sprintf("capture.%s.%s.%s", kind, Encode(gateway), batch.Encode())
}

// ParseCaptureSubject reads what [CaptureSubject] writes.
func ParseCaptureSubject(subject string) (kind, gateway string, batch Name, err error) {
	t := strings.Split(subject, ".")
	if len(t) != 4 || t[0] != "capture" {
		return "", "", "", fmt.Errorf("event: %q is not a capture subject", subject)
	}
	g, err := DecodeName(t[2])
	if err != nil {
		return "", "", "", err
	}
	batch, err = DecodeName(t[3])
	return t[1], string(g), batch, err
}

// DeadLetterSubject is where a service's dead letters go.
func DeadLetterSubject(service string) string { return SubjectDeadLetter + "." + service }

// Headers. A dead letter's body is the original payload unchanged; what is
// known of the failure stands in its headers.
const (
	HeaderMsgID     = "Nats-Msg-Id"
	HeaderPass      = "Colophon-Pass"      // the pass of a replayed message; wins over the body's
	HeaderActor     = "Colophon-Actor"     // who asked for this pass
	HeaderNote      = "Colophon-Note"      // why
	HeaderDeclared  = "Colophon-Declared"  // number of the declaration that the message counts on
	HeaderService   = "Colophon-Service"   // the service that gave up
	HeaderOperation = "Colophon-Operation" // what failed
	HeaderFoundBy   = "Colophon-Found-By"  // the work that found it, where that is another operation
	HeaderDigest    = "Colophon-Digest"    // the content it failed on, if known
	HeaderBatch     = "Colophon-Batch"     // encoded
	HeaderFrame     = "Colophon-Frame"     // encoded
	HeaderSequence  = "Colophon-Sequence"  // the frame's sequence
	HeaderRevision  = "Colophon-Revision"  // the slot's revision
	HeaderAttempts  = "Colophon-Attempts"  // attempts made in this pass
	HeaderClass     = "Colophon-Class"     // fault class
	HeaderCode      = "Colophon-Code"      // fault code
	HeaderMessage   = "Colophon-Message"   // percent-encoded sentence
	HeaderDetail    = "Colophon-Detail"    // percent-encoded evidence: a helper's stderr
	HeaderOrigin    = "Colophon-Origin"    // <stream>-<sequence> of the message that failed
	HeaderOriginID  = "Colophon-Origin-Id" // its message id
	HeaderOriginAt  = "Colophon-Origin-At" // its stored time, RFC 3339 with nanoseconds
	HeaderOriginSub = "Colophon-Origin-Subject"
)

// DeadLetterID is the message id of a dead letter. An undecodable message has
// an empty key and slot: only its origin names it.
func DeadLetterID(op Operation, d Digest, s Slot, pass int, origin string) string {
	if s == (Slot{}) {
		return "dead:" + origin
	}
	return fmt.Sprintf("dead:%s:%s@%s#%d.%s", op, d, s, pass, origin)
}
