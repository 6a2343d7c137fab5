// Command gen builds images.sig, the signature that the package embeds, from
// images.xml beside it. It needs no network and no files but that one.
package main

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"time"

	"github.com/richardlehane/siegfried"
	"github.com/richardlehane/siegfried/pkg/config"
	"github.com/richardlehane/siegfried/pkg/pronom"
)

func main() {
	if err := build("images.xml", "images.sig"); err != nil {
		log.Fatal(err)
	}
}

// build compiles the signatures at from into to. The details it stores name
// the text it was built from, so that a test can tell a stale signature.
func build(from, to string) error {
	path, err := filepath.Abs(from)
	if err != nil {
		return err
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	id, err := pronom.New(
		config.Clear(), config.SetName("colophon-images"), config.SetDetails(fmt.Sprintf("sha256:%x", sha256.Sum256(text))),
		config.SetDroid(path), config.SetNoReports(), config.SetNoContainer(), config.SetNoXML(), config.SetNoRIFF(),
		config.SetNoText(), config.SetNoMIME(), config.SetNoClass(),
	)
	if err != nil {
		return fmt.Errorf("build %s: %w", from, err)
	}
	sf := siegfried.New()
	sf.C = time.Unix(0, 0).UTC() // no time of building; the library still writes its tables in any order
	if err := sf.Add(id); err != nil {
		return fmt.Errorf("build %s: %w", from, err)
	}
	var out bytes.Buffer
	if err := sf.SaveWriter(&out); err != nil {
		return fmt.Errorf("write %s: %w", to, err)
	}
	return os.WriteFile(to, out.Bytes(), 0o644) //nolint:gosec // a source file
}
