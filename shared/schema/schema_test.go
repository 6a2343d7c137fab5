package schema_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"colophon/shared/event"
	"colophon/shared/fault"
	"colophon/shared/retry"
	"colophon/shared/schema"
)

// structs are the types that our own code reads or writes each message with.
var structs = map[string]any{
	"attempt.failed": event.AttemptFailed{}, "batch": event.BatchFact{}, "batch.frames": event.BatchFrames{}, "batch.list": event.BatchList{},
	"batch.request": event.BatchRequest{}, "batch.status": event.BatchStatus{}, "capture.batch": event.BatchDeclaration{}, "capture.frame": event.FrameMessage{}, "capture.fault": event.CaptureFault{},
	"case": event.CaseFact{}, "case.decision": event.CaseDecision{}, "case.list": event.CaseList{}, "case.reply": event.Case{}, "case.request": event.CaseRequest{},
	"derivative": event.DerivativeMade{}, "export.request": event.ExportRequest{}, "frame.captured": event.FrameCaptured{}, "frame.fixed": event.FrameFixed{},
	"gateway.dispatch": event.Dispatch{}, "op": event.OpFact{}, "policy": retry.Policy{}, "profile.pinned": event.ProfilePinned{},
	"retry.reply": event.RetryReply{}, "retry.request": event.RetryRequest{},
	"ledger.position": nil, // premis' own
}

func read(t testing.TB, name string) map[string]any {
	t.Helper()
	data, err := schema.Files.ReadFile("json/" + name + ".json")
	if err != nil {
		t.Fatal(err)
	}
	var doc map[string]any
	if err := json.Unmarshal(data, &doc); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return doc
}

// resolved follows a node's $ref.
func resolved(t testing.TB, file string, node map[string]any) (string, map[string]any) {
	t.Helper()
	ref, ok := node["$ref"].(string)
	if !ok {
		return file, node
	}
	to, fragment, _ := strings.Cut(ref, "#")
	if to != "" {
		file = strings.TrimSuffix(to, ".json")
	}
	doc := read(t, file)
	for _, token := range strings.Split(strings.Trim(fragment, "/"), "/") {
		if token != "" {
			doc, _ = doc[token].(map[string]any)
		}
	}
	if doc == nil {
		t.Fatalf("%s refers to nothing", ref)
	}
	return file, doc
}

// place is a node of a schema and the file it stands in.
type place struct {
	file string
	node map[string]any
}

// properties gives what an object's schema says of its properties, wherever it
// says it, and which are required.
func properties(t testing.TB, p place) (map[string]place, []string) {
	t.Helper()
	out, required := map[string]place{}, []string(nil)
	file, node := resolved(t, p.file, p.node)
	for _, part := range append([]any{node}, list(node["allOf"])...) {
		if m := part.(map[string]any); m["$ref"] != nil {
			more, need := properties(t, place{file, m})
			for k, v := range more {
				out[k] = v
			}
			required = append(required, need...)
		}
	}
	own, _ := node["properties"].(map[string]any)
	for k, v := range own {
		out[k] = place{file, v.(map[string]any)}
	}
	for _, r := range list(node["required"]) {
		required = append(required, r.(string))
	}
	return out, required
}

func list(v any) []any {
	l, _ := v.([]any)
	return l
}

// fields are the JSON fields of a struct, those of embedded ones among them.
func fields(t reflect.Type) map[string]reflect.StructField {
	out := map[string]reflect.StructField{}
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-":
		case f.Anonymous && name == "":
			for k, v := range fields(f.Type) {
				out[k] = v
			}
		default:
			out[name] = f
		}
	}
	return out
}

var plain = []reflect.Type{reflect.TypeFor[time.Time](), reflect.TypeFor[json.RawMessage](), reflect.TypeFor[event.Name](), reflect.TypeFor[event.Duration]()}

