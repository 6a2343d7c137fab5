package tiff_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"colophon/services/deriver/internal/tifftest"
)

// TestLibtiff reads what libtiff's tiffcp makes of a page: an encoder that
// shares no code with this project.
func TestLibtiff(t *testing.T) {
	t.Parallel()
	rgb := tifftest.Spec{Width: 301, Height: 97, Bits: 8, Samples: 3, Photometric: 2}
	deep, gray, fax := rgb, rgb, rgb
	deep.Bits = 16
	gray.Bits, gray.Samples, gray.Photometric = 16, 1, 1
	fax.Bits, fax.Samples, fax.Photometric = 1, 1, 0
	var options []string
	for _, c := range []string{"none", "lzw", "lzw:2", "zip", "zip:2", "packbits", "zstd", "zstd:2"} {
		for _, layout := range []string{"-r 20", "-r 1", "-t -w 64 -l 32", "-p separate -r 13", "-p separate -t -w 48 -l 16"} {
			options = append(options, "-c "+c+" "+layout)
		}
	}
	options = append(options, "-B -c lzw:2 -r 9", "-B -8 -c zip:2 -t -w 32 -l 32", "-L -8 -c none -r 50")
	for name, c := range map[string]struct {
		spec    tifftest.Spec
		options []string
	}{
		"rgb8": {rgb, options}, "rgb16": {deep, options}, "gray16": {gray, options},
		"bilevel": {fax, []string{"-c g4 -r 30", "-c g4 -r 97 -f lsb2msb", "-c g3 -r 30", "-c g3:2d -r 30", "-c g3:fill -r 30", "-c g3:2d:fill -r 30 -f lsb2msb", "-c packbits", "-c lzw -r 10"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			from := filepath.Join(dir, "from.tif")
			if err := os.WriteFile(from, tifftest.File(c.spec), 0o600); err != nil {
				t.Fatal(err)
			}
			want := c.spec.Want(nil)
			for i, o := range c.options {
				if c.spec.Bits == 16 && strings.Contains(o, "separate") {
					continue // tiffcp separates planes of 8 bits only
				}
				to := filepath.Join(dir, fmt.Sprintf("%d.tif", i))
				if out, err := exec.CommandContext(t.Context(), "tiffcp", append(strings.Fields(o), from, to)...).CombinedOutput(); err != nil {
					t.Fatalf("tiffcp %s: %v\n%s", o, err, out)
				}
				file, err := os.ReadFile(to)
				if err != nil {
					t.Fatal(err)
				}
				if _, pages, err := readAll(t.Context(), file); err != nil {
					t.Errorf("%s: %v", o, err)
				} else if !sameRows(pages[0], want) {
					t.Errorf("%s: other samples", o)
				}
			}
		})
	}
}
