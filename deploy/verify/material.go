package verify

import (
	"encoding/json"
	"fmt"
	"slices"

	"colophon/shared/event"
)

// material are the fields in which two tellings of one event must agree, and
// in which the ledger must agree with the log (MAPPING section 5).
type material struct {
	Outcome  string         `json:"o,omitempty"`
	Digest   event.Digest   `json:"d,omitempty"`
	Size     int64          `json:"n,omitempty"`
	Outputs  []event.Digest `json:"f,omitempty"`
	Sizes    []int64        `json:"z,omitempty"`
	Declared event.Digest   `json:"e,omitempty"`
	PUID     string         `json:"p,omitempty"`
	Decision string         `json:"c,omitempty"`
}

// Outcomes of an event.
const (
	success = "success"
	fail    = "fail"
	warning = "warning"
)

// Statuses of an attempt, MAPPING section 4.
const (
	statusSuccess     = "Success"
	statusPending     = "Pending Retry"
	statusQuarantined = "Quarantined"
)

// equal compares; lists is false where one of the two had its lists shortened.
func (m material) equal(o material, lists bool) bool {
	same := m.Outcome == o.Outcome && m.Digest == o.Digest && m.Size == o.Size && m.Declared == o.Declared && m.PUID == o.PUID && m.Decision == o.Decision
	return same && (!lists || slices.Equal(m.Outputs, o.Outputs) && slices.Equal(m.Sizes, o.Sizes))
}

// differs names the fields in which two tellings disagree.
func (m material) differs(o material) string {
	var a, b map[string]any
	for _, p := range []struct {
		m    material
		into *map[string]any
	}{{m, &a}, {o, &b}} {
		data, err := json.Marshal(p.m)
		if err != nil || json.Unmarshal(data, p.into) != nil {
			return "the material fields"
		}
	}
	words := map[string]string{
		"o": "outcome", "d": "digest", "n": "size", "f": "output digests", "z": "output sizes", "e": "declared digest", "p": "format", "c": "decision",
	}
	out := ""
	for _, k := range []string{"o", "d", "n", "f", "z", "e", "p", "c"} {
		if x, y := fmt.Sprint(a[k]), fmt.Sprint(b[k]); x != y {
			if out != "" {
				out += ", "
			}
			out += fmt.Sprintf("%s %v against %v", words[k], a[k], b[k])
		}
	}
	if len(out) > 600 {
		out = out[:600] + "…"
	}
	return out
}

func (m material) hash() string {
	data, err := json.Marshal(m)
	if err != nil {
		panic("verify: material fields are plain values: " + err.Error())
	}
	return string(sha(data)[:16])
}

// succeeded is an event that simply succeeded.
var succeeded = material{Outcome: success}

// set is the digest that stands for the files of a derivative: of their
// digests, one a line, in order.
func set(outputs []event.Output) event.Digest {
	var list []byte
	for _, o := range outputs {
		list = append(append(list, o.Digest...), '\n')
	}
	return sha(list)
}
