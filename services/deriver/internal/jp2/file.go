package jp2

import (
	"bytes"
	"encoding/binary"
	"io"

	"colophon/services/deriver/internal/fault"
	"colophon/services/deriver/internal/raster"
)

// Colour methods and enumerated colour spaces of a colour specification box.
const (
	methodEnumerated = 1
	methodRestricted = 2 // a restricted ICC profile

	EnumSRGB = 16
	EnumGray = 17
	EnumSYCC = 18
)

// File is what the boxes of a JP2 file say, and its codestream.
type File struct {
	Codestream
	Offset, Size int64 // of the codestream in the file
	Enumerated   int   // colour space, or 0
	ICC          []byte
	Palette      bool
	Alpha        []int // components that are opacity
	Resolution   raster.Resolution

	header []byte // the content of jp2h
}

// Read checks a JP2 file: its boxes to the last, its image header, its colour
// specification, and the walk along its codestream.
func Read(r io.ReaderAt, size int64) (*File, error) {
	head := make([]byte, len(signature))
	if n, _ := r.ReadAt(head, 0); n < len(signature) {
		return nil, fault.Refuse(fault.Truncated, "The file ends inside its signature")
	}
	if !Signed(head) {
		return nil, fault.Refuse(fault.BadStructure, "The file has no JP2 signature")
	}
	boxes, err := readBoxes(r, 0, size)
	if err != nil {
		return nil, err
	}
	if len(boxes) < 2 || boxes[1].kind != "ftyp" {
		return nil, fault.Refuse(fault.BadStructure, "The file has no file type box after its signature")
	}
	if err := checkBrand(r, boxes[1]); err != nil {
		return nil, err
	}
	header, ok := find(boxes, "jp2h")
	stream, there := find(boxes, "jp2c")
	switch {
	case !there:
		return nil, fault.Refuse(fault.Truncated, "The file has no codestream")
	case !ok || header.start > stream.start:
		return nil, fault.Refuse(fault.BadStructure, "The file has no header before its codestream")
	}
	f := &File{Offset: stream.off, Size: stream.size}
	if f.header, err = content(r, header); err != nil {
		return nil, err
	}
	if f.Codestream, err = Walk(r, stream.off, stream.size); err != nil {
		return nil, err
	}
	return f, f.readHeader()
}

func checkBrand(r io.ReaderAt, b box) error {
	p, err := content(r, b)
	if err != nil {
		return err
	}
	if len(p) < 8 || len(p)%4 != 0 {
		return fault.Refuse(fault.BadStructure, "The file type box is wrong")
	}
	for i := 0; i < len(p); i += 4 {
		if i != 4 && string(p[i:i+4]) == "jp2 " {
			return nil
		}
	}
	return fault.Refuse(fault.NoFormat, "The file is of the JPEG 2000 family but not a JP2 (its brand is %q)", p[:4])
}

// readHeader reads the boxes inside jp2h.
func (f *File) readHeader() error {
	r := bytes.NewReader(f.header)
	boxes, err := readBoxes(r, 0, int64(len(f.header)))
	if err != nil {
		return err
	}
	coloured := false
	for i, b := range boxes {
		p, err := content(r, b)
		if err != nil {
			return err
		}
		switch b.kind {
		case "ihdr":
			if i != 0 {
				return fault.Refuse(fault.BadStructure, "The image header is not the first box of the header")
			}
			err = f.checkImageHeader(p)
		case "colr":
			if !coloured {
				coloured, err = f.readColour(p)
			}
		case "pclr", "cmap":
			f.Palette = true
		case "cdef":
			err = f.readChannels(p)
		case "res ":
			err = f.readResolution(p)
		}
		if err != nil {
			return err
		}
	}
	if len(boxes) == 0 || boxes[0].kind != "ihdr" || !coloured {
		return fault.Refuse(fault.BadStructure, "The header lacks the image header or a colour specification")
	}
	return nil
}

func (f *File) checkImageHeader(p []byte) error {
	if len(p) != 14 {
		return fault.Refuse(fault.BadStructure, "The image header has %d bytes", len(p))
	}
	h, w := binary.BigEndian.Uint32(p), binary.BigEndian.Uint32(p[4:])
	n := binary.BigEndian.Uint16(p[8:])
	if int64(h) != int64(f.Height) || int64(w) != int64(f.Width) || int(n) != len(f.Components) {
		return fault.Refuse(fault.BadStructure, "The image header says %d by %d with %d components, the codestream %d by %d with %d",
			w, h, n, f.Width, f.Height, len(f.Components))
	}
	return nil
}

// readColour reads the first colour specification that a JP2 reader may use.
func (f *File) readColour(p []byte) (bool, error) {
	if len(p) < 3 {
		return false, fault.Refuse(fault.BadStructure, "The colour specification has %d bytes", len(p))
	}
	switch p[0] {
	case methodEnumerated:
		if len(p) < 7 {
			return false, fault.Refuse(fault.BadStructure, "The colour specification has %d bytes", len(p))
		}
		f.Enumerated = int(binary.BigEndian.Uint32(p[3:]))
		return true, nil
	case methodRestricted:
		f.ICC = p[3:]
		return true, nil
	}
	return false, nil
}

func (f *File) readChannels(p []byte) error {
	if len(p) < 2 || len(p) != 2+6*int(binary.BigEndian.Uint16(p)) {
		return fault.Refuse(fault.BadStructure, "The channel definition is wrong")
	}
	for p = p[2:]; len(p) > 0; p = p[6:] {
		channel, kind, assoc := binary.BigEndian.Uint16(p), binary.BigEndian.Uint16(p[2:]), binary.BigEndian.Uint16(p[4:])
		switch {
		case kind != 0:
			f.Alpha = append(f.Alpha, int(channel))
		case assoc != channel+1:
			return fault.Refuse(fault.NoLayout, "The colours are in another order than usual")
		}
	}
	return nil
}

// readResolution prefers the capture resolution to the one for display.
func (f *File) readResolution(p []byte) error {
	r := bytes.NewReader(p)
	boxes, err := readBoxes(r, 0, int64(len(p)))
	if err != nil {
		return err
	}
	b, ok := find(boxes, "resc")
	if !ok {
		return nil
	}
	c, err := content(r, b)
	if err != nil {
		return err
	}
	if len(c) != 10 {
		return fault.Refuse(fault.BadStructure, "The capture resolution has %d bytes", len(c))
	}
	f.Resolution = parseResolution(c)
	return nil
}
