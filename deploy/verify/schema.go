package verify

import (
	_ "embed"
	"encoding/xml"
	"fmt"
	"regexp"
	"strings"
	"time"
)

// schemaTable is check 1 of MAPPING section 8, written a second time: what the
// schema of PREMIS 3.0 allows of the elements that an export is made of, and all
// of the schema of its extensions. A line: element, its children or the type of
// its text, its attributes; "!" is required, "d:" the extensions' namespace.
//
//go:embed schema.tsv
var schemaTable string

// detailNamespace is that of the extensions.
const detailNamespace = "urn:uuid:e49a2130-cc1d-4156-b080-63025d11397e"

// model is what an element may hold.
type model struct {
	children *regexp.Regexp // over the names of its children, a space behind each
	text     string         // type of its text; empty: none
	any      bool           // some children of any name
	attrs    map[string]string
	required []string
}

var models = func() map[string]model {
	out := map[string]model{}
	for line := range strings.Lines(schemaTable) {
		f := append(strings.Split(strings.TrimRight(line, "\n"), "\t"), "")
		m := model{attrs: map[string]string{}}
		switch text, simple := strings.CutPrefix(f[1], "="); {
		case simple:
			m.text = text
		case f[1] == "any":
			m.any = true
		default:
			m.children = regexp.MustCompile("^" + regexp.MustCompile(`([\w:]+)([?*+]?) ?`).ReplaceAllString(f[1], "(?:$1 )$2") + "$")
		}
		for _, a := range strings.Fields(f[2]) {
			name, typ, _ := strings.Cut(strings.TrimPrefix(a, "!"), "=")
			m.attrs[name] = typ
			if a[0] == '!' {
				m.required = append(m.required, name)
			}
		}
		out[f[0]] = m
	}
	return out
}()

// forms are the types of texts and attributes; instants are judged by check 4.
var forms = map[string]*regexp.Regexp{
	"":         regexp.MustCompile(`(?s).`),
	"text":     regexp.MustCompile(`(?s).`),
	"string":   regexp.MustCompile(`(?s)^`),
	"count":    regexp.MustCompile(`^[0-9]{1,18}$`),
	"positive": regexp.MustCompile(`^0*[1-9][0-9]{0,17}$`),
	"decimal":  regexp.MustCompile(`^-?[0-9]+(\.[0-9]+)?$`),
	"bool":     regexp.MustCompile(`^(true|false|0|1)$`),
	"sha256":   regexp.MustCompile(`^[0-9a-f]{64}$`),
	"uuid":     regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`),
	"id":       regexp.MustCompile(`^([A-Za-z0-9_\-]|%[0-9A-F]{2})+$`),
	"duration": regexp.MustCompile(`^PT([0-9]+H)?([0-9]+M)?([0-9]+(\.[0-9]+)?S)?$`),
	"status":   regexp.MustCompile(`^(` + statusSuccess + `|` + statusPending + `|` + statusQuarantined + `)$`),
	"decision": regexp.MustCompile(`^(replay|discard|rescan)$`),
	"date":     regexp.MustCompile(`^[0-9]{4}-[0-9]{2}-[0-9]{2}$`),
}

func formed(typ, text string) bool {
	if !forms[typ].MatchString(text) {
		return false
	}
	if typ == "date" {
		_, err := time.Parse(time.DateOnly, text)
		return err == nil
	}
	return true
}

// key is an element's name in the table.
func (e *element) key() string {
	switch {
	case e.Name.Space == detailNamespace:
		return "d:" + e.Name.Local
	case e.Name.Space != premisNamespace:
		return e.Name.Space + "#" + e.Name.Local
	}
	return e.Name.Local
}

// model is what an element may hold: of an object it depends on its kind.
func (e *element) model() (model, bool) {
	key := e.key()
	if key == "object" {
		_, kind, _ := strings.Cut(e.attr("type"), ":")
		key += ":" + kind
	}
	m, ok := models[key]
	return m, ok
}

// schema: check 1 of one element whose end has come.
func (d *document) schema(e *element, text string) {
	m, known := e.model()
	if !known {
		d.say("premis-schema", "the schema has no element %s of %q here", e.Name.Local, e.Name.Space)
		return
	}
	kids := e.kids.String()
	switch {
	case m.text != "":
		if e.children > 0 || !formed(m.text, text) {
			d.say("premis-schema", "%s: %.200q is no %s", e.Name.Local, text, m.text)
		}
	case text != "":
		d.say("premis-schema", "%s: the text %.200q stands where elements belong", e.Name.Local, text)
	case m.any:
		if e.children == 0 {
			d.say("premis-schema", "%s holds nothing", e.Name.Local)
		}
	case !m.children.MatchString(kids):
		d.say("premis-schema", "%s may not hold these elements in this order: %.300s", e.Name.Local, kids)
	}
	if err := m.attributes(e.Attr); err != nil {
		d.say("premis-schema", "%s: %v", e.Name.Local, err)
	}
	if e.key() == "premis" && e.attr("version") != "3.0" {
		d.say("premis-schema", "version %q, not 3.0", e.attr("version"))
	}
}

func (m model) attributes(have []xml.Attr) error {
	seen := map[string]bool{}
	for _, a := range have {
		name := a.Name.Local
		typ, known := m.attrs[name]
		switch {
		case a.Name.Space != "" || name == "xmlns": // of XML itself, and xsi
			continue
		case !known && m.text != "" && strings.HasPrefix(name, "authority") || !known && name == "valueURI":
			continue // judged by check 5
		case !known:
			return fmt.Errorf("the schema has no attribute %s", name)
		case !formed(typ, a.Value):
			return fmt.Errorf("attribute %s: %.200q is no %s", name, a.Value, typ)
		}
		seen[name] = true
	}
	for _, name := range m.required {
		if !seen[name] {
			return fmt.Errorf("attribute %s is missing", name)
		}
	}
	return nil
}
