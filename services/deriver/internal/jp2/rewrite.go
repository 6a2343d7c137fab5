package jp2

import (
	"bytes"
	"fmt"
	"io"
	"os"

	"colophon/services/deriver/internal/raster"
)

// Rewrite copies the JP2 file at size bytes of r to w, with profile, if there
// is one, as its colour specification, and the capture resolution, if it is
// known. The codestream is copied byte for byte. The profile must be one that
// Embeddable accepts.
func Rewrite(w io.Writer, r io.ReaderAt, size int64, profile []byte, resolution raster.Resolution) error {
	boxes, err := readBoxes(r, 0, size)
	if err != nil {
		return err
	}
	for _, b := range boxes {
		if b.kind != "jp2h" {
			whole := io.NewSectionReader(r, b.start, b.off+b.size-b.start)
			if _, err := io.Copy(w, whole); err != nil {
				return fmt.Errorf("copy box %q: %w", b.kind, err)
			}
			continue
		}
		old, err := content(r, b)
		if err != nil {
			return err
		}
		header, err := rewriteHeader(old, profile, resolution)
		if err != nil {
			return err
		}
		if _, err := w.Write(header); err != nil {
			return fmt.Errorf("write header: %w", err)
		}
	}
	return nil
}

func rewriteHeader(old, profile []byte, resolution raster.Resolution) ([]byte, error) {
	r := bytes.NewReader(old)
	boxes, err := readBoxes(r, 0, int64(len(old)))
	if err != nil {
		return nil, err
	}
	var body []byte
	for _, b := range boxes {
		switch {
		case b.kind == "res ":
			continue
		case b.kind == "colr" && profile != nil:
			body = append(body, makeBox("colr", []byte{methodRestricted, 0, 0}, profile)...)
		default:
			body = append(body, old[b.start:b.off+b.size]...)
		}
	}
	return makeBox("jp2h", append(body, resolutionBox(resolution)...)), nil
}

// Extract copies the codestream of a checked file to a new file at path.
func (f *File) Extract(r io.ReaderAt, path string) error {
	out, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return &raster.ScratchError{Err: err}
	}
	_, err = io.Copy(out, io.NewSectionReader(r, f.Offset, f.Size))
	if cerr := out.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return &raster.ScratchError{Err: err}
	}
	return nil
}

// Spec is the kind of a file's colour specification, for tests and reports.
func (f *File) Spec() string {
	if f.ICC != nil {
		return fmt.Sprintf("icc:%d", len(f.ICC))
	}
	return fmt.Sprintf("enum:%d", f.Enumerated)
}
