// Package demo draws a small batch of masters, so that a newcomer sees a batch
// converge, two equal pages, and a case in quarantine, without any scanner.
package demo

import (
	"bytes"
	"fmt"
	"image"
	"image/color"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/image/font"
	"golang.org/x/image/font/gofont/goregular"
	"golang.org/x/image/font/opentype"
	"golang.org/x/image/math/fixed"
	"golang.org/x/image/tiff"
)

// Damaged is the file that is cut off on purpose.
const Damaged = "page 0005.tif"

// Size of a page in pixels: A5 at 150 pixels an inch.
const (
	width  = 874
	height = 1240
)

// Draw writes the batch into a folder: four pages of text, one page like a
// photograph, two equal blank pages, and one damaged file. What is there
// already with other bytes is left alone: a repaired page stays repaired.
func Draw(dir string) error {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	face, err := newFace()
	if err != nil {
		return err
	}
	for name, page := range map[string]func() image.Image{
		"page 0001.tif": func() image.Image { return text(face, "Colophon", 1) },
		"page 0002.tif": func() image.Image { return text(face, "The second page", 2) },
		"page 0003.tif": photograph,
		"page 0004.tif": blank,
		Damaged:         func() image.Image { return text(face, "A page that was cut off", 5) },
		"page 0006.tif": blank,
		"page 0007.tif": func() image.Image { return text(face, "The last page", 7) },
	} {
		if err := write(filepath.Join(dir, name), name == Damaged, page); err != nil {
			return err
		}
	}
	return nil
}

// Repair writes the damaged page whole.
func Repair(dir string) error {
	face, err := newFace()
	if err != nil {
		return err
	}
	path := filepath.Join(dir, Damaged)
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	return write(path, false, func() image.Image { return text(face, "A page that was cut off", 5) })
}

func write(path string, cut bool, page func() image.Image) error {
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	var b bytes.Buffer
	if err := tiff.Encode(&b, page(), &tiff.Options{Compression: tiff.Uncompressed}); err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	data := b.Bytes()
	if cut {
		data = data[:len(data)*6/10]
	}
	tmp := path + ".part"
	if err := os.WriteFile(tmp, data, 0o666); err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	if err := os.Rename(tmp, path); err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	return nil
}

func newFace() (font.Face, error) {
	f, err := opentype.Parse(goregular.TTF)
	if err != nil {
		return nil, fmt.Errorf("demo: font: %w", err)
	}
	face, err := opentype.NewFace(f, &opentype.FaceOptions{Size: 11, DPI: 150})
	if err != nil {
		return nil, fmt.Errorf("demo: font: %w", err)
	}
	return face, nil
}

func blank() image.Image {
	img := image.NewGray(image.Rect(0, 0, width, height))
	for i := range img.Pix {
		img.Pix[i] = 0xf4
	}
	return img
}

const words = "a page once taken in is never taken twice and never lost the batch that failed half way is run again and only what had not finished is touched "

func text(face font.Face, title string, n int) image.Image {
	img := blank().(*image.Gray)
	d := font.Drawer{Dst: img, Src: image.NewUniform(color.Gray{0x20}), Face: face}
	d.Dot = fixed.P(110, 150)
	d.DrawString(title)
	rng := rand.New(rand.NewPCG(7, uint64(n)))
	pool := strings.Fields(words)
	for y := 220; y < height-140; y += 34 {
		line := ""
		for d.MeasureString(line).Ceil() < width-330 {
			line += pool[rng.IntN(len(pool))] + " "
		}
		d.Dot = fixed.P(110, y)
		d.DrawString(line)
	}
	d.Dot = fixed.P(width/2, height-80)
	d.DrawString(fmt.Sprint(n))
	return img
}

// photograph: soft colours, an edge, and the grain of a sensor.
func photograph() image.Image {
	img := image.NewRGBA(image.Rect(0, 0, width, height))
	rng := rand.New(rand.NewPCG(7, 3))
	for y := range height {
		for x := range width {
			fx, fy := float64(x)/width, float64(y)/height
			sky := 150 + 80*fy + 20*math.Sin(7*fx+3*fy)
			hill := 0.55 + 0.08*math.Sin(9*fx) + 0.03*math.Sin(31*fx)
			r, g, b := sky*0.8, sky*0.9, sky
			if fy > hill {
				r, g, b = 70+40*math.Sin(40*fx*fy), 100+60*(1-fy), 60.0
			}
			noise := rng.NormFloat64() * 3
			img.SetRGBA(x, y, color.RGBA{clamp(r + noise), clamp(g + noise), clamp(b + noise), 0xff})
		}
	}
	return img
}

func clamp(v float64) uint8 { return uint8(max(0, min(255, v))) }
