package png_test

import (
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"image"
	"image/color"
	other "image/png"
	"slices"
	"testing"

	"colophon/services/deriver/internal/fault"
	"colophon/services/deriver/internal/png"
	"colophon/services/deriver/internal/raster"
)

var bounds = raster.Bounds{MaxSide: 65535, MaxPixels: 1 << 24, MaxSamples: 5, MaxImages: 10, MaxExpansion: 4096}

// chunk makes a chunk with its checksum.
func chunk(kind string, data []byte) []byte {
	out := binary.BigEndian.AppendUint32(nil, uint32(len(data)))
	out = append(append(out, kind...), data...)
	return binary.BigEndian.AppendUint32(out, crc32.ChecksumIEEE(out[4:]))
}

// make1 makes a PNG of pseudo-random samples with all filters, in two chunks
// of data.
func make1(w, h, bits, colour int, interlaced bool, more ...[]byte) []byte {
	samples := map[int]int{0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[colour]
	head := binary.BigEndian.AppendUint32(nil, uint32(w))
	head = binary.BigEndian.AppendUint32(head, uint32(h))
	head = append(head, byte(bits), byte(colour), 0, 0, 0)
	passes := [][4]int{{0, 0, 1, 1}}
	if interlaced {
		head[12] = 1
		passes = [][4]int{{0, 0, 8, 8}, {4, 0, 8, 8}, {0, 4, 4, 8}, {2, 0, 4, 4}, {0, 2, 2, 4}, {1, 0, 2, 2}, {0, 1, 1, 2}}
	}
	var raw bytes.Buffer
	z := zlib.NewWriter(&raw)
	seed := uint32(1)
	for _, p := range passes {
		pw, ph := (w-p[0]+p[2]-1)/p[2], (h-p[1]+p[3]-1)/p[3]
		if pw <= 0 || ph <= 0 {
			continue
		}
		for y := range ph {
			row := make([]byte, 1+(pw*samples*bits+7)/8)
			for i := range row {
				seed = seed*1664525 + 1013904223
				row[i] = byte(seed >> 28)
			}
			row[0] = byte(y % 5)
			_, _ = z.Write(row) // to memory
		}
	}
	_ = z.Close()
	out := append([]byte("\x89PNG\r\n\x1a\n"), chunk("IHDR", head)...)
	for _, m := range more {
		out = append(out, m...)
	}
	if colour == 3 {
		palette := make([]byte, 3<<bits)
		for i := range palette {
			palette[i] = byte(i * 37)
		}
		out = append(out, chunk("PLTE", palette)...)
	}
	data := raw.Bytes()
	out = append(out, chunk("IDAT", data[:len(data)/2])...)
	out = append(out, chunk("IDAT", data[len(data)/2:])...)
	return append(out, chunk("IEND", nil)...)
}

func read(t *testing.T, file []byte) (*raster.Image, []byte, error) {
	t.Helper()
	img, err := png.Read(raster.NewSource(bytes.NewReader(file), int64(len(file))), bounds)
	if err != nil {
		return nil, nil, err
	}
	rows, err := img.Pages[0].Open(t.Context())
	if err != nil {
		return nil, nil, err
	}
	defer rows.Close()
	var all []byte
	row := make([]byte, img.Pages[0].RowBytes())
	for range img.Pages[0].Height {
		if err := rows.Next(row); err != nil {
			return nil, nil, err
		}
		all = append(all, row...)
	}
	return img, all, rows.Finish()
}

// want decodes by the standard library and leaves transparency out.
func want(t *testing.T, file []byte, channels, size int) []byte {
	t.Helper()
	img, err := other.Decode(bytes.NewReader(file))
	if err != nil {
		t.Fatal(err)
	}
	var out []byte
	for y := range img.Bounds().Dy() {
		for x := range img.Bounds().Dx() {
			for _, v := range straight(img, x, y)[:channels] {
				if size == 1 {
					out = append(out, byte(v>>8))
				} else {
					out = append(out, byte(v), byte(v>>8))
				}
			}
		}
	}
	return out
}

// straight gives the colours as stored, not multiplied by their opacity.
func straight(img image.Image, x, y int) []uint32 {
	switch c := img.At(x, y).(type) {
	case color.NRGBA:
		return []uint32{uint32(c.R) << 8, uint32(c.G) << 8, uint32(c.B) << 8}
	case color.NRGBA64:
		return []uint32{uint32(c.R), uint32(c.G), uint32(c.B)}
	default:
		r, g, b, _ := c.RGBA()
		return []uint32{r, g, b}
	}
}

func TestAgainstStandardLibrary(t *testing.T) {
	t.Parallel()
	for colour, depths := range map[int][]int{0: {1, 2, 4, 8, 16}, 2: {8, 16}, 3: {1, 2, 4, 8}, 4: {8, 16}, 6: {8, 16}} {
		for _, bits := range depths {
			for _, interlaced := range []bool{false, true} {
				for _, size := range [][2]int{{1, 1}, {3, 2}, {37, 29}} {
					file := make1(size[0], size[1], bits, colour, interlaced)
					img, got, err := read(t, file)
					if err != nil {
						t.Errorf("colour %d, %d bits, interlaced %v, %v: %v", colour, bits, interlaced, size, err)
						continue
					}
					p := img.Pages[0]
					if !bytes.Equal(got, want(t, file, p.Channels, p.SampleBytes())) || p.SampleBytes() == 2 != (bits == 16) {
						t.Errorf("colour %d, %d bits, interlaced %v, %v: other samples", colour, bits, interlaced, size)
					}
				}
			}
		}
	}
}

// TestEveryByte: a PNG cut anywhere, or with any byte changed, is refused:
// checksums cover all of it.
func TestEveryByte(t *testing.T) {
	t.Parallel()
	file := make1(9, 8, 8, 2, false)
	for n := range file {
		if _, _, err := read(t, file[:n]); err == nil {
			t.Errorf("cut at %d of %d bytes: read", n, len(file))
		}
		bad := slices.Clone(file)
		bad[n] ^= 0x10
		_, _, err := read(t, bad)
		var f *fault.Fault
		if n >= 8 && (!errors.As(err, &f) || f.Class != fault.Permanent) {
			t.Errorf("byte %d changed: %v", n, err)
		}
	}
}

func TestMetadata(t *testing.T) {
	t.Parallel()
	var packed bytes.Buffer
	z := zlib.NewWriter(&packed)
	_, _ = z.Write([]byte("a profile")) // to memory
	_ = z.Close()
	file := make1(9, 8, 8, 6, false,
		chunk("iCCP", append([]byte("name\x00\x00"), packed.Bytes()...)), chunk("pHYs", []byte{0, 0, 0x2E, 0x23, 0, 0, 0x17, 0x12, 1}))
	img, _, err := read(t, file)
	if err != nil {
		t.Fatal(err)
	}
	p := img.Pages[0]
	if string(p.ICC) != "a profile" || p.Resolution != (raster.Resolution{X: 11811, Y: 5906, Unit: raster.Metre}) {
		t.Errorf("profile %q, resolution %+v", p.ICC, p.Resolution)
	}
	if len(img.Warnings) != 1 || img.Warnings[0].Code != "alpha-dropped" {
		t.Errorf("warnings %v", img.Warnings)
	}
}

func TestRefused(t *testing.T) {
	t.Parallel()
	short := make1(9, 8, 8, 2, false)
	binary.BigEndian.PutUint32(short[20:], 7) // a row less
	copy(short[8:], chunk("IHDR", short[16:29]))
	long := make1(9, 8, 8, 2, false)
	binary.BigEndian.PutUint32(long[20:], 9)
	copy(long[8:], chunk("IHDR", long[16:29]))
	bomb := make1(9, 8, 8, 2, false)
	binary.BigEndian.PutUint32(bomb[16:], 4000)
	binary.BigEndian.PutUint32(bomb[20:], 4000)
	copy(bomb[8:], chunk("IHDR", bomb[16:29]))
	for name, tt := range map[string]struct {
		file []byte
		code string
	}{
		"a row less":     {short, fault.StripSurplus},
		"a row more":     {long, fault.StripShort},
		"bomb":           {bomb, fault.ExpansionBomb},
		"animation":      {make1(9, 8, 8, 2, false, chunk("acTL", make([]byte, 8))), fault.NoLayout},
		"critical chunk": {make1(9, 8, 8, 2, false, chunk("ABCD", nil)), fault.NoLayout},
	} {
		_, _, err := read(t, tt.file)
		var f *fault.Fault
		if !errors.As(err, &f) || f.Code != tt.code {
			t.Errorf("%s: got %v, want %s", name, err, tt.code)
		}
	}
}

func FuzzRead(f *testing.F) {
	for _, interlaced := range []bool{false, true} {
		f.Add(make1(9, 8, 8, 2, interlaced))
		f.Add(make1(9, 8, 2, 3, interlaced))
	}
	f.Fuzz(func(t *testing.T, file []byte) {
		_, _, err := read(t, file)
		var known *fault.Fault
		if err != nil && !errors.As(err, &known) {
			t.Fatalf("refused with %v", err)
		}
	})
}
