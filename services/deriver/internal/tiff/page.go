package tiff

import (
	"context"
	"io"

	"colophon/services/deriver/internal/fault"
	"colophon/services/deriver/internal/raster"
)

// Photometric interpretations.
const (
	whiteIsZero = 0
	blackIsZero = 1
	rgb         = 2
	palette     = 3
	yCbCr       = 6
)

// JPEGOpener decodes one JPEG stream strictly. The rows are 8-bit gray or
// RGB; adobe says how its three components are to be taken: as YCbCr or RGB.
type JPEGOpener func(ctx context.Context, stream io.Reader, want raster.Info) (raster.Rows, error)

// Options are what a reader needs beside the file.
type Options struct {
	Bounds raster.Bounds
	JPEG   JPEGOpener // nil: JPEG data in a TIFF is unsupported
}

// page is one picture of the file: everything that decides its samples.
type page struct {
	*layout
	file        *file
	dir         *ifd
	opt         Options
	bits        int // of a stored sample
	samples     int // of a stored pixel, extra ones included
	compression int
	photometric int
	predictor   int
	lsbFirst    bool   // FillOrder 2
	t4, t6      uint64 // options of the fax schemes
	colours     []byte // RGB triples of a palette
	tables      []byte // of JPEG
}

// Read checks the whole structure of a TIFF and returns its pages, ready to
// be decoded. Reduced images (thumbnails, pyramids) are no pages.
func Read(src *raster.Source, opt Options) (*raster.Image, error) {
	img := &raster.Image{}
	f, err := parse(src, opt.Bounds.MaxImages, img)
	if err != nil {
		return nil, err
	}
	dirs, err := f.pictures()
	if err != nil {
		return nil, err
	}
	var layouts []*layout
	for _, d := range dirs {
		p, err := d.page(opt)
		if err != nil {
			return nil, err
		}
		layouts = append(layouts, p.layout)
		out, err := p.describe()
		if err != nil {
			return nil, err
		}
		if len(img.Pages) == 0 {
			img.Technical = p.technical(out)
		}
		img.Pages = append(img.Pages, out)
	}
	img.Technical.Pages = len(img.Pages)
	return img, disjoint(f, layouts)
}

// pictures picks the directories that are pages.
func (f *file) pictures() ([]*ifd, error) {
	var pages []*ifd
	for _, d := range f.ifds {
		if d.has(tagDNGVersion) {
			return nil, fault.Refuse(fault.NoCameraRaw, "The file is a DNG camera raw")
		}
		kind, err := d.one(tagNewSubfileType, 0)
		if err != nil {
			return nil, err
		}
		old, err := d.one(tagSubfileType, 1)
		if err != nil {
			return nil, err
		}
		reduced, mask := kind&1 != 0 || old == 2, kind&4 != 0
		switch {
		case reduced && d.has(tagSubIFDs):
			return nil, fault.Refuse(fault.NoCameraRaw, "The picture proper is in a sub-directory, as in camera raw files")
		case reduced:
			f.out.Warn("thumbnail", "A reduced image in directory %d was left out", d.index)
		case mask:
			f.out.Warn("mask", "A transparency mask in directory %d was left out", d.index)
		default:
			pages = append(pages, d)
		}
	}
	if len(pages) == 0 {
		return nil, fault.Refuse(fault.NoLayout, "The file has only reduced images or masks")
	}
	return pages, nil
}

// page reads and checks everything that decides the samples of one picture.
func (d *ifd) page(opt Options) (*page, error) {
	p := &page{file: d.file, dir: d, opt: opt}
	width, err := d.must(tagImageWidth)
	if err != nil {
		return nil, err
	}
	height, err := d.must(tagImageLength)
	if err != nil {
		return nil, err
	}
	if err := opt.Bounds.Check(int64(min(width, 1<<40)), int64(min(height, 1<<20))); err != nil {
		return nil, err
	}
	for _, step := range []func() error{p.readSamples, p.readColour, p.readCompression, p.readOddities} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	planes, err := p.readPlanes()
	if err != nil {
		return nil, err
	}
	if p.layout, err = d.readLayout(int(width), int(height), planes); err != nil {
		return nil, err
	}
	return p, p.checkSizes()
}

