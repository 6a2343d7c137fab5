// Package record is what the ledger holds: one record per event, its name and
// identifier, and the fields that make two tellings of one event agree or
// conflict (MAPPING sections 2, 5 and 6). It knows neither Pebble nor XML.
package record

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"

	"colophon/shared/event"
)

// MaxBytes bounds a record's stored form (MAPPING section 6).
const MaxBytes = 65_535

// Record is one event. Its encoded bytes are the record: written once, never
// serialised again, and the leaf of the ledger's tree.
type Record struct {
	Name      string       `json:"name"`
	Type      string       `json:"type"` // label of a [Type], or [Operational]
	URI       string       `json:"uri,omitempty"`
	Time      time.Time    `json:"time"`     // of the event
	Recorded  time.Time    `json:"recorded"` // the broker's timestamp of the fact
	Slot      *Slot        `json:"slot,omitempty"`
	Digest    event.Digest `json:"digest,omitempty"` // the content it is about
	Objects   []Object     `json:"objects,omitempty"`
	Agents    []Agent      `json:"agents,omitempty"`
	Outcome   string       `json:"outcome,omitempty"`
	Detail    string       `json:"detail"`         // a sentence that stands alone
	Note      string       `json:"note,omitempty"` // of the outcome
	Data      Data         `json:"data"`
	Sequence  uint64       `json:"sequence"` // of the fact in the log
	MsgID     string       `json:"msg_id"`   // of the fact
	Truncated bool         `json:"truncated,omitempty"`
}

// Slot is where a frame stands. Ids are encoded as in names, so that any bytes
// survive; without a frame it is the batch.
type Slot struct {
	Batch    string `json:"batch"`
	Frame    string `json:"frame,omitempty"`
	Sequence int    `json:"sequence,omitempty"` // place in the batch, from 1
	Revision int    `json:"revision,omitempty"`
}

// Event gives the slot with its ids decoded.
func (s Slot) Event() (event.Slot, error) {
	b, err := event.DecodeName(s.Batch)
	if err != nil {
		return event.Slot{}, err
	}
	f, err := event.DecodeName(s.Frame)
	return event.Slot{Batch: b, Frame: f}, err
}

// Object is an object's part in an event. Batch and frame are those of the
// record's slot; a file is named by its digest.
type Object struct {
	Kind   string       `json:"kind"`
	Digest event.Digest `json:"digest,omitempty"`
	Role   string       `json:"role"`
}

// Agent is an agent and its part in an event (MAPPING section 7).
type Agent struct {
	ID      string `json:"id"`
	Name    string `json:"name"`
	Type    string `json:"type"`
	Version string `json:"version,omitempty"`
	Note    string `json:"note,omitempty"`
	Role    string `json:"role"`
	// Device is what is known of a scanner beyond its id.
	Device *Device `json:"device,omitempty"`
}

// Device describes a scanner.
type Device struct {
	Manufacturer string `json:"manufacturer,omitempty"`
	Model        string `json:"model,omitempty"`
	Serial       string `json:"serial,omitempty"`
	Calibrated   string `json:"calibrated,omitempty"` // YYYY-MM-DD
}

// Encode gives the bytes to store. A record that is too long gives up first
// what other records hold as well, then the ends of its lists and texts, and
// says so in Truncated: an event is never refused for its length. The record
// is left as it was stored.
func (r *Record) Encode() ([]byte, error) {
	data, err := r.marshal()
	for step := 0; err == nil && len(data) > MaxBytes; step++ {
		if !r.shorten(step) {
			return nil, fmt.Errorf("record %.200s: %d bytes cannot be brought below %d", r.Name, len(data), MaxBytes)
		}
		r.Truncated = true
		data, err = r.marshal()
	}
	return data, err
}

func (r *Record) marshal() ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(r); err != nil {
		return nil, fmt.Errorf("record %.200s: %w", r.Name, err)
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// Decode reads what [Record.Encode] wrote.
func Decode(data []byte) (*Record, error) {
	r := new(Record)
	if err := json.Unmarshal(data, r); err != nil {
		return nil, fmt.Errorf("record: %w", err)
	}
	return r, nil
}

// Files lists the digests of the files a record links to, each once.
func (r *Record) Files() []event.Digest {
	var out []event.Digest
	seen := map[event.Digest]bool{}
	for _, o := range r.Objects {
		if o.Kind == KindFile && !seen[o.Digest] {
			seen[o.Digest] = true
			out = append(out, o.Digest)
		}
	}
	return out
}
