package derive_test

import (
	"bytes"
	"testing"

	"colophon/services/deriver/internal/fault"
	"colophon/services/deriver/internal/tifftest"
)

// TestProfileColour: a profile and a resolution survive; a profile that JP2
// does not allow is refused, a broken one left out.
func TestProfileColour(t *testing.T) {
	t.Parallel()
	s := tifftest.Spec{Width: 20, Height: 30, Bits: 8, Samples: 3, Photometric: 2}
	with := func(icc []byte) []byte {
		s.Extra = map[uint16]tifftest.Value{34675: {Type: 7, Raw: icc}, 282: rational(4000, 10), 283: rational(600, 1)}
		return tifftest.File(s)
	}
	matrix := icc("RGB ", "rXYZ", "gXYZ", "bXYZ", "rTRC", "gTRC", "bTRC")
	result, err := run(t, "a.tif", with(matrix), nil)
	if err != nil {
		t.Fatal(err)
	}
	f := boxes(t, result.Outputs[0].Path)
	if !bytes.Equal(f.ICC, matrix) || f.Resolution.X < 15748 || f.Resolution.X > 15748.1 || f.Resolution.Y < 23622 || f.Resolution.Y > 23622.1 {
		t.Errorf("profile of %d bytes, resolution %+v", len(f.ICC), f.Resolution)
	}
	_, err = run(t, "a.tif", with(icc("RGB ", "A2B0", "rXYZ", "gXYZ", "bXYZ", "rTRC", "gTRC", "bTRC")), nil)
	wantFault(t, err, fault.Permanent, fault.NoICC)
	for code, raw := range map[string][]byte{"icc-broken": matrix[:140], "icc-foreign": icc("CMYK", "A2B0")} {
		result, err := run(t, "a.tif", with(raw), nil)
		if err != nil {
			t.Fatal(err)
		}
		if f := boxes(t, result.Outputs[0].Path); f.ICC != nil || len(result.Warnings) != 1 || result.Warnings[0].Code != code {
			t.Errorf("profile of %d bytes, warnings %v", len(f.ICC), result.Warnings)
		}
	}
}

// icc makes a profile with these tags, of no use but of the right form.
func icc(space string, tags ...string) []byte {
	p := make([]byte, 132+12*len(tags)+20)
	p[3], p[2] = byte(len(p)), byte(len(p)>>8)
	copy(p[12:], "mntr")
	copy(p[16:], space)
	copy(p[20:], "XYZ ")
	copy(p[36:], "acsp")
	p[131] = byte(len(tags))
	for i, tag := range tags {
		copy(p[132+12*i:], tag)
		at := 132 + 12*len(tags)
		p[132+12*i+7], p[132+12*i+6], p[132+12*i+11] = byte(at), byte(at>>8), 20
	}
	return p
}
