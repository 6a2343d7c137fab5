package record

import "strings"

// Type is one kind of event: a term of the Library of Congress's list of
// event types, or one of the two that Colophon adds.
type Type struct {
	Label string // as PREMIS writes it
	Code  string // the term's code in the list; empty for our own
}

// Slug is the type as it stands in an event's name.
func (t Type) Slug() string { return strings.ReplaceAll(t.Label, " ", "-") }

// Own reports whether the term is Colophon's.
func (t Type) Own() bool { return t.Code == "" }

// Vocabularies of the terms. Both are fixed for good: every identifier that
// left an archive was written with them.
const (
	LoC           = "http://id.loc.gov/vocabulary/preservation/"
	OwnVocabulary = "urn:uuid:348b9874-cd2f-4d04-9855-863c98d529b1"
)

// URI names the term.
func (t Type) URI() string {
	if t.Own() {
		return OwnVocabulary + "#" + t.Slug()
	}
	return LoC + "eventType/" + t.Code
}

// The event types of MAPPING section 3.
var (
	IngestionStart       = Type{"ingestion start", "ins"}
	PolicyAssignment     = Type{"policy assignment", "poa"}
	Capture              = Type{"capture", "cap"}
	MessageDigest        = Type{"message digest calculation", "mes"}
	FixityCheck          = Type{"fixity check", "fix"}
	FormatIdentification = Type{"format identification", "for"}
	Validation           = Type{"validation", "val"}
	Accession            = Type{"accession", "acc"}
	Deaccession          = Type{"deaccession", "dea"}
	Migration            = Type{"migration", "mig"}
	Quarantine           = Type{"quarantine", "qua"}
	Unquarantine         = Type{"unquarantine", "unq"}
	Appraisal            = Type{"appraisal", "app"}
	Ingestion            = Type{"ingestion", "ing"}
	IngestionEnd         = Type{"ingestion end", "ine"}
	Deletion             = Type{"deletion", "del"}
	Replication          = Type{"replication", "rep"}
	Retry                = Type{"retry", ""}
	Conflict             = Type{"conflict", ""}
)

// Types lists every type this build writes.
func Types() []Type {
	return []Type{
		IngestionStart, PolicyAssignment, Capture, MessageDigest, FixityCheck, FormatIdentification, Validation,
		Accession, Deaccession, Migration, Quarantine, Unquarantine, Appraisal, Ingestion, IngestionEnd, Deletion, Replication, Retry, Conflict,
	}
}

// TypeOf finds a type by its label.
func TypeOf(label string) (Type, bool) {
	for _, t := range Types() {
		if t.Label == label {
			return t, true
		}
	}
	return Type{}, false
}

// Operational is the type of a ledger record that is no PREMIS event: halts,
// pinned profiles, cases about nothing that was captured.
const Operational = "op"

// Outcomes of an event (eventOutcome of the Library of Congress).
const (
	Success = "success"
	Fail    = "fail"
	Warning = "warning"
)

// Statuses of a retry event, MAPPING section 4.
const (
	StatusSuccess     = "Success"
	StatusPending     = "Pending Retry"
	StatusQuarantined = "Quarantined"
)

// Roles of objects and agents in an event.
const (
	Source      = "source"
	Outcome     = "outcome"
	Implementer = "implementer"
	Executing   = "executing program"
	Authorizer  = "authorizer"
)

// Kinds of agents (agentType of the Library of Congress).
const (
	Software     = "software"
	Hardware     = "hardware"
	Person       = "person"
	Organization = "organization"
)

// Kinds of objects in a link.
const (
	KindBatch = "batch" // the record's own batch
	KindFrame = "frame" // the record's own frame
	KindFile  = "file"  // named by its digest
)
