// Package facttest makes facts as the services publish them, for tests.
package facttest

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	"colophon/shared/event"

	"colophon/services/premis/internal/ledger"
)

// Origin is the origin of MAPPING's example identifiers.
const Origin = "archive.example.org/colophon"

// Start is the instant of the first fact.
var Start = time.Date(2025, 11, 24, 8, 0, 0, 0, time.UTC)

// Policy is a pinned policy in canonical form.
const Policy = `{"circuit_cooldown":"30s","circuit_failure_threshold":5,"exp_base":4,"initial_delay":"2s","jitter":true,"max_attempts":3,"max_delay":"5m"}`

// Agents of the line.
var (
	Capture    = event.Agent{Name: "capture", Version: "1.4.2", Note: "revision 3f2c9d1e77aa40c1"}
	Hasher     = event.Agent{Name: "hasher", Version: "1.4.2", Note: "revision 3f2c9d1e77aa40c1"}
	Deriver    = event.Agent{Name: "deriver", Version: "1.4.2"}
	Quarantine = event.Agent{Name: "quarantine", Version: "1.4.2"}
	OpenJPEG   = event.Agent{Name: "OpenJPEG", Version: "2.5.0"}
	Siegfried  = event.Agent{Name: "siegfried", Version: "1.11.4", Note: "DROID_SignatureFile_V122.xml"}
)

// Digest is the SHA-256 of a text.
func Digest(s string) event.Digest {
	sum := sha256.Sum256([]byte(s))
	return event.Digest(hex.EncodeToString(sum[:]))
}

// Log is a log that grows: each fact gets the next sequence and a time.
type Log struct{ Entries []ledger.Entry }

// Add appends facts.
func (l *Log) Add(facts ...event.Fact) *Log {
	for _, f := range facts {
		data, err := json.Marshal(f)
		if err != nil {
			panic(err)
		}
		n := len(l.Entries) + 1
		l.Entries = append(l.Entries, ledger.Entry{
			Sequence: uint64(n), Stored: Start.Add(time.Duration(n) * time.Second), MsgID: f.MsgID(), Subject: f.Subject(), Data: data,
		})
	}
	return l
}

// Opened declares a batch.
func Opened(batch event.Name, count int, profiles ...string) event.BatchFact {
	return event.BatchFact{
		Schema: event.SchemaBatch, Batch: batch, State: "opened", Count: count, Order: event.OrderSequence,
		Policy: json.RawMessage(Policy), PolicyDigest: Digest(Policy), Profiles: profiles, Agent: Capture, At: Start,
	}
}

// Converged ends a batch for the n-th time.
func Converged(batch event.Name, n int, t event.Totals) event.BatchFact {
	f := Opened(batch, t.Declared)
	f.State, f.Number, f.Totals, f.At = "converged", n, &t, Start.Add(time.Hour)
	return f
}

// Frame is one page of a batch.
type Frame struct {
	Slot     event.Slot
	Sequence int
	Digest   event.Digest
	Revision int
	Profiles []string
}

// Page makes a frame whose bytes are a text's.
func Page(batch, frame event.Name, sequence int, bytes string) Frame {
	return Frame{event.Slot{Batch: batch, Frame: frame}, sequence, Digest(bytes), 1, []string{"jp2"}}
}

// Work is the work on a frame in a pass.
func (f Frame) Work(schema string, by event.Agent, pass, attempt int) event.Work {
	at := Start.Add(time.Duration(f.Sequence)*time.Minute + time.Duration(pass*10+attempt)*time.Second)
	return event.Work{
		Schema: schema, Slot: f.Slot, Sequence: f.Sequence, Revision: f.Revision, Digest: f.Digest, Pass: pass, Attempt: attempt, Limit: 3,
		Started: at, Ended: at.Add(658 * time.Millisecond), Agent: by, Profiles: f.Profiles, Policy: json.RawMessage(Policy),
	}
}

// Captured is the bytes in staging.
func (f Frame) Captured(pass, attempt int) event.FrameCaptured {
	return event.FrameCaptured{Work: f.Work(event.SchemaFrameCaptured, Capture, pass, attempt), Captured: f.captured()}
}

func (f Frame) captured() event.Captured {
	return event.Captured{
		Source: "file:///srv/secret/scans/" + f.Slot.Frame.Encode(), Size: 73400452, Staging: "staging/" + f.Slot.String(),
		Declared: f.Digest, DeclaredBy: "gateway", Device: "scanner-03", Operator: "7f3a",
		ScannedAt: Start.Add(-time.Hour), Acquisition: map[string]string{"resolution": "400 ppi", "mode": "colour", "model": "BookScan 4000", "serial-number": "BS4K-00317", "calibrated": "2025-11-20"},
	}
}

