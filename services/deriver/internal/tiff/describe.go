package tiff

import (
	"context"

	"colophon/services/deriver/internal/fault"
	"colophon/services/deriver/internal/raster"
)

// describe makes the page that the rest of the deriver sees.
func (p *page) describe() (raster.Page, error) {
	d := p.dir
	out := raster.Page{Info: raster.Info{Width: p.width, Height: p.height, Channels: 1, Bits: max(p.bits, 8)}}
	if p.photometric == rgb || p.photometric == yCbCr || p.photometric == palette {
		out.Channels = 3
	}
	orientation, err := d.one(tagOrientation, 1)
	if err != nil {
		return out, err
	}
	switch {
	case orientation == 0:
		d.file.out.Warn("orientation", "Orientation 0 was taken as 1")
		orientation = 1
	case orientation > 8:
		return out, fault.Refuse(fault.BadStructure, "Orientation %d does not exist", orientation)
	}
	out.Orientation = int(orientation)
	if d.has(tagICCProfile) {
		if out.ICC, err = d.bytes(tagICCProfile); err != nil {
			return out, err
		}
	}
	out.Resolution = d.resolution()
	out.Open = func(ctx context.Context) (raster.Rows, error) { return p.open(ctx) }
	return out, nil
}

// resolution reads the capture resolution. A fault in it is no fault of the
// picture: it is then unknown.
func (d *ifd) resolution() raster.Resolution {
	r := raster.Resolution{X: d.rational(tagXResolution), Y: d.rational(tagYResolution)}
	unit, err := d.one(tagResolutionUnit, 2)
	if err != nil {
		return raster.Resolution{}
	}
	switch unit {
	case 2:
		r.Unit = raster.Inch
	case 3:
		r.Unit = raster.Centimetre
	}
	if r.X <= 0 || r.Y <= 0 {
		return raster.Resolution{}
	}
	return r
}

var compressionNames = map[int]string{
	compNone: "none", compG3: "ccitt-g3", compG4: "ccitt-g4", compLZW: "lzw", compJPEG: "jpeg",
	compDeflate: "deflate", compOldDeflate: "deflate", compPackBits: "packbits", compZSTD: "zstd",
}

var colourNames = map[int]string{
	whiteIsZero: "gray-white-is-zero", blackIsZero: "gray", rgb: "rgb", palette: "palette", yCbCr: "ycbcr",
}

func (p *page) technical(out raster.Page) raster.Technical {
	d := p.dir
	format := "TIFF"
	if p.file.big {
		format = "BigTIFF"
	}
	return raster.Technical{
		Format: format, Width: p.width, Height: p.height, BitsPerSample: p.bits, Samples: p.samples,
		ColourSpace: colourNames[p.photometric], Compression: compressionNames[p.compression],
		XResolution: out.Resolution.X, YResolution: out.Resolution.Y, Unit: out.Resolution.Unit,
		Orientation: out.Orientation,
		Make:        d.text(tagMake), Model: d.text(tagModel), Software: d.text(tagSoftware), DateTime: d.text(tagDateTime),
	}
}
