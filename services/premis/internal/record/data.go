package record

import (
	"time"

	"colophon/shared/event"
)

// Data is a record's typed detail; a record sets the parts its type has.
type Data struct {
	Batch          *Batch            `json:"batch,omitempty"`
	Policy         *Policy           `json:"policy,omitempty"`
	Digest         *Digest           `json:"digest,omitempty"`
	File           *File             `json:"file,omitempty"`
	Identification *event.Format     `json:"identification,omitempty"`
	Findings       []event.Finding   `json:"findings,omitempty"`
	Technical      *event.Technical  `json:"technical,omitempty"`
	Accession      *Inventory        `json:"accession,omitempty"`
	Replaced       *Replaced         `json:"replaced,omitempty"`
	Attempt        *Attempt          `json:"attempt,omitempty"`
	Resolution     *Resolution       `json:"resolution,omitempty"`
	Derivation     *Derivation       `json:"derivation,omitempty"`
	Case           *Case             `json:"case,omitempty"`
	Closing        *Closing          `json:"closing,omitempty"`
	Totals         *event.Totals     `json:"totals,omitempty"`
	Discarded      []Discarded       `json:"discarded,omitempty"`
	Conflict       *Conflicting      `json:"conflict,omitempty"`
	Op             map[string]string `json:"op,omitempty"`
	Checkpoint     *Checkpoint       `json:"checkpoint,omitempty"`
	Removed        *Removed          `json:"removed,omitempty"`
}

// Removed says by which decision staged bytes were removed.
type Removed struct {
	Appraisal string `json:"appraisal"` // identifier of its event
}

// Checkpoint is a signed note over the records before it, and the key that
// verifies it.
type Checkpoint struct {
	Note string `json:"note"`
	Key  string `json:"key"`
}

// Batch is what a declaration says.
type Batch struct {
	Declared int      `json:"declared"` // frames
	Order    string   `json:"order,omitempty"`
	Profiles []string `json:"profiles,omitempty"`
	Devices  []string `json:"devices,omitempty"`
}

// Policy is the pinned retry policy, byte for byte.
type Policy struct {
	Document string       `json:"document"`
	SHA256   event.Digest `json:"sha256"`
}

// Digest is a calculated digest and the one it was compared with.
type Digest struct {
	Value        event.Digest `json:"value,omitempty"`
	Expected     event.Digest `json:"expected,omitempty"`
	ExpectedFrom string       `json:"expected_from,omitempty"`
}

// File describes a stored file; it stands in the record of its digest's
// calculation.
type File struct {
	Size        int64        `json:"size"` // bytes
	Key         string       `json:"key,omitempty"`
	Format      event.Format `json:"format"`
	Originator  string       `json:"originator"`            // agent that calculated the digest
	Application *Application `json:"application,omitempty"` // that made the file
}

// Application is a program that made a file.
type Application struct {
	Name    string `json:"name"`
	Version string `json:"version,omitempty"`
	Date    string `json:"date,omitempty"` // YYYY-MM-DD
}

// Inventory is one frame's entry in the inventory.
type Inventory struct {
	New         bool              `json:"new"` // content that was not held before
	Size        int64             `json:"size"`
	Device      string            `json:"device,omitempty"`
	Operator    string            `json:"operator,omitempty"`
	Gateway     string            `json:"gateway,omitempty"`
	ScannedAt   time.Time         `json:"scanned_at,omitzero"`
	Source      string            `json:"source,omitempty"` // scheme and last name only
	Profiles    []string          `json:"profiles,omitempty"`
	Acquisition map[string]string `json:"acquisition,omitempty"`
}

// Replaced says which content took the place of a deaccessioned one.
type Replaced struct {
	By       event.Digest `json:"by"`
	Revision int          `json:"revision"`
}

// Attempt is one try at an operation (MAPPING section 4).
type Attempt struct {
	Operation event.Operation `json:"operation"`
	Type      string          `json:"type"` // label of the underlying event type
	URI       string          `json:"uri"`
	Pass      int             `json:"pass"`
	Number    int             `json:"number"`
	Limit     int             `json:"limit,omitempty"`
	Started   time.Time       `json:"started,omitzero"`
	Ended     time.Time       `json:"ended,omitzero"`
	Policy    string          `json:"policy"`             // identifier of the policy's event
	Previous  string          `json:"previous,omitempty"` // identifier of the attempt before
}

// Resolution is what came of an attempt.
type Resolution struct {
	Status    string    `json:"status"`
	Class     string    `json:"class,omitempty"`
	Code      string    `json:"code,omitempty"`
	Message   string    `json:"message,omitempty"`
	NotBefore time.Time `json:"not_before,omitzero"`
	Late      bool      `json:"late,omitempty"`
}

// Derivation is how a derivative was made.
type Derivation struct {
	Profile   string       `json:"profile"`
	SHA256    event.Digest `json:"sha256"` // of the recipe
	Arguments []string     `json:"arguments,omitempty"`
	Pages     int          `json:"pages"`
	Set       event.Digest `json:"set"` // SHA-256 of the outputs' digests, one a line, in order
	Outputs   []Output     `json:"outputs,omitempty"`
}

// Output is one file of a derivative.
type Output struct {
	Page   int          `json:"page"`
	Digest event.Digest `json:"digest"`
	Size   int64        `json:"size"`
	Key    string       `json:"key,omitempty"`
	PSNR   float64      `json:"psnr,omitempty"` // dB; 0 when exact
	Exact  bool         `json:"exact,omitempty"`
}

// Case is an opened case.
type Case struct {
	ID        string          `json:"id"`
	Operation event.Operation `json:"operation"`
	Pass      int             `json:"pass"`
	Code      string          `json:"code"`
	Reason    string          `json:"reason"`
	Attempts  int             `json:"attempts,omitempty"`
	Cause     string          `json:"cause,omitempty"` // identifier of the last attempt's event
}

// Closing is a decision on a case.
type Closing struct {
	ID         string          `json:"id"`
	Decision   string          `json:"decision"`
	Operation  event.Operation `json:"operation"`
	Pass       int             `json:"pass"`
	NextPass   int             `json:"next_pass,omitempty"`
	Actor      string          `json:"actor,omitempty"`
	Note       string          `json:"note,omitempty"`
	Quarantine string          `json:"quarantine"` // identifier of the case's event
}

// Decisions on a case.
const (
	DecisionReplay  = "replay"
	DecisionDiscard = "discard"
	DecisionRescan  = "rescan"
)

// Discarded is a frame that a batch converged without.
type Discarded struct {
	Frame     string          `json:"frame"` // encoded
	Operation event.Operation `json:"operation"`
	Event     string          `json:"event"` // identifier of the appraisal
}

// Conflicting holds both tellings of one event.
type Conflicting struct {
	Name  string   `json:"name"`
	First Material `json:"first"`
	Other Material `json:"other"`
}
