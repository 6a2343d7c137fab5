package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// tools is a folder that is the whole PATH of a child: links to the helper
// programs, some of them replaced by scripts.
type tools struct {
	t   testing.TB
	dir string
}

func newTools(t testing.TB) *tools {
	t.Helper()
	x := &tools{t, tempDir(t)}
	for _, name := range []string{"opj_compress", "opj_decompress", "djpeg", "grep", "tail", "sleep", "cp", "head"} {
		x.install(name)
	}
	return x
}

func (x *tools) env() string { return "PATH=" + x.dir }

func (x *tools) install(name string) {
	x.t.Helper()
	real, err := exec.LookPath(name)
	ok(x.t, err)
	ok(x.t, os.Symlink(real, filepath.Join(x.dir, name)))
}

func (x *tools) remove(name string) {
	x.t.Helper()
	ok(x.t, os.Remove(filepath.Join(x.dir, name)))
}

// encoder puts a script in the place of the encoder: what it does with a page
// that carries a mark. Everything else is encoded.
func (x *tools) encoder(mark, does string) {
	x.t.Helper()
	real, err := exec.LookPath("opj_compress")
	ok(x.t, err)
	x.remove("opj_compress")
	script := fmt.Sprintf("#!/bin/sh\nif [ \"$2\" = page.tif ] && grep -q %s page.tif; then\n%s\nfi\nexec %s \"$@\"\n", mark, does, real)
	ok(x.t, os.WriteFile(filepath.Join(x.dir, "opj_compress"), []byte(script), 0o755)) //nolint:gosec // a program
}

// markedPage is a page whose samples spell a mark, again and again: a script
// finds it in what the encoder is given.
func markedPage(seed uint64, mark string) []byte {
	img := grayPage(seed)
	for y := 4; y < 8; y++ {
		for x := range pageSize {
			img.Pix[img.PixOffset(x, y)] = mark[x%len(mark)]
		}
	}
	return tiffOf(img, 0)
}
