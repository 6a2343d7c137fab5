package event

import (
	"encoding/json"
	"fmt"
	"time"
)

// Fact is a message that says what happened; never edited, never deleted.
type Fact interface {
	Subject() string
	MsgID() string
}

// Agent is a program that did something: a service, or a helper it used.
type Agent struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	Note    string `json:"note,omitempty"` // data it used, such as a signature set
}

// Request says who asked for a pass after the first, and why.
type Request struct {
	Actor string `json:"actor"`
	Note  string `json:"note,omitempty"`
}

// Work is what every fact about work carries, so that no service looks a
// batch up and a replayed message is complete in itself.
type Work struct {
	Schema    string          `json:"schema"`
	Slot                      // batch, frame
	Sequence  int             `json:"sequence"`         // place in the batch, from 1
	Revision  int             `json:"revision"`         // of the slot's bytes, from 1
	Digest    Digest          `json:"digest,omitempty"` // of the master
	Pass      int             `json:"pass"`             // from 1
	Attempt   int             `json:"attempt"`          // from 1; 0 when nothing had to be done
	Hit       bool            `json:"hit,omitempty"`    // the work had been done before
	Limit     int             `json:"limit,omitempty"`  // max_attempts of the policy
	Started   time.Time       `json:"started"`
	Ended     time.Time       `json:"ended"`
	Agent     Agent           `json:"agent"`
	Helpers   []Agent         `json:"helpers,omitempty"`
	Policy    json.RawMessage `json:"policy,omitempty"`   // the pinned policy, canonical
	Profiles  []string        `json:"profiles,omitempty"` // the derivatives the batch wants
	Requested *Request        `json:"requested,omitempty"`
}

// SourceStat is how a source file looked when it was read: an unchanged file
// whose slot is done is not read again.
type SourceStat struct {
	Size    int64     `json:"size"` // bytes
	ModTime time.Time `json:"mtime"`
	Change  time.Time `json:"ctime,omitzero"`
	Inode   uint64    `json:"inode,omitempty"`
}

// Same reports whether two looks at a file show no change.
func (a SourceStat) Same(b SourceStat) bool {
	return a.Size == b.Size && a.ModTime.Equal(b.ModTime) && a.Change.Equal(b.Change) && a.Inode == b.Inode
}

// Captured is what capture learned of a slot's bytes.
type Captured struct {
	Source      string            `json:"source"`             // URI the bytes were read from
	Stat        *SourceStat       `json:"stat,omitempty"`     // of a file source
	Size        int64             `json:"size"`               // bytes
	Staging     string            `json:"staging"`            // store key
	Declared    Digest            `json:"declared,omitempty"` // digest the gateway declared
	DeclaredBy  string            `json:"declared_by,omitempty"`
	Replaces    Digest            `json:"replaces,omitempty"` // content of the revision before, which this one supersedes
	Gateway     string            `json:"gateway,omitempty"`
	Device      string            `json:"device,omitempty"`
	Operator    string            `json:"operator,omitempty"` // a pseudonym
	ScannedAt   time.Time         `json:"scanned_at,omitzero"`
	TakenAt     time.Time         `json:"taken_at,omitzero"`     // when the bytes were read
	Acquisition map[string]string `json:"acquisition,omitempty"` // protocol, driver, settings
}

// FrameCaptured: the bytes of a slot are in staging.
type FrameCaptured struct {
	Work
	Captured
}

// Subject implements [Fact].
func (FrameCaptured) Subject() string { return SubjectFrameCaptured }

// MsgID implements [Fact].
func (f FrameCaptured) MsgID() string { return CaptureKey(f.Digest, f.Slot).MsgID(f.Slot, f.Pass) }

// Format is what a file claims to be; only a validation says it is sound.
type Format struct {
	PUID       string `json:"puid"` // PRONOM key; UNKNOWN when nothing matched
	Name       string `json:"name"` // "unknown" when nothing matched
	Version    string `json:"version,omitempty"`
	MIME       string `json:"mime,omitempty"`
	Basis      string `json:"basis,omitempty"`
	Signatures string `json:"signatures,omitempty"` // signature set
	Extent     string `json:"extent,omitempty"`     // bytes looked at
	Warning    string `json:"warning,omitempty"`
}

