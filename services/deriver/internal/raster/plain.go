package raster

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"os"
)

// Plain is a page as a plain TIFF file: uncompressed, low byte first, one kind
// of layout, nothing in it but the samples. It is what the encoder is given,
// and what its output is compared with.
type Plain struct {
	Info
	Path   string
	Offset int64 // of the first row in the file
	sum    uint32
}

// plainRows is the number of rows in a strip of a plain TIFF: enough for the
// encoder to read in bulk, too few for the page to lie twice in its memory.
const plainRows = 64

// castagnoli sums the samples, so that what is compared later is known to be
// what was written.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// WritePlain decodes page, turns it upright and writes it to a new file at
// path. Memory is a few rows. Errors of reading come from the page; errors of
// writing are the scratch directory's own.
func WritePlain(ctx context.Context, page Page, path string) (*Plain, error) {
	rows, err := Upright(ctx, page, path+".turn")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	plain := &Plain{Info: rows.Info, Path: path}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, &ScratchError{err}
	}
	err = plain.write(ctx, file, rows)
	if cerr := file.Close(); err == nil && cerr != nil {
		err = &ScratchError{cerr}
	}
	if err != nil {
		return nil, err
	}
	return plain, nil
}

// ScratchError is an error of the scratch directory, not of the master.
type ScratchError struct{ Err error }

func (e *ScratchError) Error() string { return "scratch: " + e.Err.Error() }

// Unwrap returns the cause.
func (e *ScratchError) Unwrap() error { return e.Err }

func (p *Plain) write(ctx context.Context, file io.Writer, rows Rows) error {
	head := p.header()
	p.Offset = int64(len(head))
	out := bufio.NewWriterSize(file, 1<<20)
	if _, err := out.Write(head); err != nil {
		return &ScratchError{err}
	}
	sum := crc32.New(castagnoli)
	row := make([]byte, p.RowBytes())
	var packed []byte
	if p.packs() {
		packed = make([]byte, (p.Width*p.Channels*p.Bits+7)/8)
	}
	for y := range p.Height {
		if y&63 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		if err := rows.Next(row); err != nil {
			return fmt.Errorf("row %d: %w", y, err)
		}
		sum.Write(row)
		stored := row
		if packed != nil {
			pack(packed, row, p.Bits)
			stored = packed
		}
		if _, err := out.Write(stored); err != nil {
			return &ScratchError{err}
		}
	}
	if err := rows.Finish(); err != nil {
		return err
	}
	p.sum = sum.Sum32()
	if err := out.Flush(); err != nil {
		return &ScratchError{err}
	}
	return nil
}

// packs tells whether samples are stored with fewer bits than they take in a
// row: those of 9 to 15 bits.
func (i Info) packs() bool { return i.Bits > 8 && i.Bits < 16 }

// header makes the directory and everything before the samples: a classic
// TIFF, or a BigTIFF if the samples end beyond its reach.
func (p *Plain) header() []byte {
	stored := (p.Width*p.Channels*p.Bits + 7) / 8
	strips := (p.Height + plainRows - 1) / plainRows
	big := int64(stored)*int64(p.Height) > 4<<30-1<<20
	t := tiffWriter{big: big}
	photometric := uint64(1)
	if p.Channels == 3 {
		photometric = 2
	}
	bits := make([]uint64, p.Channels)
	for i := range bits {
		bits[i] = uint64(p.Bits)
	}
	offsets, sizes := make([]uint64, strips), make([]uint64, strips)
	t.add(256, 4, uint64(p.Width))
	t.add(257, 4, uint64(p.Height))
	t.add(258, 3, bits...)
	t.add(259, 3, 1)
	t.add(262, 3, photometric)
	t.add(273, t.offsetType(), offsets...)
	t.add(277, 3, uint64(p.Channels))
	t.add(278, 4, plainRows)
	t.add(279, t.offsetType(), sizes...)
	t.add(284, 3, 1)
	// The offsets depend on the header's own size, which no value changes.
	at := uint64(len(t.bytes()))
	for i := range strips {
		offsets[i] = at
		sizes[i] = uint64(stored * min(plainRows, p.Height-i*plainRows))
		at += sizes[i]
	}
	return t.bytes()
}

// tiffWriter lays out one TIFF directory.
type tiffWriter struct {
	big     bool
	entries []tiffEntry
}

type tiffEntry struct {
	tag, typ uint16
	values   []uint64
}

func (t *tiffWriter) offsetType() uint16 {
	if t.big {
		return 16
	}
	return 4
}

func (t *tiffWriter) add(tag, typ uint16, values ...uint64) {
	t.entries = append(t.entries, tiffEntry{tag, typ, values})
}

