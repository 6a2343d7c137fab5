package derive

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"

	"colophon/services/deriver/internal/fault"
	"colophon/services/deriver/internal/helper"
	"colophon/services/deriver/internal/jp2"
	"colophon/services/deriver/internal/jpeg"
	"colophon/services/deriver/internal/png"
	"colophon/services/deriver/internal/raster"
	"colophon/services/deriver/internal/tiff"
)

// master is the open file, whose bytes are known to be those of its digest.
type master struct {
	file *os.File
	stat fs.FileInfo
	src  *raster.Source
	head []byte
}

// openMaster opens the master and hashes all of it.
func (j *job) openMaster(ctx context.Context) (*master, error) {
	file, err := os.Open(j.Path)
	if err != nil {
		return nil, fault.Later(fault.ReadFailed, err, "The master could not be opened")
	}
	m := &master{file: file}
	if err := m.check(ctx, j.Digest); err != nil {
		file.Close()
		return nil, err
	}
	return m, nil
}

func (m *master) check(ctx context.Context, digest string) error {
	var err error
	if m.stat, err = m.file.Stat(); err != nil {
		return fault.Later(fault.ReadFailed, err, "The master could not be read")
	}
	if !m.stat.Mode().IsRegular() {
		return fault.Later(fault.ReadFailed, nil, "The master is not a file")
	}
	sum := sha256.New()
	buf := make([]byte, 1<<20)
	n, err := io.CopyBuffer(struct{ io.Writer }{sum}, &interruptible{ctx, m.file}, buf)
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fault.Later(fault.ReadFailed, err, "The master could not be read")
	}
	if got := hex.EncodeToString(sum.Sum(nil)); digest != "" && !strings.EqualFold(got, digest) {
		return fault.Refuse(fault.MasterDamaged, "The master's bytes have the digest %s instead of %s", got, digest)
	}
	if n == 0 {
		return fault.Refuse(fault.Empty, "The file is empty")
	}
	m.src = raster.NewSource(m.file, n)
	m.head = make([]byte, min(n, 64))
	if _, err := m.src.ReadAt(m.head, 0); err != nil && !errors.Is(err, io.EOF) {
		return m.src.Err()
	}
	return m.unchanged()
}

// interruptible reads until ctx ends.
type interruptible struct {
	ctx context.Context
	r   io.Reader
}

func (i *interruptible) Read(p []byte) (int, error) {
	if err := i.ctx.Err(); err != nil {
		return 0, err
	}
	return i.r.Read(p)
}

// unchanged makes sure that the file is still the one that was hashed.
func (m *master) unchanged() error {
	now, err := m.file.Stat()
	if err != nil {
		return fault.Later(fault.ReadFailed, err, "The master could not be read")
	}
	if now.Size() != m.stat.Size() || !now.ModTime().Equal(m.stat.ModTime()) || m.src.Size() != now.Size() {
		return fault.Later(fault.ReadFailed, nil, "The master was changed while it was read")
	}
	return nil
}

// judge gives the disk's own error in place of what a decoder made of it.
func (m *master) judge(err error) error {
	if err == nil {
		return nil
	}
	if cause := m.src.Err(); cause != nil {
		return cause
	}
	return err
}

func (m *master) close() { m.file.Close() }

// format is a kind of file, told by its first bytes.
type format struct {
	name       string
	extensions []string
	is         func(head []byte) bool
}

func begins(with ...string) func([]byte) bool {
	return func(head []byte) bool {
		for _, w := range with {
			if bytes.HasPrefix(head, []byte(w)) {
				return true
			}
		}
		return false
	}
}

// formats are those that are read.
var formats = []format{
	{"TIFF", []string{".tif", ".tiff"}, begins("II*\x00", "MM\x00*", "II+\x00", "MM\x00+")},
	{"PNG", []string{".png"}, begins("\x89PNG\r\n\x1a\n")},
	{"JPEG", []string{".jpg", ".jpeg"}, begins("\xff\xd8\xff")},
	{"JP2", []string{".jp2"}, jp2.Signed},
}

// sniff finds the master's format by its content, and refuses one whose name
// says another.
func (m *master) sniff(name string) (string, error) {
	at := slices.IndexFunc(formats, func(f format) bool { return f.is(m.head) })
	claim := slices.IndexFunc(formats, func(f format) bool { return slices.Contains(f.extensions, extension(name)) })
	switch {
	case at >= 0 && (claim < 0 || claim == at):
		return formats[at].name, nil
	case at >= 0:
		return "", fault.Refuse(fault.FormatMismatch, "The file is a %s, but its name ends in %s", formats[at].name, extension(name))
	case claim < 0:
		return "", fault.Refuse(fault.NoFormat, "The file is none of the formats that are read")
	case len(m.head) < 8:
		return "", fault.Refuse(fault.Truncated, "The file has only %d bytes", len(m.head))
	}
	return "", fault.Refuse(fault.FormatMismatch, "The file's name ends in %s, but its content is no %s", extension(name), formats[claim].name)
}

// read checks the master's structure and prepares its pages.
func (j *job) read(ctx context.Context, m *master) (*raster.Image, error) {
	kind, err := m.sniff(j.Name)
	if err != nil {
		return nil, err
	}
	bounds := j.Limits.bounds()
	switch kind {
	case "PNG":
		return png.Read(m.src, bounds)
	case "JPEG":
		return jpeg.Read(m.src, bounds, j.decodeJPEG)
	case "JP2":
		return j.readJP2(ctx, m)
	}
	return tiff.Read(m.src, tiff.Options{Bounds: bounds, JPEG: j.decodeJPEG})
}

// decodeJPEG runs djpeg on a stream.
func (j *job) decodeJPEG(ctx context.Context, stream io.Reader, want raster.Info) (raster.Rows, error) {
	v, err := djpeg.Version(ctx)
	if err != nil {
		if errors.Is(err, helper.ErrMissing) {
			return nil, fault.Halt(fault.DecoderMissing, err, "The program djpeg, which reads JPEG data, is not installed")
		}
		return nil, fault.Later(fault.DecoderFailed, err, "The program djpeg does not run")
	}
	j.used[v.Name] = v
	need, limits, err := j.helperLimits(want)
	if err != nil {
		return nil, err
	}
	release, err := j.reserve(ctx, need)
	if err != nil {
		return nil, err
	}
	rows, err := jpeg.Decode(ctx, stream, want, j.dir, limits)
	if err != nil {
		release()
		return nil, err
	}
	return &reservedRows{rows, sync.OnceFunc(release)}, nil
}

// reservedRows come from a helper that runs until they are closed.
type reservedRows struct {
	raster.Rows
	release func()
}

// Close implements raster.Rows.
func (r *reservedRows) Close() error {
	defer r.release()
	return r.Rows.Close()
}