// compare holds a type against a node of a schema, and everything below.
func compare(t *testing.T, at string, typ reflect.Type, p place) {
	t.Helper()
	for typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
	}
	file, node := resolved(t, p.file, p.node)
	switch {
	case slices.Contains(plain, typ):
	case typ.Kind() == reflect.Slice:
		items, ok := node["items"].(map[string]any)
		if !ok {
			t.Errorf("%s: the schema says nothing of the items", at)
			return
		}
		compare(t, at+"/0", typ.Elem(), place{file, items})
	case typ.Kind() == reflect.Struct:
		said, required := properties(t, place{file, node})
		own := fields(typ)
		for name, f := range own {
			if said[name].node == nil {
				t.Errorf("%s/%s is in the struct only", at, name)
				continue
			}
			if optional := strings.Contains(f.Tag.Get("json"), ",omit"); optional && slices.Contains(required, name) && at != "#capture.frame" && name != "digest" {
				t.Errorf("%s/%s is required, but the struct may leave it out", at, name)
			}
			compare(t, at+"/"+name, f.Type, said[name])
		}
		for name := range said {
			if _, ok := own[name]; !ok {
				t.Errorf("%s/%s is in the schema only", at, name)
			}
		}
	default:
		want := map[reflect.Kind]string{reflect.String: "string", reflect.Int: "integer", reflect.Int64: "integer", reflect.Uint64: "integer", reflect.Bool: "boolean", reflect.Float64: "number", reflect.Map: "object"}[typ.Kind()]
		_, constant := node["const"]
		if _, enum := node["enum"]; !enum && !constant && node["type"] != want {
			t.Errorf("%s is a %v in Go and %v in the schema", at, typ, node["type"])
		}
	}
}

func TestSchemasAndStructsAgree(t *testing.T) {
	t.Parallel()
	for _, name := range schema.Names() {
		v, ok := structs[name]
		if !ok {
			t.Errorf("no struct is named for schema %s", name)
		}
		if v != nil {
			compare(t, "#"+name, reflect.TypeOf(v), place{name, read(t, name)})
		}
	}
	for name := range structs {
		if !slices.Contains(schema.Names(), name) {
			t.Errorf("there is no schema %s", name)
		}
	}
}

func examples(t testing.TB, name string) (out [][]byte) {
	t.Helper()
	for _, e := range list(read(t, name)["examples"]) {
		data, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, data)
	}
	return out
}

// Each example is valid, is read by our code, and is valid again as our code
// writes it.
func TestExamples(t *testing.T) {
	t.Parallel()
	for name, v := range structs {
		all := examples(t, name)
		if len(all) == 0 {
			t.Errorf("%s has no example", name)
		}
		for _, data := range all {
			if err := schema.Validate(name, data); err != nil {
				t.Errorf("%s: %v\n%s", name, err, data)
			}
			if v == nil {
				continue
			}
			back := reflect.New(reflect.TypeOf(v))
			if err := event.Unmarshal(data, back.Interface()); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if c, ok := back.Interface().(interface{ Validate() error }); ok && c.Validate() != nil {
				t.Errorf("%s: %v", name, c.Validate())
			}
			again, err := json.Marshal(back.Interface())
			if err == nil {
				err = schema.Validate(name, again)
			}
			if err != nil {
				t.Errorf("%s as we write it: %v\n%s", name, err, again)
			}
		}
	}
}

func TestSubjects(t *testing.T) {
	t.Parallel()
	for subject, want := range map[string]string{
		"capture.frame.gw.b": "capture.frame", "capture.batch.gw.b": "capture.batch", "ingest.frame.fixed": "frame.fixed", "ingest.derivative.jp2": "derivative",
		"ingest.case.opened": "case", "ingest.op.halted": "op", "gateway.dispatch.left": "gateway.dispatch", "ingest.batch.opened": "batch",
		"capture.frames.gw.b": "", "capture.fault.gw.b": "capture.fault", "ingest.frame.fixed.x": "", "deadletter.hasher": "", "": "",
	} {
		if got := schema.Of(subject); got != want {
			t.Errorf("%q follows %q, want %q", subject, got, want)
		}
	}
	for _, f := range []event.Fact{
		event.FrameCaptured{}, event.FrameFixed{}, event.DerivativeMade{Derived: event.Derived{Profile: "p"}}, event.AttemptFailed{}, event.BatchFact{State: "opened"},
		event.ProfilePinned{}, event.CaseFact{State: "opened"}, event.OpFact{Kind: "halted"},
	} {
		if schema.Of(f.Subject()) == "" {
			t.Errorf("%s has no schema", f.Subject())
		}
	}
	for subject, refused := range map[string]bool{"deadletter.hasher": false, event.SubjectFrameFixed: false, "capture.frame.gw.b": true, "capture.new.gw.b": false} {
		if err := schema.Check(subject, []byte("{}")); (err != nil) != refused {
			t.Errorf("%s: %v", subject, err)
		}
	}
	own := errors.New("own")
	for data, want := range map[string]string{`{"schema":"colophon/op/v1"}`: "#/counter is missing", string(examples(t, "op")[0]): "own", `{"schema":"colophon/op/v2"}`: "own"} {
		if err := schema.Explain("ingest.op.halted", []byte(data), own); !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", data, err)
		}
	}
}

