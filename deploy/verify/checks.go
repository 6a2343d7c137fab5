package verify

import (
	"cmp"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"colophon/shared/event"
)

// controlled are the elements that hold a controlled value, and its list.
var controlled = map[string]string{
	"eventType": "eventType", "eventOutcome": "eventOutcome", "linkingObjectRole": "eventRelatedObjectRole",
	"linkingAgentRole": "eventRelatedAgentRole", "agentType": "agentType", "relationshipType": "relationshipType",
	"relationshipSubType": "relationshipSubType", "messageDigestAlgorithm": "cryptographicHashFunctions", "formatRegistryRole": "formatRegistryRole",
}

// term: check 5. A controlled value has all three attributes and is in its list.
func (d *document) term(e *element, list, text string) {
	authority, list2, uri := e.attr("authority"), e.attr("authorityURI"), e.attr("valueURI")
	good := authority == list && list2 == vocabularies+list && knownTerm(list, text, uri)
	if list == "eventType" && ownTerms[text] {
		good = authority == "colophon" && list2 != "" && uri == list2+"#"+text
	}
	if !good {
		d.say("premis-term", "%s %q with authority %q, list %q, URI %q is not in the list %s", e.Name.Local, text, authority, list2, uri, list)
	}
}

// instant: check 4. One instant, in UTC, written with a Z.
func (d *document) instant(where, text string) {
	if _, err := time.Parse(time.RFC3339Nano, text); err != nil || !strings.HasSuffix(text, "Z") {
		d.say("premis-time", "%s: %q is no instant of RFC 3339 in UTC", where, text)
	}
}

// machine are texts that name a machine, a folder of it, or a secret.
var machine = []*regexp.Regexp{
	regexp.MustCompile(`(^|[\s"'(=\[{,;<>|@])/[A-Za-z0-9._~%-]+/\S*`),
	regexp.MustCompile(`(^|\s)[A-Za-z]:\\`),
	regexp.MustCompile(`://[^/\s@]+@`),
	regexp.MustCompile(`file://`),
}

// leak: check 10. Our event names and identifiers hold no path by design.
func (d *document) leak(where, text string) {
	for _, r := range machine {
		if m := r.FindString(text); m != "" {
			d.g.out.drift("premis-leak", d.key, "%s holds %q, which looks like a path or a secret of a machine", where, strings.TrimSpace(m))
			return
		}
	}
}

// endEvent: checks 3, 7 and 8 of one event, and its place in the ledger.
func (d *document) endEvent() {
	e := d.event
	if e.name == "" {
		d.say("premis-identifier", "event %s does not say its name", e.id)
		return
	}
	if d.known && d.space.id(e.name) != e.id {
		d.say("premis-identifier", "event %s is called %q, which gives %s", e.id, e.name, d.space.id(e.name))
	}
	if d.events[e.id] || d.names[e.name] {
		d.say("premis-twice", "event %q is there twice", e.name)
	}
	d.events[e.id], d.names[e.name] = true, true
	if e.objects == 0 || e.agents == 0 {
		d.say("premis-unused", "event %q has %d objects and %d agents", e.name, e.objects, e.agents)
	}
	if a, ok := parseAttempt(e.name); ok {
		d.attempts = append(d.attempts, a)
	}
	if strings.HasPrefix(e.name, "event:"+tAccession+":") {
		d.fail(d.g.mem.set(memTelling, e.name, nil))
	}
	if d.g.ledger == nil {
		return
	}
	n, found, err := d.g.ledger.lookup(e.name)
	if err != nil || !found || strconv.FormatInt(n, 10) != e.index {
		d.say("premis-unknown-event", "event %q is not record %s of the ledger", e.name, e.index)
	}
}

func (d *document) fail(err error) { d.err = cmp.Or(d.err, err) }

// links: checks 2 and 7. Every link resolves; every agent and file is used.
func (d *document) links() {
	for _, c := range []struct {
		what         string
		links, there map[string]bool
	}{
		{"object", d.linkedObjects, d.objects}, {"agent", d.linkedAgents, d.agents}, {"event", d.related, d.events},
	} {
		for id := range c.links {
			if !c.there[id] {
				d.say("premis-link", "the %s %s is linked and not there", c.what, id)
			}
		}
	}
	for id := range d.agents {
		if !d.linkedAgents[id] {
			d.say("premis-unused", "agent %s is used by no event", id)
		}
	}
	for id := range d.files {
		if !d.linkedObjects[id] {
			d.say("premis-unused", "file %s is used by no event", id)
		}
	}
}

// attempt is one retry event of a document.
type attempt struct {
	of           string // operation@slot
	pass, number int
	name         string
}

var attemptName = regexp.MustCompile(`^event:retry:(.+):[0-9a-f]*@([^#@]+)#([0-9]+)\.([0-9]+)$`)

// parseAttempt reads the name of a retry event. A late outcome stands beside
// its attempt, and is none.
func parseAttempt(name string) (attempt, bool) {
	m := attemptName.FindStringSubmatch(name)
	if m == nil {
		return attempt{}, false
	}
	op := event.Operation(m[1])
	if op == event.SourceChanged {
		op = event.Capture
	}
	p, errPass := strconv.Atoi(m[3])
	n, errNumber := strconv.Atoi(m[4])
	return attempt{string(op) + "@" + m[2], p, n, name}, errPass == nil && errNumber == nil
}

// recorded reports whether the ledger has an event.
func (d *document) recorded(name string) bool {
	if d.g.ledger == nil {
		return false
	}
	_, found, err := d.g.ledger.lookup(name)
	return err == nil && found
}

// chains: check 9. The attempts of a pass are numbered from 1 without a gap.
func (d *document) chains() {
	slices.SortFunc(d.attempts, func(a, b attempt) int {
		return cmp.Or(strings.Compare(a.of, b.of), a.pass-b.pass, a.number-b.number)
	})
	var last attempt
	for _, a := range d.attempts {
		want := 1
		if a.of == last.of && a.pass == last.pass {
			want = last.number + 1
		} else if a.pass == 1 && a.number == 2 && !d.recorded(strings.TrimSuffix(a.name, "2")+"1") {
			want = 2 // the first one succeeded at once, and has no event of its own
		}
		if a.number != want {
			d.say("premis-chain", "%q stands where attempt %d comes next", a.name, want)
		}
		last = a
	}
}