// Fixed is what hasher learned.
type Fixed struct {
	StoredDigest Digest `json:"stored_digest"`
	Size         int64  `json:"size"`   // bytes
	Master       string `json:"master"` // store key
	Format       Format `json:"format"`
}

// FrameFixed: digest pinned, master promoted, slot counted.
type FrameFixed struct {
	Work
	Captured Captured `json:"captured"`
	Fixed    Fixed    `json:"fixed"`
	// Capturer is the agent of the capture fact this one carries on.
	Capturer Agent `json:"capturer"`
}

// Subject implements [Fact].
func (FrameFixed) Subject() string { return SubjectFrameFixed }

// MsgID implements [Fact].
func (f FrameFixed) MsgID() string { return FixityKey(f.Digest, f.Slot).MsgID(f.Slot, f.Pass) }

// Finding is one result of an image check.
type Finding struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// Output is one stored file of a derivative; Page counts from 1.
type Output struct {
	Page   int     `json:"page"`
	Key    string  `json:"key"` // store key
	Digest Digest  `json:"digest"`
	Size   int64   `json:"size"` // bytes
	Format Format  `json:"format"`
	PSNR   float64 `json:"psnr,omitempty"` // dB against the master's samples, reduced; 0 when exact
	Exact  bool    `json:"exact,omitempty"`
}

// Technical is technical metadata read from the master itself.
type Technical struct {
	Format        string  `json:"format,omitempty"`
	Width         int     `json:"width,omitempty"`  // pixels
	Height        int     `json:"height,omitempty"` // pixels
	BitsPerSample int     `json:"bits_per_sample,omitempty"`
	Samples       int     `json:"samples,omitempty"`
	ColourSpace   string  `json:"colour_space,omitempty"`
	Compression   string  `json:"compression,omitempty"`
	ICCName       string  `json:"icc_name,omitempty"`
	XResolution   float64 `json:"x_resolution,omitempty"` // pixels per Unit
	YResolution   float64 `json:"y_resolution,omitempty"`
	Unit          string  `json:"unit,omitempty"`
	Pages         int     `json:"pages,omitempty"`
	Orientation   int     `json:"orientation,omitempty"`
	Make          string  `json:"make,omitempty"`
	Model         string  `json:"model,omitempty"`
	Software      string  `json:"software,omitempty"`
	DateTime      string  `json:"date_time,omitempty"`
}

// Derived is what deriver made and learned.
type Derived struct {
	Profile      string    `json:"profile"`
	RecipeDigest Digest    `json:"recipe_digest"`
	Arguments    []string  `json:"arguments,omitempty"` // of the encoder
	Outputs      []Output  `json:"outputs"`
	Technical    Technical `json:"technical"`
	Findings     []Finding `json:"findings,omitempty"` // warnings of the image check
}

// DerivativeMade: a derivative passed its gate.
type DerivativeMade struct {
	Work
	Derived Derived `json:"derived"`
}

// Subject implements [Fact].
func (d DerivativeMade) Subject() string { return SubjectDerivative + "." + Encode(d.Derived.Profile) }

// MsgID implements [Fact].
func (d DerivativeMade) MsgID() string {
	return DerivativeKey(d.Derived.Profile, d.Digest).MsgID(d.Slot, d.Pass)
}

// Decisions of an attempt that failed.
const (
	DecisionRetry      = "retry"
	DecisionDeadLetter = "dead-letter"
)

// AttemptFailed: one attempt failed.
type AttemptFailed struct {
	Work
	Service   string    `json:"service"`
	Operation Operation `json:"operation"`
	Class     string    `json:"class"` // transient, permanent, lost
	Code      string    `json:"code"`
	Message   string    `json:"message"`          // at most 2,048 bytes, without paths or credentials
	Detail    string    `json:"detail,omitempty"` // evidence: the tail of a helper's stderr
	Decision  string    `json:"decision"`
	NotBefore time.Time `json:"not_before,omitzero"` // of the next attempt
	Declared  Digest    `json:"declared,omitempty"`  // the digest that was declared, where the failure is a mismatch
	// DeclaredBy is who declared it; empty: the gateway.
	DeclaredBy string `json:"declared_by,omitempty"`
	Late       bool   `json:"late,omitempty"` // an outcome that came after its "lost"
	// Of a fault that a gateway reported: the device, and the report's message
	// id. Such attempts are the device's own, before any pass of the line: they
	// stand in pass 0 of the slot's capture.
	Device string `json:"device,omitempty"`
	Report string `json:"report,omitempty"`
}

