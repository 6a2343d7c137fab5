package verify

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// judged gives the findings about a document that stands alone.
func judged(t *testing.T, text string) []Finding {
	t.Helper()
	mem, err := openScratch(t.TempDir(), 1)
	if err != nil {
		t.Fatal(err)
	}
	out := newReporter()
	d := newDocument(&bag{batch: &batch{judge: &judge{out: out, mem: mem}}}, "x.xml")
	if err := d.read(strings.NewReader(text)); err != nil && len(d.events) > 0 {
		t.Fatal(err)
	}
	if err := mem.close(); err != nil {
		t.Fatal(err)
	}
	return keep(out.findings(), "premis-schema")
}

// TestSchema: what the schemas do not allow is found. What they do is tested
// with the documents of whole archives, and with the specification's example.
func TestSchema(t *testing.T) {
	t.Parallel()
	w := built(t)
	text := string(w.premis())
	if f := judged(t, text); len(f) > 0 {
		t.Fatalf("%v", f)
	}
	for title, c := range map[string][2]string{
		"an order":               {`(<premis:eventType .*?</premis:eventType>)(<premis:eventDateTime>.*?</premis:eventDateTime>)`, "$2$1"},
		"a missing element":      {`<premis:eventDateTime>.*?</premis:eventDateTime>`, ""},
		"an element twice":       {`(<premis:eventDateTime>.*?</premis:eventDateTime>)`, "$1$1"},
		"an unknown element":     {`premis:eventDetail>`, "premis:eventDetails>"},
		"an unknown extension":   {`d:eventName>`, "d:name>"},
		"a foreign namespace":    {regexp.QuoteMeta(detailNamespace), "urn:elsewhere"},
		"text between":           {`<premis:eventDetailInformation>`, "<premis:eventDetailInformation>x"},
		"no format":              {`<premis:format>.*?</premis:format>`, ""},
		"no number":              {`(<premis:size>)10`, "${1}ten"},
		"no kind of object":      {`xsi:type="premis:file"`, `xsi:type="premis:folder"`},
		"another's kind":         {`xsi:type="premis:intellectualEntity"`, `xsi:type="premis:file"`},
		"a missing attribute":    {` leafHash="[^"]*"`, ""},
		"a broken attribute":     {` leafHash="0`, ` leafHash="x`},
		"an unknown attribute":   {`<d:ledger `, `<d:ledger more="1" `},
		"another version":        {`version="3.0"`, `version="2.2"`},
		"no version":             {` version="3.0"`, ""},
		"an agent before events": {`(?s)(<premis:event>.*</premis:event>\n)(<premis:agent>.*</premis:agent>)`, "$2$1"},
	} {
		changed := regexp.MustCompile(c[0]).ReplaceAllString(text, c[1])
		if changed == text {
			t.Errorf("%s: nothing to change", title)
		}
		if len(judged(t, changed)) == 0 {
			t.Errorf("%s: not found", title)
		}
	}
}

// TestSchemaExample: the specification's example is valid, where it is at hand.
func TestSchemaExample(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile(filepath.Join("..", "..", "..", "shared", "premis", "sample.xml"))
	if err != nil {
		t.Logf("the specification's example is not here: %v", err)
		return
	}
	// Its extensions are those of the proposal, which the exports went beyond.
	for _, f := range judged(t, string(data)) {
		if !strings.Contains(f.Message, "urn:") && !strings.Contains(f.Message, "attribute") {
			t.Errorf("%+v", f)
		}
	}
}
