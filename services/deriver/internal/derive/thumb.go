package derive

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"image"
	"image/color"
	"image/jpeg"
	"math"
	"os"
	"runtime"

	"colophon/services/deriver/internal/fault"
	jpegs "colophon/services/deriver/internal/jpeg"
	"colophon/services/deriver/internal/raster"

	recipes "colophon/shared/profile"
)

// thumb makes a small JPEG of a page, in this process: means of areas, then the
// standard library's encoder, both in whole numbers. It passes a gate like any
// other derivative.
func (j *job) thumb(ctx context.Context, page raster.Page, profile []byte, name string) (Output, error) {
	rows, err := raster.Upright(ctx, page, j.path("page.turn"))
	if err != nil {
		return Output{}, err
	}
	defer rows.Close()
	w, h := raster.Fit(rows.Info.Width, rows.Info.Height, j.Recipe.Side)
	samples, err := raster.Shrink(rows.Info, &heeding{ctx, rows}, w, h)
	if err != nil {
		return Output{}, err
	}
	small := raster.Info{Width: w, Height: h, Channels: rows.Info.Channels, Bits: 8}
	data, err := encodeThumb(small, samples, j.Recipe.Quality, profile)
	if err != nil {
		return Output{}, fault.Later(fault.EncoderFailed, err, "The thumbnail could not be encoded")
	}
	psnr, err := thumbGate(data, small, samples)
	if err != nil {
		return Output{}, fault.Later(fault.EncoderFailed, err, "The thumbnail is not what it should be")
	}
	if psnr < j.Recipe.MinPSNR {
		return Output{}, fault.Later(fault.EncoderFailed, errUnlike, "The thumbnail reaches %.1f dB; %.1f are the least", psnr, j.Recipe.MinPSNR)
	}
	if err := os.WriteFile(j.path(name), data, 0o600); err != nil {
		return Output{}, &raster.ScratchError{Err: err}
	}
	j.used[recipes.JPEG] = Helper{Name: recipes.JPEG, Version: runtime.Version()}
	j.args = []string{}
	sum := sha256.Sum256(data)
	return Output{Path: j.path(name), SHA256: hex.EncodeToString(sum[:]), Size: int64(len(data)), PSNR: psnr, Width: w, Height: h}, nil
}

// heeding ends a long reading with its context.
type heeding struct {
	ctx context.Context
	raster.Rows
}

func (h *heeding) Next(dst []byte) error {
	if err := h.ctx.Err(); err != nil {
		return err
	}
	return h.Rows.Next(dst)
}

// encodeThumb gives a JFIF file, whose pixels are square, with the profile.
func encodeThumb(info raster.Info, samples []byte, quality int, profile []byte) ([]byte, error) {
	var bare bytes.Buffer
	if err := jpeg.Encode(&bare, picture(info, samples), &jpeg.Options{Quality: quality}); err != nil {
		return nil, err
	}
	out := []byte{0xFF, 0xD8}
	out = appendSegment(out, 0xE0, []byte("JFIF\x00\x01\x02\x00\x00\x01\x00\x01\x00\x00"))
	const most = 65535 - 2 - 14 // bytes of a profile in one segment
	parts := (len(profile) + most - 1) / most
	if parts > 255 {
		return nil, errors.New("the colour profile is too long for a JPEG")
	}
	for i := range parts {
		head := append([]byte("ICC_PROFILE\x00"), byte(i+1), byte(parts))
		out = appendSegment(out, 0xE2, append(head, profile[i*most:min((i+1)*most, len(profile))]...))
	}
	return append(out, bare.Bytes()[2:]...), nil
}

func appendSegment(out []byte, marker byte, body []byte) []byte {
	out = append(out, 0xFF, marker)
	return append(binary.BigEndian.AppendUint16(out, uint16(len(body)+2)), body...) //nolint:gosec // the callers bound it
}

func picture(info raster.Info, samples []byte) image.Image {
	r := image.Rect(0, 0, info.Width, info.Height)
	if info.Channels == 1 {
		return &image.Gray{Pix: samples, Stride: info.Width, Rect: r}
	}
	img := image.NewRGBA(r)
	for i := range info.Width * info.Height {
		copy(img.Pix[4*i:4*i+3], samples[3*i:])
		img.Pix[4*i+3] = 255
	}
	return img
}

// thumbGate reads a thumbnail as a stranger would, to its last code, and gives
// its likeness to the samples in decibels: that of brightness, and of colour,
// which JPEG keeps at half the size, whichever is less.
func thumbGate(data []byte, info raster.Info, samples []byte) (float64, error) {
	src := raster.NewSource(bytes.NewReader(data), int64(len(data)))
	if _, err := jpegs.Read(src, DefaultLimits().bounds(), nil); err != nil {
		return 0, err
	}
	got, err := jpeg.Decode(bytes.NewReader(data))
	if err != nil {
		return 0, err
	}
	if got.Bounds() != image.Rect(0, 0, info.Width, info.Height) {
		return 0, errors.New("it has another size")
	}
	switch got := got.(type) {
	case *image.Gray:
		if info.Channels != 1 {
			return 0, errors.New("it has lost its colours")
		}
		return psnr(info.Width*info.Height, func(i int) (int, int) {
			return int(got.Pix[i/info.Width*got.Stride+i%info.Width]), int(samples[i])
		}), nil
	case *image.YCbCr:
		if info.Channels != 3 {
			return 0, errors.New("it has colours, its page has none")
		}
		return colourPSNR(got, info, samples), nil
	}
	return 0, errors.New("it decodes to another kind of image")
}

func colourPSNR(got *image.YCbCr, info raster.Info, samples []byte) float64 {
	w, h := info.Width, info.Height
	want := func(x, y int) (int, int, int) {
		px := samples[3*(y*w+x):]
		l, b, r := color.RGBToYCbCr(px[0], px[1], px[2])
		return int(l), int(b), int(r)
	}
	light := psnr(w*h, func(i int) (int, int) {
		l, _, _ := want(i%w, i/w)
		return int(got.Y[got.YOffset(i%w, i/w)]), l
	})
	// Of colour, means over the squares of 2 by 2 that share a sample, the last
	// row and column repeated: as the encoder makes them.
	half := (w + 1) / 2
	chroma := func(red bool) float64 {
		return psnr(half*((h+1)/2), func(i int) (int, int) {
			x, y, sum := i%half*2, i/half*2, 0
			for k := range 4 {
				_, b, r := want(min(x+k&1, w-1), min(y+k>>1, h-1))
				if red {
					b = r
				}
				sum += b
			}
			at := got.COffset(x, y)
			if red {
				return int(got.Cr[at]), (sum + 2) / 4
			}
			return int(got.Cb[at]), (sum + 2) / 4
		})
	}
	return min(light, chroma(false), chroma(true))
}

func psnr(n int, pair func(i int) (got, want int)) float64 {
	var square float64
	for i := range n {
		got, want := pair(i)
		square += float64((got - want) * (got - want))
	}
	if square == 0 {
		return 999 // equal, which JSON has no number for
	}
	return 10 * math.Log10(255*255*float64(n)/square)
}
