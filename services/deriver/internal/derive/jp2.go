package derive

import (
	"context"
	"errors"
	"os"

	"colophon/services/deriver/internal/fault"
	"colophon/services/deriver/internal/jp2"
	"colophon/services/deriver/internal/raster"
)

// readJP2 checks a JP2 master. Its pixels come from opj_decompress, which is
// given the bare codestream: the boxes' colour specification would make it
// change the samples.
func (j *job) readJP2(_ context.Context, m *master) (*raster.Image, error) {
	f, err := jp2.Read(m.src, m.src.Size())
	if err != nil {
		return nil, err
	}
	page := raster.Page{Orientation: 1, ICC: f.ICC, Resolution: f.Resolution}
	if page.Info, err = j.jp2Info(f); err != nil {
		return nil, err
	}
	page.Open = func(ctx context.Context) (raster.Rows, error) { return j.openJP2(ctx, m, f, page.Info) }
	img := &raster.Image{Pages: []raster.Page{page}}
	img.Technical = raster.Technical{
		Format: "JP2", Width: f.Width, Height: f.Height, BitsPerSample: page.Bits, Samples: len(f.Components),
		ColourSpace: "gray", Compression: "jpeg2000", Pages: 1, Orientation: 1,
		XResolution: f.Resolution.X, YResolution: f.Resolution.Y, Unit: f.Resolution.Unit,
	}
	if page.Channels == 3 {
		img.Technical.ColourSpace = "rgb"
	}
	return img, nil
}

// jp2Info refuses what is not plain gray or RGB.
func (j *job) jp2Info(f *jp2.File) (raster.Info, error) {
	info := raster.Info{Width: f.Width, Height: f.Height, Channels: len(f.Components), Bits: f.Components[0].Bits}
	if err := j.Limits.bounds().Check(int64(f.Width), int64(f.Height)); err != nil {
		return info, err
	}
	for _, c := range f.Components {
		if c.Signed || c.Bits != info.Bits || c.DX != 1 || c.DY != 1 {
			return info, fault.Refuse(fault.NoSampleFormat, "The components are signed, subsampled or of different depths")
		}
	}
	switch {
	case f.Alpha != nil:
		// To leave a component out opj_decompress also leaves out the colour
		// transform: the picture would be wrong.
		return info, fault.Refuse(fault.NoLayout, "JP2 files with transparency are not read")
	case f.Palette:
		return info, fault.Refuse(fault.NoLayout, "JP2 files with a palette are not read")
	case info.Channels != 1 && info.Channels != 3:
		return info, fault.Refuse(fault.NoLayout, "JP2 files of %d components are not read", len(f.Components))
	case info.Bits < 8 || info.Bits > 16:
		return info, fault.Refuse(fault.NoDepth, "JP2 samples of %d bits are not read", info.Bits)
	case f.ICC == nil && (info.Channels == 1 && f.Enumerated != jp2.EnumGray || info.Channels == 3 && f.Enumerated != jp2.EnumSRGB):
		return info, fault.Refuse(fault.NoPhotometric, "Colour space %d of JP2 is not read", f.Enumerated)
	}
	return info, nil
}

// openJP2 decodes the codestream into a file and reads that.
func (j *job) openJP2(ctx context.Context, m *master, f *jp2.File, info raster.Info) (raster.Rows, error) {
	if err := f.Extract(m.src, j.path("master.j2k")); err != nil {
		return nil, err
	}
	defer os.Remove(j.path("master.j2k"))
	name := "master.pgm"
	if info.Channels == 3 {
		name = "master.ppm"
	}
	args := []string{"-i", "master.j2k", "-o", name, "-threads", "1"}
	if err := j.blameDisk(j.help(ctx, decoder, args, info), info); err != nil {
		var known *fault.Fault
		if errors.As(err, &known) && known.Code == fault.EncoderFailed {
			known.Code, known.Message = fault.DecoderFailed, "The program opj_decompress failed on a master that had passed the check"
		}
		return nil, err
	}
	file, err := os.Open(j.path(name))
	if err != nil {
		return nil, fault.Later(fault.DecoderFailed, err, "The program opj_decompress left no file")
	}
	if err := os.Remove(file.Name()); err != nil {
		file.Close()
		return nil, &raster.ScratchError{Err: err}
	}
	pnm, err := raster.NewPNM(file)
	if err != nil || pnm.Info != info {
		file.Close()
		return nil, fault.Later(fault.DecoderFailed, err, "The program opj_decompress gave another image than the master's headers say")
	}
	return &decodedRows{pnm, file}, nil
}

// decodedRows are those of a decoder's output file.
type decodedRows struct {
	*raster.PNM
	file *os.File
}

// Next implements raster.Rows. A file that ends too early is the decoder's
// fault: the headers had been checked.
func (d *decodedRows) Next(dst []byte) error { return d.judge(d.PNM.Next(dst)) }

// Finish implements raster.Rows.
func (d *decodedRows) Finish() error { return d.judge(d.PNM.Finish()) }

func (d *decodedRows) judge(err error) error {
	if err == nil {
		return nil
	}
	return fault.Later(fault.DecoderFailed, err, "The program opj_decompress gave an image that is not whole")
}

// Close implements raster.Rows.
func (d *decodedRows) Close() error { return d.file.Close() }
