package tiff_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"testing"
	"time"

	"colophon/services/deriver/internal/fault"
	"colophon/services/deriver/internal/helper"
	"colophon/services/deriver/internal/jpeg"
	"colophon/services/deriver/internal/raster"
	"colophon/services/deriver/internal/tiff"
	"colophon/services/deriver/internal/tifftest"
)

var bounds = raster.Bounds{MaxSide: 65535, MaxPixels: 1 << 30, MaxSamples: 5, MaxImages: 10000, MaxExpansion: 4096}

// djpeg decodes JPEG data as the product does.
func djpeg(ctx context.Context, stream io.Reader, want raster.Info) (raster.Rows, error) {
	return jpeg.Decode(ctx, stream, want, os.TempDir(), helper.Limits{CPU: time.Minute})
}

// readAll decodes all pages of a file.
func readAll(ctx context.Context, file []byte) (*raster.Image, [][][]byte, error) {
	src := raster.NewSource(bytes.NewReader(file), int64(len(file)))
	img, err := tiff.Read(src, tiff.Options{Bounds: bounds, JPEG: djpeg})
	if err != nil {
		return nil, nil, err
	}
	var pages [][][]byte
	for _, p := range img.Pages {
		rows, err := readPage(ctx, p)
		if err != nil {
			return nil, nil, err
		}
		pages = append(pages, rows)
	}
	return img, pages, nil
}

func readPage(ctx context.Context, p raster.Page) ([][]byte, error) {
	rows, err := p.Open(ctx)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var all [][]byte
	for range p.Height {
		row := make([]byte, p.RowBytes())
		if err := rows.Next(row); err != nil {
			return nil, err
		}
		all = append(all, row)
	}
	return all, rows.Finish()
}

func sameRows(a, b [][]byte) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if !bytes.Equal(a[i], b[i]) {
			return false
		}
	}
	return true
}