const frame = `{"schema":"colophon/capture.frame/v1","batch":"b","frame":"1.tif","sequence":1,"sources":["file:///in/1.tif"]`

func TestComplaints(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, schema, data string
		want               []string // complaints, or one for an unknown schema
	}{
		{"good", "capture.frame", frame + `}`, nil},
		{"unknown fields are kept", "capture.frame", frame + `,"x-scanner":{"lamp":3},"colour":"deep"}`, nil},
		{"a name that is no UTF-8", "capture.frame", strings.Replace(frame, `"1.tif"`, `{"percent_encoded":"caf%E9"}`, 1) + `}`, nil},
		{"all at once", "capture.frame", `{"schema":"colophon/capture.frame/v1","batch":"","sequence":0,"sources":["",7],"sha256":"ABC"}`, []string{
			"#/batch is shorter than 1 characters", "#/frame is missing", "#/sequence is below 1", "#/sha256 is not a SHA-256 in 64 lower-case hex digits",
			"#/sources/0 is shorter than 1 characters", "#/sources/1 is a number; it must be a string",
		}},
		{"nothing", "capture.frame", `{}`, []string{"#/batch is missing", "#/frame is missing", "#/schema is missing", "#/sequence is missing", "#/sources is missing"}},
		{"another type", "capture.batch", `[]`, []string{"# is an array; it must be an object"}},
		{"a fraction", "capture.batch", `{"schema":"colophon/capture.batch/v1","batch":"b","count":1.5}`, []string{"#/count is a number; it must be an integer"}},
		{"null", "capture.frame", frame + `,"device":null}`, []string{"#/device is null; it must be a string"}},
		{"a newer major", "capture.frame", strings.Replace(frame, "v1", "v2", 1) + `}`, []string{`unknown schema: #/schema is "colophon/capture.frame/v2", this build reads "colophon/capture.frame/v1"`}},
		{"another message", "frame.fixed", frame + `}`, []string{`unknown schema: #/schema is "colophon/capture.frame/v1", this build reads "colophon/frame.fixed/v1"`}},
		{"no version", "capture.frame", strings.Replace(frame, `"colophon/capture.frame/v1"`, `1`, 1) + `}`, []string{`#/schema is not "colophon/capture.frame/v1"`}},
		{"keys of a pointer", "capture.frame", frame + `,"acquisition":{"a/b ~c":1}}`, []string{"#/acquisition/a~1b%20~0c is a number; it must be a string"}},
		{"a spelling", "case.request", `{"coed":"x","older_than":"a day","state":"shut"}`, []string{
			"#/coed is not known", "#/older_than is not a duration, such as 1h30m", `#/state is none of "", "opened", "replayed", "discarded", "rescan-requested", "resolved"`,
		}},
		{"a time", "capture.frame", frame + `,"scanned_at":"yesterday"}`, []string{"#/scanned_at is not a date-time"}},
		{"no JSON", "capture.frame", `{"a":`, []string{"# is not JSON: it ends early"}},
		{"no JSON at all", "capture.frame", `{no`, []string{"# is not JSON from byte 2 on"}},
		{"two values", "capture.frame", frame + `}{}`, []string{"# is more than one JSON value"}},
		{"a number without end", "capture.frame", frame + `,"size":1e999999}`, []string{"# holds a number out of range before byte 126"}},
		{"a wrong policy is for its own judge", "capture.batch", `{"schema":"colophon/capture.batch/v1","batch":"b","count":1,"policy":{"max_attempts":99}}`, nil},
		{"which has a schema too", "policy", `{"max_attempts":99,"exp_base":1,"jiter":true}`, []string{"#/exp_base is not above 1", "#/jiter is not known", "#/max_attempts is above 10"}},
	} {
		err := schema.Validate(c.schema, []byte(c.data))
		var got []string
		var bad *schema.Error
		switch {
		case errors.As(err, &bad):
			for _, k := range bad.Complaints {
				got = append(got, k.Pointer+" "+k.Says)
			}
			if kept := fault.Clean(err.Error()); kept != err.Error() {
				t.Errorf("%s: a fact would say %q of %q", c.name, kept, err)
			}
		case err != nil:
			got = []string{err.Error()}
			if !errors.Is(err, event.ErrUnknownSchema) {
				t.Errorf("%s: %v", c.name, err)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s:\n%q, want\n%q", c.name, got, c.want)
		}
	}
	if err := schema.Validate("none", []byte("{}")); err == nil {
		t.Error("there is a schema named none")
	}
}

