package tiff

import (
	"bytes"

	"colophon/services/deriver/internal/raster"
)

// Tags are what a directory says about origin, orientation and resolution.
type Tags struct {
	Make, Model, Software, DateTime string
	Orientation                     int // 1 to 8, or 0 if it is not said
	Resolution                      raster.Resolution
}

// ReadTags reads the first directory of Exif data, which is a small TIFF
// without pixels.
func ReadTags(exif []byte) (Tags, error) {
	src := raster.NewSource(bytes.NewReader(exif), int64(len(exif)))
	f := &file{src: src, out: &raster.Image{}}
	at, err := f.header()
	if err != nil || at == 0 {
		return Tags{}, err
	}
	d, _, err := f.directory(at)
	if err != nil {
		return Tags{}, err
	}
	t := Tags{
		Make: d.text(tagMake), Model: d.text(tagModel), Software: d.text(tagSoftware), DateTime: d.text(tagDateTime),
		Resolution: d.resolution(),
	}
	if o, err := d.one(tagOrientation, 0); err == nil && o <= 8 {
		t.Orientation = int(o)
	}
	return t, nil
}
