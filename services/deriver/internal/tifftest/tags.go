package tifftest

import "encoding/binary"

// tags finds the fields of a file's first directory.
type tags struct {
	order binary.ByteOrder
	big   bool
	at    int // of the directory
	n     int // its entries
	file  []byte
}

func locate(file []byte) tags {
	t := tags{order: binary.LittleEndian}
	if file[0] == 'M' {
		t.order = binary.BigEndian
	}
	t.big = t.order.Uint16(file[2:]) == 43
	if t.big {
		t.at = int(t.order.Uint64(file[8:]))
		t.n = int(t.order.Uint64(file[t.at:]))
	} else {
		t.at = int(t.order.Uint32(file[4:]))
		t.n = int(t.order.Uint16(file[t.at:]))
	}
	t.file = file
	return t
}

// entry gives where tag's entry, its value and the value's type are.
func (t tags) entry(tag uint16) (value, typ, count int) {
	head, size := 2, 12
	if t.big {
		head, size = 8, 20
	}
	for i := range t.n {
		e := t.at + head + i*size
		if t.order.Uint16(t.file[e:]) != tag {
			continue
		}
		typ = int(t.order.Uint16(t.file[e+2:]))
		inline := 4
		if t.big {
			count, value, inline = int(t.order.Uint64(t.file[e+4:])), e+12, 8
		} else {
			count, value = int(t.order.Uint32(t.file[e+4:])), e+8
		}
		if count*width(typ) > inline {
			if t.big {
				value = int(t.order.Uint64(t.file[value:]))
			} else {
				value = int(t.order.Uint32(t.file[value:]))
			}
		}
		return value, typ, count
	}
	return 0, 0, 0
}

// low is where, after its start, the lower byte of a directory's count is.
func (t tags) low() int {
	switch {
	case t.order == binary.ByteOrder(binary.LittleEndian):
		return 0
	case t.big:
		return 7
	}
	return 1
}

func width(typ int) int { return map[int]int{3: 2, 4: 4, 16: 8}[typ] }

func (t tags) count(tag uint16) int {
	_, _, n := t.entry(tag)
	return n
}

func (t tags) get(file []byte, tag uint16, i int) uint64 {
	at, typ, _ := t.entry(tag)
	switch typ {
	case 3:
		return uint64(t.order.Uint16(file[at+2*i:]))
	case 4:
		return uint64(t.order.Uint32(file[at+4*i:]))
	}
	return t.order.Uint64(file[at+8*i:])
}

func (t tags) set(file []byte, tag uint16, i int, v uint64) {
	at, typ, _ := t.entry(tag)
	switch typ {
	case 3:
		t.order.PutUint16(file[at+2*i:], uint16(v))
	case 4:
		t.order.PutUint32(file[at+4*i:], uint32(v))
	default:
		t.order.PutUint64(file[at+8*i:], v)
	}
}

// setFirst and setNext set the links to and from the directory.
func (t tags) setFirst(file []byte, v uint64) {
	if t.big {
		t.order.PutUint64(file[8:], v)
		return
	}
	t.order.PutUint32(file[4:], uint32(v))
}

func (t tags) setNext(file []byte, v uint64) {
	if t.big {
		t.order.PutUint64(file[t.at+8+20*t.n:], v)
		return
	}
	t.order.PutUint32(file[t.at+2+12*t.n:], uint32(v))
}