// kinds are the combinations that must be read exactly.
func kinds() map[string]tifftest.Spec {
	all := map[string]tifftest.Spec{}
	add := func(name string, s tifftest.Spec) {
		if s.Width == 0 {
			s.Width, s.Height = 45, 35
		}
		all[name] = s
	}
	for _, be := range []bool{false, true} {
		for _, big := range []bool{false, true} {
			for _, comp := range []int{1, 5, 8, 32773, 50000} {
				for _, bits := range []int{8, 16} {
					for samples, photometric := range map[int]int{1: 1, 3: 2} {
						for layout, s := range map[string]tifftest.Spec{
							"one-strip": {}, "strips": {RowsPerStrip: 7}, "tiles": {TileWidth: 16, TileHt: 32},
							"planar": {RowsPerStrip: 10, Planar: samples > 1}, "planar-tiles": {TileWidth: 32, TileHt: 16, Planar: samples > 1},
						} {
							s.BigEndian, s.Big, s.Compression, s.Bits, s.Samples, s.Photometric = be, big, comp, bits, samples, photometric
							name := fmt.Sprintf("be=%v big=%v comp=%d bits=%d samples=%d %s", be, big, comp, bits, samples, layout)
							add(name, s)
							if comp != 1 && comp != 32773 {
								s.Predictor = 2
								add(name+" predictor", s)
							}
						}
					}
				}
			}
		}
	}
	for _, bits := range []int{1, 2, 4, 10, 12, 14} {
		for _, photometric := range []int{0, 1} {
			add(fmt.Sprintf("gray bits=%d photometric=%d", bits, photometric), tifftest.Spec{Bits: bits, Samples: 1, Photometric: photometric, RowsPerStrip: 9})
			add(fmt.Sprintf("gray tiles bits=%d photometric=%d", bits, photometric), tifftest.Spec{Bits: bits, Samples: 1, Photometric: photometric, TileWidth: 16, TileHt: 16, Compression: 8})
		}
	}
	for _, bits := range []int{10, 12, 14} {
		add(fmt.Sprintf("rgb %d bits planar", bits), tifftest.Spec{Bits: bits, Samples: 3, Photometric: 2, Planar: true, RowsPerStrip: 9})
		add(fmt.Sprintf("rgb %d bits zstd", bits), tifftest.Spec{Width: 13, Height: 5, Bits: bits, Samples: 3, Photometric: 2, Compression: 50000})
	}
	add("rgb 12 bits", tifftest.Spec{Bits: 12, Samples: 3, Photometric: 2, Compression: 5})
	add("gray white is zero 8", tifftest.Spec{Bits: 8, Samples: 1, Photometric: 0})
	add("gray white is zero 16", tifftest.Spec{Bits: 16, Samples: 1, Photometric: 0, BigEndian: true})
	add("gray alpha 8", tifftest.Spec{Bits: 8, Samples: 2, Photometric: 1, Compression: 5, Predictor: 2})
	add("rgba 8", tifftest.Spec{Bits: 8, Samples: 4, Photometric: 2, Compression: 5, Predictor: 2})
	add("rgba 16 planar", tifftest.Spec{Bits: 16, Samples: 4, Photometric: 2, Planar: true})
	for _, comp := range []int{3, 4} {
		for _, photometric := range []int{0, 1} {
			for _, lsb := range []bool{false, true} {
				add(fmt.Sprintf("fax comp=%d photometric=%d lsb=%v", comp, photometric, lsb),
					tifftest.Spec{Bits: 1, Samples: 1, Photometric: photometric, Compression: comp, RowsPerStrip: 20, LSBFirst: lsb})
			}
		}
	}
	add("fax wide", tifftest.Spec{Width: 9000, Height: 40, Bits: 1, Samples: 1, Compression: 4, Sample: func(x, y, _ int) int {
		if y%5 == 0 || x > 8000-90*y && x < 8000+y*y {
			return 1
		}
		return 0
	}})
	add("lzw long strings", tifftest.Spec{Width: 2000, Height: 300, Bits: 8, Samples: 3, Photometric: 2, Compression: 5, Sample: func(int, int, int) int { return 255 }})
	add("lzw random", tifftest.Spec{Width: 300, Height: 200, Bits: 8, Samples: 3, Photometric: 2, Compression: 5, Sample: func(x, y, c int) int {
		v := uint32(x*73856093 ^ y*19349663 ^ c*83492791)
		v ^= v >> 13
		return int(v * 0x5bd1e995 >> 15)
	}})
	return all
}

// TestExactSamples reads each kind of file and compares every sample.
func TestExactSamples(t *testing.T) {
	t.Parallel()
	for name, s := range kinds() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, pages, err := readAll(t.Context(), tifftest.File(s))
			if err != nil {
				t.Fatal(err)
			}
			if !sameRows(pages[0], s.Want(nil)) {
				t.Fatal("the samples are wrong")
			}
		})
	}
}

func TestPalette(t *testing.T) {
	t.Parallel()
	for _, bits := range []int{1, 2, 4, 8} {
		for _, scale := range []int{1, 256, 257} {
			colour := func(i int) [3]byte { return [3]byte{byte(i * 3), byte(255 - i), byte(i * i)} }
			var values []uint64
			for c := range 3 {
				for i := range 1 << bits {
					values = append(values, uint64(int(colour(i)[c])*scale))
				}
			}
			s := tifftest.Spec{Width: 33, Height: 9, Bits: bits, Samples: 1, Photometric: 3, Extra: map[uint16]tifftest.Value{320: {Type: 3, Numbers: values}}}
			_, pages, err := readAll(t.Context(), tifftest.File(s))
			if err != nil {
				t.Fatal(err)
			}
			if !sameRows(pages[0], s.Want(colour)) {
				t.Errorf("%d bits times %d: the colours are wrong", bits, scale)
			}
		}
	}
}