// Subject implements [Fact].
func (AttemptFailed) Subject() string { return SubjectAttemptFailed }

// MsgID implements [Fact].
func (a AttemptFailed) MsgID() string {
	id := fmt.Sprintf("attempt:%s:%s@%s#%d.%d", a.Operation, a.Digest, a.Slot, a.Pass, a.Attempt)
	if a.Late {
		id += "+late"
	}
	return id
}

// Orders of a batch.
const (
	OrderSequence = "sequence" // by declared sequence
	OrderNatural  = "natural"  // by natural order of names (folders)
)

// Totals are the counts of a batch view; declared = done + failed + pending +
// missing + discarded.
type Totals struct {
	Declared  int `json:"declared"`
	Done      int `json:"done"`
	Failed    int `json:"failed"`
	Pending   int `json:"pending"`
	Missing   int `json:"missing"`
	Discarded int `json:"discarded"`
	Surplus   int `json:"surplus,omitempty"` // frames beyond the declared count
}

// BatchFact: a declaration was accepted, corrected, or the batch converged.
type BatchFact struct {
	Schema       string          `json:"schema"`
	Batch        Name            `json:"batch"`
	State        string          `json:"state"`          // opened, changed, converged
	Number       int             `json:"number"`         // of the declaration, 0 first; of the convergence, 1 first
	Count        int             `json:"count"`          // declared frames
	Body         Digest          `json:"body,omitempty"` // SHA-256 of the declaration that was accepted
	Order        string          `json:"order"`
	Policy       json.RawMessage `json:"policy"`
	PolicyDigest Digest          `json:"policy_digest"`
	Profiles     []string        `json:"profiles"`
	Devices      []string        `json:"devices,omitempty"`
	Operator     string          `json:"operator,omitempty"`
	Gateway      string          `json:"gateway,omitempty"`
	Agent        Agent           `json:"agent"`
	At           time.Time       `json:"at"`
	Totals       *Totals         `json:"totals,omitempty"` // of a convergence
}

// Subject implements [Fact].
func (b BatchFact) Subject() string { return SubjectBatch + "." + b.State }

// MsgID implements [Fact].
func (b BatchFact) MsgID() string {
	return fmt.Sprintf("batch:%s@%s#%d", b.State, b.Batch.Encode(), b.Number)
}

// ProfilePinned: a recipe under its name, for good.
type ProfilePinned struct {
	Schema string          `json:"schema"`
	Name   string          `json:"name"`
	Recipe json.RawMessage `json:"recipe"`
	Digest Digest          `json:"digest"` // SHA-256 of Recipe
	Agent  Agent           `json:"agent"`
	At     time.Time       `json:"at"`
}

// Subject implements [Fact].
func (ProfilePinned) Subject() string { return SubjectProfilePinned }

// MsgID implements [Fact].
func (p ProfilePinned) MsgID() string { return "profile:" + Encode(p.Name) + ":" + string(p.Digest) }

// ActorPolicy decides what the batch's policy asks for and nobody was asked.
const ActorPolicy = "policy"

// States of a case.
const (
	CaseOpened    = "opened"
	CaseReplayed  = "replayed"
	CaseDiscarded = "discarded"
	CaseRescan    = "rescan-requested"
	CaseResolved  = "resolved"
)

// CaseFact is one of quarantine's decisions on a case: one failed (operation,
// slot), from dead letter to resolution.
type CaseFact struct {
	Schema    string    `json:"schema"`
	ID        string    `json:"id"` // of the case: <operation>@<batch>/<frame>, or decode:<service>@<origin>
	Slot                // zero for an undecodable message
	Sequence  int       `json:"sequence,omitempty"`
	Revision  int       `json:"revision,omitempty"`
	Operation Operation `json:"operation"`
	Digest    Digest    `json:"digest,omitempty"`
	Pass      int       `json:"pass"`
	State     string    `json:"state"`
	Number    int       `json:"number"` // n-th change of this case, from 1
	Service   string    `json:"service"`
	Class     string    `json:"class"`
	Code      string    `json:"code"`
	Reason    string    `json:"reason"`
	Attempts  int       `json:"attempts"` // of the pass that failed
	Actor     string    `json:"actor,omitempty"`
	Note      string    `json:"note,omitempty"`
	NextPass  int       `json:"next_pass,omitempty"`
	Origin    string    `json:"origin"` // <stream>-<sequence> of the message that failed
	Letter    uint64    `json:"letter"` // sequence in DEADLETTER
	Declared  Digest    `json:"declared,omitempty"`
	Device    string    `json:"device,omitempty"` // that the bytes came from
	Rescan    bool      `json:"rescan,omitempty"` // of an opening: the policy asks for a rescan by itself
	Agent     Agent     `json:"agent"`
	At        time.Time `json:"at"`
}

