package verify

import (
	"crypto/sha1" //nolint:gosec // UUID version 5 is defined by it
	"fmt"
	"strings"

	"colophon/shared/event"
)

// The event types of MAPPING section 3, as they stand in names.
const (
	tIngestionStart   = "ingestion-start"
	tPolicyAssignment = "policy-assignment"
	tCapture          = "capture"
	tDigest           = "message-digest-calculation"
	tFixityCheck      = "fixity-check"
	tIdentification   = "format-identification"
	tValidation       = "validation"
	tAccession        = "accession"
	tDeaccession      = "deaccession"
	tMigration        = "migration"
	tQuarantine       = "quarantine"
	tUnquarantine     = "unquarantine"
	tAppraisal        = "appraisal"
	tIngestion        = "ingestion"
	tIngestionEnd     = "ingestion-end"
	tDeletion         = "deletion"
	tReplication      = "replication"
	tRetry            = "retry"
	tConflict         = "conflict"
)

// ownTerms are the two types that Colophon adds to the Library's list.
var ownTerms = map[string]bool{tRetry: true, tConflict: true}

// operational is the type of a record that is no event about an object.
const operational = "op"

// eventName makes a name: event:<type>[:<operation>]:[<digest>], to which
// qualifiers are added.
func eventName(typ, operation string, d event.Digest) string {
	if operation != "" {
		operation += ":"
	}
	return "event:" + typ + ":" + operation + string(d)
}

// at qualifies a name by a slot; without a frame it is the batch.
func at(s event.Slot) string {
	if s.Frame == "" {
		return "@" + s.Batch.Encode()
	}
	return "@" + s.Batch.Encode() + "/" + s.Frame.Encode()
}

func pass(n int) string { return fmt.Sprintf("#%d", n) }

func try(n, attempt int) string { return fmt.Sprintf("#%d.%d", n, attempt) }

func revision(n int) string { return fmt.Sprintf("+r%d", n) }

// typeOf gives the type in a name.
func typeOf(name string) (string, bool) {
	rest, ok := strings.CutPrefix(name, "event:")
	if !ok {
		return operational, strings.HasPrefix(name, "op:")
	}
	typ, _, ok := strings.Cut(rest, ":")
	return typ, ok && typ != ""
}

// unqualified reports whether a name may exist at most once for good: it has
// neither slot, pass nor run.
func unqualified(name string) bool { return !strings.ContainsAny(name, "@#+") }

// namespace makes the identifiers of one installation.
type namespace [16]byte

// urlNamespace is the namespace of URLs, RFC 9562.
var urlNamespace = namespace{0x6b, 0xa7, 0xb8, 0x11, 0x9d, 0xad, 0x11, 0xd1, 0x80, 0xb4, 0x00, 0xc0, 0x4f, 0xd4, 0x30, 0xc8}

// namespaceOf gives the namespace of a ledger's origin.
func namespaceOf(origin string) namespace { return namespace(urlNamespace.v5(origin)) }

func (n namespace) v5(name string) [16]byte {
	h := sha1.New() //nolint:gosec // see above
	h.Write(n[:])
	h.Write([]byte(name))
	var u [16]byte
	copy(u[:], h.Sum(nil))
	u[6] = u[6]&0x0f | 0x50
	u[8] = u[8]&0x3f | 0x80
	return u
}

// id is the UUID of a name.
func (n namespace) id(name string) string {
	u := n.v5(name)
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}
