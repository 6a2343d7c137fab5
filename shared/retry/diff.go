package retry

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
)

// Difference is one field in which two policies differ.
type Difference struct {
	Field string `json:"field"`
	A     string `json:"a"` // as JSON
	B     string `json:"b"`
}

// Diff lists the fields in which two policies differ, by name. It returns an
// empty list, not nil, where they are the same.
func Diff(a, b []byte) ([]Difference, error) {
	var fields [2]map[string]json.RawMessage
	for i, data := range [][]byte{a, b} {
		p, err := Parse(data)
		if err != nil {
			return nil, err
		}
		canonical, _ := p.Canonical()
		if err := json.Unmarshal(canonical, &fields[i]); err != nil {
			return nil, fmt.Errorf("retry: policy: %w", err)
		}
		fields[i]["rescan"] = strconv.AppendBool(nil, p.Rescans()) // which the canonical form leaves out where it is true
	}
	out := []Difference{}
	for name, v := range fields[0] {
		if w := fields[1][name]; string(v) != string(w) {
			out = append(out, Difference{name, string(v), string(w)})
		}
	}
	slices.SortFunc(out, func(x, y Difference) int {
		if x.Field < y.Field {
			return -1
		}
		return 1
	})
	return out, nil
}
