package premisxml

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// Report is what a document holds.
type Report struct {
	Objects, Events, Agents int
	// Open are the chains of attempts that have not ended yet: no fault.
	Open []string
}

// Check judges a document by the checks of MAPPING section 8 that no schema
// makes (2 to 10), and by the order of its parts. It reports every fault it
// finds, each with the number of its check. Check 1, validity, is a schema
// validator's: [DetailSchema] holds our part.
func Check(r io.Reader) error {
	_, err := Inspect(r)
	return err
}

// Inspect is [Check], and tells what the document holds.
func Inspect(r io.Reader) (Report, error) {
	c := &checker{
		objects: map[string]bool{}, files: map[string]bool{}, agents: map[string]bool{}, events: map[string]string{},
		single: map[string]string{}, chains: map[string]*chain{}, linked: map[string]bool{},
	}
	if err := children(r, c.root, c.child); err != nil {
		return Report{}, err
	}
	c.end()
	slices.Sort(c.report.Open)
	return c.report, errors.Join(c.faults...)
}

type checker struct {
	report  Report
	faults  []error
	stage   int // 0 objects, 1 events, 2 agents
	objects map[string]bool
	files   map[string]bool // identifiers of file objects
	agents  map[string]bool
	events  map[string]string // identifier -> name
	linked  map[string]bool   // objects and agents that an event links to
	links   []reference
	single  map[string]string // type, operation and digest -> identifier
	chains  map[string]*chain
}

// reference is a link whose end is looked for when the whole document is read.
type reference struct{ from, kind, id string }

const maxFaults = 50

func (c *checker) fault(check int, format string, args ...any) {
	if len(c.faults) < maxFaults {
		c.faults = append(c.faults, fmt.Errorf("check %d: "+format, append([]any{check}, args...)...))
	}
}

func (c *checker) root(n *node) error {
	if n.space != Namespace || n.name != "premis" || n.attrs["version"] != "3.0" {
		return fmt.Errorf("check 1: the root is {%s}%s version %q, not PREMIS 3.0", n.space, n.name, n.attrs["version"])
	}
	return nil
}

func (c *checker) child(n *node) {
	stage := slices.Index([]string{"object", "event", "agent"}, n.name)
	if n.space != Namespace || stage < 0 || stage < c.stage {
		c.fault(1, "element {%s}%s stands where it may not", n.space, n.name)
		return
	}
	c.stage = stage
	n.walk(c.element)
	switch n.name {
	case "object":
		c.object(n)
	case "event":
		c.event(n)
	case "agent":
		c.agent(n)
	}
}

// element makes the checks that hold for every element.
func (c *checker) element(n *node) {
	if len(n.kids) == 0 && n.text == "" && (!n.own() || len(n.attrs) == 0) {
		c.fault(6, "%s is empty", n.name)
	}
	if list := controlled[n.name]; list != "" && n.space == Namespace {
		c.term(n, list)
	}
	c.private(n)
}

var controlled = map[string]string{
	"eventType": listEventType, "eventOutcome": listOutcome, "linkingAgentRole": listAgentRole, "linkingObjectRole": listObjectRole,
	"agentType": listAgentType, "relationshipType": listRelation, "relationshipSubType": listSubRelated,
	"messageDigestAlgorithm": listHash, "formatRegistryRole": listFormatRole,
}

func (c *checker) term(n *node, list string) {
	t, ok := byLabel[[2]string{list, n.text}]
	if !ok {
		c.fault(5, "%s: %q is not in the list", n.name, n.text)
		return
	}
	for _, a := range t.attrs() {
		if n.attrs[a.name] != a.value {
			c.fault(5, "%s %q: %s is %q, not %q", n.name, n.text, a.name, n.attrs[a.name], a.value)
		}
	}
}

func (c *checker) object(n *node) {
	c.report.Objects++
	id := identifier(n, "objectIdentifier")
	if id == "" || c.objects[id] {
		c.fault(3, "object identifier %q is empty or stands twice", id)
	}
	c.objects[id] = true
	if strings.HasSuffix(n.attrs["type"], ":file") {
		c.files[id] = true
	}
	for _, r := range n.all("relationship") {
		for _, o := range r.all("relatedObjectIdentifier") {
			c.links = append(c.links, reference{"object " + id, "object", o.find("relatedObjectIdentifierValue").text})
		}
		for _, e := range r.all("relatedEventIdentifier") {
			c.links = append(c.links, reference{"object " + id, "event", e.find("relatedEventIdentifierValue").text})
		}
	}
}

func identifier(n *node, element string) string { return n.find(element, element+"Value").text }

func (c *checker) agent(n *node) {
	c.report.Agents++
	id := identifier(n, "agentIdentifier")
	if id == "" || c.agents[id] {
		c.fault(3, "agent identifier %q is empty or stands twice", id)
	}
	c.agents[id] = true
}

// end makes the checks that need the whole document.
func (c *checker) end() {
	if c.report.Objects == 0 {
		c.fault(1, "no object")
	}
	for _, l := range c.links {
		found := false
		switch l.kind {
		case "object":
			found = c.objects[l.id]
		case "agent":
			found = c.agents[l.id]
		case "event":
			_, found = c.events[l.id]
		}
		if !found {
			c.fault(2, "%s links to %s %q, which is not in the document", l.from, l.kind, l.id)
		}
	}
	for _, id := range sorted(c.agents) {
		if !c.linked["agent "+id] {
			c.fault(7, "agent %q is not used", id)
		}
	}
	for _, id := range sorted(c.files) {
		if !c.linked["object "+id] {
			c.fault(7, "file %q is not used", id)
		}
	}
	c.endChains()
}

func sorted(m map[string]bool) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}