// Fixed is the digest pinned.
func (f Frame) Fixed(pass, attempt int) event.FrameFixed {
	w := f.Work(event.SchemaFrameFixed, Hasher, pass, attempt)
	w.Helpers = []event.Agent{Siegfried}
	return event.FrameFixed{Work: w, Captured: f.captured(), Capturer: Capture, Fixed: event.Fixed{
		StoredDigest: f.Digest, Size: 73400452, Master: "masters/sha256/" + string(f.Digest[:2]) + "/" + string(f.Digest[2:4]) + "/" + string(f.Digest),
		Format: event.Format{
			PUID: "fmt/353", Name: "Tagged Image File Format", MIME: "image/tiff", Basis: "byte match at 0, 4",
			Signatures: "DROID_SignatureFile_V122.xml; images only", Extent: "first and last 65536 bytes",
		},
	}}
}

// Derived is the access copy.
func (f Frame) Derived(pass, attempt int) event.DerivativeMade {
	w := f.Work(event.SchemaDerivative, Deriver, pass, attempt)
	w.Helpers = []event.Agent{OpenJPEG}
	return event.DerivativeMade{Work: w, Derived: event.Derived{
		Profile: "jp2", RecipeDigest: Digest("recipe"), Arguments: []string{"-r 20", "-n 6"},
		Outputs: []event.Output{{
			Page: 1, Key: "derivatives/jp2/" + string(f.Digest) + ".jp2", Digest: Digest("jp2 of " + string(f.Digest)), Size: 3670122,
			Format: event.Format{PUID: "x-fmt/392", Name: "JP2 (JPEG 2000 part 1)", MIME: "image/jp2"}, PSNR: 41.2,
		}},
		Technical: event.Technical{Width: 4000, Height: 6000, BitsPerSample: 8, Samples: 3, ColourSpace: "RGB", Software: "ScanStudio 8.2.1", Pages: 1},
	}}
}

// Failed is a failed attempt; dead: the last one.
func (f Frame) Failed(op event.Operation, by event.Agent, pass, attempt int, class, code string, dead bool) event.AttemptFailed {
	a := event.AttemptFailed{
		Work: f.Work(event.SchemaAttemptFailed, by, pass, attempt), Service: by.Name, Operation: op, Class: class, Code: code,
		Message: "read: input/output error at byte 52428800", Decision: event.DecisionRetry,
	}
	if dead {
		a.Decision = event.DecisionDeadLetter
	} else {
		a.NotBefore = a.Ended.Add(2 * time.Second)
	}
	return a
}

// Case is a change of the frame's case.
func (f Frame) Case(op event.Operation, pass int, state string, number int) event.CaseFact {
	c := event.CaseFact{
		Schema: event.SchemaCase, ID: event.CaseID(op, f.Slot, ""), Slot: f.Slot, Sequence: f.Sequence, Revision: f.Revision, Operation: op,
		Digest: f.Digest, Pass: pass, State: state, Number: number, Service: "deriver", Class: "transient", Code: "attempts-exhausted",
		Reason: "all 3 attempts failed", Attempts: 3, Origin: fmt.Sprintf("INGEST-%d", f.Sequence), Agent: Quarantine,
		At: Start.Add(time.Duration(f.Sequence) * time.Hour),
	}
	if state != event.CaseOpened {
		c.Actor, c.Note = "9a41", "Memory limit of the encoder raised in release 1.4.3."
	}
	if state == event.CaseReplayed {
		c.NextPass = pass + 1
	}
	return c
}

// Verified is a scheduled check of a stored file: value is what its bytes gave,
// empty where they could not be read.
func Verified(d, value event.Digest, run string) event.OpFact {
	f := event.OpFact{
		Schema: event.SchemaOp, Kind: event.OpVerified, Service: "verify", Instance: run + ":" + string(d), Counter: 1, Reason: "as recorded",
		Detail: map[string]string{"digest": string(d), "value": string(value), "run": run},
		Agent:  event.Agent{Name: "verify", Version: "1.4.2"}, At: Start.Add(time.Hour),
	}
	if value != d {
		f.Code, f.Reason = "master-damaged", "its 12 bytes have another digest"
	}
	return f
}
