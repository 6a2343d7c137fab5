package tifftest

import (
	"bytes"
	"fmt"
	"image"
	"image/color"
	"image/jpeg"
	"io"
	"math/bits"
	"os/exec"
	"strings"

	"colophon/services/deriver/internal/ccitt"
)

// bitWriter appends codes, high bits first.
type bitWriter struct {
	out []byte
	n   int // bits used of the last byte; 0 if it is full
}

func (w *bitWriter) bit(b int) {
	if w.n == 0 {
		w.out = append(w.out, 0)
	}
	w.out[len(w.out)-1] |= byte(b) << (7 - w.n)
	w.n = (w.n + 1) & 7
}

func (w *bitWriter) number(v, size int) {
	for i := size - 1; i >= 0; i-- {
		w.bit(v >> i & 1)
	}
}

func (w *bitWriter) code(s string) {
	for _, c := range s {
		w.bit(int(c - '0'))
	}
}

// LZW codes raw as TIFF does.
func LZW(raw []byte) []byte {
	var w bitWriter
	table := map[string]int{}
	width, next := 9, 258
	emit := func(s []byte) {
		if len(s) == 1 {
			w.number(int(s[0]), width)
			return
		}
		w.number(table[string(s)], width)
	}
	w.number(256, width)
	start := 0
	for i := range raw {
		s := raw[start : i+1]
		if _, ok := table[string(s)]; ok || len(s) == 1 {
			continue
		}
		emit(s[:len(s)-1])
		table[string(s)] = next
		next++
		start = i
		switch {
		case next == 4094: // the last entry that can be used
			w.number(256, 12)
			clear(table)
			width, next = 9, 258
		case next == 1<<width:
			width++
		}
	}
	if start < len(raw) {
		emit(raw[start:])
		next++
		if next == 1<<width && width < 12 {
			width++
		}
	}
	w.number(257, width)
	return w.out
}

// fax codes rows in Group 4, or in Group 3 in one dimension with an
// end-of-line code before each row.
func (s Spec) fax(raw []byte, w, h int) []byte {
	var out bitWriter
	stride := (w + 7) / 8
	above := []int{}
	for y := range h {
		cur := changes(raw[y*stride:(y+1)*stride], w)
		if s.Compression == 3 {
			out.code("000000000001")
			flat(&out, cur, w)
		} else {
			deep(&out, cur, above, w)
		}
		above = cur
	}
	if s.Compression == 4 {
		out.code("000000000001000000000001")
	}
	if s.LSBFirst {
		for i, b := range out.out {
			out.out[i] = bits.Reverse8(b)
		}
	}
	return out.out
}

// changes lists where the colour changes, beginning from white.
func changes(row []byte, w int) []int {
	var out []int
	last := byte(0)
	for x := range w {
		if b := row[x/8] >> (7 - x%8) & 1; b != last {
			out, last = append(out, x), b
		}
	}
	return out
}

func flat(out *bitWriter, cur []int, w int) {
	at := 0
	for i := 0; at < w || i == 0; i++ {
		end := w
		if i < len(cur) {
			end = cur[i]
		}
		runCode(out, end-at, i%2)
		at = end
	}
}

var terminating = [2][]string{strings.Fields(ccitt.WhiteTerminating), strings.Fields(ccitt.BlackTerminating)}
var makeUp = [2][]string{
	append(strings.Fields(ccitt.WhiteMakeUp), strings.Fields(ccitt.LongMakeUp)...),
	append(strings.Fields(ccitt.BlackMakeUp), strings.Fields(ccitt.LongMakeUp)...),
}

func runCode(out *bitWriter, n, colour int) {
	for n >= 64 {
		m := min(n/64, len(makeUp[colour]))
		out.code(makeUp[colour][m-1])
		n -= 64 * m
	}
	out.code(terminating[colour][n])
}

// deep codes a row in two dimensions, by the book.
func deep(out *bitWriter, cur, above []int, w int) {
	a0, colour := -1, 0
	at := func(list []int, i int) int {
		if i < len(list) {
			return list[i]
		}
		return w
	}
	for a0 < w {
		i := 0
		for i < len(cur) && (cur[i] <= a0 || i%2 != colour) {
			i++
		}
		a1, a2 := at(cur, i), at(cur, i+1)
		k := 0
		for k < len(above) && (above[k] <= a0 || k%2 != colour) {
			k++
		}
		b1, b2 := at(above, k), at(above, k+1)
		switch d := a1 - b1; {
		case b2 < a1:
			out.code("0001")
			a0 = b2
		case d >= -3 && d <= 3:
			out.code([]string{"0000010", "000010", "010", "1", "011", "000011", "0000011"}[d+3])
			a0, colour = a1, 1-colour
		default:
			out.code("001")
			runCode(out, a1-max(a0, 0), colour)
			runCode(out, a2-a1, 1-colour)
			a0 = a2
		}
	}
}

// jpeg codes a chunk of gray, YCbCr or RGB samples as a whole JPEG stream.
func (s Spec) jpeg(raw []byte, w, h int) []byte {
	if s.Photometric == 2 {
		cjpeg := exec.Command("cjpeg", "-rgb", "-quality", "95", "-sample", "1x1")
		cjpeg.Stdin = io.MultiReader(strings.NewReader(fmt.Sprintf("P6 %d %d 255\n", w, h)), bytes.NewReader(raw))
		out, err := cjpeg.Output()
		if err != nil {
			panic(err) // not installed: no test that needs it can go on
		}
		return out
	}
	var b bytes.Buffer
	opt := &jpeg.Options{Quality: 95}
	if s.Samples == 1 {
		_ = jpeg.Encode(&b, &image.Gray{Pix: raw, Stride: w, Rect: image.Rect(0, 0, w, h)}, opt) // to memory
		return b.Bytes()
	}
	img := image.NewRGBA(image.Rect(0, 0, w, h))
	for i := range w * h {
		img.Set(i%w, i/w, color.RGBA{raw[3*i], raw[3*i+1], raw[3*i+2], 255})
	}
	_ = jpeg.Encode(&b, img, opt) // to memory
	return b.Bytes()
}