// bytes gives header, directory and outlying values.
func (t *tiffWriter) bytes() []byte {
	le := binary.LittleEndian
	var out []byte
	number := func(b []byte, v uint64) []byte {
		if t.big {
			return le.AppendUint64(b, v)
		}
		return le.AppendUint32(b, uint32(v))
	}
	inline, entrySize, headSize := 4, 12, 8+2+4
	if t.big {
		out = append(out, 'I', 'I', 43, 0, 8, 0, 0, 0)
		out = le.AppendUint64(out, 16)
		out = le.AppendUint64(out, uint64(len(t.entries)))
		inline, entrySize, headSize = 8, 20, 16+8+8
	} else {
		out = append(out, 'I', 'I', 42, 0)
		out = le.AppendUint32(out, 8)
		out = le.AppendUint16(out, uint16(len(t.entries)))
	}
	outlying := headSize + entrySize*len(t.entries)
	var tail []byte
	for _, e := range t.entries {
		var value []byte
		for _, v := range e.values {
			switch e.typ {
			case 3:
				value = le.AppendUint16(value, uint16(v))
			case 4:
				value = le.AppendUint32(value, uint32(v))
			default:
				value = le.AppendUint64(value, v)
			}
		}
		out = le.AppendUint16(le.AppendUint16(out, e.tag), e.typ)
		out = number(out, uint64(len(e.values)))
		if len(value) > inline {
			out = number(out, uint64(outlying+len(tail)))
			tail = append(tail, value...)
			continue
		}
		out = append(out, value...)
		out = append(out, make([]byte, inline-len(value))...)
	}
	out = number(out, 0)
	return append(out, tail...)
}

// pack stores 16-bit samples in bits each, without gaps, high bits first.
func pack(dst, row []byte, bits int) {
	var acc uint32
	n, at := 0, 0
	for i := 0; i+1 < len(row); i += 2 {
		acc = acc<<bits | uint32(binary.LittleEndian.Uint16(row[i:]))
		for n += bits; n >= 8; n -= 8 {
			dst[at] = byte(acc >> (n - 8))
			at++
		}
	}
	if n > 0 {
		dst[at] = byte(acc << (8 - n))
	}
}

// Reader reads the rows of a plain file again.
type Reader struct {
	p      *Plain
	file   *os.File
	in     *bufio.Reader
	packed []byte
	sum    hash.Hash32
}

// Rows opens the file for reading from the top.
func (p *Plain) Rows() (*Reader, error) {
	file, err := os.Open(p.Path)
	if err != nil {
		return nil, &ScratchError{err}
	}
	if _, err := file.Seek(p.Offset, io.SeekStart); err != nil {
		file.Close()
		return nil, &ScratchError{err}
	}
	r := &Reader{p: p, file: file, in: bufio.NewReaderSize(file, 1<<20), sum: crc32.New(castagnoli)}
	if p.packs() {
		r.packed = make([]byte, (p.Width*p.Channels*p.Bits+7)/8)
	}
	return r, nil
}

// Next implements Rows.
func (r *Reader) Next(dst []byte) error {
	stored := dst
	if r.packed != nil {
		stored = r.packed
	}
	if _, err := io.ReadFull(r.in, stored); err != nil {
		return &ScratchError{err}
	}
	if r.packed != nil {
		Spread16(dst, r.packed, r.p.Bits)
	}
	r.sum.Write(dst)
	return nil
}

// Finish implements Rows: it compares the samples with those written.
func (r *Reader) Finish() error {
	if r.sum.Sum32() != r.p.sum {
		return &ScratchError{fmt.Errorf("%s is not what was written", r.p.Path)}
	}
	return nil
}

// Close implements Rows.
func (r *Reader) Close() error { return r.file.Close() }

// Spread16 unpacks samples of 9 to 15 bits, packed without gaps, into 16 bits
// with the low byte first.
func Spread16(dst, src []byte, bits int) {
	mask := uint64(1)<<bits - 1
	i, at := 0, 0 // bytes of dst, bits of src
	for ; i+1 < len(dst) && at/8+8 <= len(src); i, at = i+2, at+bits {
		v := binary.BigEndian.Uint64(src[at/8:]) >> (64 - bits - at%8)
		binary.LittleEndian.PutUint16(dst[i:], uint16(v&mask))
	}
	for ; i+1 < len(dst); i, at = i+2, at+bits {
		var v uint64
		for k := range 3 { // 16 bits that begin anywhere lie in three bytes
			v <<= 8
			if at/8+k < len(src) {
				v |= uint64(src[at/8+k])
			}
		}
		binary.LittleEndian.PutUint16(dst[i:], uint16(v>>(24-bits-at%8)&mask))
	}
}
