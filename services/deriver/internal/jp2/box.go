package jp2

import (
	"encoding/binary"
	"io"

	"colophon/services/deriver/internal/fault"
)

// box is one box: where its content is, and where it as a whole is.
type box struct {
	kind      string
	off, size int64 // content
	start     int64
}

// signature is the first box of every JP2 file, whole.
const signature = "\x00\x00\x00\x0cjP  \x0d\x0a\x87\x0a"

// Signed tells whether head begins as every JP2 file does.
func Signed(head []byte) bool {
	return len(head) >= len(signature) && string(head[:len(signature)]) == signature
}

// maxBoxes bounds the number of boxes side by side.
const maxBoxes = 4096

// readBoxes lists the boxes that fill size bytes at off exactly.
func readBoxes(r io.ReaderAt, off, size int64) ([]box, error) {
	var boxes []box
	for at, end := off, off+size; at < end; {
		if len(boxes) == maxBoxes {
			return nil, fault.Refuse(fault.BadStructure, "The file has more than %d boxes", maxBoxes)
		}
		head := make([]byte, 16)
		n, _ := r.ReadAt(head[:min(16, end-at)], at)
		if n < 8 {
			return nil, fault.Refuse(fault.Truncated, "The file ends inside the head of a box at offset %d", at)
		}
		b := box{kind: string(head[4:8]), start: at, off: at + 8}
		length := int64(binary.BigEndian.Uint32(head))
		switch {
		case length == 0:
			length = end - at
		case length == 1 && n == 16:
			length = int64(min(binary.BigEndian.Uint64(head[8:]), 1<<62))
			b.off += 8
		}
		if b.size = at + length - b.off; b.size < 0 {
			return nil, fault.Refuse(fault.BadStructure, "The box at offset %d has a length of %d", at, length)
		}
		if length > end-at {
			return nil, fault.Refuse(fault.Truncated, "The file ends %d bytes before its box %q at offset %d does", length-(end-at), b.kind, at)
		}
		boxes = append(boxes, b)
		at += length
	}
	return boxes, nil
}

func find(boxes []box, kind string) (box, bool) {
	for _, b := range boxes {
		if b.kind == kind {
			return b, true
		}
	}
	return box{}, false
}

// content reads a small box.
func content(r io.ReaderAt, b box) ([]byte, error) {
	if b.size > maxHeader {
		return nil, fault.Refuse(fault.BadStructure, "The box %q has %d bytes", b.kind, b.size)
	}
	p := make([]byte, b.size)
	if n, err := r.ReadAt(p, b.off); int64(n) < b.size {
		f := fault.Refuse(fault.Truncated, "The file ends inside its box %q", b.kind)
		f.Err = err
		return nil, f
	}
	return p, nil
}

// makeBox gives a whole box.
func makeBox(kind string, content ...[]byte) []byte {
	size := 8
	for _, c := range content {
		size += len(c)
	}
	out := binary.BigEndian.AppendUint32(nil, uint32(size))
	out = append(out, kind...)
	for _, c := range content {
		out = append(out, c...)
	}
	return out
}
