// Package schema holds the contract's JSON Schemas (2020-12), one file a
// message in json/, and holds messages against them before anybody decodes
// them: what is malformed is refused with every complaint at once, each with
// the JSON pointer of what it is about.
//
// The files say what a sender may rely on; the structs of shared/event say the
// same to our own code, and a test holds the two together. Fields that a
// schema does not name are allowed: they are kept with the message and ignored.
package schema

import (
	"bytes"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"colophon/shared/event"
)

// Files are the schemas, as json/<name>.json; json/common.json is what they
// share.
//
//go:embed json/*.json
var Files embed.FS

const common = "common"

// Names lists all schemas, sorted.
func Names() []string {
	entries, err := Files.ReadDir("json")
	if err != nil { // of an embedded folder
		panic(err)
	}
	var out []string
	for _, e := range entries {
		if name := strings.TrimSuffix(e.Name(), ".json"); name != common {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// Of gives the name of the schema that a subject's messages follow, "" where
// there is none.
func Of(subject string) string {
	switch subject {
	case event.SubjectProfilePinned:
		return "profile.pinned"
	case event.SubjectFrameCaptured:
		return "frame.captured"
	case event.SubjectFrameFixed:
		return "frame.fixed"
	case event.SubjectAttemptFailed:
		return "attempt.failed"
	}
	for _, s := range []struct{ below, name string }{
		{event.SubjectCaptureFrame, "capture.frame"}, {event.SubjectCaptureBatch, "capture.batch"}, {event.SubjectCaptureFault, "capture.fault"},
		{event.SubjectDerivative, "derivative"},
		{event.SubjectBatch, "batch"}, {event.SubjectCase, "case"}, {event.SubjectOp, "op"}, {event.SubjectDispatch, "gateway.dispatch"},
	} {
		if strings.HasPrefix(subject, s.below+".") {
			return s.name
		}
	}
	return ""
}

// Check holds a message that came from outside, by a subject below capture,
// against its schema; see [Validate]. The log's facts are our own, and a look at
// each would cost more than reading it: they are held against theirs in tests,
// and where one cannot be read, by [Explain].
func Check(subject string, data []byte) error {
	name := Of(subject)
	if name == "" || !strings.HasPrefix(subject, "capture.") {
		return nil
	}
	return Validate(name, data)
}

// Explain says why a message could not be read, by its schema where that has
// anything to say, else by the error that reading it gave.
func Explain(subject string, data []byte, err error) error {
	var bad *Error
	if name := Of(subject); name != "" && errors.As(Validate(name, data), &bad) {
		return bad
	}
	return err
}

// Validate holds one JSON value against a schema. It returns an [*Error] with
// all complaints, or, for a message of a version that this build does not know,
// an error that wraps [event.ErrUnknownSchema].
func Validate(name string, data []byte) error {
	s, err := compiled(name)
	if err != nil {
		return err
	}
	v, err := parse(data)
	if err != nil {
		return &Error{name, []Complaint{{"#", err.Error()}}}
	}
	if err := known(s, v); err != nil {
		return err
	}
	err = s.Validate(v)
	var bad *jsonschema.ValidationError
	if errors.As(err, &bad) {
		return complain(name, bad)
	}
	return err
}

// parse reads one JSON value. Numbers become floats: what the contract says of
// them, a float can tell, and none can be too long to look at.
func parse(data []byte) (v any, err error) {
	d := json.NewDecoder(bytes.NewReader(data))
	err = d.Decode(&v)
	var syntax *json.SyntaxError
	var number *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		return nil, fmt.Errorf("is not JSON from byte %d on", syntax.Offset)
	case errors.As(err, &number):
		return nil, fmt.Errorf("holds a number out of range before byte %d", number.Offset)
	case err != nil:
		return nil, errors.New("is not JSON: it ends early")
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("is more than one JSON value")
	}
	return v, nil
}

// known refuses a message that names another schema than this one.
func known(s *jsonschema.Schema, v any) error {
	p := s.Properties["schema"]
	m, ok := v.(map[string]any)
	if p == nil || p.Const == nil || !ok {
		return nil
	}
	if got, ok := m["schema"].(string); ok && got != *p.Const {
		return fmt.Errorf("%w: #/schema is %q, this build reads %q", event.ErrUnknownSchema, short(got), *p.Const)
	}
	return nil
}

var all = sync.OnceValues(func() (map[string]*jsonschema.Schema, error) {
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	c.AssertFormat()
	for _, name := range append(Names(), common) {
		data, err := Files.ReadFile("json/" + name + ".json")
		if err != nil {
			return nil, err
		}
		doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
		if err != nil {
			return nil, fmt.Errorf("schema: %s: %w", name, err)
		}
		if err := c.AddResource(address(name), doc); err != nil {
			return nil, fmt.Errorf("schema: %s: %w", name, err)
		}
	}
	out := map[string]*jsonschema.Schema{}
	for _, name := range Names() {
		s, err := c.Compile(address(name))
		if err != nil {
			return nil, fmt.Errorf("schema: %s: %w", name, err)
		}
		out[name] = s
	}
	return out, nil
})

func address(name string) string { return "colophon:///" + name + ".json" }

func compiled(name string) (*jsonschema.Schema, error) {
	schemas, err := all()
	if err != nil {
		return nil, err
	}
	s := schemas[name]
	if s == nil {
		return nil, fmt.Errorf("schema: there is none named %q", name)
	}
	return s, nil
}
