package tiff

import (
	"bytes"
	"math"

	"colophon/services/deriver/internal/fault"
)

// Tags that are read.
const (
	tagNewSubfileType   = 254
	tagSubfileType      = 255
	tagImageWidth       = 256
	tagImageLength      = 257
	tagBitsPerSample    = 258
	tagCompression      = 259
	tagPhotometric      = 262
	tagFillOrder        = 266
	tagMake             = 271
	tagModel            = 272
	tagStripOffsets     = 273
	tagOrientation      = 274
	tagSamplesPerPixel  = 277
	tagRowsPerStrip     = 278
	tagStripByteCounts  = 279
	tagXResolution      = 282
	tagYResolution      = 283
	tagPlanarConfig     = 284
	tagT4Options        = 292
	tagT6Options        = 293
	tagResolutionUnit   = 296
	tagSoftware         = 305
	tagDateTime         = 306
	tagPredictor        = 317
	tagColorMap         = 320
	tagTileWidth        = 322
	tagTileLength       = 323
	tagTileOffsets      = 324
	tagTileByteCounts   = 325
	tagSubIFDs          = 330
	tagExtraSamples     = 338
	tagSampleFormat     = 339
	tagJPEGTables       = 347
	tagYCbCrSubsampling = 530
	tagImageDepth       = 32997
	tagICCProfile       = 34675
	tagDNGVersion       = 50706
)

// needed are the tags whose value decides what the pixels are: an empty one
// is a fault, not an oddity.
var needed = map[uint16]bool{
	tagImageWidth: true, tagImageLength: true, tagBitsPerSample: true, tagCompression: true, tagPhotometric: true,
	tagFillOrder: true, tagStripOffsets: true, tagOrientation: true, tagSamplesPerPixel: true, tagRowsPerStrip: true,
	tagStripByteCounts: true, tagPlanarConfig: true, tagPredictor: true, tagColorMap: true, tagTileWidth: true,
	tagTileLength: true, tagTileOffsets: true, tagTileByteCounts: true, tagExtraSamples: true, tagSampleFormat: true,
	tagJPEGTables: true,
}

func (d *ifd) has(tag uint16) bool {
	_, ok := d.entries[tag]
	return ok
}

// bytes reads a tag's raw value.
func (d *ifd) bytes(tag uint16) ([]byte, error) {
	e := d.entries[tag]
	if e.size > maxValue {
		return nil, fault.Refuse(fault.BadStructure, "The value of tag %d has %d bytes", tag, e.size)
	}
	p := make([]byte, e.size)
	if err := d.file.read(p, e.offset, "a tag's value"); err != nil {
		return nil, err
	}
	return p, nil
}

// uints reads a tag of whole numbers; a missing tag has none.
func (d *ifd) uints(tag uint16) ([]uint64, error) {
	e, ok := d.entries[tag]
	if !ok {
		return nil, nil
	}
	raw, err := d.bytes(tag)
	if err != nil {
		return nil, err
	}
	order := d.file.order
	values := make([]uint64, e.count)
	for i := range values {
		switch e.typ {
		case typeByte:
			values[i] = uint64(raw[i])
		case typeShort:
			values[i] = uint64(order.Uint16(raw[2*i:]))
		case typeLong, typeIFD:
			values[i] = uint64(order.Uint32(raw[4*i:]))
		case typeLong8, typeIFD8:
			values[i] = order.Uint64(raw[8*i:])
		default:
			return nil, fault.Refuse(fault.BadStructure, "Tag %d of directory %d has type %d where a whole number belongs", tag, d.index, e.typ)
		}
	}
	return values, nil
}

// one reads a tag of a single whole number, or gives what a missing tag means.
func (d *ifd) one(tag uint16, missing uint64) (uint64, error) {
	e, ok := d.entries[tag]
	if !ok {
		return missing, nil
	}
	if e.count != 1 {
		return 0, fault.Refuse(fault.BadStructure, "Tag %d of directory %d has %d values instead of one", tag, d.index, e.count)
	}
	v, err := d.uints(tag)
	if err != nil {
		return 0, err
	}
	return v[0], nil
}

// must reads a tag of a single whole number that has to be there.
func (d *ifd) must(tag uint16) (uint64, error) {
	if !d.has(tag) {
		return 0, fault.Refuse(fault.BadStructure, "Directory %d lacks the required tag %d", d.index, tag)
	}
	return d.one(tag, 0)
}

// text reads a tag for people, as far as its first zero byte; "" if it is not
// there or is not text.
func (d *ifd) text(tag uint16) string {
	e, ok := d.entries[tag]
	if !ok || e.typ != typeASCII || e.size > 4096 {
		return ""
	}
	raw, err := d.bytes(tag)
	if err != nil {
		return ""
	}
	if end := bytes.IndexByte(raw, 0); end >= 0 {
		raw = raw[:end]
	}
	return string(bytes.ToValidUTF8(bytes.TrimSpace(raw), []byte("\uFFFD")))
}

// rational reads a tag of one unsigned fraction; 0 if it is not there or
// means nothing.
func (d *ifd) rational(tag uint16) float64 {
	e, ok := d.entries[tag]
	if !ok || e.typ != typeRational || e.count != 1 {
		return 0
	}
	raw, err := d.bytes(tag)
	if err != nil {
		return 0
	}
	num, den := d.file.order.Uint32(raw), d.file.order.Uint32(raw[4:])
	if den == 0 {
		return 0
	}
	v := float64(num) / float64(den)
	if math.IsInf(v, 0) || v > 1e6 {
		return 0
	}
	return v
}
