package verify

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"strings"

	"colophon/shared/event"
)

// link is one recorded attempt.
type link struct {
	Name      string          `json:"m"`
	Number    int64           `json:"n"` // of its record
	Operation event.Operation `json:"o"`
	Status    string          `json:"s"`
	Previous  string          `json:"p,omitempty"`

	pass, attempt int
}

// chainKey puts the attempts of one piece of work on a slot together, in their
// order. Other bytes for a done slot are found by an attempt at its capture.
func chainKey(op event.Operation, slot string, pass, attempt int) string {
	if op == event.SourceChanged {
		op = event.Capture
	}
	b := []byte(string(op) + "@" + slot + "\x00")
	b = binary.BigEndian.AppendUint32(b, uint32(max(pass, 0)))    //nolint:gosec // small
	b = binary.BigEndian.AppendUint32(b, uint32(max(attempt, 0))) //nolint:gosec // small
	return string(b)
}

// judgeChains goes through the retry chains: their numbers have no gap, and
// each ends.
func (j *judge) judgeChains(ctx context.Context) error {
	c := &chain{j: j}
	for p, err := range j.mem.each(memChain, "") {
		if err != nil {
			return err
		}
		of, rest, _ := strings.Cut(string(p.key), "\x00")
		if len(rest) != 8 {
			continue
		}
		var l link
		if err := json.Unmarshal(p.value, &l); err != nil {
			return fmt.Errorf("scratch: %w", err)
		}
		l.pass, l.attempt = int(binary.BigEndian.Uint32([]byte(rest[:4]))), int(binary.BigEndian.Uint32([]byte(rest[4:])))
		if of != c.of {
			if err := c.end(); err != nil {
				return err
			}
			*c = chain{j: j, of: of}
		}
		if err := c.add(l); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return c.end()
}

// chain is the attempts at one operation on one slot.
type chain struct {
	j    *judge
	of   string // operation@slot
	last link
	by   map[event.Operation]link // the last of each operation
	any  bool
}

func (c *chain) add(l link) error {
	want := 1
	if c.any && c.last.pass == l.pass {
		want = c.last.attempt + 1
	}
	if l.attempt == 2 && want == 1 && l.pass <= 1 {
		// An attempt that succeeded at once has no event but its completion; a
		// result that is not believed later is followed by the second.
		first, err := c.j.mem.has(memFirst, c.of)
		if err != nil {
			return err
		}
		if first {
			want = 2
		}
	}
	if l.attempt != want {
		c.j.out.record("chain-gap", l.Number, l.Name, "attempt %d of pass %d where attempt %d comes next: a gap", l.attempt, l.pass, want)
	}
	if c.any && c.last.pass == l.pass && c.last.Status != statusPending {
		c.j.out.drift("chain-after-end", recordObject(l.Number, l.Name), "an attempt behind one that ended the pass as %s", c.last.Status)
	}
	c.previous(l)
	c.last, c.any = l, true
	if c.by == nil {
		c.by = map[event.Operation]link{}
	}
	c.by[l.Operation] = l
	return nil
}

// previous: each attempt names the one before it, if that was recorded first.
func (c *chain) previous(l link) {
	want := ""
	if before, ok := c.by[l.Operation]; ok {
		if before.Number > l.Number {
			return // a healed log told them in another order
		}
		want = c.j.ledger.space.id(before.Name)
	}
	if l.Previous != want {
		c.j.out.drift("chain-previous", recordObject(l.Number, l.Name), "it names %s as the attempt before, and that is %s", cmp.Or(l.Previous, "none"), cmp.Or(want, "none"))
	}
}

// end: the chain ends in Success, in Quarantined, or with the completion of
// its operation by a hit; else it is open.
func (c *chain) end() error {
	if !c.any || c.last.Status == statusSuccess || c.last.Status == statusQuarantined {
		return nil
	}
	op, slot, _ := strings.Cut(c.of, "@")
	p, err := c.j.slots.progress(slot)
	if err != nil {
		return err
	}
	if p != nil {
		if o := p.Ops[event.Operation(op)]; o != nil && (o.Done || o.Waived) || p.Discarded {
			return nil
		}
	}
	c.j.out.note("chain-open", recordObject(c.last.Number, c.last.Name), "attempt %d of pass %d waits for the next one", c.last.attempt, c.last.pass)
	return nil
}
