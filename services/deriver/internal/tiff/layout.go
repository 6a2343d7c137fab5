package tiff

import (
	"sort"

	"colophon/services/deriver/internal/fault"
)

// layout is where a page's data lies and how it is cut: strips, or tiles.
type layout struct {
	width, height int
	tiled         bool
	chunkW        int // pixels: the page's width for strips
	chunkH        int // rows of a chunk that is not the last
	across, down  int // chunks in a row of chunks, and rows of chunks
	planes        int // 1, or the samples of a pixel for separate planes
	chunks        []span
}

// chunk gives where the chunk at column x, chunk row y of a plane lies.
func (l *layout) chunk(plane, y, x int) span {
	return l.chunks[(plane*l.down+y)*l.across+x]
}

// rows is the number of rows that the chunks of chunk row y hold: tiles are
// always full, the last strip is not.
func (l *layout) rows(y int) int {
	if left := l.height - y*l.chunkH; !l.tiled && left < l.chunkH {
		return left
	}
	return l.chunkH
}

// readLayout checks that the number of strips or tiles is what the geometry
// demands and that each lies inside the file.
func (d *ifd) readLayout(width, height, planes int) (*layout, error) {
	l := &layout{width: width, height: height, planes: planes}
	var err error
	if d.has(tagTileWidth) || d.has(tagTileLength) {
		err = d.tileGeometry(l)
	} else {
		err = d.stripGeometry(l)
	}
	if err != nil {
		return nil, err
	}
	offTag, sizeTag := uint16(tagStripOffsets), uint16(tagStripByteCounts)
	if l.tiled {
		// Some writers list their tiles under the strips' tags.
		if d.has(tagTileOffsets) {
			offTag = tagTileOffsets
		}
		if d.has(tagTileByteCounts) {
			sizeTag = tagTileByteCounts
		}
		if offTag == tagStripOffsets || sizeTag == tagStripByteCounts {
			d.file.out.Warn("tiles-under-strip-tags", "The tiles are listed under the tags meant for strips")
		}
	}
	want := uint64(l.across) * uint64(l.down) * uint64(l.planes)
	if want > maxChunks {
		return nil, fault.Refuse(fault.NoLayout, "The image is cut into %d pieces", want)
	}
	// The counts are compared before the values are read: nothing is allocated
	// for a list that the file does not hold.
	if got := d.entries[offTag].count; got != want {
		return nil, fault.Refuse(fault.BadStructure, "Directory %d lists %d strips or tiles; its geometry demands %d", d.index, got, want)
	}
	if got := d.entries[sizeTag].count; got != want {
		return nil, fault.Refuse(fault.BadStructure, "Directory %d gives %d sizes of strips or tiles; its geometry demands %d", d.index, got, want)
	}
	offs, err := d.uints(offTag)
	if err != nil {
		return nil, err
	}
	sizes, err := d.uints(sizeTag)
	if err != nil {
		return nil, err
	}
	l.chunks = make([]span, want)
	for i := range l.chunks {
		if err := d.checkChunk(i, offs[i], sizes[i]); err != nil {
			return nil, err
		}
		l.chunks[i] = span{int64(offs[i]), int64(sizes[i])}
	}
	return l, d.inside(l.chunks)
}

func (d *ifd) stripGeometry(l *layout) error {
	rows, err := d.one(tagRowsPerStrip, 1<<32-1)
	if err != nil {
		return err
	}
	if rows == 0 {
		return fault.Refuse(fault.BadStructure, "Directory %d has strips of no rows", d.index)
	}
	l.chunkW, l.chunkH, l.across = l.width, int(min(rows, uint64(l.height))), 1
	l.down = (l.height + l.chunkH - 1) / l.chunkH
	return nil
}

func (d *ifd) tileGeometry(l *layout) error {
	w, err := d.must(tagTileWidth)
	if err != nil {
		return err
	}
	h, err := d.must(tagTileLength)
	if err != nil {
		return err
	}
	if w == 0 || h == 0 || w > 1<<17 || h > 1<<17 {
		return fault.Refuse(fault.BadStructure, "Directory %d has tiles of %d by %d pixels", d.index, w, h)
	}
	if w%16 != 0 || h%16 != 0 {
		d.file.out.Warn("tile-size", "The tiles are %d by %d pixels, not multiples of 16", w, h)
	}
	l.tiled, l.chunkW, l.chunkH = true, int(w), int(h)
	l.across = (l.width + l.chunkW - 1) / l.chunkW
	l.down = (l.height + l.chunkH - 1) / l.chunkH
	return nil
}

func (d *ifd) checkChunk(i int, off, size uint64) error {
	if size == 0 {
		return fault.Refuse(fault.BadStructure, "Strip or tile %d of directory %d has no data", i, d.index)
	}
	if off >= 1<<62 || size >= 1<<62 {
		return fault.Refuse(fault.DataPastEOF, "Strip or tile %d of directory %d lies at offset %d with %d bytes", i, d.index, off, size)
	}
	return nil
}

// inside refuses chunks that leave the file. A file that was cut inside its
// last chunk is called truncated; one that claims chunks beginning after its
// end is called so.
func (d *ifd) inside(chunks []span) error {
	size := d.file.src.Size()
	var cut *fault.Fault
	for i, c := range chunks {
		if c.off >= size {
			return fault.Refuse(fault.DataPastEOF, "Strip or tile %d of directory %d begins at offset %d, but the file has only %d bytes", i, d.index, c.off, size)
		}
		if c.end() > size && cut == nil {
			cut = fault.Refuse(fault.Truncated, "The file ends inside strip or tile %d of directory %d: %d bytes are missing", i, d.index, c.end()-size)
		}
	}
	if cut != nil {
		return cut
	}
	return nil
}

// disjoint refuses a file in which strips, tiles, directories and the header
// share bytes: one of them then reads another's.
func disjoint(f *file, layouts []*layout) error {
	header := int64(8)
	if f.big {
		header = 16
	}
	spans := []span{{0, header}}
	for _, d := range f.ifds {
		spans = append(spans, d.span)
	}
	for _, l := range layouts {
		spans = append(spans, l.chunks...)
		if len(spans) > 2*maxChunks {
			return fault.Refuse(fault.NoLayout, "The file has more than %d strips or tiles", 2*maxChunks)
		}
	}
	sort.Slice(spans, func(i, j int) bool { return spans[i].off < spans[j].off })
	for i := 1; i < len(spans); i++ {
		if spans[i].off < spans[i-1].end() {
			return fault.Refuse(fault.BadStructure, "Two parts of the file overlap at offset %d", spans[i].off)
		}
	}
	return nil
}
