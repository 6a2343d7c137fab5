package tiff

import (
	"bytes"
	"io"

	"colophon/services/deriver/internal/fault"
)

// maxJPEGChunk bounds the bytes of one strip or tile of JPEG data.
const maxJPEGChunk = 1 << 30

// jpegStream makes a whole JPEG stream of a chunk: the shared tables first,
// and an Adobe marker that says what the samples are, as the photometric
// interpretation has it. Application markers of the chunk's own are left out,
// so that nothing in them can say otherwise.
func (p *page) jpegStream(c span) (io.Reader, error) {
	if c.size > maxJPEGChunk {
		return nil, fault.Refuse(fault.NoLayout, "A strip or tile of JPEG data has %d bytes", c.size)
	}
	head := []byte{0xFF, 0xD8}
	if p.samples == 3 {
		transform := byte(0)
		if p.photometric == yCbCr {
			transform = 1
		}
		head = append(head, 0xFF, 0xEE, 0, 14, 'A', 'd', 'o', 'b', 'e', 0, 100, 0, 0, 0, 0, transform)
	}
	tables, _, err := p.segments(io.NewSectionReader(bytes.NewReader(p.tables), 0, int64(len(p.tables))), c)
	if err != nil {
		return nil, err
	}
	section := p.file.src.Section(c.off, c.size)
	own, rest, err := p.segments(section, c)
	if err != nil {
		return nil, err
	}
	if rest == 0 {
		return nil, fault.Refuse(fault.BadStructure, "The JPEG data at offset %d has no scan", c.off)
	}
	return io.MultiReader(bytes.NewReader(head), bytes.NewReader(tables), bytes.NewReader(own),
		io.NewSectionReader(section, rest, c.size-rest)), nil
}

// segments copies the marker segments before the first scan, application
// markers and comments left out, and gives the offset of the scan, or 0 if
// there is none.
func (p *page) segments(r *io.SectionReader, c span) ([]byte, int64, error) {
	if r.Size() == 0 {
		return nil, 0, nil
	}
	broken := func() error {
		if err := p.file.src.Err(); err != nil {
			return err
		}
		return fault.Refuse(fault.BadStructure, "The JPEG data at offset %d has a broken header", c.off)
	}
	var kept []byte
	head := make([]byte, 4)
	if _, err := r.ReadAt(head[:2], 0); err != nil || head[0] != 0xFF || head[1] != 0xD8 {
		return nil, 0, broken()
	}
	for at := int64(2); ; {
		n, _ := r.ReadAt(head, at)
		if n < 2 || head[0] != 0xFF {
			return nil, 0, broken()
		}
		marker := head[1]
		switch {
		case marker == 0xD9: // the end: only tables
			return kept, 0, nil
		case marker == 0xDA:
			return kept, at, nil
		case n < 4:
			return nil, 0, broken()
		}
		size := int64(head[2])<<8 | int64(head[3])
		segment := make([]byte, 2+size)
		if size < 2 {
			return nil, 0, broken()
		}
		if n, _ := r.ReadAt(segment, at); n < len(segment) {
			return nil, 0, broken()
		}
		if err := p.checkFrame(marker, segment, c); err != nil {
			return nil, 0, err
		}
		if marker < 0xE0 || (marker > 0xEF && marker != 0xFE) {
			kept = append(kept, segment...)
		}
		if len(kept) > 1<<20 {
			return nil, 0, broken()
		}
		at += int64(len(segment))
	}
}

// checkFrame refuses a frame header that is not the chunk's own: of another
// kind or size, and so, above all, one that needs more memory.
func (p *page) checkFrame(marker byte, segment []byte, c span) error {
	if marker < 0xC0 || marker > 0xCF || marker == 0xC4 || marker == 0xC8 || marker == 0xCC {
		return nil
	}
	if marker > 0xC2 {
		return fault.Refuse(fault.NoCompression, "The JPEG data at offset %d is of a kind that is not read", c.off)
	}
	if len(segment) < 10 || segment[4] != 8 || int(segment[9]) != p.samples {
		return fault.Refuse(fault.BadStructure, "The JPEG data at offset %d has another depth or number of components than the directory", c.off)
	}
	h, w := int(segment[5])<<8|int(segment[6]), int(segment[7])<<8|int(segment[8])
	if w != p.chunkW || h > p.chunkH {
		return fault.Refuse(fault.BadStructure, "The JPEG data at offset %d is an image of %d by %d pixels; %d by %d belong there", c.off, w, h, p.chunkW, p.chunkH)
	}
	return p.checkColours(segment, c)
}

// checkColours refuses a frame whose components cannot be what the photometric
// interpretation says: red, green and blue of different sizes, or brightness
// and colour that call themselves R, G and B.
func (p *page) checkColours(segment []byte, c span) error {
	if p.samples != 3 || len(segment) < 19 {
		return nil
	}
	ids := string([]byte{segment[10], segment[13], segment[16]})
	sizes := segment[11] == segment[14] && segment[14] == segment[17]
	if p.photometric == rgb && !sizes || p.photometric == yCbCr && ids == "RGB" {
		return fault.Refuse(fault.BadStructure, "The JPEG data at offset %d holds other colours than the photometric interpretation %d says", c.off, p.photometric)
	}
	return nil
}
