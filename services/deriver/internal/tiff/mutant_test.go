package tiff_test

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"colophon/services/deriver/internal/fault"
	"colophon/services/deriver/internal/tifftest"
)

// TestMutants is a short fuzzing with a fixed seed, for every run of the tests;
// FuzzRead is the long one.
func TestMutants(t *testing.T) {
	t.Parallel()
	for name, s := range tifftest.Encodings() {
		if s.Compression == 7 {
			continue // a process each
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s.Width, s.Height, s.RowsPerStrip = 40, 24, min(s.RowsPerStrip, 8)
			if s.TileWidth > 0 {
				s.TileWidth, s.TileHt = 16, 16
			}
			good := tifftest.File(s)
			chance := rand.New(rand.NewPCG(5, 295))
			for range 2000 {
				file := slices.Clone(good)
				for range 1 + chance.IntN(4) {
					// Most damage near the directory, where it can do most.
					at := chance.IntN(len(file))
					if chance.IntN(3) > 0 {
						at = len(file) - 1 - chance.IntN(min(len(file), 220))
					}
					file[at] = byte(chance.Uint32())
				}
				start := time.Now()
				_, _, err := readAll(t.Context(), file)
				var f *fault.Fault
				if err != nil && (!errors.As(err, &f) || f.Class != fault.Permanent || f.Code == "") {
					t.Fatalf("%x: %v", file, err)
				}
				if took := time.Since(start); took > 20*time.Second {
					t.Fatalf("%x took %v", file, took)
				}
			}
		})
	}
}