// readSamples reads how many samples a pixel has and of how many bits.
func (p *page) readSamples() error {
	d := p.dir
	samples, err := d.one(tagSamplesPerPixel, 1)
	if err != nil {
		return err
	}
	bits, err := d.uints(tagBitsPerSample)
	if err != nil {
		return err
	}
	if bits == nil {
		bits = []uint64{1}
	}
	extra := d.entries[tagExtraSamples].count
	if samples == 0 || samples > 1000 || extra > 1000 {
		return fault.Refuse(fault.BadStructure, "Directory %d says a pixel has %d samples", d.index, samples)
	}
	if uint64(len(bits)) != samples {
		return fault.Refuse(fault.BadStructure, "Directory %d gives the depth of %d samples, but a pixel has %d", d.index, len(bits), samples)
	}
	for _, b := range bits {
		if b != bits[0] {
			return fault.Refuse(fault.NoDepth, "The samples of a pixel have different depths")
		}
	}
	switch bits[0] {
	case 1, 2, 4, 8, 10, 12, 14, 16:
	default:
		return fault.Refuse(fault.NoDepth, "Samples of %d bits are not read", bits[0])
	}
	p.samples, p.bits = int(samples), int(bits[0])
	formats, err := d.uints(tagSampleFormat)
	if err != nil {
		return err
	}
	if formats != nil && len(formats) != 1 && len(formats) != p.samples {
		return fault.Refuse(fault.BadStructure, "Directory %d gives the format of %d samples, but a pixel has %d", d.index, len(formats), p.samples)
	}
	for _, f := range formats {
		switch f {
		case 1:
		case 4:
			d.file.out.Warn("sample-format", "The sample format is given as undefined and was read as unsigned")
		default:
			return fault.Refuse(fault.NoSampleFormat, "Only unsigned whole samples are read; these are of format %d", f)
		}
	}
	return nil
}

// readColour reads what the samples mean.
func (p *page) readColour() error {
	d := p.dir
	photometric, err := d.must(tagPhotometric)
	if err != nil {
		return err
	}
	var colours int
	switch photometric {
	case whiteIsZero, blackIsZero, palette:
		colours = 1
	case rgb, yCbCr:
		colours = 3
	case 5:
		return fault.Refuse(fault.NoPhotometric, "CMYK and other separated colours are not read")
	case 8, 9, 10:
		return fault.Refuse(fault.NoPhotometric, "CIELAB colours are not read")
	case 32803, 34892:
		return fault.Refuse(fault.NoCameraRaw, "The file holds a camera's raw samples")
	default:
		return fault.Refuse(fault.NoPhotometric, "Photometric interpretation %d is not read", photometric)
	}
	extras, err := d.uints(tagExtraSamples)
	if err != nil {
		return err
	}
	if colours+len(extras) != p.samples {
		return fault.Refuse(fault.BadStructure, "Directory %d has %d colours and %d extra samples, but a pixel has %d", d.index, colours, len(extras), p.samples)
	}
	if p.samples > p.opt.Bounds.MaxSamples {
		return fault.Refuse(fault.NoLayout, "A pixel has %d samples; %d are the limit", p.samples, p.opt.Bounds.MaxSamples)
	}
	if len(extras) > 0 {
		d.file.out.Warn("alpha-dropped", "%d extra samples of a pixel (transparency or other) were left out", len(extras))
	}
	p.photometric = int(photometric)
	switch {
	case p.photometric == palette:
		return p.readPalette()
	case colours == 3 && p.bits < 8:
		return fault.Refuse(fault.NoDepth, "Colours of %d bits a sample are not read", p.bits)
	case p.bits < 8 && p.samples > 1:
		return fault.Refuse(fault.NoDepth, "Pixels of %d samples of %d bits are not read", p.samples, p.bits)
	}
	return nil
}

