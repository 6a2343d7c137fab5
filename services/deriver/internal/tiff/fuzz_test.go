package tiff_test

import (
	"bytes"
	"errors"
	"testing"

	"colophon/services/deriver/internal/fault"
	"colophon/services/deriver/internal/raster"
	"colophon/services/deriver/internal/tiff"
	"colophon/services/deriver/internal/tifftest"
)

// FuzzRead: no input makes the reader panic, hang or take memory without
// bound; whatever it refuses is a permanent fault with a code.
func FuzzRead(f *testing.F) {
	for _, s := range tifftest.Encodings() {
		if s.Compression == 7 {
			continue // not decoded here
		}
		s.Width, s.Height = 20, 12
		f.Add(tifftest.File(s))
	}
	f.Add(tifftest.File(tifftest.Spec{Width: 20, Height: 9, Bits: 12, Samples: 1, Photometric: 0}, tifftest.Spec{Width: 20, Height: 9, Bits: 1, Samples: 1, Compression: 3}))
	small := bounds
	small.MaxPixels = 1 << 20
	f.Fuzz(func(t *testing.T, file []byte) {
		src := raster.NewSource(bytes.NewReader(file), int64(len(file)))
		img, err := tiff.Read(src, tiff.Options{Bounds: small})
		if err == nil && len(img.Pages) <= 4 {
			for _, p := range img.Pages {
				if err = drain(t, p); err != nil {
					break
				}
			}
		}
		var known *fault.Fault
		if err != nil && (!errors.As(err, &known) || known.Class != fault.Permanent || known.Code == "") {
			t.Fatalf("refused with %v", err)
		}
	})
}

func drain(t testing.TB, p raster.Page) error {
	rows, err := p.Open(t.Context())
	if err != nil {
		return err
	}
	defer rows.Close()
	row := make([]byte, p.RowBytes())
	for range p.Height {
		if err := rows.Next(row); err != nil {
			return err
		}
	}
	return rows.Finish()
}
