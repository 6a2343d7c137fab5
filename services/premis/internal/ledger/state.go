package ledger

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"

	"github.com/google/uuid"

	"colophon/shared/event"

	"colophon/services/premis/internal/mapping"
	"colophon/services/premis/internal/record"
)

var _ mapping.State = state{}

// state is a view as the mapping asks for it.
type state struct {
	View
	space record.Namespace
}

// Has implements [mapping.State].
func (s state) Has(name string) (bool, error) {
	_, found, err := s.Number(name)
	return found, err
}

// Record implements [mapping.State].
func (s state) Record(name string) (*record.Record, error) {
	r, _, err := s.ByName(name)
	return r.Record, err
}

// Frame implements [mapping.State].
func (s state) Frame(slot event.Slot) (*mapping.Frame, error) {
	return s.Slot(slot.Batch.Encode(), slot.Frame.Encode())
}

// Warned implements [mapping.State].
func (s state) Warned(mark string) (bool, error) {
	_, found, err := s.get(warnedKey(mark))
	return found, err
}

// Required implements [mapping.State].
func (s state) Required(d event.Digest) ([][]string, error) {
	data, found, err := s.get(requiredKey(d))
	if err != nil || !found {
		return nil, err
	}
	var out [][]string
	if err := json.Unmarshal(data, &out); err != nil {
		return nil, fmt.Errorf("ledger: %w: what %s requires: %w", ErrDamaged, d, err)
	}
	return out, nil
}

// Chain implements [mapping.State].
func (s state) Chain(op event.Operation, slot event.Slot) ([]mapping.Tried, error) {
	data, _, err := s.get(chainKey(op, slot))
	if err != nil {
		return nil, err
	}
	return decodeChain(data)
}

// link is one attempt in a chain's value: pass and number as varints, and the
// 16 bytes of its event's identifier.
func appendLink(data []byte, pass, number int, id string) ([]byte, error) {
	u, err := uuid.Parse(id)
	if err != nil {
		return nil, fmt.Errorf("ledger: chain: %w", err)
	}
	data = binary.AppendUvarint(data, uint64(max(pass, 0)))
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
func (s state) Discarded(b event.Name) ([]record.Discarded, error) {
	prefix := discardKeys(b.Encode())
	var out []record.Discarded
	for key, err := range s.keys(prefix) {
		if err != nil {
			return nil, err
		}
		frame, op, _ := bytes.Cut(key[len(prefix):], []byte{0})
		data, _, err := s.get(key)
		if err != nil {
			return nil, err
		}
		r, err := s.Get(int64(binary.BigEndian.Uint64(data)))
		if err != nil {
			return nil, err
		}
		out = append(out, record.Discarded{Frame: string(frame), Operation: event.Operation(op), Event: s.space.Event(r.Name)})
	}
	return out, nil
}
