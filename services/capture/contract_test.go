package capture

import (
	"strings"
	"testing"

	"colophon/shared/event"
	"colophon/shared/fault"
	"colophon/shared/stage"
	"colophon/shared/testkit"
)

// A message that its schema refuses is a dead letter that says what is wrong
// and where, and asks for nothing: no slot waits for it.
func TestWhatItsSchemaRefusesAsksForNothing(t *testing.T) {
	r := newRig(t)
	r.start()
	r.opened(1, 1)
	body := `{"schema":"colophon/capture.frame/v1","batch":"b","frame":"1.tif","sequence":1,"sources":["file:///in/1.tif"],"device":null}` // which a lenient reader would take for none
	testkit.PublishRaw(t, r.js, event.CaptureSubject("frame", "gw", "b"), nil, []byte(body))
	r.settled()
	letters := testkit.ReadAll(t, r.js, event.StreamDeadLetter)
	if len(letters) != 1 {
		t.Fatalf("%d dead letters", len(letters))
	}
	h := letters[0].Header
	expect(t, "code", fault.Code(h.Get(event.HeaderCode)), fault.Malformed)
	says := stage.HeaderText(h.Get(event.HeaderMessage))
	for _, want := range []string{"schema capture.frame", "#/device is null; it must be a string"} {
		if !strings.Contains(says, want) {
			t.Errorf("%q does not say %q", says, want)
		}
	}
	r.status("it was read", func(st event.BatchStatus) bool { return st.CapturePosition >= 2 })
	st := r.status("nothing waits", func(st event.BatchStatus) bool { return st.Totals.Missing == 1 })
	expect(t, "pending", st.Totals.Pending, 0)
}