// TestPages reads several pages, leaves thumbnails out, and takes all or none.
func TestPages(t *testing.T) {
	t.Parallel()
	one := tifftest.Spec{Width: 20, Height: 30, Bits: 8, Samples: 1, Photometric: 1}
	two := tifftest.Spec{Width: 40, Height: 10, Bits: 8, Samples: 3, Photometric: 2, Compression: 5}
	thumb := tifftest.Spec{Width: 5, Height: 7, Bits: 8, Samples: 1, Photometric: 1, Extra: map[uint16]tifftest.Value{254: {Type: 4, Numbers: []uint64{1}}}}
	file := tifftest.File(thumb, one, two)
	img, pages, err := readAll(t.Context(), file)
	if err != nil {
		t.Fatal(err)
	}
	if len(pages) != 2 || !sameRows(pages[0], one.Want(nil)) || !sameRows(pages[1], two.Want(nil)) {
		t.Error("the pages are wrong")
	}
	if len(img.Warnings) != 1 || img.Warnings[0].Code != "thumbnail" {
		t.Errorf("warnings %v, want one about the thumbnail", img.Warnings)
	}
	if _, _, err := readAll(t.Context(), file[:len(file)-30]); err == nil {
		t.Error("a file cut inside its last page was read")
	}
}

// TestRefused names the code of each refusal.
func TestRefused(t *testing.T) {
	t.Parallel()
	gray := tifftest.Spec{Width: 32, Height: 32, Bits: 8, Samples: 1, Photometric: 1}
	with := func(tag uint16, typ uint16, v ...uint64) tifftest.Spec {
		s := gray
		s.Extra = map[uint16]tifftest.Value{tag: {Type: typ, Numbers: v}}
		return s
	}
	rgb := tifftest.Spec{Width: 32, Height: 32, Bits: 8, Samples: 3, Photometric: 2}
	cmyk := rgb
	cmyk.Samples, cmyk.Extra = 4, map[uint16]tifftest.Value{262: {Type: 3, Numbers: []uint64{5}}, 338: {}}
	for name, tt := range map[string]struct {
		spec tifftest.Spec
		code string
	}{
		"height zero":         {with(257, 4, 0), fault.BadDimensions},
		"too wide":            {with(256, 4, 70000), fault.ImageTooLarge},
		"width absurd":        {with(256, 4, 1<<32-1), fault.ImageTooLarge},
		"too many rows":       {with(257, 4, 60000), fault.BadStructure},
		"strip count":         {with(278, 4, 8), fault.BadStructure},
		"rows zero":           {with(278, 4, 0), fault.BadStructure},
		"strip size":          {with(279, 4, 1000), fault.BadStructure},
		"strip size zero":     {with(279, 4, 0), fault.BadStructure},
		"strip past the end":  {with(273, 4, 1<<20), fault.DataPastEOF},
		"strip over header":   {with(273, 4, 4), fault.BadStructure},
		"depth list":          {with(258, 3, 8, 8), fault.BadStructure},
		"depth 3":             {with(258, 3, 3), fault.NoDepth},
		"float":               {with(339, 3, 3), fault.NoSampleFormat},
		"signed":              {with(339, 3, 2), fault.NoSampleFormat},
		"lab":                 {with(262, 3, 8), fault.NoPhotometric},
		"raw ycbcr":           {with(262, 3, 6), fault.BadStructure},
		"photometric missing": {with(262, 0), fault.BadStructure},
		"old jpeg":            {with(259, 3, 6), fault.NoCompression},
		"unknown compression": {with(259, 3, 9999), fault.NoCompression},
		"g4 on gray":          {with(259, 3, 4), fault.BadStructure},
		"dng":                 {with(50706, 1, 1, 4, 0, 0), fault.NoCameraRaw},
		"orientation 9":       {with(274, 3, 9), fault.BadStructure},
		"planar 3":            {with(284, 3, 3), fault.BadStructure},
		"fill order":          {with(266, 3, 2), fault.NoLayout},
		"cmyk":                {cmyk, fault.NoPhotometric},
		"extra samples":       {with(338, 3, 0), fault.BadStructure},
		"wrong type":          {with(256, 2, 'x'), fault.BadStructure},
		"palette short":       {with(262, 3, 3), fault.BadStructure},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, _, err := readAll(t.Context(), tifftest.File(tt.spec))
			var f *fault.Fault
			if !errors.As(err, &f) || f.Code != tt.code || f.Class != fault.Permanent {
				t.Fatalf("got %v, want %s", err, tt.code)
			}
		})
	}
}
