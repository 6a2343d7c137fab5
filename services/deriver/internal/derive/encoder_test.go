package derive_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"colophon/services/deriver/internal/derive"
	"colophon/services/deriver/internal/fault"
	"colophon/services/deriver/internal/tifftest"
)

// fake puts a program in place of the encoder's for one test.
func fake(t *testing.T, script string) {
	t.Helper()
	dir := t.TempDir()
	body := "#!/bin/sh\ncase $1 in -h) echo 'openjp2 library v9.9.9'; exit 1;; esac\n" + script
	if err := os.WriteFile(filepath.Join(dir, "opj_compress"), []byte(body), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

// TestEncoderMissing: a machine without the encoder is no fault of a master.
func TestEncoderMissing(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	_, err := run(t, "a.tif", tifftest.File(tifftest.Spec{Width: 9, Height: 9, Bits: 8, Samples: 1, Photometric: 1}), nil)
	wantFault(t, err, fault.Environment, fault.EncoderMissing)
}

// TestEncoderNeverDecides: whatever the encoder does with a good master, its
// derivative is right or the fault is transient.
func TestEncoderNeverDecides(t *testing.T) {
	real := "/usr/bin/opj_compress"
	other := filepath.Join(t.TempDir(), "other.tif")
	wrong := tifftest.Spec{Width: 410, Height: 270, Bits: 8, Samples: 3, Photometric: 2, Sample: func(x, y, c int) int { return 255 - (x/9+y/3+c)%256 }}
	if err := os.WriteFile(other, tifftest.File(wrong), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, script := range map[string]string{
		"fails":           "echo 'Unable to load tif file' >&2; exit 1",
		"killed":          "kill -KILL $$",
		"nothing written": "exit 0",
		"empty file":      ": > page.jp2",
		"stub":            real + ` "$@" && head -c 77 page.jp2 > x && mv x page.jp2`,
		"cut":             real + ` "$@" && head -c 9000 page.jp2 > x && mv x page.jp2`,
		"cut by one byte": real + ` "$@" && head -c -1 page.jp2 > x && mv x page.jp2`,
		"other picture":   `shift 4; ` + real + ` -i ` + other + ` -o page.jp2 "$@"`,
		"other size":      `shift 4; ` + real + ` -i ` + smallFile(t) + ` -o page.jp2 "$@"`,
	} {
		t.Run(name, func(t *testing.T) {
			fake(t, script)
			_, err := run(t, "a.tif", tifftest.File(big(8, 3, 2)), lossy)
			f := wantFault(t, err, fault.Transient, fault.EncoderFailed)
			if name == "fails" && f.Stderr != "Unable to load tif file\n" {
				t.Errorf("stderr %q", f.Stderr)
			}
		})
	}
}

func smallFile(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "small.tif")
	s := tifftest.Spec{Width: 400, Height: 270, Bits: 8, Samples: 3, Photometric: 2}
	if err := os.WriteFile(path, tifftest.File(s), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestMoreMemory: what failed for want of memory is tried again with more, and
// admitted as what it will take.
func TestMoreMemory(t *testing.T) {
	fake(t, `[ "$(ulimit -v)" -ge 620000 ] || { echo 'Unable to load tif file' >&2; exit 1; }; exec /usr/bin/opj_compress "$@"`)
	master := tifftest.File(big(8, 3, 2))
	var asked [3]int64
	for attempt := 1; attempt <= 2; attempt++ {
		_, err := run(t, "a.tif", master, func(r *derive.Request) {
			r.Attempt = attempt
			r.Reserve = func(_ context.Context, bytes int64) (func(), error) {
				asked[attempt] = max(asked[attempt], bytes)
				return func() {}, nil
			}
		})
		if attempt == 2 {
			if err != nil {
				t.Fatal(err)
			}
			continue
		}
		wantFault(t, err, fault.Transient, fault.EncoderFailed)
	}
	if asked[1] == 0 || asked[2] != 2*asked[1] {
		t.Errorf("reserved %d bytes, then %d", asked[1], asked[2])
	}
}
