package capture

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"colophon/shared/event"
	"colophon/shared/fault"
	"colophon/shared/stage"
	"colophon/shared/testkit"
)

// TestHostileMessages: whatever a gateway sends, it is refused with a code and
// kept as evidence, byte for byte, and the service goes on.
func TestHostileMessages(t *testing.T) {
	r := newRig(t)
	r.hosts = []string{"127.0.0.1:1"}
	r.start()
	r.opened(500, 1)
	in := r.in
	const frame = `{"schema":"colophon/capture.frame/v1","batch":"b","frame":%s,"sequence":1,"sources":[%s]%s}`
	source := func(uri string) string { return string(testkit.JSON(t, uri)) }
	n := 0
	body := func(uri, more string) string {
		n++
		return fmt.Sprintf(frame, fmt.Sprintf(`"f%d"`, n), source(uri), more)
	}
	named := func(name string) string { return fmt.Sprintf(frame, name, source("file:///none"), "") }
	r.source("good.tif", "good")
	const subject = "capture.frame.gw.b"
	deep := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	for _, x := range []struct {
		what, subject, body string
		code                fault.Code // "": taken as it is
	}{
		{"climbs", subject, body("file://"+in+"/../../etc/passwd", ""), fault.PathRefused},
		{"climbs, encoded", subject, body("file://"+in+"/%2e%2e/%2e%2e/etc/passwd", ""), fault.PathRefused},
		{"absolute", subject, body("file:///etc/passwd", ""), fault.PathRefused},
		{"relative", subject, body("file:good.tif", ""), fault.PathRefused},
		{"a device", subject, body("file:///dev/zero", ""), fault.PathRefused},
		{"another machine", subject, body("file://evil.test"+in+"/good.tif", ""), fault.PathRefused},
		{"a NUL", subject, body("file://"+in+"/good.tif%00.jpg", ""), fault.PathRefused},
		{"an unknown scheme", subject, body("gopher://127.0.0.1/", ""), fault.SchemeRefused},
		{"no scheme", subject, body(in+"/good.tif", ""), fault.SchemeRefused},
		{"loopback", subject, body("http://127.0.0.1/", ""), fault.HostRefused},
		{"loopback by name", subject, body("http://localhost/", ""), fault.HostRefused},
		{"loopback, decimal", subject, body("http://2130706433/", ""), fault.HostRefused},
		{"loopback, octal", subject, body("http://0177.0.0.1/", ""), fault.HostRefused},
		{"loopback, mapped", subject, body("http://[::ffff:127.0.0.1]/", ""), fault.HostRefused},
		{"loopback of IPv6", subject, body("http://[::1]/", ""), fault.HostRefused},
		{"a cloud's metadata", subject, body("http://169.254.169.254/latest/meta-data", ""), fault.HostRefused},
		{"credentials", subject, body("http://user:pass@127.0.0.1:1/", ""), fault.HostRefused},
		{"another port", subject, body("http://127.0.0.1:22/", ""), fault.HostRefused},
		{"a new line in a URI", subject, body("http://127.0.0.1:1/\r\nHost: evil", ""), fault.PathRefused},

		{"not JSON", subject, `{"schema":`, fault.Malformed},
		{"nothing", subject, ``, fault.Malformed},
		{"null", subject, `null`, fault.Malformed},
		{"two values", subject, body("file:///none", "") + `{}`, fault.Malformed},
		{"not UTF-8", subject, strings.Replace(body("file:///none", ""), "none", "\xff\xfe", 1), fault.Malformed},
		{"a lone surrogate", subject, named(`"\ud800"`), fault.Malformed},
		{"a key twice", subject, body("file:///none", `,"sequence":2`), fault.Malformed},
		{"a key twice, below", subject, body("file:///none", `,"acquisition":{"a":"1","a":"2"}`), fault.Malformed},
		{"deep", subject, body("file:///none", `,"x":`+deep(100)), fault.Malformed},
		{"very deep", subject, body("file:///none", `,"x":`+deep(100_000)), fault.Malformed},
		{"NaN", subject, body("file:///none", `,"size":NaN`), fault.Malformed},
		{"infinity", subject, body("file:///none", `,"size":1e999`), fault.Malformed},
		{"a fraction", subject, body("file:///none", `,"size":1.5`), fault.Malformed},
		{"past 64 bits", subject, body("file:///none", `,"size":99999999999999999999`), fault.Malformed},
		{"below zero", subject, body("file:///none", `,"size":-1`), fault.Malformed},
		{"a wrong type", subject, body("file:///none", `,"sha256":7`), fault.Malformed},
		{"no digest", subject, body("file:///none", `,"sha256":"ABC"`), fault.Malformed},
		{"a digest in upper case", subject, body("file:///none", `,"sha256":"`+strings.ToUpper(string(testkit.Digest("x")))+`"`), fault.Malformed},
		{"no sources", subject, strings.Replace(body("file:///none", ""), `"file:///none"`, ``, 1), fault.Malformed},
		{"a device too long for a subject", subject, body("file:///none", `,"device":"`+strings.Repeat("x", event.MaxBatchLen+1)+`"`), fault.Malformed},
		{"a pass that none can follow", subject, body("file:///none", `,"pass":9223372036854775807`), fault.Malformed},
		{"no frame", subject, named(`""`), fault.Malformed},
		{"a frame too long", subject, named(`"` + strings.Repeat("x", event.MaxFrameLen+1) + `"`), fault.Malformed},
		{"a frame that is a list", subject, named(`["a"]`), fault.Malformed},
		{"a frame spelled twice", subject, named(`{"percent_encoded":"caf%65"}`), fault.Malformed},
		{"another batch's subject", "capture.frame.gw.other", body("file:///none", ""), fault.Malformed},
		{"a subject of too many parts", "capture.frame.gw.b.x", body("file:///none", ""), fault.Malformed},
		{"a subject that is not encoded", "capture.frame.gw.caf%e9", body("file:///none", ""), fault.Malformed},
		{"a newer schema", subject, strings.Replace(body("file:///none", ""), "/v1", "/v9", 1), fault.UnknownSchema},
		{"another schema", subject, strings.Replace(body("file:///none", ""), "capture.frame", "capture.batch", 1), fault.UnknownSchema},

		{"a batch with a device too long for a subject", "capture.batch.gw.c", `{"schema":"colophon/capture.batch/v1","batch":"c","count":1,"devices":["` + strings.Repeat("é", event.MaxBatchLen/2+1) + `"]}`, fault.Malformed},
		{"a batch of nothing", "capture.batch.gw.c", `{"schema":"colophon/capture.batch/v1","batch":"c","count":0}`, fault.Malformed},
		{"a batch without an id", "capture.batch.gw.c", `{"schema":"colophon/capture.batch/v1","count":1}`, fault.Malformed},
		{"a batch of unknown order", "capture.batch.gw.c", `{"schema":"colophon/capture.batch/v1","batch":"c","count":1,"order":"random"}`, fault.Malformed},
		{"a policy that never ends", "capture.batch.gw.c", `{"schema":"colophon/capture.batch/v1","batch":"c","count":1,"policy":{"max_attempts":1000000}}`, fault.BatchInvalid},
		{"a fault of no kind", "capture.fault.gw.b", `{"schema":"colophon/capture.fault/v1","id":"0e3a4c5e-2f0b-4f44-9a53-0d9b3f6f6a10","device":"d","batch":"b","kind":"fire","at":"2026-11-30T12:00:00Z"}`, fault.Malformed},
		{"a fault without an id", "capture.fault.gw.b", `{"schema":"colophon/capture.fault/v1","id":"1","device":"d","batch":"b","kind":"jam","at":"2026-11-30T12:00:00Z"}`, fault.Malformed},
		{"a fault of another's subject", "capture.fault.gw.d", `{"schema":"colophon/capture.fault/v1","id":"0e3a4c5e-2f0b-4f44-9a53-0d9b3f6f6a10","device":"d","batch":"b","kind":"jam","at":"2026-11-30T12:00:00Z"}`, fault.Malformed},

		{"wildcards in an id", subject, named(`"*.>"`), fault.PathRefused},
		{"control characters in an id", subject, named(`"a\u0000b\r\nNats-Msg-Id: x\u001b[2J"`), fault.PathRefused},
		{"an id that climbs", subject, named(`"../../../../etc/cron.d/x"`), fault.PathRefused},
		{"an id at the limit", subject, named(`"` + strings.Repeat("x", event.MaxFrameLen) + `"`), fault.PathRefused},
		{"unknown fields", subject, body("file://"+in+"/good.tif", `,"x-scanner":{"lamp":3}`), ""},
	} {
		letters, facts := len(testkit.ReadAll(t, r.js, event.StreamDeadLetter)), len(r.captured())
		testkit.PublishRaw(t, r.js, x.subject, nats.Header{event.HeaderMsgID: {fmt.Sprintf("hostile-%s", event.Encode(x.what))}}, []byte(x.body))
		r.settled()
		if x.code == "" {
			expect(t, x.what+": facts", len(r.captured()), facts+1)
			continue
		}
		all := testkit.ReadAll(t, r.js, event.StreamDeadLetter)
		if len(all) != letters+1 {
			t.Errorf("%s: %d dead letters follow", x.what, len(all)-letters)
			continue
		}
		l := all[letters]
		expect(t, x.what, fault.Code(l.Header.Get(event.HeaderCode)), x.code)
		expect(t, x.what+": the evidence", string(l.Data) == x.body, true)
		expect(t, x.what+": its subject", l.Header.Get(event.HeaderOriginSub), x.subject)
		if m := stage.HeaderText(l.Header.Get(event.HeaderMessage)); m == "" || strings.Contains(m, "/etc") || strings.Contains(m, in) || strings.Contains(m, "pass@") {
			t.Errorf("%s: its reason is %q", x.what, m)
		}
		if strings.ContainsAny(fmt.Sprint(l.Header), "\r\n\x1b") {
			t.Errorf("%s: its headers are %q", x.what, l.Header)
		}
	}
	testkit.OK(t, r.svc.Health())
	for _, key := range r.stagedFiles() {
		if !strings.HasPrefix(key, "staging/b/") {
			t.Errorf("%s was staged", key)
		}
	}
	c := r.take(r.message("after.tif", r.source("after.tif", "after")))
	expect(t, "the service, behind all that", c.Digest, testkit.Digest("after"))
}

