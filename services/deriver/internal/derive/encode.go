package derive

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"colophon/services/deriver/internal/fault"
	"colophon/services/deriver/internal/helper"
	"colophon/services/deriver/internal/jp2"
	"colophon/services/deriver/internal/raster"
)

// coded is an encoded page that has passed the gate.
type coded struct {
	path  string
	size  int64
	exact bool
	psnr  float64
}

// errUnlike is a derivative that is well formed but not like enough.
var errUnlike = errors.New("the derivative is not like enough to the master")

// encode makes the page's codestream by the recipe and passes it through the
// gate.
func (j *job) encode(ctx context.Context, plain *raster.Plain) (*coded, error) {
	c, err := j.encodeAs(ctx, plain)
	return c, j.blameDisk(err, plain.Info)
}

func (j *job) encodeAs(ctx context.Context, plain *raster.Plain) (*coded, error) {
	args, exact := j.Recipe.Args, j.Recipe.Lossless
	if !exact && plain.Pixels() < j.Recipe.ExactBelow {
		args, exact = j.Recipe.ExactArgs, true
	}
	c, err := j.attempt(ctx, plain, args, exact)
	if errors.Is(err, errUnlike) && !exact && j.Recipe.ExactArgs != nil {
		// A picture that a fixed ratio would ruin: as the recipe says, exactly.
		c, err = j.attempt(ctx, plain, j.Recipe.ExactArgs, true)
	}
	return c, err
}

// attempt encodes once and checks the result.
func (j *job) attempt(ctx context.Context, plain *raster.Plain, args []string, exact bool) (*coded, error) {
	out := j.path("page.jp2")
	if err := os.Remove(out); err != nil && !os.IsNotExist(err) {
		return nil, &raster.ScratchError{Err: err}
	}
	args = slices.Concat([]string{"-i", "page.tif", "-o", "page.jp2"}, args, []string{"-threads", "1"})
	if j.args == nil {
		j.args = args
	}
	if err := j.help(ctx, encoder, args, plain.Info); err != nil {
		return nil, err
	}
	c := &coded{path: out, exact: exact}
	if err := j.gate(ctx, plain, c); err != nil {
		return nil, err
	}
	return c, nil
}

// help runs one of the JPEG 2000 programs on a page, with the memory reserved.
func (j *job) help(ctx context.Context, p *helper.Program, args []string, page raster.Info) error {
	need, limits, err := j.helperLimits(page)
	if err != nil {
		return err
	}
	v, err := p.Version(ctx)
	if err == nil {
		j.used[v.Name] = v
		var release func()
		if release, err = j.reserve(ctx, need); err == nil {
			_, err = helper.Run(ctx, helper.Command{Program: p.Name, Args: args, Dir: j.dir, Limits: limits})
			release()
		}
	}
	if err != nil {
		return j.helperFault(ctx, p, err)
	}
	return nil
}

// reserve waits for a helper's memory, in bytes.
func (j *job) reserve(ctx context.Context, bytes int64) (release func(), err error) {
	if j.Reserve == nil {
		return func() {}, nil
	}
	if release, err = j.Reserve(ctx, bytes); err != nil {
		return nil, fmt.Errorf("reserve %d bytes: %w", bytes, err)
	}
	return release, nil
}

// spareBytes is the space, beside a page's own size, below which a helper's
// failure is taken to be the full disk's.
const spareBytes = 8 << 20

// blameDisk gives the full disk in place of what it made a helper do: fail, or
// leave less than it should, with an exit status that says nothing of it. The
// helper may have removed its own output since.
func (j *job) blameDisk(err error, page raster.Info) error {
	var known *fault.Fault
	if !errors.As(err, &known) || known.Code != fault.EncoderFailed && known.Code != fault.DecoderFailed {
		return err
	}
	var fs unix.Statfs_t
	if serr := unix.Statfs(j.dir, &fs); serr != nil || int64(fs.Bavail)*fs.Bsize >= spareBytes+int64(page.RowBytes())*int64(page.Height) {
		return err
	}
	return fault.Halt(fault.ScratchFull, err, "There is no space left in the scratch directory").WithStderr(known.Stderr)
}

