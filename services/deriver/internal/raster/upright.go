package raster

import (
	"bufio"
	"context"
	"fmt"
	"os"
)

// Turned is a page's rows with the page's own orientation applied.
type Turned struct {
	Rows
	Info Info
}

// bandBytes bounds the memory for turning a page, in bytes.
const bandBytes = 16 << 20

// Upright opens page and delivers it in the orientation in which it is meant
// to be seen. Turning a page needs all of it: it then goes through a file at
// path, which is removed again.
func Upright(ctx context.Context, page Page, path string) (*Turned, error) {
	rows, err := page.Open(ctx)
	if err != nil {
		return nil, err
	}
	switch page.Orientation {
	case 0, 1:
		return &Turned{rows, page.Info}, nil
	case 2:
		return &Turned{&mirrored{rows, page.Info}, page.Info}, nil
	}
	defer rows.Close()
	file, err := spool(ctx, rows, page.Info, path)
	if err != nil {
		return nil, err
	}
	t := &turner{src: page.Info, dst: page.Info, orientation: page.Orientation, file: file}
	if page.Orientation >= 5 {
		t.dst.Width, t.dst.Height = t.src.Height, t.src.Width
	}
	return &Turned{t, t.dst}, nil
}

// spool writes all rows to an unnamed file, checked to their end.
func spool(ctx context.Context, rows Rows, info Info, path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, &ScratchError{err}
	}
	// The open file is enough; without a name it cannot be left behind.
	if err := os.Remove(path); err != nil {
		file.Close()
		return nil, &ScratchError{err}
	}
	if err := copyRows(ctx, file, rows, info); err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

func copyRows(ctx context.Context, file *os.File, rows Rows, info Info) error {
	out := bufio.NewWriterSize(file, 1<<20)
	row := make([]byte, info.RowBytes())
	for y := range info.Height {
		if y&63 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		if err := rows.Next(row); err != nil {
			return fmt.Errorf("row %d: %w", y, err)
		}
		if _, err := out.Write(row); err != nil {
			return &ScratchError{err}
		}
	}
	if err := rows.Finish(); err != nil {
		return err
	}
	if err := out.Flush(); err != nil {
		return &ScratchError{err}
	}
	return nil
}

// mirrored turns each row left to right.
type mirrored struct {
	Rows
	info Info
}

func (m *mirrored) Next(dst []byte) error {
	if err := m.Rows.Next(dst); err != nil {
		return err
	}
	reverse(dst, m.info.Channels*m.info.SampleBytes())
	return nil
}

// reverse turns the order of pixels of size bytes.
func reverse(row []byte, size int) {
	for i, j := 0, len(row)-size; i < j; i, j = i+size, j-size {
		for k := range size {
			row[i+k], row[j+k] = row[j+k], row[i+k]
		}
	}
}

// turner reads a spooled page in another order, a band of rows of its result
// at a time.
type turner struct {
	src, dst    Info
	orientation int
	file        *os.File
	band        []byte
	first, last int // rows of the result that band holds
	y           int
}

// Next implements Rows.
func (t *turner) Next(dst []byte) error {
	if t.y >= t.last {
		if err := t.load(); err != nil {
			return &ScratchError{err}
		}
	}
	size := t.dst.RowBytes()
	copy(dst, t.band[(t.y-t.first)*size:(t.y-t.first+1)*size])
	t.y++
	return nil
}

// load fills the band with the next rows of the result.
func (t *turner) load() error {
	size := t.dst.RowBytes()
	n := min(max(bandBytes/size, 1), t.dst.Height-t.y)
	if t.band == nil {
		t.band = make([]byte, n*size)
	}
	t.first, t.last = t.y, t.y+n
	if t.orientation < 5 {
		return t.loadRows(n)
	}
	return t.loadColumns(n)
}

// loadRows serves the orientations that keep rows as rows: 3 (turned by 180
// degrees) and 4 (bottom to top).
func (t *turner) loadRows(n int) error {
	size := t.dst.RowBytes()
	for i := range n {
		row := t.band[i*size : (i+1)*size]
		if _, err := t.file.ReadAt(row, int64(t.src.Height-1-t.y-i)*int64(size)); err != nil {
			return err
		}
		if t.orientation == 3 {
			reverse(row, t.src.Channels*t.src.SampleBytes())
		}
	}
	return nil
}

// loadColumns serves the orientations that make columns rows. Row y of the
// result is column y of the source (5 and 6), or that column counted from the
// right (7 and 8); it runs from the source's top (5 and 8) or bottom.
func (t *turner) loadColumns(n int) error {
	px := t.src.Channels * t.src.SampleBytes()
	size := t.dst.RowBytes()
	left := t.y
	if t.orientation >= 7 {
		left = t.src.Width - t.y - n
	}
	piece := make([]byte, n*px)
	for y := range t.src.Height {
		at := int64(y)*int64(t.src.RowBytes()) + int64(left*px)
		if _, err := t.file.ReadAt(piece, at); err != nil {
			return err
		}
		x := y
		if t.orientation == 6 || t.orientation == 7 {
			x = t.src.Height - 1 - y
		}
		for i := range n {
			from := i
			if t.orientation >= 7 {
				from = n - 1 - i
			}
			copy(t.band[i*size+x*px:i*size+(x+1)*px], piece[from*px:(from+1)*px])
		}
	}
	return nil
}

// Finish implements Rows; the source was finished when it was spooled.
func (t *turner) Finish() error { return nil }

// Close implements Rows.
func (t *turner) Close() error { return t.file.Close() }
