package event

import (
	"encoding/json"
	"time"
)

// Endpoints that services answer over nats.go/micro; bodies are JSON.
const (
	EndpointBatchStatus       = "batch.status"
	EndpointBatchFrames       = "batch.frames"
	EndpointBatchList         = "batch.list"
	EndpointBatchRetry        = "batch.retry"
	EndpointPremisExport      = "premis.export"
	EndpointPremisPosition    = "premis.position"
	EndpointPremisCheckpoint  = "premis.checkpoint"
	EndpointQuarantineList    = "quarantine.list"
	EndpointQuarantineShow    = "quarantine.show"
	EndpointQuarantineReplay  = "quarantine.replay"
	EndpointQuarantineDiscard = "quarantine.discard"
	EndpointQuarantineRescan  = "quarantine.rescan"
)

// BatchRequest asks about one batch.
type BatchRequest struct {
	Batch  Name   `json:"batch"`
	After  string `json:"after,omitempty"` // cursor of the page before
	Limit  int    `json:"limit,omitempty"`
	Undone bool   `json:"undone,omitempty"` // only frames that are not done
}

// BatchStatus is a batch at one position of the log.
type BatchStatus struct {
	Batch        Name     `json:"batch"`
	Known        bool     `json:"known"` // a declaration was accepted
	Number       int      `json:"number"`
	Count        int      `json:"count"`
	Order        string   `json:"order"`
	Profiles     []string `json:"profiles"`
	PolicyDigest Digest   `json:"policy_digest"`
	// Policy is the pinned retry policy, canonical.
	Policy          json.RawMessage `json:"policy,omitempty"`
	Totals          Totals          `json:"totals"`
	Settled         bool            `json:"settled"`
	Converged       bool            `json:"converged"`
	Convergence     int             `json:"convergence"`      // number of the last one
	Bag             int             `json:"bag"`              // number of the convergence whose bag stands
	Manifest        int             `json:"manifest"`         // the same for the manifest
	Position        uint64          `json:"position"`         // log sequence that this view has read
	CapturePosition uint64          `json:"capture_position"` // the same for capture messages
	Changed         time.Time       `json:"changed,omitzero"`
	Problem         string          `json:"problem,omitempty"` // why the bag or the manifest is late
}

// FrameStatus is one frame of a batch.
type FrameStatus struct {
	Frame    Name        `json:"frame"`
	Sequence int         `json:"sequence"`
	State    State       `json:"state"`
	Stage    Operation   `json:"stage,omitempty"` // that a pending frame waits at
	Pass     int         `json:"pass"`
	Ended    int         `json:"ended,omitempty"` // highest pass whose capture came to an end
	Revision int         `json:"revision"`
	Digest   Digest      `json:"digest,omitempty"`
	Pinned   Digest      `json:"pinned,omitempty"`
	Source   string      `json:"source,omitempty"`
	Stat     *SourceStat `json:"stat,omitempty"`
	Effect   uint64      `json:"effect,omitempty"`
	Troubles []Trouble   `json:"troubles,omitempty"`
	// Rescan is the scan that a device owes, until it is answered or decided otherwise.
	Rescan *RescanStatus `json:"rescan,omitempty"`
	// Stuck tells that a pending frame would not have moved any more.
	Stuck *StuckStatus `json:"stuck,omitempty"`
}

// RescanStatus is a scan that is asked of a device.
type RescanStatus struct {
	Device   string    `json:"device,omitempty"`
	Dispatch string    `json:"dispatch,omitempty"` // message id, which the answer names
	Pass     int       `json:"pass"`
	Since    time.Time `json:"since"`
	Actor    string    `json:"actor,omitempty"`
	Problem  string    `json:"problem,omitempty"` // why nobody is asked
}

// StuckStatus is a frame that was sent again, since no message moved it.
type StuckStatus struct {
	Operation Operation `json:"operation"`
	Since     time.Time `json:"since"`
	Problem   string    `json:"problem,omitempty"` // why it was not sent again
}

