package bag

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"

	"colophon/shared/storage"
)

// manifest is a checksum file that grows by a line for each file.
type manifest struct {
	name string
	file *storage.File
	out  *bufio.Writer
}

func newManifest(tree *storage.Tree, name string) (*manifest, error) {
	f, err := tree.Create(name)
	if err != nil {
		return nil, err
	}
	return &manifest{name: name, file: f, out: bufio.NewWriterSize(f, 64<<10)}, nil
}

// add lists a file. In a manifest LF, CR and % of a path are percent-encoded,
// and nothing else (RFC 8493, 2.1.3).
func (m *manifest) add(d storage.Digest, path string) error {
	_, err := fmt.Fprintf(m.out, "%s  %s\n", d, manifestPath.Replace(path))
	return err
}

var manifestPath = strings.NewReplacer("%", "%25", "\n", "%0A", "\r", "%0D")

func (m *manifest) close() (storage.Written, error) {
	flushErr := m.out.Flush()
	w, err := m.file.Close()
	return w, errors.Join(flushErr, err)
}

// buffered lets write go through a buffer to out.
func buffered(out io.Writer, write func(io.Writer) error) error {
	b := bufio.NewWriterSize(out, 64<<10)
	if err := write(b); err != nil {
		return err
	}
	return b.Flush()
}