func TestErrorsAreBoundedAndQuiet(t *testing.T) {
	t.Parallel()
	secret := "s3cr3t"
	long := strings.Repeat(secret, 20_000)
	var faults []string
	for i := range 500 {
		faults = append(faults, fmt.Sprintf(`"%d%s":7`, i, strings.Repeat("k", 300)))
	}
	for _, data := range []string{
		frame + `,"acquisition":{` + strings.Join(faults, ",") + `}}`,
		frame + `,"acquisition":{` + strings.ReplaceAll(strings.Join(faults, ","), "kkkk", "é/~ ") + `}}`,
		strings.Replace(frame, `"1.tif"`, `"`+long+`"`, 1) + `}`,
		frame + `,"sha256":"` + long + `","source_token":"` + long + `","scanned_at":"` + long + `","size":-` + strings.Repeat("9", 300) + `}`,
		strings.Replace(frame, `colophon/capture`, long, 1) + `}`,
		`{"schema":` + strings.Repeat("[", 9000) + strings.Repeat("]", 9000) + `}`,
	} {
		err := schema.Validate("capture.frame", []byte(data))
		if err == nil {
			t.Fatalf("%.80s is accepted", data)
		}
		bounded(t, err)
		if !errors.Is(err, event.ErrUnknownSchema) && strings.Contains(err.Error(), secret) {
			t.Errorf("a value is repeated: %v", err)
		}
	}
	var bad *schema.Error
	if err := schema.Validate("capture.frame", []byte(frame+`,"acquisition":{`+strings.Join(faults, ",")+`}}`)); !errors.As(err, &bad) || len(bad.Complaints) != 20 {
		t.Errorf("%v", err)
	} else if last := bad.Complaints[19]; last.Says != "has 481 more faults" {
		t.Errorf("the last complaint is %+v", last)
	}
}

func bounded(t testing.TB, err error) {
	t.Helper()
	var bad *schema.Error
	if errors.As(err, &bad) && len(bad.Complaints) > 20 || len(err.Error()) > 2048 {
		t.Errorf("%d bytes: %v", len(err.Error()), err)
	}
}

// What our own validation accepts, a schema may refuse only by its stricter
// types; what a schema accepts, ours may refuse for what no schema can say. No
// message may make either fail otherwise.
func FuzzValidate(f *testing.F) {
	for _, name := range schema.Names() {
		for _, data := range examples(f, name) {
			f.Add(name, data)
		}
	}
	for _, data := range []string{``, `null`, `{"schema":1}`, frame + `}`, frame + `,"size":1e400}`, `{"a":{"a":{"a":[[[{}]]]}}}`, "\xff", `{"schema":"\ud800"}`, frame + `,"sequence":2}`} {
		f.Add("capture.frame", []byte(data))
	}
	f.Fuzz(func(t *testing.T, name string, data []byte) {
		if !slices.Contains(schema.Names(), name) {
			return
		}
		err := schema.Validate(name, data)
		if err == nil {
			if !json.Valid(data) {
				t.Errorf("%q is accepted", data)
			}
			return
		}
		bounded(t, err)
		var bad *schema.Error
		if !errors.As(err, &bad) && !errors.Is(err, event.ErrUnknownSchema) {
			t.Errorf("%q: %v", data, err)
		}
		if !errors.Is(err, event.ErrUnknownSchema) && fault.Clean(err.Error()) != err.Error() {
			t.Errorf("%q: a fact would not say %v", data, err)
		}
	})
}

// Mangled messages are refused in the same words whenever they are looked at.
func TestMangled(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // a fixed seed
	refused := 0
	for _, name := range schema.Names() {
		for _, data := range examples(t, name) {
			for range 200 {
				m := slices.Clone(data)
				for range 1 + r.IntN(3) {
					m[r.IntN(len(m))] = `{}[]",:0a-`[r.IntN(10)]
				}
				first, second := schema.Validate(name, m), schema.Validate(name, m)
				if fmt.Sprint(first) != fmt.Sprint(second) {
					t.Fatalf("%s: %v, then %v", m, first, second)
				}
				if first != nil {
					refused++
					bounded(t, first)
				}
			}
		}
	}
	if refused < 1000 {
		t.Errorf("only %d were refused", refused)
	}
}

func BenchmarkValidate(b *testing.B) {
	for _, name := range []string{"capture.frame", "capture.batch", "frame.captured", "frame.fixed", "derivative"} {
		data := examples(b, name)[0]
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := schema.Validate(name, data); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
