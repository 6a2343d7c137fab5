package e2e

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"image"
	"image/color"
	"image/jpeg"
	"image/png"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/image/tiff"
)

// The masters of the tests are small, and each is different: what is tested is
// the line, not the codec.

// pageSize is the width and height of a page in pixels.
const pageSize = 40

func paint(seed uint64, set func(x, y int, r *rand.Rand)) {
	r := rand.New(rand.NewPCG(seed, 1))
	for y := range pageSize {
		for x := range pageSize {
			set(x, y, r)
		}
	}
}

func grayPage(seed uint64) *image.Gray {
	img := image.NewGray(image.Rect(0, 0, pageSize, pageSize))
	paint(seed, func(x, y int, r *rand.Rand) { img.SetGray(x, y, color.Gray{uint8(4*x + y + r.IntN(60))}) })
	return img
}

func gray16Page(seed uint64) *image.Gray16 {
	img := image.NewGray16(image.Rect(0, 0, pageSize, pageSize))
	paint(seed, func(x, y int, r *rand.Rand) { img.SetGray16(x, y, color.Gray16{uint16(900*x + 300*y + r.IntN(9000))}) })
	return img
}

func colourPage(seed uint64) *image.RGBA {
	img := image.NewRGBA(image.Rect(0, 0, pageSize, pageSize))
	paint(seed, func(x, y int, r *rand.Rand) {
		img.SetRGBA(x, y, color.RGBA{uint8(5*x + r.IntN(20)), uint8(5*y + r.IntN(20)), uint8(100 + r.IntN(90)), 255})
	})
	return img
}

// tiffPage is a TIFF master: 8-bit gray, one uncompressed strip set.
func tiffPage(seed uint64) []byte { return tiffOf(grayPage(seed), tiff.Uncompressed) }

func tiffOf(img image.Image, c tiff.CompressionType) []byte {
	var b bytes.Buffer
	if err := tiff.Encode(&b, img, &tiff.Options{Compression: c}); err != nil {
		panic(err)
	}
	return b.Bytes()
}

func pngPage(seed uint64) []byte { return pngOf(grayPage(seed)) }

func pngOf(img image.Image) []byte {
	var b bytes.Buffer
	if err := png.Encode(&b, img); err != nil {
		panic(err)
	}
	return b.Bytes()
}

func jpegPage(seed uint64) []byte {
	var b bytes.Buffer
	if err := jpeg.Encode(&b, colourPage(seed), &jpeg.Options{Quality: 90}); err != nil {
		panic(err)
	}
	return b.Bytes()
}

// bareTIFF is a one-strip gray TIFF by hand, whose header may lie.
func bareTIFF(width, height uint32, strip []byte) []byte {
	return tiffHead(width, height, uint32(len(strip)), strip)
}

func tiffHead(width, height, bytesOfStrip uint32, strip []byte) []byte {
	le := binary.LittleEndian
	entries := [][4]uint32{ // tag, type, count, value
		{256, 4, 1, width}, {257, 4, 1, height}, {258, 3, 1, 8}, {259, 3, 1, 1}, {262, 3, 1, 1},
		{273, 4, 1, 0}, {277, 3, 1, 1}, {278, 4, 1, height}, {279, 4, 1, bytesOfStrip},
	}
	data := uint32(8 + 2 + 12*len(entries) + 4)
	entries[5][3] = data
	out := append([]byte("II*\x00"), le.AppendUint32(nil, 8)...)
	out = le.AppendUint16(out, uint16(len(entries)))
	for _, e := range entries {
		out = le.AppendUint16(out, uint16(e[0]))
		out = le.AppendUint16(out, uint16(e[1]))
		out = le.AppendUint32(out, e[2])
		if e[1] == 3 {
			out = le.AppendUint16(out, uint16(e[3]))
			out = le.AppendUint16(out, 0)
		} else {
			out = le.AppendUint32(out, e[3])
		}
	}
	out = le.AppendUint32(out, 0)
	return append(out, strip...)
}

// long ago: a file that was touched a moment ago makes capture wait.
var longAgo = time.Date(2020, 2, 3, 4, 5, 6, 0, time.UTC)

// put writes a master that has been left alone for long.
func put(t testing.TB, dir, name string, data []byte) string {
	t.Helper()
	path := filepath.Join(dir, name)
	ok(t, os.MkdirAll(filepath.Dir(path), 0o755))
	ok(t, os.WriteFile(path, data, 0o644))
	ok(t, os.Chtimes(path, longAgo, longAgo))
	return path
}

// pages makes a folder of n tiny TIFF masters, all different, called
// 0001.tif ….
func pages(t testing.TB, n int) string {
	t.Helper()
	dir := filepath.Join(tempDir(t), "vol")
	for i := range n {
		put(t, dir, pageName(i), tiffPage(uint64(i)+1000))
	}
	return dir
}

func pageName(i int) string { return fmt.Sprintf("%04d.tif", i+1) }

// touch makes a file look written just now: capture waits for it.
func touch(t testing.TB, path string) {
	t.Helper()
	ok(t, os.Chtimes(path, time.Now(), time.Now()))
}
