package ledger

import (
	"encoding/binary"

	"colophon/shared/event"
)

// Keys. The first four are MAPPING section 6; the rest are indexes that are a
// function of the records. Encoded ids hold no zero byte, so it separates.
//
//	k name                     record number
//	e number                   record
//	h stored-hash number       node of the tree
//	m                          head: size, root, position, origin, format
//	b batch 0 number           records with that batch
//	f batch/frame 0 number     records with that frame; without a frame, the batch's own
//	d digest number            records about or linking a file
//	s batch 0 sequence frame   the batch's frames, in order
//	g batch/frame              what is held of a slot (JSON)
//	c operation@batch/frame    attempts at an operation on a slot
//	w mark                     warnings told about content (record number)
//	r digest                   sets of profiles that are enough to be ingested (JSON)
//	x batch 0 frame 0 op       discards (record number)
//	p size                     checkpoints of so many records (record number, place in the log)
const (
	kindName    = 'k'
	kindRecord  = 'e'
	kindHash    = 'h'
	kindBatch   = 'b'
	kindFrame   = 'f'
	kindDigest  = 'd'
	kindOrder   = 's'
	kindSlot    = 'g'
	kindChain   = 'c'
	kindWarned  = 'w'
	kindRequire = 'r'
	kindDiscard = 'x'
	kindSigned  = 'p'
)

var keyHead = []byte{'m'}

func nameKey(name string) []byte { return append([]byte{kindName}, name...) }

func recordKey(n int64) []byte { return numbered([]byte{kindRecord}, uint64(n)) }

func hashKey(n int64) []byte { return numbered([]byte{kindHash}, uint64(n)) }

func batchKeys(batch string) []byte { return terminated(kindBatch, batch) }

func frameKeys(batch, frame string) []byte { return terminated(kindFrame, batch+"/"+frame) }

func digestKeys(d event.Digest) []byte { return append([]byte{kindDigest}, d...) }

func orderKeys(batch string) []byte { return terminated(kindOrder, batch) }

func orderKey(batch string, sequence int, frame string) []byte {
	return append(numbered(orderKeys(batch), uint64(max(sequence, 0))), frame...)
}

func slotKey(batch, frame string) []byte { return append([]byte{kindSlot}, batch+"/"+frame...) }

func chainKey(op event.Operation, s event.Slot) []byte {
	return append([]byte{kindChain}, string(op)+"@"+s.String()...)
}

func warnedKey(mark string) []byte { return append([]byte{kindWarned}, mark...) }

func requiredKey(d event.Digest) []byte { return append([]byte{kindRequire}, d...) }

func discardKeys(batch string) []byte { return terminated(kindDiscard, batch) }

func discardKey(batch, frame string, op event.Operation) []byte {
	return append(append(append(discardKeys(batch), frame...), 0), op...)
}

func signedKey(size int64) []byte { return numbered([]byte{kindSigned}, uint64(size)) }

func terminated(kind byte, id string) []byte {
	return append(append([]byte{kind}, id...), 0)
}

func numbered(prefix []byte, n uint64) []byte { return binary.BigEndian.AppendUint64(prefix, n) }

// after is the first key behind all that begin with prefix.
func after(prefix []byte) []byte {
	end := append([]byte(nil), prefix...)
	for i := len(end) - 1; i >= 0; i-- {
		if end[i]++; end[i] != 0 {
			return end[:i+1]
		}
	}
	return nil
}