// FuzzDecode: no message ends the decoder, and what it takes is fit to be an id
// and a key.
func FuzzDecode(f *testing.F) {
	ok := testkit.FrameMessage(event.Slot{Batch: "b", Frame: "f"}, 1, "x")
	for _, v := range []any{
		ok, event.BatchDeclaration{Schema: event.SchemaCaptureBatch, Batch: "b", Count: 1},
		event.CaptureFault{Schema: event.SchemaCaptureFault, ID: "0e3a4c5e-2f0b-4f44-9a53-0d9b3f6f6a10", Device: "d", Kind: "jam", Batch: "b", At: time.Unix(0, 0)},
	} {
		data, err := json.Marshal(v)
		testkit.OK(f, err)
		for _, subject := range []string{"capture.frame.gw.b", "capture.batch.gw.b", "capture.fault.gw.b", "capture.frame.%2A.%2E%2E"} {
			f.Add(subject, data)
		}
	}
	f.Add("capture.frame.gw.b", []byte(`{"schema":"colophon/capture.frame/v1","batch":{"percent_encoded":"%FF"},"frame":"a\u0000","sequence":1,"sources":[""]}`))
	f.Fuzz(func(t *testing.T, subject string, data []byte) {
		good := func(id string, s event.Slot) {
			if strings.ContainsAny(id, " \r\n\x00*>") {
				t.Errorf("the id %q", id)
			}
			if back, err := event.ParseSlot(s.String()); s.Frame != "" && (err != nil || back != s) {
				t.Errorf("the slot %q is read back as %q, %v", s, back, err)
			}
		}
		if in, err := new(frames).Decode(subject, nil, data); err == nil {
			if in.Sequence < 1 || len(in.Sources) == 0 || in.Batch == "" {
				t.Errorf("taken: %+v", in)
			}
			good(in.Slot.String(), in.Slot)
			for _, s := range in.Sources {
				_, _ = sourcePath(s)
			}
		}
		if in, err := new(declarations).Decode(subject, nil, data); err == nil {
			good(in.Batch.Encode(), event.Slot{Batch: in.Batch})
		}
		if in, err := new(reports).Decode(subject, nil, data); err == nil {
			good(in.MsgID(), in.slot())
		}
	})
}
