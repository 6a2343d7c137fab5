package verify

import (
	_ "embed"
	"strings"
)

// termList is the Library of Congress's controlled values: list, label, URI.
//
//go:embed terms.tsv
var termList string

// vocabularies is where the Library's lists are.
const vocabularies = "http://id.loc.gov/vocabulary/preservation/"

// terms are the URIs of the values, by list and label.
var terms = func() map[[2]string]string {
	out := map[[2]string]string{}
	for line := range strings.Lines(termList) {
		if f := strings.Split(strings.TrimSpace(line), "\t"); len(f) == 3 {
			out[[2]string{f[0], f[1]}] = f[2]
		}
	}
	return out
}()

// knownTerm reports whether a value is in its list, under that URI. Our own
// two event types have a URI of our own.
func knownTerm(list, label, uri string) bool {
	if list == "eventType" && ownTerms[label] {
		return strings.HasSuffix(uri, "#"+label) && !strings.HasPrefix(uri, vocabularies)
	}
	want, ok := terms[[2]string{list, label}]
	return ok && uri == want
}
