package jpeg

import (
	"context"
	"errors"
	"io"
	"strings"

	"colophon/services/deriver/internal/fault"
	"colophon/services/deriver/internal/helper"
	"colophon/services/deriver/internal/raster"
)

// rows are those that a djpeg writes while they are read.
type rows struct {
	*raster.PNM
	cancel context.CancelFunc
	pipe   *io.PipeReader
	done   chan error
	ended  bool
	err    error
}

// Decode runs djpeg on a JPEG stream, which must give exactly the image wanted.
// The rows are good only if Finish, which waits for djpeg's own verdict, says
// so. dir is djpeg's working directory.
func Decode(ctx context.Context, stream io.Reader, want raster.Info, dir string, limits helper.Limits) (raster.Rows, error) {
	ctx, cancel := context.WithCancel(ctx)
	pr, pw := io.Pipe()
	r := &rows{cancel: cancel, pipe: pr, done: make(chan error, 1)}
	go func() {
		_, err := helper.Run(ctx, helper.Command{
			Program: "djpeg", Args: []string{"-strict", "-maxscans", "500", "-pnm"},
			Dir: dir, Stdin: stream, Stdout: pw, Limits: limits,
		})
		r.done <- err
		pw.CloseWithError(io.EOF)
	}()
	var err error
	if r.PNM, err = raster.NewPNM(pr); err != nil {
		err = r.verdict(err)
		_ = r.Close()
		return nil, err
	}
	if r.Info != want {
		_ = r.Close()
		return nil, fault.Refuse(fault.BadStructure, "The JPEG data is an image of %d by %d pixels and %d components instead of %d by %d and %d",
			r.Width, r.Height, r.Channels, want.Width, want.Height, want.Channels)
	}
	return r, nil
}

// Next implements raster.Rows.
func (r *rows) Next(dst []byte) error {
	if err := r.PNM.Next(dst); err != nil {
		return r.verdict(err)
	}
	return nil
}

// Finish implements raster.Rows.
func (r *rows) Finish() error { return r.verdict(r.PNM.Finish()) }

// verdict waits for djpeg and gives its fault, or reading's if it has none.
func (r *rows) verdict(reading error) error {
	if reading != nil && !errors.Is(reading, io.EOF) && !errors.Is(reading, io.ErrUnexpectedEOF) {
		r.cancel()
	}
	if !r.ended {
		r.err, r.ended = <-r.done, true
	}
	if r.err == nil {
		if reading != nil {
			return fault.Later(fault.DecoderFailed, reading, "The program djpeg gave an image that is not whole")
		}
		return nil
	}
	return classify(r.err)
}

// Close implements raster.Rows.
func (r *rows) Close() error {
	r.cancel()
	_ = r.pipe.Close() // so that djpeg's writer does not wait for a reader
	if !r.ended {
		r.err, r.ended = <-r.done, true
	}
	return nil
}

// complaints are the beginnings of what libjpeg says about data that is
// damaged or contradictory, after the program's name. Anything else that makes
// djpeg fail (memory, a full disk, a signal) is not the master's fault.
var complaints = []string{
	"Corrupt JPEG data", "Premature end of JPEG", "Bogus", "Invalid JPEG", "Invalid progressive", "Invalid SOS", "Invalid component",
	"Inconsistent progression", "Unsupported marker", "Unsupported JPEG", "Huffman table", "Quantization table", "Missing Huffman",
	"Not a JPEG", "Didn't expect more than one scan", "Sampling factors", "Empty JPEG", "Component index", "Too many color",
	"Warning: unknown JFIF", "Unknown Adobe", "Scan number", "Obtained", "Improper", "CCIR601", "Fractional", "Application", "Did not expect",
	"Unexpected", "Two SOF", "Wrong", "JPEG datastream contains no image", "Cannot quantize", "Missing", "Duplicate", "Unsupported color conversion",
	"Warning:",
}

func classify(err error) error {
	var failed *helper.Failure
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.Is(err, helper.ErrMissing):
		return fault.Halt(fault.DecoderMissing, err, "The program djpeg, which reads JPEG data, is not installed")
	case !errors.As(err, &failed):
		return fault.Later(fault.DecoderFailed, err, "The program djpeg could not be run")
	}
	if failed.Signal == 0 && (failed.Status == 1 || failed.Status == 2) {
		for line := range strings.Lines(failed.Stderr) {
			line = strings.TrimSpace(line)
			for _, c := range complaints {
				if strings.HasPrefix(line, c) {
					f := fault.Refuse(fault.DataCorrupt, "The JPEG data is damaged: %s", line)
					f.Err = err
					return f.WithStderr(failed.Stderr)
				}
			}
		}
	}
	return fault.Later(fault.DecoderFailed, err, "The program djpeg failed").WithStderr(failed.Stderr)
}