// readPalette reads a colour map into 8-bit triples.
func (p *page) readPalette() error {
	if p.bits > 8 || p.samples != 1 {
		return fault.Refuse(fault.NoDepth, "Palettes of %d bits with %d samples are not read", p.bits, p.samples)
	}
	n := 1 << p.bits
	if e := p.dir.entries[tagColorMap]; e.count != uint64(3*n) || e.typ != typeShort {
		return fault.Refuse(fault.BadStructure, "The colour map has %d values; %d belong there", e.count, 3*n)
	}
	values, err := p.dir.uints(tagColorMap)
	if err != nil {
		return err
	}
	wide := false
	for _, v := range values {
		wide = wide || v > 255
	}
	if !wide {
		p.file.out.Warn("palette-8bit", "The colour map was written with 8-bit values")
	}
	p.colours = make([]byte, 3*n)
	for i := range n {
		for c := range 3 {
			v := values[c*n+i]
			if wide {
				// Writers widen 8-bit values by 256 or by 257; this undoes both.
				v >>= 8
			}
			p.colours[3*i+c] = byte(v)
		}
	}
	return nil
}

// readOddities refuses tags that change the meaning of everything else.
func (p *page) readOddities() error {
	fill, err := p.dir.one(tagFillOrder, 1)
	if err != nil {
		return err
	}
	fax := p.compression == compG3 || p.compression == compG4
	if fill != 1 && (fill != 2 || !fax) {
		return fault.Refuse(fault.NoLayout, "Fill order %d is not read for this compression", fill)
	}
	p.lsbFirst = fill == 2
	depth, err := p.dir.one(tagImageDepth, 1)
	if err != nil {
		return err
	}
	if depth != 1 {
		return fault.Refuse(fault.NoLayout, "The image has %d layers of depth", depth)
	}
	return nil
}

func (p *page) readPlanes() (int, error) {
	planar, err := p.dir.one(tagPlanarConfig, 1)
	if err != nil {
		return 0, err
	}
	switch {
	case planar == 1, planar == 2 && p.samples == 1:
		return 1, nil
	case planar != 2:
		return 0, fault.Refuse(fault.BadStructure, "The planar configuration is %d", planar)
	case p.compression == compJPEG:
		return 0, fault.Refuse(fault.NoLayout, "JPEG data in separate planes is not read")
	case p.bits < 8:
		return 0, fault.Refuse(fault.NoDepth, "Separate planes of %d bits are not read", p.bits)
	}
	return p.samples, nil
}

// planeSamples is the number of samples of a pixel in one plane.
func (p *page) planeSamples() int { return p.samples / p.planes }

// packedRow is the size in bytes of one row of a chunk as it comes out of the
// decompressor.
func (p *page) packedRow() int { return (p.chunkW*p.planeSamples()*p.bits + 7) / 8 }

// maxTileRow bounds the memory for one row of tiles, in bytes.
const maxTileRow = 256 << 20

// checkSizes compares what the page declares with the bytes it has.
func (p *page) checkSizes() error {
	var data int64
	for i, c := range p.chunks {
		data += c.size
		if p.compression != compNone {
			continue
		}
		rows := p.rows(i / p.across % p.down)
		if want := int64(rows) * int64(p.packedRow()); c.size != want {
			return fault.Refuse(fault.BadStructure, "Strip or tile %d of directory %d has %d bytes; %d rows need %d", i, p.dir.index, c.size, rows, want)
		}
	}
	declared := int64(p.packedRow()) * int64(p.across) * int64(p.height) * int64(p.planes)
	// One bit of fax data can rightly stand for a whole white row, so that a
	// blank page exceeds any useful bound; rows are decoded one at a time.
	if p.compression != compG4 && p.compression != compG3 {
		if err := p.opt.Bounds.CheckExpansion(declared, data); err != nil {
			return err
		}
	}
	if p.tiled && int64(p.across)*int64(p.chunkW)*int64(p.chunkH)*int64(p.planeSamples())*int64(p.sampleBytes()) > maxTileRow {
		return fault.Refuse(fault.NoLayout, "A row of tiles of %d by %d pixels needs too much memory", p.chunkW, p.chunkH)
	}
	return nil
}

// sampleBytes is the size of a sample after unpacking.
func (p *page) sampleBytes() int {
	if p.bits > 8 {
		return 2
	}
	return 1
}
