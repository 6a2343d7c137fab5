package tiff

import "colophon/services/deriver/internal/fault"

// Compression schemes.
const (
	compNone       = 1
	compG3         = 3
	compG4         = 4
	compLZW        = 5
	compOldJPEG    = 6
	compJPEG       = 7
	compDeflate    = 8
	compPackBits   = 32773
	compOldDeflate = 32946
	compZSTD       = 50000
)

// readCompression reads how the data is packed and refuses combinations that
// no two readers agree on.
func (p *page) readCompression() error {
	d := p.dir
	compression, err := d.one(tagCompression, compNone)
	if err != nil {
		return err
	}
	predictor, err := d.one(tagPredictor, 1)
	if err != nil {
		return err
	}
	p.compression, p.predictor = int(min(compression, 1<<17)), int(min(predictor, 1<<17))
	switch p.compression {
	case compNone, compPackBits:
		if p.predictor != 1 {
			d.file.out.Warn("predictor-ignored", "A predictor is given for a compression that has none")
			p.predictor = 1
		}
	case compLZW, compDeflate, compOldDeflate, compZSTD:
	case compG3, compG4:
		if p.bits != 1 || p.samples != 1 || p.photometric > blackIsZero {
			return fault.Refuse(fault.BadStructure, "Fax compression is given for an image that is not bilevel")
		}
		if err := p.readFax(); err != nil {
			return err
		}
		p.predictor = 1
	case compJPEG:
		if err := p.readJPEG(); err != nil {
			return err
		}
		p.predictor = 1
	case compOldJPEG:
		return fault.Refuse(fault.NoCompression, "Old-style JPEG compression is not read")
	default:
		return fault.Refuse(fault.NoCompression, "Compression scheme %d is not read", compression)
	}
	if p.photometric == yCbCr && p.compression != compJPEG {
		return fault.Refuse(fault.NoPhotometric, "YCbCr samples are read only in JPEG data")
	}
	if p.predictor != 1 && (p.predictor != 2 || (p.bits != 8 && p.bits != 16)) {
		return fault.Refuse(fault.NoPredictor, "Predictor %d on samples of %d bits is not read", p.predictor, p.bits)
	}
	return nil
}

func (p *page) readFax() (err error) {
	if p.t4, err = p.dir.one(tagT4Options, 0); err != nil {
		return err
	}
	if p.t6, err = p.dir.one(tagT6Options, 0); err != nil {
		return err
	}
	if p.t4&2 != 0 || p.t6&2 != 0 {
		return fault.Refuse(fault.NoCompression, "The uncompressed mode of fax compression is not read")
	}
	return nil
}

func (p *page) readJPEG() (err error) {
	if p.opt.JPEG == nil {
		return fault.Refuse(fault.NoCompression, "JPEG data in a TIFF is not read")
	}
	if p.bits != 8 || p.photometric == palette || p.photometric == whiteIsZero {
		return fault.Refuse(fault.NoCompression, "JPEG data with %d bits a sample and photometric interpretation %d is not read", p.bits, p.photometric)
	}
	if p.samples != 1 && p.samples != 3 {
		return fault.Refuse(fault.NoCompression, "JPEG data with %d samples a pixel is not read", p.samples)
	}
	if p.dir.has(tagJPEGTables) {
		p.tables, err = p.dir.bytes(tagJPEGTables)
	}
	return err
}