// Subject implements [Fact].
func (c CaseFact) Subject() string { return SubjectCase + "." + c.State }

// MsgID implements [Fact].
func (c CaseFact) MsgID() string {
	if c.Slot == (Slot{}) {
		return fmt.Sprintf("case:%s@%s.%s.%d", c.Operation, c.Origin, c.State, c.Number)
	}
	return fmt.Sprintf("case:%s:%s@%s#%d.%s.%d", c.Operation, c.Digest, c.Slot, c.Pass, c.State, c.Number)
}

// CaseID names the case of an operation on a slot.
func CaseID(op Operation, s Slot, origin string) string {
	if s == (Slot{}) {
		return string(op) + "@" + origin
	}
	return string(op) + "@" + s.String()
}

// Kinds of operational facts.
const (
	OpHalted     = "halted"
	OpResumed    = "resumed"
	OpReleased   = "released"
	OpRolledBack = "rolled-back"
	OpHole       = "hole"
	OpLetterLost = "letter-lost" // a dead letter is gone, and cannot be made again
	OpConflict   = "conflict"
	OpStuck      = "stuck" // a slot that no message would have moved, sent again

	OpDeviceFault = "device-fault" // that a gateway reported, of no frame

	OpCheckpoint = "checkpoint" // premis signed one: its note and verifier key stand in Detail, base64url
	OpVerified   = "verified"   // a scheduled fixity check: digest, value and run in Detail; without a digest, its end
	OpReplicated = "replicated" // a copy elsewhere was read back: digest, value and store in Detail
	// Staged bytes of a discarded slot are gone: batch and frame (encoded),
	// revision, digest, operation, pass and actor of the decision in Detail.
	OpDeleted = "deleted"

	OpBreakerOpened = "breaker-opened" // of the dependency in Detail
	OpBreakerClosed = "breaker-closed"
)

// OpFact: halts, resumes, breakers, holes, rollbacks, verifications.
type OpFact struct {
	Schema   string            `json:"schema"`
	Kind     string            `json:"kind"`
	Service  string            `json:"service"`
	Instance string            `json:"instance"`
	Counter  uint64            `json:"counter"` // durable, per service instance
	Code     string            `json:"code,omitempty"`
	Reason   string            `json:"reason"`
	Detail   map[string]string `json:"detail,omitempty"`
	Agent    Agent             `json:"agent"`
	At       time.Time         `json:"at"`
}

// Subject implements [Fact].
func (o OpFact) Subject() string { return SubjectOp + "." + o.Kind }

// MsgID implements [Fact].
func (o OpFact) MsgID() string {
	return fmt.Sprintf("op:%s:%s:%s#%d", o.Kind, o.Service, Encode(o.Instance), o.Counter)
}

// WorkOf gives the work that a fact speaks of, if it speaks of one.
func WorkOf(f Fact) (Work, bool) {
	switch f := f.(type) {
	case FrameCaptured:
		return f.Work, true
	case FrameFixed:
		return f.Work, true
	case DerivativeMade:
		return f.Work, true
	case AttemptFailed:
		return f.Work, true
	}
	return Work{}, false
}

// OperationOf gives the operation that a fact completes, and its work; none
// for other facts.
func OperationOf(f Fact) (Operation, Work) {
	switch f := f.(type) {
	case FrameCaptured:
		return Capture, f.Work
	case FrameFixed:
		return Fixity, f.Work
	case DerivativeMade:
		return Derivative(f.Derived.Profile), f.Work
	}
	return "", Work{}
}
