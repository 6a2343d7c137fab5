package schema

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
)

// Bounds of what an error says: it goes into headers and facts.
const (
	maxComplaints = 20
	maxBytes      = 2048
	maxShown      = 80 // bytes of a sender's own words
)

// Error says how a message does not follow its schema.
type Error struct {
	Schema     string
	Complaints []Complaint // at most 20, in the order of their pointers; the rest is counted in the last
}

// Complaint is one thing that is wrong. Says never repeats a value: it may be
// long, or a secret.
type Complaint struct {
	Pointer string // RFC 6901, as a URI fragment: #/sources/0
	Says    string // the rest of a sentence: "is missing"
}

// Error gives all complaints in one line of at most 2,048 bytes.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("it does not follow schema " + e.Schema)
	sep := ": "
	for i, c := range e.Complaints {
		next := sep + c.Pointer + " " + c.Says
		more := fmt.Sprintf("; and %d more", len(e.Complaints)-i)
		if b.Len()+len(next)+len(more) > maxBytes {
			b.WriteString(more)
			break
		}
		b.WriteString(next)
		sep = "; "
	}
	return b.String()
}

// complain flattens what the validator says. Its tree's inner nodes only say
// that something below them failed.
func complain(name string, v *jsonschema.ValidationError) *Error {
	var out []Complaint
	leaves(v, func(l *jsonschema.ValidationError) { out = append(out, says(l)...) })
	slices.SortStableFunc(out, func(a, b Complaint) int {
		return cmp.Or(strings.Compare(a.Pointer, b.Pointer), strings.Compare(a.Says, b.Says))
	})
	out = slices.Compact(out) // a part of the schema that is referred to twice complains twice
	if n := len(out); n > maxComplaints {
		out = append(out[:maxComplaints-1], Complaint{"#", fmt.Sprintf("has %d more faults", n-maxComplaints+1)})
	}
	return &Error{name, out}
}

func leaves(v *jsonschema.ValidationError, each func(*jsonschema.ValidationError)) {
	for _, c := range v.Causes {
		leaves(c, each)
	}
	if len(v.Causes) == 0 {
		each(v)
	}
}

func says(v *jsonschema.ValidationError) []Complaint {
	at := pointer(v.InstanceLocation)
	switch k := v.ErrorKind.(type) {
	case *kind.Required:
		out := make([]Complaint, len(k.Missing))
		for i, name := range k.Missing {
			out[i] = Complaint{at + "/" + name, "is missing"}
		}
		return out
	case *kind.AdditionalProperties:
		out := make([]Complaint, len(k.Properties))
		for i, name := range k.Properties {
			out[i] = Complaint{pointer(append(slices.Clone(v.InstanceLocation), name)), "is not known"}
		}
		return out
	case *kind.Type:
		return []Complaint{{at, fmt.Sprintf("is %s; it must be %s", a(k.Got), a(k.Want...))}}
	}
	return []Complaint{{at, rule(v.ErrorKind)}}
}

// patterns says in words what a regular expression asks for.
var patterns = map[string]string{
	"^[0-9a-f]{64}$":                                            "a SHA-256 in 64 lower-case hex digits",
	"^src-[0-9a-f]{32}$":                                        "a source token: src- and 32 lower-case hex digits",
	"^([0-9a-f]{64}|src-[0-9a-f]{32})?$":                        "a SHA-256 in 64 lower-case hex digits, or a source token",
	"^([A-Za-z0-9_-]|%[0-9A-F]{2})+$":                           "percent-encoded: A-Za-z0-9_- as they are, every other byte as %XX",
	"^[0-9.]+(ns|us|µs|ms|s|m|h)([0-9.]+(ns|us|µs|ms|s|m|h))*$": "a duration, such as 1h30m",
	"^[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}$":      "a UUID",
}

// rule says which rule a value breaks, in the schema's own values.
func rule(k jsonschema.ErrorKind) string {
	switch k := k.(type) {
	case *kind.Minimum:
		return "is below " + k.Want.RatString()
	case *kind.Maximum:
		return "is above " + k.Want.RatString()
	case *kind.ExclusiveMinimum:
		return "is not above " + k.Want.RatString()
	case *kind.MinLength:
		return fmt.Sprintf("is shorter than %d characters", k.Want)
	case *kind.MaxLength:
		return fmt.Sprintf("is longer than %d characters", k.Want)
	case *kind.MinItems:
		return fmt.Sprintf("has fewer than %d items", k.Want)
	case *kind.Pattern:
		return "is not " + cmp.Or(patterns[k.Want], "of the form "+k.Want)
	case *kind.Format:
		return "is not a " + k.Want
	case *kind.Const:
		return fmt.Sprintf("is not %q", k.Want)
	case *kind.Enum:
		words := make([]string, len(k.Want))
		for i, w := range k.Want {
			words[i] = fmt.Sprintf("%q", w)
		}
		return "is none of " + strings.Join(words, ", ")
	}
	return "breaks the schema's rule " + strings.Join(k.KeywordPath(), "/")
}

func a(types ...string) string {
	words := make([]string, len(types))
	for i, t := range types {
		switch t {
		case "null":
			words[i] = "null"
		case "array", "object", "integer":
			words[i] = "an " + t
		default:
			words[i] = "a " + t
		}
	}
	return strings.Join(words, " or ")
}

// pointer spells a location as a URI fragment, which is plain ASCII and so
// survives headers and the cleaning of messages.
func pointer(location []string) string {
	var b strings.Builder
	b.WriteByte('#')
	for _, token := range location {
		token = strings.NewReplacer("~", "~0", "/", "~1").Replace(short(token))
		b.WriteString("/" + url.PathEscape(token))
	}
	return b.String()
}

func short(s string) string {
	if len(s) > maxShown {
		return strings.ToValidUTF8(s[:maxShown], "") + "..."
	}
	return s
}
