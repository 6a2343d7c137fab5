package verify

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// reporter collects findings from any goroutine, a bounded number of each kind.
type reporter struct {
	mu     sync.Mutex
	kept   map[string][]Finding
	counts map[string]int
	worst  map[Severity]int
	first  *BadRecord
	open   []OpenBatch

	checked Checked
	bytes   atomic.Int64
	masters atomic.Int64
	derived atomic.Int64
}

func newReporter() *reporter {
	return &reporter{kept: map[string][]Finding{}, counts: map[string]int{}, worst: map[Severity]int{}}
}

func (r *reporter) add(s Severity, kind, object, format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counts[kind]++
	r.worst[s]++
	if len(r.kept[kind]) < MaxOfKind {
		r.kept[kind] = append(r.kept[kind], Finding{kind, object, fmt.Sprintf(format, args...), s})
	}
}

func (r *reporter) damage(kind, object, format string, args ...any) {
	r.add(Damage, kind, object, format, args...)
}

func (r *reporter) drift(kind, object, format string, args ...any) {
	r.add(Drift, kind, object, format, args...)
}

func (r *reporter) note(kind, object, format string, args ...any) {
	r.add(Note, kind, object, format, args...)
}

// record adds damage of one record of the ledger.
func (r *reporter) record(kind string, n int64, name, format string, args ...any) {
	r.add(Damage, kind, recordObject(n, name), format, args...)
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.first == nil || n < r.first.Number:
		r.first = &BadRecord{n, name, kind}
	case n == r.first.Number && r.first.Name == "":
		r.first.Name = name
	}
}

// recordObject names a record for people.
func recordObject(n int64, name string) string {
	if name == "" {
		return fmt.Sprintf("record %d", n)
	}
	return fmt.Sprintf("record %d %s", n, name)
}

// logObject names a message of the log for people.
func logObject(m message) string { return fmt.Sprintf("INGEST %d %s", m.seq, m.id) }

func (r *reporter) batch(b OpenBatch) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.open) < MaxOfKind {
		r.open = append(r.open, b)
	}
}

var weight = map[Severity]int{Damage: 0, Drift: 1, Note: 2}

// findings gives what was kept, the worst first, always in the same order.
func (r *reporter) findings() []Finding {
	out := []Finding{}
	for _, kept := range r.kept {
		out = append(out, kept...)
	}
	slices.SortFunc(out, func(a, b Finding) int {
		return cmp.Or(weight[a.Severity]-weight[b.Severity], strings.Compare(a.Kind, b.Kind), strings.Compare(a.Object, b.Object), strings.Compare(a.Message, b.Message))
	})
	return out
}

func (j *judge) report() Report {
	r := j.out
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.checked
	c.Bytes, c.Masters, c.Derivatives = r.bytes.Load(), r.masters.Load(), r.derived.Load()
	rep := Report{
		Started: j.started.UTC(), Ended: j.Now().UTC(), Checked: c, Log: j.limits.last,
		Findings: r.findings(), Counts: r.counts, FirstBad: r.first, Open: r.open, worst: r.worst,
	}
	if j.Batch != "" {
		rep.Batch = j.Batch.Display()
	}
	if l := j.ledger; l != nil {
		rep.Position, rep.Origin, rep.Size, rep.Root = l.head.Position.Sequence, l.head.Origin, l.head.Size, l.head.Root.String()
	}
	return rep
}
