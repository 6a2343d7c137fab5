package derive_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"image"
	"image/jpeg"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"colophon/services/deriver/internal/derive"
	"colophon/services/deriver/internal/fault"
	"colophon/services/deriver/internal/tifftest"
)

// goodMasters are one file for each way through the pipeline.
func goodMasters(t *testing.T) map[string][]byte {
	t.Helper()
	all := map[string][]byte{}
	for name, s := range tifftest.Encodings() {
		all[name+".tif"] = tifftest.File(s)
	}
	all["lossy.tif"] = tifftest.File(full(8, 3))
	all["turned.tif"] = tifftest.File(with(full(8, 1), 274, 6))
	all["pages.tif"] = tifftest.File(tifftest.Encodings()["lzw"], tifftest.Encodings()["raw"])
	var j bytes.Buffer
	img := image.NewYCbCr(image.Rect(0, 0, 700, 900), image.YCbCrSubsampleRatio420)
	for i := range img.Y {
		img.Y[i] = byte(i * 7 / 3)
	}
	if err := jpeg.Encode(&j, img, nil); err != nil {
		t.Fatal(err)
	}
	all["photo.jpg"] = j.Bytes()
	// A progressive JPEG is held as a whole by its decoder.
	cjpeg := exec.CommandContext(t.Context(), "cjpeg", "-progressive")
	cjpeg.Stdin = io.MultiReader(strings.NewReader("P6 1200 1100 255\n"), bytes.NewReader(bytes.Repeat([]byte("page by page "), 3*1200*1100/13+1)[:3*1200*1100]))
	var err error
	if all["progressive.jpg"], err = cjpeg.Output(); err != nil {
		t.Fatal(err)
	}
	result, err := run(t, "a.tif", all["lzw.tif"], nil)
	if err != nil {
		t.Fatal(err)
	}
	if all["again.jp2"], err = os.ReadFile(result.Outputs[0].Path); err != nil {
		t.Fatal(err)
	}
	return all
}

// notBlamed derives a good master where something lacks: it is right, or the
// fault is not the master's.
func notBlamed(t *testing.T, name string, master []byte, scratch string) *derive.Fault {
	t.Helper()
	result, err := derive.Derive(t.Context(), derive.Request{Path: write(t, "master", master), Name: name, Recipe: recipe(t, "jp2"), Scratch: scratch})
	if err == nil {
		err = result.Close()
	}
	if left, _ := os.ReadDir(scratch); len(left) > 0 {
		t.Errorf("%s: left in scratch: %v", name, left)
	}
	var f *derive.Fault
	if err != nil && (!errors.As(err, &f) || f.Class == fault.Permanent) {
		t.Errorf("%s: a good master is called faulty: %v", name, err)
	}
	return f
}

// TestShortOfMemory: whatever the helpers lack, no good master is called
// faulty; with 1 GB each is derived.
func TestShortOfMemory(t *testing.T) {
	masters := goodMasters(t)
	failed := map[string]int{}
	for _, kib := range []int{6 << 10, 12 << 10, 20 << 10, 1 << 20} {
		dir := t.TempDir()
		for _, p := range []string{"opj_compress", "opj_decompress", "djpeg"} {
			body := fmt.Sprintf("#!/bin/sh\nulimit -v %d\nexec /usr/bin/%s \"$@\"\n", kib, p)
			if err := os.WriteFile(filepath.Join(dir, p), []byte(body), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
		for name, master := range masters {
			f := notBlamed(t, name, master, t.TempDir())
			if f == nil {
				continue
			}
			if failed[f.Code]++; kib == 1<<20 {
				t.Errorf("%s fails with 1 GB: %v", name, f)
			}
		}
	}
	t.Log(failed)
	if failed[fault.EncoderFailed] == 0 || failed[fault.DecoderFailed] == 0 {
		t.Error("nothing failed for want of memory: the test tests nothing")
	}
}

// TestFullDisk: on a scratch disk that is full before, during or after the
// encoding no good master is called faulty, and the work halts.
func TestFullDisk(t *testing.T) {
	masters := goodMasters(t)
	failed := map[string]int{}
	for _, kib := range []int{4, 120, 400, 1600, 3500} {
		dir := t.TempDir()
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%dk", kib)); err != nil {
			t.Logf("NOT TESTED HERE: a full disk needs root and mount(2): %v", err)
			return
		}
		for name, master := range masters {
			if f := notBlamed(t, name, master, dir); f != nil {
				if failed[f.Code]++; f.Class != fault.Environment {
					t.Errorf("%s on %d KiB: %v", name, kib, f)
				}
			}
		}
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	}
	t.Log(failed)
	if failed[fault.ScratchFull] < len(masters) {
		t.Error("the disk was never full: the test tests nothing")
	}
}

// TestDeclaredDigest: with the digest of the good file not one of the 295 is
// read, whatever its damage.
func TestDeclaredDigest(t *testing.T) {
	t.Parallel()
	wrong := 0
	for _, d := range tifftest.All295() {
		sum := sha256.Sum256(d.Good)
		_, err := run(t, "a.tif", d.File, func(r *derive.Request) { r.Digest = hex.EncodeToString(sum[:]) })
		var f *derive.Fault
		if !errors.As(err, &f) || f.Code != fault.MasterDamaged {
			t.Errorf("%s: %v", d.Name(), err)
			wrong++
		}
	}
	t.Logf("of 295 with a declared digest, silently wrong: %d", wrong)
}
