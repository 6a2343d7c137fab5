package derive

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"

	"colophon/services/deriver/internal/fault"
	"colophon/services/deriver/internal/jp2"
	"colophon/services/deriver/internal/raster"

	recipes "colophon/shared/profile"
)

// profile decides about a page's colour profile before anything is encoded:
// the profile to embed, nil for none, or a refusal where leaving it out would
// change the colours.
func (j *job) profile(image *raster.Image, page raster.Page) ([]byte, error) {
	if page.ICC == nil {
		return nil, nil
	}
	if image.Technical.ICCName == "" {
		image.Technical.ICCName = jp2.ProfileName(page.ICC)
	}
	fit, profile := jp2.Judge(page.ICC, page.Channels)
	if fit == jp2.Forbidden && profile != nil && j.Recipe.Encoder == recipes.JPEG {
		return profile, nil // JPEG takes profiles of every kind
	}
	switch fit {
	case jp2.Broken:
		image.Warn("icc-broken", "The embedded colour profile is damaged and was left out")
	case jp2.Foreign:
		image.Warn("icc-foreign", "The embedded colour profile is for another kind of image and was left out")
	case jp2.Forbidden:
		return nil, fault.Refuse(fault.NoICC, "The embedded colour profile %q is of a kind that JP2 does not allow, and without it the colours would be wrong", jp2.ProfileName(page.ICC))
	}
	return profile, nil
}

// finish writes the final file: the encoder's with profile and resolution.
func (j *job) finish(c *coded, profile []byte, resolution raster.Resolution, name string) (Output, error) {
	in, err := os.Open(c.path)
	if err != nil {
		return Output{}, &raster.ScratchError{Err: err}
	}
	defer in.Close()
	path := j.path(name)
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return Output{}, &raster.ScratchError{Err: err}
	}
	defer file.Close()
	sum := sha256.New()
	buffered := bufio.NewWriterSize(file, 1<<20)
	if err := jp2.Rewrite(io.MultiWriter(buffered, sum), in, c.size, profile, resolution); err != nil {
		return Output{}, &raster.ScratchError{Err: err}
	}
	if err := buffered.Flush(); err != nil {
		return Output{}, &raster.ScratchError{Err: err}
	}
	stat, err := file.Stat()
	if err != nil {
		return Output{}, &raster.ScratchError{Err: err}
	}
	// The finished file is read once more as a stranger would.
	if _, err := jp2.Read(file, stat.Size()); err != nil {
		return Output{}, fault.Later(fault.EncoderFailed, err, "The finished derivative is not whole")
	}
	return Output{
		Path: path, SHA256: hex.EncodeToString(sum.Sum(nil)), Size: stat.Size(), Exact: c.exact, PSNR: c.psnr,
	}, nil
}
