package ledger

import (
	"iter"
	"runtime"
	"sync"
	"sync/atomic"

	"golang.org/x/mod/sumdb/tlog"

	"colophon/shared/event"

	"colophon/services/premis/internal/mapping"
	"colophon/services/premis/internal/record"
)

// prepared is a fact as the store alone would map it. It stands unless a fact
// before it, in the same commit, changed something it was made from.
type prepared struct {
	Entry
	fact    event.Fact
	err     error // of decoding
	records []encoded
	reads   []string
	failed  bool // the mapping; it is tried again in its turn
}

// encoded is a record as it will be stored.
type encoded struct {
	*record.Record
	data   []byte
	leaf   tlog.Hash
	number int64 // of the record that has its name in the store
	known  bool  // there is one
}

// piece is how many facts a worker takes at once.
const piece = 16

// prepare decodes and maps entries, several at once and ahead of who takes
// them in their order: of a commit's time most is spent here.
func (t *txn) prepare(entries []Entry) iter.Seq[prepared] {
	return func(yield func(prepared) bool) {
		if len(entries) <= piece {
			for _, e := range entries {
				if !yield(t.ahead(e)) {
					return
				}
			}
			return
		}
		out := make([]prepared, len(entries))
		done := make([]chan struct{}, (len(entries)+piece-1)/piece)
		for i := range done {
			done[i] = make(chan struct{})
		}
		var next atomic.Int64
		var wg sync.WaitGroup
		defer wg.Wait()
		defer next.Store(int64(len(done))) // whoever stops early waits for no more than the pieces under way
		for range min(runtime.GOMAXPROCS(0), len(done)) {
			wg.Go(func() {
				for n := next.Add(1) - 1; int(n) < len(done); n = next.Add(1) - 1 {
					for i := int(n) * piece; i < min(int(n+1)*piece, len(entries)); i++ {
						out[i] = t.ahead(entries[i])
					}
					close(done[n])
				}
			})
		}
		for i := range out {
			if i%piece == 0 {
				<-done[i/piece]
			}
			if !yield(out[i]) {
				return
			}
		}
	}
}

// ahead maps one fact by the store alone.
func (t *txn) ahead(e Entry) prepared {
	p := prepared{Entry: e}
	if p.fact, p.err = event.DecodeFact(e.Subject, e.Data); p.err != nil {
		return p
	}
	s := &state{View: t.state.View, space: t.state.space, over: &pending{before: t.before}}
	records, err := mapping.Map(p.fact, t.meta(e), s)
	if err == nil {
		p.records, err = encode(records, s.Number)
	}
	p.reads, p.failed = s.reads, err != nil
	return p
}

// encode makes the stored form of records, and looks for their names in the
// store.
func encode(records []*record.Record, number func(string) (int64, bool, error)) ([]encoded, error) {
	out := make([]encoded, 0, len(records))
	for _, r := range records {
		data, err := r.Encode()
		if err != nil {
			return nil, err
		}
		n, known, err := number(r.Name)
		if err != nil {
			return nil, err
		}
		out = append(out, encoded{r, data, tlog.RecordHash(data), n, known})
	}
	return out, nil
}

func (t *txn) encode(records []*record.Record) ([]encoded, error) {
	return encode(records, t.state.Number)
}

// stale reports whether the commit has changed what a fact was mapped from.
func (t *txn) stale(p prepared) bool {
	if p.failed {
		return true
	}
	for _, key := range p.reads {
		if t.over.touched(key) {
			return true
		}
	}
	return false
}
