package premisxml

import (
	"fmt"

	"colophon/services/premis/internal/record"
)

// Term is a controlled value: its list, its code there, and its text.
type Term struct{ List, Code, Label string }

// attrs are the three that every controlled value carries (MAPPING section 8,
// check 5).
func (t Term) attrs() []attr {
	if t.Code == "" {
		return []attr{
			{"authority", "colophon"}, {"authorityURI", record.OwnVocabulary},
			{"valueURI", record.OwnVocabulary + "#" + record.Type{Label: t.Label}.Slug()},
		}
	}
	return []attr{{"authority", t.List}, {"authorityURI", record.LoC + t.List}, {"valueURI", record.LoC + t.List + "/" + t.Code}}
}

// Lists of the Library of Congress, by their short names.
const (
	listEventType  = "eventType"
	listOutcome    = "eventOutcome"
	listAgentRole  = "eventRelatedAgentRole"
	listObjectRole = "eventRelatedObjectRole"
	listAgentType  = "agentType"
	listRelation   = "relationshipType"
	listSubRelated = "relationshipSubType"
	listHash       = "cryptographicHashFunctions"
	listFormatRole = "formatRegistryRole"
)

var (
	derivation      = Term{listRelation, "der", "derivation"}
	structural      = Term{listRelation, "str", "structural"}
	isSourceOf      = Term{listSubRelated, "iso", "is Source Of"}
	hasSource       = Term{listSubRelated, "hss", "has Source"}
	isPartOf        = Term{listSubRelated, "isp", "is Part Of"}
	isRepresentedBy = Term{listSubRelated, "isr", "is Represented By"}
	represents      = Term{listSubRelated, "rep", "represents"}
	sha256Term      = Term{listHash, "sha256", "SHA-256"}
	specification   = Term{listFormatRole, "spe", "specification"}
)

// terms are the values this package writes, beside the event types.
var terms = []Term{
	derivation, structural, isSourceOf, hasSource, isPartOf, isRepresentedBy, represents, sha256Term, specification,
	{listOutcome, "suc", record.Success}, {listOutcome, "fai", record.Fail}, {listOutcome, "war", record.Warning},
	{listAgentRole, "imp", record.Implementer}, {listAgentRole, "exe", record.Executing}, {listAgentRole, "aut", record.Authorizer},
	{listObjectRole, "sou", record.Source}, {listObjectRole, "out", record.Outcome},
	{listAgentType, "sof", record.Software}, {listAgentType, "har", record.Hardware}, {listAgentType, "per", record.Person},
	{listAgentType, "org", record.Organization},
}

// Terms lists every controlled value that a document may hold.
func Terms() []Term {
	out := append([]Term(nil), terms...)
	for _, t := range record.Types() {
		out = append(out, Term{listEventType, t.Code, t.Label})
	}
	return out
}

var byLabel = func() map[[2]string]Term {
	out := map[[2]string]Term{}
	for _, t := range Terms() {
		out[[2]string{t.List, t.Label}] = t
	}
	return out
}()

// term finds a value; a value outside the lists is a fault of the record.
func (w *writer) term(list, label string) Term {
	t, ok := byLabel[[2]string{list, label}]
	if !ok && w.err == nil {
		w.err = fmt.Errorf("premisxml: %q is not in the list %s", label, list)
	}
	return t
}

func (w *writer) controlled(element, list, label string) {
	t := w.term(list, label)
	w.text(element, t.Label, t.attrs()...)
}