// helperFault classes a helper's failure. It is never the master's: that has
// been checked.
func (j *job) helperFault(ctx context.Context, p *helper.Program, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if errors.Is(err, helper.ErrMissing) {
		return fault.Halt(fault.EncoderMissing, err, "The program %s is not installed", p.Name)
	}
	var failed *helper.Failure
	stderr := ""
	if errors.As(err, &failed) {
		stderr = failed.Stderr
	}
	return fault.Later(fault.EncoderFailed, err, "The program %s failed on a page that had passed the check", p.Name).WithStderr(stderr)
}

// gate checks a derivative: its structure, its size and depth, and its
// pixels, whole if they must be equal and reduced by 4 otherwise.
func (j *job) gate(ctx context.Context, plain *raster.Plain, c *coded) error {
	file, err := os.Open(c.path)
	if err != nil {
		return fault.Later(fault.EncoderFailed, err, "The encoder left no file")
	}
	defer file.Close()
	stat, err := file.Stat()
	if err != nil {
		return &raster.ScratchError{Err: err}
	}
	c.size = stat.Size()
	f, err := jp2.Read(file, c.size)
	if err != nil {
		return fault.Later(fault.EncoderFailed, err, "The encoder left a file that is not whole")
	}
	if err := sameShape(f, plain.Info); err != nil {
		return fault.Later(fault.EncoderFailed, err, "The encoder left another image than it was given")
	}
	return j.compare(ctx, plain, c)
}

func sameShape(f *jp2.File, want raster.Info) error {
	enum := jp2.EnumGray
	if want.Channels == 3 {
		enum = jp2.EnumSRGB
	}
	if f.Width != want.Width || f.Height != want.Height || len(f.Components) != want.Channels || f.Enumerated != enum || f.Palette || f.Alpha != nil {
		return fmt.Errorf("%d by %d with %d components and colour space %d", f.Width, f.Height, len(f.Components), f.Enumerated)
	}
	for _, c := range f.Components {
		if c != (jp2.Component{Bits: want.Bits, DX: 1, DY: 1}) {
			return fmt.Errorf("a component of %d bits", c.Bits)
		}
	}
	return nil
}

// compare decodes the derivative with another program than made it and
// compares it with the samples the encoder was given.
func (j *job) compare(ctx context.Context, plain *raster.Plain, c *coded) error {
	name, want := "page.pgm", plain.Info
	if want.Channels == 3 {
		name = "page.ppm"
	}
	args := []string{"-i", "page.jp2", "-o", name, "-threads", "1"}
	if !c.exact {
		args = append(args, "-r", "2")
		want = raster.Quarter(want)
	}
	if err := j.help(ctx, decoder, args, want); err != nil {
		return err
	}
	defer os.Remove(j.path(name))
	file, err := os.Open(j.path(name))
	if err != nil {
		return fault.Later(fault.EncoderFailed, err, "The derivative could not be decoded")
	}
	defer file.Close()
	decoded, err := raster.NewPNM(file)
	if err != nil {
		return fault.Later(fault.EncoderFailed, err, "The derivative could not be decoded")
	}
	if decoded.Info != want {
		return fault.Later(fault.EncoderFailed, nil, "The derivative decodes to another size or depth")
	}
	samples, err := plain.Rows()
	if err != nil {
		return err
	}
	defer samples.Close()
	return c.judge(plain.Info, samples, decoded, j.Recipe.MinPSNR)
}

func (c *coded) judge(info raster.Info, samples *raster.Reader, decoded *raster.PNM, floor float64) error {
	if c.exact {
		row, err := raster.Equal(info, samples, decoded)
		if err != nil {
			return decodeFault(err)
		}
		if row >= 0 {
			return fault.Later(fault.EncoderFailed, nil, "The derivative should equal the master but differs from row %d on", row)
		}
		return nil
	}
	var err error
	if c.psnr, err = raster.QuarterPSNR(info, samples, decoded); err != nil {
		return decodeFault(err)
	}
	if math.IsInf(c.psnr, 1) {
		c.psnr = 999 // equal at a quarter of the size, which JSON has no number for
	}
	if c.psnr < floor {
		return fault.Later(fault.EncoderFailed, errUnlike, "The derivative reaches %.1f dB; %.1f are the least", c.psnr, floor)
	}
	return nil
}

// decodeFault tells a decoder's short output from an error of the disk.
func decodeFault(err error) error {
	if errors.Is(err, raster.ErrPNM) {
		return fault.Later(fault.EncoderFailed, err, "The derivative could not be decoded")
	}
	return err
}

func sortHelpers(all []Helper) {
	slices.SortFunc(all, func(a, b Helper) int { return strings.Compare(a.Name, b.Name) })
}
