package verify

import "time"

// Severity of a finding.
type Severity string

// The severities. A command that judges ends with 4 on damage, with 3 on
// drift, with 0 on notes.
const (
	// Damage: something recorded or stored is lost, changed or contradicts
	// itself. A person has to look.
	Damage Severity = "damage"
	// Drift: something is not as it should be, and nothing is lost by it.
	Drift Severity = "drift"
	// Note: worth knowing; work under way, or an oddity with a known cause.
	Note Severity = "note"
)

// Finding is one thing that is not as it should be.
type Finding struct {
	Kind     string   `json:"kind"`   // stable token
	Object   string   `json:"object"` // store key, name, or place in a stream
	Message  string   `json:"message"`
	Severity Severity `json:"severity"`
}

// Checked counts what was judged.
type Checked struct {
	Masters     int64 `json:"masters"`
	Derivatives int64 `json:"derivatives"` // files
	Records     int64 `json:"records"`     // of the ledger
	Facts       int64 `json:"facts"`       // of the log
	Letters     int64 `json:"letters"`
	Batches     int64 `json:"batches"`
	Frames      int64 `json:"frames"`
	Bags        int64 `json:"bags"`
	Documents   int64 `json:"documents"` // of PREMIS, in bags
	Bytes       int64 `json:"bytes"`     // read and hashed
}

// BadRecord is the first record of the ledger that is damaged.
type BadRecord struct {
	Number int64  `json:"number"`
	Name   string `json:"name,omitempty"` // where it can be read
	Kind   string `json:"kind"`           // of the finding
}

// OpenBatch is a batch that is not converged: no finding, but not done either.
type OpenBatch struct {
	Batch     string `json:"batch"`
	Declared  int    `json:"declared"`
	Done      int    `json:"done"`
	Failed    int    `json:"failed"`
	Pending   int    `json:"pending"`
	Missing   int    `json:"missing"`
	Discarded int    `json:"discarded"`
	Surplus   int    `json:"surplus,omitempty"`
}

// Report is what [Run] found.
type Report struct {
	Started  time.Time `json:"started"`
	Ended    time.Time `json:"ended"`
	Batch    string    `json:"batch,omitempty"` // where only one was judged
	Checked  Checked   `json:"checked"`
	Log      uint64    `json:"log"`      // last sequence of it
	Position uint64    `json:"position"` // of the ledger in it
	Origin   string    `json:"origin,omitempty"`
	Size     int64     `json:"size"` // records, as the ledger says
	Root     string    `json:"root,omitempty"`
	// Findings: the worst first. Of one kind at most [MaxOfKind] are kept;
	// Counts has them all.
	Findings []Finding      `json:"findings"`
	Counts   map[string]int `json:"counts"` // findings by kind
	// FirstBad is the first damaged record of the ledger.
	FirstBad *BadRecord `json:"first_bad_record,omitempty"`
	// Open are the batches that are not converged, at most [MaxOfKind].
	Open []OpenBatch `json:"open_batches,omitempty"`

	worst map[Severity]int
}

// MaxOfKind is how many findings of one kind a report keeps.
const MaxOfKind = 200

// Damaged reports whether there is any damage.
func (r Report) Damaged() bool { return r.Count(Damage) > 0 }

// Drifted reports whether there is anything beyond notes.
func (r Report) Drifted() bool { return r.Damaged() || r.Count(Drift) > 0 }

// Clean reports whether there is no finding at all.
func (r Report) Clean() bool { return len(r.Findings) == 0 }

// Count gives how many findings of a severity there are, also those that were
// not kept.
func (r Report) Count(s Severity) int {
	if r.worst != nil {
		return r.worst[s]
	}
	n := 0
	for _, f := range r.Findings { // a report that was read back
		if f.Severity == s {
			n++
		}
	}
	return n
}
