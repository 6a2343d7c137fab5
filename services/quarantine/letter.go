package quarantine

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"

	"colophon/shared/completed"
	"colophon/shared/event"
	"colophon/shared/fault"
	"colophon/shared/stage"
)

// letter is a dead letter as it came: a message, and how to settle it.
type letter struct {
	completed.Position
	subject string
	header  nats.Header
	data    []byte // the message that failed
	ack     func(context.Context) error
}

// report is what a dead letter says: the case it opens, as far as the letter
// knows it, and the evidence.
type report struct {
	event.CaseFact
	detail string
}

// decode reads a dead letter. One that says nothing readable, because somebody
// put it there by hand, becomes a case of its own: nothing is passed over.
func decode(l letter) report {
	c, err := parse(l.header)
	if err != nil {
		service := strings.TrimPrefix(l.subject, event.SubjectDeadLetter+".")
		c = event.CaseFact{
			Operation: event.Decode(service), Pass: 1, Service: service, Origin: fmt.Sprintf("%s-%d", event.StreamDeadLetter, l.Sequence),
			Class: string(fault.Permanent), Code: string(fault.Malformed), Reason: fault.Clean("this is no dead letter of a service: " + err.Error()),
		}
	}
	c.ID = event.CaseID(c.Operation, c.Slot, c.Origin)
	c.Letter, c.At, c.Device = l.Sequence, l.Stored, device(l.data)
	return report{c, stage.HeaderText(l.header.Get(event.HeaderDetail))}
}

// device reads which device a message's bytes came from, where it says so: a
// gateway's message and what capture makes of it do, and what hasher makes
// carries that along. It is a name to be asked by: as it is, or none.
func device(message []byte) string {
	var m struct {
		Device   string `json:"device"`
		Captured struct {
			Device string `json:"device"`
		} `json:"captured"`
	}
	if json.Unmarshal(message, &m) != nil {
		return ""
	}
	if d := cmp.Or(m.Device, m.Captured.Device); len(d) <= maxLine {
		return d
	}
	return ""
}

func parse(h nats.Header) (event.CaseFact, error) {
	var errs []error
	number := func(key string) int {
		v := h.Get(key)
		if v == "" {
			return 0
		}
		n, err := strconv.Atoi(v)
		if err != nil || n < 0 {
			errs = append(errs, fmt.Errorf("%s: %q is not a number", key, v))
		}
		return n
	}
	name := func(key string) event.Name {
		n, err := event.DecodeName(h.Get(key))
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", key, err))
		}
		return n
	}
	c := event.CaseFact{
		Slot:      event.Slot{Batch: name(event.HeaderBatch), Frame: name(event.HeaderFrame)},
		Operation: event.Operation(h.Get(event.HeaderOperation)), Digest: event.Digest(h.Get(event.HeaderDigest)),
		Sequence: number(event.HeaderSequence), Revision: number(event.HeaderRevision), Pass: number(event.HeaderPass), Attempts: number(event.HeaderAttempts),
		Service: h.Get(event.HeaderService), Class: h.Get(event.HeaderClass), Code: h.Get(event.HeaderCode),
		Reason: fault.Clean(stage.HeaderText(h.Get(event.HeaderMessage))), Origin: h.Get(event.HeaderOrigin),
	}
	for key, v := range map[string]string{event.HeaderOperation: string(c.Operation), event.HeaderOrigin: c.Origin, event.HeaderService: c.Service, event.HeaderCode: c.Code} {
		if v == "" || strings.ContainsRune(v, 0) {
			errs = append(errs, fmt.Errorf("%s: missing", key))
		}
	}
	if c.Pass < 1 {
		errs = append(errs, fmt.Errorf("%s: %d is not a pass", event.HeaderPass, c.Pass))
	}
	if c.Batch == "" && c.Frame != "" {
		errs = append(errs, errors.New("a frame without its batch"))
	}
	return c, errors.Join(errs...)
}
