package verify

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"colophon/shared/event"
)

// maxRecord bounds a record's stored bytes (MAPPING section 6).
const maxRecord = 65_535

// entry is a record of the ledger as the judge reads it: the fields it has
// something to say about.
type entry struct {
	Name     string    `json:"name"`
	Type     string    `json:"type"`
	URI      string    `json:"uri"`
	Time     time.Time `json:"time"`
	Recorded time.Time `json:"recorded"`
	Slot     *struct {
		Batch string `json:"batch"`
		Frame string `json:"frame"`
	} `json:"slot"`
	Digest  event.Digest `json:"digest"`
	Objects []struct {
		Kind   string       `json:"kind"`
		Digest event.Digest `json:"digest"`
		Role   string       `json:"role"`
	} `json:"objects"`
	Agents []struct {
		ID   string `json:"id"`
		Role string `json:"role"`
	} `json:"agents"`
	Outcome   string    `json:"outcome"`
	Data      entryData `json:"data"`
	Sequence  uint64    `json:"sequence"`
	MsgID     string    `json:"msg_id"`
	Truncated bool      `json:"truncated"`
}

type entryData struct {
	Policy *struct {
		SHA256 event.Digest `json:"sha256"`
	} `json:"policy"`
	Digest *struct {
		Value    event.Digest `json:"value"`
		Expected event.Digest `json:"expected"`
	} `json:"digest"`
	File *struct {
		Size int64 `json:"size"`
	} `json:"file"`
	Identification *struct {
		PUID string `json:"puid"`
	} `json:"identification"`
	Replaced *struct {
		By event.Digest `json:"by"`
	} `json:"replaced"`
	Attempt *struct {
		Operation event.Operation `json:"operation"`
		Pass      int             `json:"pass"`
		Number    int             `json:"number"`
		Policy    string          `json:"policy"`
		Previous  string          `json:"previous"`
	} `json:"attempt"`
	Resolution *struct {
		Status string `json:"status"`
		Late   bool   `json:"late"`
	} `json:"resolution"`
	Derivation *struct {
		Set     event.Digest `json:"set"`
		Outputs []struct {
			Digest event.Digest `json:"digest"`
			Size   int64        `json:"size"`
		} `json:"outputs"`
	} `json:"derivation"`
	Case *struct {
		ID string `json:"id"`
	} `json:"case"`
	Closing *struct {
		Decision   string `json:"decision"`
		Quarantine string `json:"quarantine"`
	} `json:"closing"`
	Conflict *struct {
		Name string `json:"name"`
	} `json:"conflict"`
}

func decodeEntry(data []byte) (*entry, error) {
	if len(data) > maxRecord {
		return nil, fmt.Errorf("%d bytes, at most %d are allowed", len(data), maxRecord)
	}
	e := new(entry)
	if err := json.Unmarshal(data, e); err != nil {
		return nil, err
	}
	if e.Name == "" {
		return e, errors.New("the record has no name")
	}
	return e, nil
}

// material reads a record's material fields.
func (e *entry) material() material {
	m := material{Outcome: e.Outcome}
	d := e.Data
	switch {
	case d.Derivation != nil:
		m.Digest = d.Derivation.Set
		for _, o := range d.Derivation.Outputs {
			m.Outputs, m.Sizes = append(m.Outputs, o.Digest), append(m.Sizes, o.Size)
		}
	case d.Policy != nil:
		m.Digest = d.Policy.SHA256
	case d.Replaced != nil:
		m.Digest = d.Replaced.By
	case d.Digest != nil:
		m.Digest, m.Declared = d.Digest.Value, d.Digest.Expected
	}
	if d.File != nil {
		m.Size = d.File.Size
	}
	if d.Identification != nil {
		m.PUID = d.Identification.PUID
	}
	switch {
	case d.Resolution != nil && e.Data.Attempt != nil:
		m.Decision = d.Resolution.Status
	case d.Closing != nil:
		m.Decision = d.Closing.Decision
	}
	return m
}

// faults are what is wrong with a record by itself.
func (e *entry) faults(space namespace) []string {
	var out []string
	say := func(bad bool, format string, args ...any) {
		if bad {
			out = append(out, fmt.Sprintf(format, args...))
		}
	}
	typ, named := typeOf(e.Name)
	say(!named, "the name begins neither with event: nor with op:")
	say(e.Recorded.IsZero() || e.Time.IsZero(), "a time is missing")
	say(e.Sequence == 0, "the record names no fact")
	if typ == operational {
		say(e.Type != operational, "a record named op: has type %q", e.Type)
		return out
	}
	say(strings.ReplaceAll(e.Type, " ", "-") != typ, "type %q under a name of type %q", e.Type, typ)
	say(!knownTerm("eventType", e.Type, e.URI), "type %q with the URI %q is not in the list", e.Type, e.URI)
	say(!knownOutcome(e.Outcome), "outcome %q is not in the list", e.Outcome)
	say(len(e.Objects) == 0, "an event without an object")
	say(len(e.Agents) == 0, "an event without an agent")
	say(e.Digest != "" && unqualified(e.Name) && !strings.HasSuffix(e.Name, ":"+string(e.Digest)), "about digest %s under another's name", e.Digest)
	for _, o := range e.Objects {
		say(o.Kind == "file" && !o.Digest.Valid(), "a file without its digest")
		say(o.Kind != "file" && e.Slot == nil, "an object of kind %q without a slot", o.Kind)
	}
	return append(out, e.references(space)...)
}

func knownOutcome(s string) bool { return s == success || s == fail || s == warning }

// references are the identifiers that can be recomputed from the record's own
// name and slot.
func (e *entry) references(space namespace) []string {
	var out []string
	same := func(what, have, name string) {
		if want := space.id(name); have != want {
			out = append(out, fmt.Sprintf("%s is %s, and %s gives %s", what, have, name, want))
		}
	}
	typ, _ := typeOf(e.Name)
	if a := e.Data.Attempt; a != nil && e.Slot != nil {
		same("the policy's event", a.Policy, eventName(tPolicyAssignment, "", "")+"@"+e.Slot.Batch)
	}
	if c := e.Data.Case; c != nil && typ == tQuarantine {
		same("the case", c.ID, e.Name)
	}
	if c := e.Data.Closing; c != nil {
		name := strings.TrimPrefix(e.Name, "event:"+typ)
		if i := strings.LastIndexByte(name, '#'); i >= 0 { // a rescan is numbered behind the pass
			pass, _, _ := strings.Cut(name[i:], "+")
			name = name[:i] + pass
		}
		same("the case's event", c.Quarantine, "event:"+tQuarantine+name)
	}
	return out
}
