package tiff

import (
	"encoding/binary"

	"colophon/services/deriver/internal/raster"
)

// unpack turns a packed row of a chunk into samples of 8 bits or of 16 with
// the low byte first, and undoes the predictor. dst may be src for 8 and 16
// bits.
func (p *page) unpack(dst, src []byte) {
	switch p.bits {
	case 8:
		if &dst[0] != &src[0] {
			copy(dst, src)
		}
		if p.predictor == 2 {
			sum8(dst, p.planeSamples())
		}
	case 16:
		if &dst[0] != &src[0] {
			copy(dst, src)
		}
		if p.file.order == binary.ByteOrder(binary.BigEndian) {
			swap16(dst)
		}
		if p.predictor == 2 {
			sum16(dst, p.planeSamples())
		}
	case 1, 2, 4:
		scale := byte(1)
		if p.photometric != palette {
			scale = byte(255 / (1<<p.bits - 1))
		}
		spread(dst, src, p.bits, scale)
	default:
		raster.Spread16(dst, src, p.bits)
	}
}

// sum8 undoes horizontal differencing over pixels of n 8-bit samples.
func sum8(row []byte, n int) {
	switch n {
	case 1:
		var a byte
		for i, v := range row {
			a += v
			row[i] = a
		}
	case 3:
		var a, b, c byte
		for i := 0; i+2 < len(row); i += 3 {
			px := row[i : i+3 : i+3]
			a += px[0]
			b += px[1]
			c += px[2]
			px[0], px[1], px[2] = a, b, c
		}
	default:
		for i := n; i < len(row); i++ {
			row[i] += row[i-n]
		}
	}
}

// sum16 undoes horizontal differencing over pixels of n 16-bit samples.
func sum16(row []byte, n int) {
	for i := 2 * n; i+1 < len(row); i += 2 {
		v := binary.LittleEndian.Uint16(row[i:]) + binary.LittleEndian.Uint16(row[i-2*n:])
		binary.LittleEndian.PutUint16(row[i:], v)
	}
}

// swap16 turns the byte order of 16-bit samples.
func swap16(row []byte) {
	const low = 0x00FF00FF00FF00FF
	i := 0
	for ; i+8 <= len(row); i += 8 {
		v := binary.LittleEndian.Uint64(row[i:])
		binary.LittleEndian.PutUint64(row[i:], v>>8&low|v&low<<8)
	}
	for ; i+1 < len(row); i += 2 {
		row[i], row[i+1] = row[i+1], row[i]
	}
}

// spread unpacks samples of 1, 2 or 4 bits into bytes times scale.
func spread(dst, src []byte, bits int, scale byte) {
	mask := byte(1<<bits - 1)
	per := 8 / bits
	for i := range dst {
		shift := 8 - bits*(i%per+1)
		dst[i] = src[i/per] >> shift & mask * scale
	}
}
