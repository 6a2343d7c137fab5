package verify

import (
	"bufio"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"strings"
)

// premisNamespace is the namespace of PREMIS 3.
const premisNamespace = "http://www.loc.gov/premis/v3"

// document judges one PREMIS document of a bag: well-formed, and by the checks
// of MAPPING section 8. A document holds at most 10,000
// events, so what one needs is held in memory.
func (g *bag) document(name string) error {
	key := g.key + "/" + name
	f, err := g.root.Open(key)
	if err != nil {
		return nil //nolint:nilerr // told where the tag manifest is judged
	}
	defer f.Close() //nolint:errcheck // only read from
	g.out.checked.Documents++
	d := newDocument(g, key)
	if err := d.read(bufio.NewReaderSize(f, 64<<10)); err != nil {
		g.out.damage("premis-malformed", key, "%v", err)
		return nil
	}
	d.links()
	d.chains()
	return d.err
}

// element is an open element.
type element struct {
	xml.StartElement
	text     strings.Builder
	kids     strings.Builder // names of its children, a space behind each
	children int
}

func (e *element) attr(local string) string {
	for _, a := range e.Attr {
		if a.Name.Local == local {
			return a.Value
		}
	}
	return ""
}

// document is one document under judgement.
type document struct {
	g     *bag
	key   string
	space namespace
	known bool // space is the ledger's
	open  []*element
	err   error // of the judge's own

	objects, files, agents, events map[string]bool // identifiers
	names                          map[string]bool
	linkedObjects, linkedAgents    map[string]bool
	related                        map[string]bool // events named by others
	attempts                       []attempt
	event                          told
}

// told is the event at hand.
type told struct {
	id, name, index string
	objects, agents int
}

func newDocument(g *bag, key string) *document {
	d := &document{g: g, key: key}
	for _, m := range []*map[string]bool{&d.objects, &d.files, &d.agents, &d.events, &d.names, &d.linkedObjects, &d.linkedAgents, &d.related} {
		*m = map[string]bool{}
	}
	switch {
	case g.ledger != nil:
		d.space, d.known = g.ledger.space, true
	case g.Origin != "":
		d.space, d.known = namespaceOf(g.Origin), true
	}
	return d
}

// read goes through the document once, element by element.
func (d *document) read(r io.Reader) error {
	x := xml.NewDecoder(r)
	for {
		t, err := x.Token()
		if errors.Is(err, io.EOF) {
			return d.ended()
		}
		if err != nil {
			return fmt.Errorf("at byte %d: %w", x.InputOffset(), err)
		}
		switch t := t.(type) {
		case xml.StartElement:
			e := &element{StartElement: t.Copy()}
			if n := len(d.open); n > 0 {
				d.open[n-1].children++
				d.open[n-1].kids.WriteString(e.key() + " ")
			} else if t.Name.Space != premisNamespace || t.Name.Local != "premis" {
				return fmt.Errorf("the root is %s of %q", t.Name.Local, t.Name.Space)
			}
			d.open = append(d.open, e)
			d.begin()
		case xml.EndElement:
			d.end()
			d.open = d.open[:len(d.open)-1]
		case xml.CharData:
			if n := len(d.open); n > 0 && len(strings.TrimSpace(string(t))) > 0 {
				d.open[n-1].text.Write(t)
			}
		}
	}
}

func (d *document) ended() error {
	if len(d.events) == 0 {
		return errors.New("it has no events")
	}
	return nil
}

func (d *document) top() *element { return d.open[len(d.open)-1] }

func (d *document) begin() {
	e := d.top()
	switch {
	case e.Name.Space == premisNamespace && e.Name.Local == "event":
		d.event = told{}
	case e.Name.Space != premisNamespace && e.Name.Local == "ledger":
		d.event.index = e.attr("index")
		d.instant("recordedAt", e.attr("recordedAt"))
	}
	for _, a := range e.Attr {
		if a.Name.Local != "schemaLocation" {
			d.leak(e.Name.Local+"/"+a.Name.Local, a.Value)
		}
	}
}

// end judges an element whose end has come.
func (d *document) end() {
	e := d.top()
	text := strings.TrimSpace(e.text.String())
	if text == "" && e.children == 0 && (e.Name.Space == premisNamespace || len(e.Attr) == 0) {
		d.say("premis-empty", "the element %s is empty", e.Name.Local)
		return
	}
	d.schema(e, text)
	if e.children > 0 && e.Name.Local != "event" {
		return
	}
	if e.Name.Local != "originalName" && e.children == 0 {
		d.leak(e.Name.Local, text)
	}
	if e.Name.Space == premisNamespace {
		d.premis(e, text)
		return
	}
	switch e.Name.Local {
	case "eventName":
		d.event.name = text
	case "started", "ended", "notBefore":
		d.instant(e.Name.Local, text)
	case "policyEvent", "previousEvent", "causeEvent", "quarantineEvent":
		d.related[text] = true
	}
}

// premis judges an element of PREMIS itself.
func (d *document) premis(e *element, text string) {
	if list, ok := controlled[e.Name.Local]; ok {
		d.term(e, list, text)
	}
	switch e.Name.Local {
	case "event":
		d.endEvent()
	case "eventIdentifierValue":
		d.event.id = text
	case "eventDateTime":
		d.instant("eventDateTime", text)
	case "objectIdentifierValue":
		d.objects[text] = true
		if n := len(d.open); n > 2 && isFile(d.open[n-3]) {
			d.files[text] = true
		}
	case "agentIdentifierValue":
		d.agents[text] = true
	case "linkingObjectIdentifierValue":
		d.event.objects++
		d.linkedObjects[text] = true
	case "linkingAgentIdentifierValue":
		d.event.agents++
		d.linkedAgents[text] = true
	case "relatedObjectIdentifierValue":
		d.linkedObjects[text] = true
	case "relatedEventIdentifierValue":
		d.related[text] = true
	}
}

// isFile reports whether an object is a file and its identifier the first one,
// which all links use.
func isFile(object *element) bool {
	return object.children == 1 && strings.HasSuffix(object.attr("type"), "file")
}

func (d *document) say(kind, format string, args ...any) {
	d.g.out.damage(kind, d.key, format, args...)
}
