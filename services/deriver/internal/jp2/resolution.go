package jp2

import (
	"encoding/binary"
	"math"

	"colophon/services/deriver/internal/raster"
)

// ratio is a grid resolution as a box stores it: num/den * 10^exp a metre.
type ratio struct {
	num, den uint16
	exp      int8
}

func (r ratio) value() float64 {
	return float64(r.num) / float64(r.den) * math.Pow(10, float64(r.exp))
}

// express finds a ratio for v points in one unit: exact for whole and tenth
// parts of dots an inch, within 1 in 10,000 otherwise. ok is false if v is out
// of reach.
func express(v float64, unit raster.Unit) (ratio, bool) {
	// v = x an inch is x/0.0254 a metre: (x*10^k)/254 * 10^(4-k).
	den, base := 254.0, 4
	switch unit {
	case raster.Centimetre:
		den, base = 1, 2
	case raster.Metre:
		den, base = 1, 0
	case raster.Inch:
	default:
		return ratio{}, false
	}
	if !(v > 0) || v > 1e9 {
		return ratio{}, false
	}
	best, gap := ratio{}, math.Inf(1)
	for _, k := range []int{1, 0, 2, 3, 4, 5, -1, -2, -3, -4, -5} {
		num := math.Round(v * math.Pow(10, float64(k)))
		if num < 1 || num > math.MaxUint16 {
			continue
		}
		if off := math.Abs(num/math.Pow(10, float64(k))-v) / v; off < gap-1e-12 {
			best, gap = ratio{uint16(num), uint16(den), int8(base - k)}, off
		}
	}
	return best, gap < 1e-4 || best.num > 1000
}

// resolutionBox makes the superbox of the capture resolution, or nothing if
// it is unknown.
func resolutionBox(r raster.Resolution) []byte {
	if !r.Known() {
		return nil
	}
	x, okX := express(r.X, r.Unit)
	y, okY := express(r.Y, r.Unit)
	if !okX || !okY {
		return nil
	}
	c := make([]byte, 0, 10)
	for _, v := range []ratio{y, x} { // vertical first
		c = binary.BigEndian.AppendUint16(c, v.num)
		c = binary.BigEndian.AppendUint16(c, v.den)
	}
	c = append(c, byte(y.exp), byte(x.exp))
	return makeBox("res ", makeBox("resc", c))
}

// parseResolution reads the ten bytes of a capture resolution box; one that
// means nothing is unknown.
func parseResolution(c []byte) raster.Resolution {
	u := binary.BigEndian.Uint16
	y, x := ratio{u(c), u(c[2:]), int8(c[8])}, ratio{u(c[4:]), u(c[6:]), int8(c[9])}
	if x.den == 0 || y.den == 0 || x.num == 0 || y.num == 0 {
		return raster.Resolution{}
	}
	return raster.Resolution{X: x.value(), Y: y.value(), Unit: raster.Metre}
}
