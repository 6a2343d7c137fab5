package ccitt_test

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"testing"

	other "golang.org/x/image/ccitt"

	"colophon/services/deriver/internal/ccitt"
)

// lines are two rows of eight pixels coded by hand after T.6: a row of 3
// white, 2 black, 3 white pixels (horizontal mode, then to the end), and the
// same again, all vertical; then the end-of-block code.
//
//	001 1000 11          horizontal, white 3, black 2
//	1                    V0: the rest white
//	1 1 1                V0 three times
//	000000000001 000000000001
var lines = pack("001" + "1000" + "11" + "1" + "1" + "1" + "1" + "000000000001" + "000000000001")

func pack(bits string) []byte {
	out := make([]byte, (len(bits)+7)/8)
	for i, b := range bits {
		if b == '1' {
			out[i/8] |= 0x80 >> (i % 8)
		}
	}
	return out
}

func decoder(data []byte, mode ccitt.Mode, width int) *ccitt.Decoder {
	return ccitt.NewDecoder(bufio.NewReader(bytes.NewReader(data)), mode, width, false)
}

// TestPolarity: black pixels are set bits.
func TestPolarity(t *testing.T) {
	t.Parallel()
	d := decoder(lines, ccitt.Group4, 8)
	row := make([]byte, 1)
	for y := range 2 {
		if err := d.Row(row); err != nil || row[0] != 0b00011000 {
			t.Fatalf("row %d is %08b, %v", y, row[0], err)
		}
	}
	if marked, err := d.End(); !marked || err != nil {
		t.Fatalf("end: %v, %v", marked, err)
	}
}

// TestHeight: fewer rows than there are, or more, do not pass.
func TestHeight(t *testing.T) {
	t.Parallel()
	d := decoder(lines, ccitt.Group4, 8)
	row := make([]byte, 1)
	if err := d.Row(row); err != nil {
		t.Fatal(err)
	}
	if _, err := d.End(); !errors.Is(err, ccitt.ErrSurplus) {
		t.Errorf("a row too few: %v", err)
	}
	d = decoder(lines, ccitt.Group4, 8)
	var err error
	for range 3 {
		if err = d.Row(row); err != nil {
			break
		}
	}
	if err == nil {
		t.Error("a row too many was read")
	}
}

func TestEndMissing(t *testing.T) {
	t.Parallel()
	d := decoder(lines[:2], ccitt.Group4, 8)
	row := make([]byte, 1)
	for range 2 {
		if err := d.Row(row); err != nil {
			t.Fatal(err)
		}
	}
	if marked, err := d.End(); marked || err != nil {
		t.Errorf("end: %v, %v", marked, err)
	}
	if err := decoder(lines[:1], ccitt.Group4, 8).Row(row); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("data that ends inside a row: %v", err)
	}
}

// FuzzAgainstOther compares with another decoder: what both accept, they must
// see alike.
func FuzzAgainstOther(f *testing.F) {
	f.Add(lines, uint16(8), uint8(2))
	f.Add([]byte{0x26, 0xa0, 0xfe, 0x12, 0x99, 0x00, 0x10, 0x01}, uint16(31), uint8(3))
	f.Add(bytes.Repeat([]byte{0xFF}, 20), uint16(100), uint8(100))
	f.Fuzz(func(t *testing.T, data []byte, w uint16, h uint8) {
		if w == 0 || h == 0 {
			return
		}
		stride := (int(w) + 7) / 8
		ours := make([]byte, stride*int(h))
		d := decoder(data, ccitt.Group4, int(w))
		for y := range int(h) {
			if err := d.Row(ours[y*stride : (y+1)*stride]); err != nil {
				return
			}
		}
		if marked, err := d.End(); err != nil || !marked {
			return
		}
		theirs, err := io.ReadAll(other.NewReader(bytes.NewReader(data), other.MSB, other.Group4, int(w), int(h), &other.Options{Invert: true}))
		if err != nil {
			return
		}
		if !bytes.Equal(ours, theirs) {
			t.Fatalf("width %d, height %d, data % x:\n% x\n% x", w, h, data, ours, theirs)
		}
	})
}
