package record

import (
	"fmt"
	"strings"

	"github.com/google/uuid"

	"colophon/shared/event"
)

// Name begins an event's name, MAPPING section 2: the uniqueness key of the
// ledger and the source of the event's identifier. op may be empty.
func Name(t Type, op string, d event.Digest) string {
	if op != "" {
		op += ":"
	}
	return "event:" + t.Slug() + ":" + op + string(d)
}

// At qualifies a name by a frame, or by a batch where the slot has no frame.
func At(s event.Slot) string {
	if s.Frame == "" {
		return "@" + s.Batch.Encode()
	}
	return "@" + s.String()
}

// Pass qualifies a name by a pass.
func Pass(pass int) string { return fmt.Sprintf("#%d", pass) }

// Try qualifies a name by an attempt of a pass.
func Try(pass, attempt int) string { return fmt.Sprintf("#%d.%d", pass, attempt) }

// Run qualifies a name by a run, a revision or a store.
func Run(run string) string { return "+" + run }

// Qualified reports whether a name carries a qualifier: without one it exists
// at most once per digest, for good.
func Qualified(name string) bool { return strings.ContainsAny(name, "@#+") }

// Namespace makes the identifiers of one installation: UUIDs of version 5.
type Namespace uuid.UUID

// NamespaceOf gives the namespace of a ledger's origin: the version 5 UUID of
// the origin in the URL namespace.
func NamespaceOf(origin string) Namespace {
	return Namespace(uuid.NewSHA1(uuid.NameSpaceURL, []byte(origin)))
}

// String gives the namespace itself.
func (n Namespace) String() string { return uuid.UUID(n).String() }

// Event is the eventIdentifierValue of a name.
func (n Namespace) Event(name string) string { return n.of(name) }

// Batch is the identifier of a batch's intellectual entity.
func (n Namespace) Batch(b event.Name) string { return n.of("object:batch:" + b.Encode()) }

// Frame is the identifier of a frame's intellectual entity.
func (n Namespace) Frame(s event.Slot) string { return n.of("object:frame:" + s.String()) }

// File is the identifier of a file: it is its bytes.
func (n Namespace) File(d event.Digest) string { return n.of("object:file:" + string(d)) }

func (n Namespace) of(s string) string { return uuid.NewSHA1(uuid.UUID(n), []byte(s)).String() }
