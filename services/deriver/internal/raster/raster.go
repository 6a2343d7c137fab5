// Package raster is the form in which every master's pixels travel: rows of
// gray or RGB samples, top row first, read once from start to end. Readers of
// file formats make Pages; nothing after them knows what the file was.
package raster

import (
	"context"
	"fmt"

	"colophon/services/deriver/internal/fault"
)

// Info describes the samples of one page as its rows deliver them.
type Info struct {
	Width, Height int
	Channels      int // 1 gray (0 is black) or 3 red, green, blue
	Bits          int // significant bits a sample: 8, or 9 to 16
}

// SampleBytes is the size of one sample in a row: 1, or 2 with the low byte
// first.
func (i Info) SampleBytes() int {
	if i.Bits > 8 {
		return 2
	}
	return 1
}

// RowBytes is the size of one row.
func (i Info) RowBytes() int { return i.Width * i.Channels * i.SampleBytes() }

// Pixels is width times height.
func (i Info) Pixels() int64 { return int64(i.Width) * int64(i.Height) }

// Max is the largest sample value.
func (i Info) Max() int { return 1<<i.Bits - 1 }

// Rows delivers a page from top to bottom.
type Rows interface {
	// Next fills dst, which is RowBytes long, with the next row. It is called
	// exactly Height times.
	Next(dst []byte) error
	// Finish is called once after the last row and reports what can only be
	// known then: an end marker that is missing, a checksum that differs. A
	// page is good only if Finish says so.
	Finish() error
	// Close releases everything; it may be called at any time, and again.
	Close() error
}

// Page is one picture of a master, checked but not yet decoded.
type Page struct {
	Info
	Orientation int // 1 to 8, TIFF's meaning; 1 needs nothing done
	ICC         []byte
	Resolution  Resolution
	// Open starts decoding. Rows are in stored orientation.
	Open func(ctx context.Context) (Rows, error)
}

// Resolution is a page's capture resolution. The zero value means unknown.
type Resolution struct {
	X, Y float64
	Unit Unit
}

// Unit is the length a resolution counts by.
type Unit string

const (
	NoUnit     Unit = ""   // a ratio of the sides only, or nothing
	Inch       Unit = "in" // pixels an inch
	Centimetre Unit = "cm" // pixels a centimetre
	Metre      Unit = "m"  // pixels a metre
)

// Known tells whether r has a usable value.
func (r Resolution) Known() bool { return r.Unit != NoUnit && r.X > 0 && r.Y > 0 }

// Technical is what a master says about itself, of its first page.
type Technical struct {
	Format        string  `json:"format"`
	PUID          string  `json:"puid,omitempty"` // left to format identification
	Width         int     `json:"width"`
	Height        int     `json:"height"`
	BitsPerSample int     `json:"bits_per_sample"`
	Samples       int     `json:"samples"` // a pixel, as stored
	ColourSpace   string  `json:"colour_space"`
	Compression   string  `json:"compression"`
	ICCName       string  `json:"icc_name,omitempty"`
	XResolution   float64 `json:"x_resolution,omitempty"`
	YResolution   float64 `json:"y_resolution,omitempty"`
	Unit          Unit    `json:"unit,omitempty"`
	Pages         int     `json:"pages"`
	Orientation   int     `json:"orientation"`
	Make          string  `json:"make,omitempty"`
	Model         string  `json:"model,omitempty"`
	Software      string  `json:"software,omitempty"`
	DateTime      string  `json:"date_time,omitempty"` // as written: TIFF's "2006:01:02 15:04:05"
}

// Finding is something tolerated in a master, worth keeping on record.
type Finding struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// Image is a master after its structural check.
type Image struct {
	Technical Technical
	Pages     []Page
	Warnings  []Finding
}

// Warn adds a finding, once for each code.
func (m *Image) Warn(code, format string, args ...any) {
	for _, w := range m.Warnings {
		if w.Code == code {
			return
		}
	}
	m.Warnings = append(m.Warnings, Finding{code, fmt.Sprintf(format, args...)})
}

// Bounds are limits on what a master may declare, checked before anything is
// allocated for it.
type Bounds struct {
	MaxSide      int   // pixels
	MaxPixels    int64 // of one page
	MaxSamples   int   // a pixel
	MaxImages    int   // directories in a file
	MaxExpansion int64 // decoded bytes a byte of the file's image data
}

// Check refuses dimensions outside the bounds.
func (b Bounds) Check(width, height int64) error {
	switch {
	case width <= 0 || height <= 0:
		return fault.Refuse(fault.BadDimensions, "The image says it is %d by %d pixels", width, height)
	case width > int64(b.MaxSide) || height > int64(b.MaxSide):
		return fault.Refuse(fault.ImageTooLarge, "The image is %d by %d pixels; a side may have %d", width, height, b.MaxSide)
	case width*height > b.MaxPixels:
		return fault.Refuse(fault.ImageTooLarge, "The image has %d pixels; %d are the limit", width*height, b.MaxPixels)
	}
	return nil
}

// CheckExpansion refuses an image that declares more bytes than data could
// hold under any compression in use.
func (b Bounds) CheckExpansion(declared, data int64) error {
	if data <= 0 || declared/data > b.MaxExpansion {
		return fault.Refuse(fault.ExpansionBomb, "The image declares %d bytes of pixels but holds only %d bytes of data", declared, data)
	}
	return nil
}
