package premisxml

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"colophon/services/premis/internal/record"
)

// chain is the attempts at an operation on a slot.
type chain struct {
	operation, slot, digest string
	passes                  map[int]map[int]string // pass, number -> status
	late                    map[int]map[int]string
}

func (c *checker) attempt(detail, resolution *node, name string) {
	a, frame := detail.find("attempt"), detail.find("frame")
	slot := frame.attrs["batch"] + "/" + frame.attrs["frame"]
	operation := a.attrs["operation"]
	key := operation + "@" + slot
	ch := c.chains[key]
	if ch == nil {
		ch = &chain{operation: operation, slot: slot, passes: map[int]map[int]string{}, late: map[int]map[int]string{}}
		c.chains[key] = ch
	}
	if d, _, ok := strings.Cut(strings.TrimPrefix(name, "event:retry:"+operation+":"), "@"); ok && d != "" {
		ch.digest = d
	}
	pass, _ := strconv.Atoi(a.attrs["pass"])
	number, _ := strconv.Atoi(a.attrs["number"])
	into := ch.passes
	if resolution.attrs["late"] == "true" {
		into = ch.late
	}
	if into[pass] == nil {
		into[pass] = map[int]string{}
	}
	into[pass][number] = resolution.attrs["status"]
}

// endChains: each pass counts from 1 without a gap, only its last attempt may
// end it, and the last pass ends in Success, in Quarantined, or with the
// completion of its key.
func (c *checker) endChains() {
	for _, key := range slices.Sorted(maps.Keys(c.chains)) {
		ch := c.chains[key]
		passes := slices.Sorted(maps.Keys(ch.passes))
		for i, pass := range passes {
			c.pass(key, ch, pass, i == len(passes)-1)
		}
	}
}

func (c *checker) pass(key string, ch *chain, pass int, last bool) {
	numbers := slices.Sorted(maps.Keys(ch.passes[pass]))
	for i, n := range numbers {
		status := ch.passes[pass][n]
		if n != i+1 {
			c.fault(9, "%s pass %d: attempt %d is missing", key, pass, i+1)
			return
		}
		if i < len(numbers)-1 && status != record.StatusPending {
			c.fault(9, "%s pass %d: attempt %d says %s, and another follows", key, pass, n, status)
		}
	}
	end := ch.passes[pass][numbers[len(numbers)-1]]
	if end != record.StatusPending || c.completed(ch) || lateSuccess(ch.late[pass]) {
		return
	}
	if pass == 0 { // the device's own attempts: the line's begin with the next pass
		return
	}
	if last {
		c.report.Open = append(c.report.Open, key)
		return
	}
	c.fault(9, "%s pass %d ends with %s, and another pass follows", key, pass, end)
}

func lateSuccess(late map[int]string) bool {
	for _, status := range late {
		if status == record.StatusSuccess {
			return true
		}
	}
	return false
}

// completed tells whether a chain's key was completed without an attempt of
// its own: by another frame's work, or as a hit.
func (c *checker) completed(ch *chain) bool {
	if strings.HasPrefix(ch.operation, "derivative:") {
		_, done := c.single[record.Name(record.Migration, ch.operation, "")+ch.digest]
		return done
	}
	for _, name := range c.events {
		if strings.HasPrefix(name, "event:accession:") && (strings.HasSuffix(name, "@"+ch.slot) || strings.Contains(name, "@"+ch.slot+"+")) {
			return true
		}
	}
	return false
}
