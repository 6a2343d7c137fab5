package tiff_test

import (
	"context"
	"errors"
	"sort"
	"strings"
	"testing"

	"colophon/services/deriver/internal/fault"
	"colophon/services/deriver/internal/tifftest"
)

// maxWrong is how many of the 295 may be silently wrong: what nothing but a
// delivered checksum can see.
const maxWrong = 16

// TestDamage reads every damaged file: it is refused, or it gives the same
// pixels. What is silently wrong is counted and named.
func TestDamage(t *testing.T) {
	t.Parallel()
	all := tifftest.All295()
	if len(all) != 295 {
		t.Fatalf("%d damaged files", len(all))
	}
	if wrong := judge(t, all); wrong > maxWrong {
		t.Errorf("%d damaged files are silently wrong; %d are the most", wrong, maxWrong)
	}
}

// TestMoreDamage does the same to files of other kinds.
func TestMoreDamage(t *testing.T) {
	t.Parallel()
	rgb := tifftest.Spec{Width: 200, Height: 150, Bits: 8, Samples: 3, Photometric: 2}
	var all []tifftest.Damaged
	for name, change := range map[string]func(*tifftest.Spec){
		"lzw one strip":          func(s *tifftest.Spec) { s.Compression = 5 },
		"lzw big-endian":         func(s *tifftest.Spec) { s.Compression, s.BigEndian, s.RowsPerStrip = 5, true, 20 },
		"raw big-endian bigtiff": func(s *tifftest.Spec) { s.Big, s.BigEndian, s.RowsPerStrip = true, true, 32 },
		"deflate tiles 16 bit":   func(s *tifftest.Spec) { s.TileWidth, s.TileHt, s.Compression, s.Bits = 64, 64, 8, 16 },
		"deflate planar":         func(s *tifftest.Spec) { s.Planar, s.Compression, s.RowsPerStrip = true, 8, 32 },
		"zstd":                   func(s *tifftest.Spec) { s.Compression, s.RowsPerStrip = 50000, 32 },
	} {
		s := rgb
		change(&s)
		all = append(all, tifftest.Damage(name, s)...)
	}
	judge(t, all)
}

// judge gives the number of the silently wrong.
func judge(t *testing.T, all []tifftest.Damaged) int {
	t.Helper()
	var refused, same int
	var wrong []string
	codes := map[string]int{}
	good := map[string][][]byte{}
	for _, d := range all {
		if good[d.Encoding] == nil {
			_, pages, err := readAll(t.Context(), d.Good)
			if err != nil {
				t.Fatalf("%s: the good file is refused: %v", d.Encoding, err)
			}
			good[d.Encoding] = pages[0]
		}
		_, got, err := readAll(context.Background(), d.File)
		var f *fault.Fault
		switch {
		case errors.As(err, &f) && f.Class == fault.Permanent:
			refused++
			codes[f.Code]++
		case err != nil:
			t.Errorf("%s: %v is no permanent fault", d.Name(), err)
		case len(got) == 1 && sameRows(got[0], good[d.Encoding]):
			same++
		default:
			wrong = append(wrong, d.Name())
			if !d.Hidden {
				t.Errorf("%s: silently wrong, though a check could see it", d.Name())
			}
		}
	}
	sort.Strings(wrong)
	t.Logf("of %d: refused %d %v, same pixels %d, SILENTLY WRONG %d:\n\t%s", len(all), refused, codes, same, len(wrong), strings.Join(wrong, "\n\t"))
	return len(wrong)
}
