package premisxml

import (
	"regexp"
	"strings"
	"time"

	"colophon/services/premis/internal/record"
)

func (c *checker) event(n *node) {
	c.report.Events++
	id := identifier(n, "eventIdentifier")
	detail := n.find("eventDetailInformation", "eventDetailExtension")
	name, origin := detail.find("eventName").text, detail.find("ledger").attrs["origin"]
	if _, twice := c.events[id]; twice {
		c.fault(3, "event identifier %s stands twice", id)
	}
	c.events[id] = name
	if want := record.NamespaceOf(origin).Event(name); id != want {
		c.fault(3, "event %s is not the UUID of its name %q (%s)", id, name, want)
	}
	c.times(n, id)
	c.parts(n, id)
	c.once(id, name)
	c.references(detail, id)
	if attempt := detail.find("attempt"); attempt.name != "" {
		c.attempt(detail, n.find("eventOutcomeInformation", "eventOutcomeDetail", "eventOutcomeDetailExtension", "resolution"), name)
	}
}

// instants are the names of elements and attributes that are times.
var instants = map[string]bool{
	"eventDateTime": true, "started": true, "ended": true, "notBefore": true, "recordedAt": true, "scannedAt": true,
}

var instantForm = regexp.MustCompile(`^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d+)?Z$`)

func (c *checker) times(n *node, id string) {
	n.walk(func(n *node) {
		if instants[n.name] && !isInstant(n.text) {
			c.fault(4, "event %s: %s %q is not an instant in UTC", id, n.name, n.text)
		}
		for name, value := range n.attrs {
			if instants[name] && !isInstant(value) {
				c.fault(4, "event %s: %s %q is not an instant in UTC", id, name, value)
			}
		}
	})
}

func isInstant(s string) bool {
	_, err := time.Parse(time.RFC3339Nano, s)
	return err == nil && instantForm.MatchString(s)
}

// parts: an event has an object and an agent, and links to both.
func (c *checker) parts(n *node, id string) {
	agents, objects := n.all("linkingAgentIdentifier"), n.all("linkingObjectIdentifier")
	if len(agents) == 0 || len(objects) == 0 {
		c.fault(7, "event %s has %d agents and %d objects", id, len(agents), len(objects))
	}
	for _, a := range agents {
		c.link(id, "agent", a.find("linkingAgentIdentifierValue").text)
	}
	for _, o := range objects {
		c.link(id, "object", o.find("linkingObjectIdentifierValue").text)
	}
}

func (c *checker) link(id, kind, to string) {
	c.links = append(c.links, reference{"event " + id, kind, to})
	c.linked[kind+" "+to] = true
}

// references are those in our extension content.
func (c *checker) references(detail *node, id string) {
	detail.walk(func(n *node) {
		switch n.name {
		case "policyEvent", "previousEvent", "causeEvent", "quarantineEvent":
			c.links = append(c.links, reference{"event " + id, "event", n.text})
		}
	})
}

// once: per digest one event of each unqualified type.
func (c *checker) once(id, name string) {
	if record.Qualified(name) {
		return
	}
	if first, twice := c.single[name]; twice {
		c.fault(8, "events %s and %s are both %s", first, id, name)
	}
	c.single[name] = id
}

// notPrivate are the elements whose text is an id or a name that people gave:
// it may look like anything.
var notPrivate = map[string]bool{
	"originalName": true, "objectIdentifierValue": true, "agentIdentifierValue": true, "linkingAgentIdentifierValue": true,
	"messageDigestOriginator": true, "eventName": true, "frame": true, "ledger": true, "policyDocument": true, "conflict": true,
}

var (
	machinePath = regexp.MustCompile(`(^|[\s"'(=\[{:,;<>|@])/[^\s/:"'<>]+/|^/[^\s/]`)
	credential  = regexp.MustCompile(`://[^/\s]*@|(?i)\b(password|passwd|secret|token|authorization)\s*[=:]\s*\S`)
)

func (c *checker) private(n *node) {
	if notPrivate[n.name] {
		return
	}
	values := []string{n.text}
	if n.own() {
		for _, v := range n.attrs {
			if !strings.HasPrefix(v, record.LoC) && !strings.HasPrefix(v, "urn:") {
				values = append(values, v)
			}
		}
	}
	for _, v := range values {
		if machinePath.MatchString(v) {
			c.fault(10, "%s holds the path of a machine: %.200q", n.name, v)
		}
		if credential.MatchString(v) {
			c.fault(10, "%s holds a credential", n.name)
		}
	}
}