// BatchFrames is a page of frames, in the batch's order.
type BatchFrames struct {
	Frames []FrameStatus `json:"frames"`
	Next   string        `json:"next,omitempty"` // cursor; empty at the end
}

// BatchList lists the batches known, a page at a time.
type BatchList struct {
	Batches []BatchStatus `json:"batches"`
	Next    string        `json:"next,omitempty"` // cursor; empty at the end
}

// RetryRequest asks for one more pass over what failed, or over what lacks a
// derivative.
type RetryRequest struct {
	Batch Name   `json:"batch"`
	Actor string `json:"actor"`
	Note  string `json:"note,omitempty"`
	// Transient: only what failed transiently.
	Transient bool `json:"transient,omitempty"`
	DryRun    bool `json:"dry_run,omitempty"`
	// Profile is added to the batch where it is not wanted yet; every slot that
	// lacks its derivative is sent, not only failed ones.
	Profile string `json:"profile,omitempty"`
	// Spread is the time that the messages are spread over, evenly; 0 sends
	// them as fast as the broker stores them.
	Spread time.Duration `json:"spread,omitempty"`
}

// RetryReply says what was sent again.
type RetryReply struct {
	Dispatched int    `json:"dispatched"`
	Left       int    `json:"left"`     // failed frames that were not sent: nothing to send, or filtered
	Sequence   uint64 `json:"sequence"` // in CAPTURE, of the last message sent
}

// CaseRequest selects cases: one by id, or many by filter.
type CaseRequest struct {
	ID        string    `json:"id,omitempty"`
	Batch     Name      `json:"batch,omitempty"`
	Code      string    `json:"code,omitempty"`
	Service   string    `json:"service,omitempty"`
	Operation Operation `json:"operation,omitempty"`
	State     string    `json:"state,omitempty"` // default: every open one
	// Age since the case was opened last: a case is either older than a time or
	// newer than it.
	OlderThan Duration `json:"older_than,omitempty"` // that old, or older
	NewerThan Duration `json:"newer_than,omitempty"` // not as old
	After     string   `json:"after,omitempty"`      // cursor
	Limit     int      `json:"limit,omitempty"`
	All       bool     `json:"all,omitempty"` // also closed ones
	Actor     string   `json:"actor,omitempty"`
	Note      string   `json:"note,omitempty"`
	DryRun    bool     `json:"dry_run,omitempty"`
}

// Duration is a [time.Duration] that JSON spells "1m30s".
type Duration time.Duration

// MarshalText implements [encoding.TextMarshaler].
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	*d = Duration(v)
	return err
}

// Case is a failed (operation, slot) as quarantine keeps it.
type Case struct {
	CaseFact
	Open     bool       `json:"open"`
	Detail   string     `json:"detail,omitempty"` // evidence: the tail of a helper's stderr
	OpenedAt time.Time  `json:"opened_at"`
	History  []CaseFact `json:"history,omitempty"`
}

// CaseList is a page of cases.
type CaseList struct {
	Cases []Case `json:"cases"`
	Next  string `json:"next,omitempty"`
	Total int    `json:"total"` // matching, over all pages
}

// CaseDecision says what a decision did: n eligible, m not, and why.
type CaseDecision struct {
	Eligible int               `json:"eligible"`
	Refused  map[string]string `json:"refused,omitempty"` // case id: why
	Done     []string          `json:"done,omitempty"`    // case ids
	DryRun   bool              `json:"dry_run,omitempty"`
	Next     string            `json:"next,omitempty"` // cursor, when more cases match than one request decides
}

// ExportRequest asks premis for documents: kind "premis", "tsv-events" or
// "tsv-frames", of a batch or of one digest. The answer waits until the ledger
// has read the log up to MinPosition.
type ExportRequest struct {
	Kind        string `json:"kind"`
	Batch       Name   `json:"batch,omitempty"`
	Digest      Digest `json:"digest,omitempty"`
	MinPosition uint64 `json:"min_position,omitempty"`
}
