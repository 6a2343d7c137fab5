package derive_test

import (
	"testing"

	"colophon/services/deriver/internal/derive"
	"colophon/services/deriver/internal/tifftest"
)

// TestTechnical: what a master says about itself is told in full, of the page
// and not of the thumbnail before it.
func TestTechnical(t *testing.T) {
	t.Parallel()
	text := func(s string) tifftest.Value { return tifftest.Value{Type: 2, Raw: append([]byte(s), 0)} }
	thumbnail := tifftest.Spec{Width: 16, Height: 12, Bits: 8, Samples: 1, Photometric: 1, Extra: map[uint16]tifftest.Value{254: {Type: 4, Numbers: []uint64{1}}}}
	page := tifftest.Spec{Width: 60, Height: 80, Bits: 16, Samples: 4, Photometric: 2, Compression: 8, Extra: map[uint16]tifftest.Value{
		271: text("Zeutschel"), 272: text("OS 14000"), 305: text("OmniScan 12"), 306: text("2024:03:05 10:11:12"),
		274: {Type: 3, Numbers: []uint64{3}}, 282: rational(600, 1), 283: rational(300, 1), 296: {Type: 3, Numbers: []uint64{2}},
		34675: {Type: 7, Raw: named(icc("RGB ", "rXYZ", "gXYZ", "bXYZ", "rTRC", "gTRC", "bTRC", "desc"), "eciRGB")},
	}}
	result, err := run(t, "a.tif", tifftest.File(thumbnail, page), nil)
	if err != nil {
		t.Fatal(err)
	}
	want := derive.Technical{
		Format: "TIFF", Width: 60, Height: 80, BitsPerSample: 16, Samples: 4, ColourSpace: "rgb", Compression: "deflate", ICCName: "eciRGB",
		XResolution: 600, YResolution: 300, Unit: "in", Pages: 1, Orientation: 3,
		Make: "Zeutschel", Model: "OS 14000", Software: "OmniScan 12", DateTime: "2024:03:05 10:11:12",
	}
	if result.Technical != want {
		t.Errorf("got  %+v\nwant %+v", result.Technical, want)
	}
	codes := map[string]bool{}
	for _, w := range result.Warnings {
		codes[w.Code] = true
	}
	if len(result.Outputs) != 1 || result.Outputs[0].Width != 60 || !codes["thumbnail"] || !codes["alpha-dropped"] {
		t.Errorf("%+v, warnings %v", result.Outputs, result.Warnings)
	}
}

// named gives a profile of icc a description; its last tag is "desc".
func named(p []byte, name string) []byte {
	at := len(p) - 20 // where all tags' data lies
	copy(p[at:], "desc\x00\x00\x00\x00\x00\x00\x00")
	p[at+11] = byte(len(name) + 1)
	copy(p[at+12:], name)
	return p
}
