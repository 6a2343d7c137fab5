package ledger

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/google/uuid"

	"colophon/shared/event"

	"colophon/services/premis/internal/mapping"
	"colophon/services/premis/internal/record"
)

var _ mapping.State = (*state)(nil)

// state is a view as the mapping asks for it, with what a commit under way
// adds to it. It notes which keys it was asked for.
type state struct {
	View
	space record.Namespace
	over  *pending
	reads []string
}

func (s *state) note(key []byte) { s.reads = append(s.reads, string(key)) }

// Has implements [mapping.State].
func (s *state) Has(name string) (bool, error) {
	_, found, err := s.number(name)
	return found, err
}

func (s *state) number(name string) (int64, bool, error) {
	s.reads = append(s.reads, string(kindName)+name)
	if n, ok := s.over.names[name]; ok {
		return n, true, nil
	}
	return s.Number(name)
}

// Record implements [mapping.State].
func (s *state) Record(name string) (*record.Record, error) {
	r, _, err := s.byName(name)
	return r.Record, err
}

func (s *state) byName(name string) (Numbered, bool, error) {
	n, found, err := s.number(name)
	if err != nil || !found {
		return Numbered{}, false, err
	}
	r, err := s.at(n)
	return r, err == nil, err
}

// at reads a record that is stored or about to be.
func (s *state) at(n int64) (Numbered, error) {
	if n < s.over.before || n-s.over.before >= int64(len(s.over.records)) {
		return s.Get(n)
	}
	r := s.over.records[n-s.over.before]
	return Numbered{r.Record, n, r.data}, nil
}

// Frame implements [mapping.State].
func (s *state) Frame(at event.Slot) (*mapping.Frame, error) {
	held, err := s.slot(at.Batch.Encode(), at.Frame.Encode())
	if err != nil || !held.known {
		return nil, err
	}
	now := held.now
	return &now, nil
}

func (s *state) slot(batch, frame string) (*slot, error) {
	id := batch + "/" + frame
	s.reads = append(s.reads, string(kindSlot)+id)
	if known := s.over.slots[id]; known != nil {
		return known, nil
	}
	f, err := s.Slot(batch, frame)
	if err != nil {
		return nil, err
	}
	out := &slot{batch: batch, frame: frame}
	if f != nil {
		out.now, out.known, out.ordered, out.inOrder = *f, true, f.Sequence, true
	}
	if s.over.slots != nil {
		s.over.slots[id] = out
	}
	return out, nil
}

// Warned implements [mapping.State].
func (s *state) Warned(mark string) (bool, error) {
	key := warnedKey(mark)
	s.note(key)
	if _, ok := s.over.warned[mark]; ok {
		return true, nil
	}
	_, found, err := s.get(key)
	return found, err
}

// Required implements [mapping.State].
func (s *state) Required(d event.Digest) ([][]string, error) {
	r, err := s.required(d)
	if err != nil {
		return nil, err
	}
	return r.sets, nil
}

func (s *state) required(d event.Digest) (*require, error) {
	key := requiredKey(d)
	s.note(key)
	if r := s.over.enough[d]; r != nil {
		return r, nil
	}
	r := new(require)
	data, found, err := s.get(key)
	if err != nil {
		return nil, err
	}
	if found {
		if err := json.Unmarshal(data, &r.sets); err != nil {
			return nil, fmt.Errorf("ledger: %w: what %s requires: %w", ErrDamaged, d, err)
		}
	}
	if s.over.enough != nil {
		s.over.enough[d] = r
	}
	return r, nil
}

// Chain implements [mapping.State].
func (s *state) Chain(op event.Operation, slot event.Slot) ([]mapping.Tried, error) {
	data, err := s.chain(chainKey(op, slot))
	if err != nil {
		return nil, err
	}
	return decodeChain(data)
}

func (s *state) chain(key []byte) ([]byte, error) {
	s.note(key)
	if data, ok := s.over.chains[string(key)]; ok {
		return data, nil
	}
	data, _, err := s.get(key)
	return data, err
}

// link is one attempt in a chain's value: pass and number as varints, and the
// 16 bytes of its event's identifier.
func appendLink(data []byte, pass, number int, id string) ([]byte, error) {
	u, err := uuid.Parse(id)
	if err != nil {
		return nil, fmt.Errorf("ledger: chain: %w", err)
	}
	data = binary.AppendUvarint(slices.Clip(data), uint64(max(pass, 0)))
	data = binary.AppendUvarint(data, uint64(max(number, 0)))
	return append(data, u[:]...), nil
}

func decodeChain(data []byte) ([]mapping.Tried, error) {
	var out []mapping.Tried
	for len(data) > 0 {
		pass, a := binary.Uvarint(data)
		number, b := binary.Uvarint(data[max(a, 0):])
		if a <= 0 || b <= 0 || len(data) < a+b+16 {
			return nil, fmt.Errorf("ledger: %w: a chain of attempts", ErrDamaged)
		}
		id := uuid.UUID(data[a+b : a+b+16])
		out = append(out, mapping.Tried{Pass: int(pass), Number: int(number), Event: id.String()})
		data = data[a+b+16:]
	}
	return out, nil
}

// Discarded implements [mapping.State].
func (s *state) Discarded(b event.Name) ([]record.Discarded, error) {
	prefix := discardKeys(b.Encode())
	s.note(prefix)
	keys := s.over.discardsOf(prefix)
	for key, err := range s.keys(prefix) {
		if err != nil {
			return nil, err
		}
		keys = append(keys, string(key))
	}
	slices.Sort(keys)
	var out []record.Discarded
	for _, key := range slices.Compact(keys) {
		frame, op, _ := bytes.Cut([]byte(key)[len(prefix):], []byte{0})
		n, ok := s.over.discards[key]
		if !ok {
			data, found, err := s.get([]byte(key))
			if err != nil || !found || len(data) != 8 {
				return nil, fmt.Errorf("ledger: %w: a discard of batch %s: %v", ErrDamaged, b.Encode(), err)
			}
			n = int64(binary.BigEndian.Uint64(data))
		}
		r, err := s.at(n)
		if err != nil {
			return nil, err
		}
		out = append(out, record.Discarded{Frame: string(frame), Operation: event.Operation(op), Event: s.space.Event(r.Name)})
	}
	return out, nil
}
