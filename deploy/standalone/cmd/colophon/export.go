package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"colophon/deploy/standalone"
	"colophon/shared/event"
	"colophon/shared/storage"
	"colophon/shared/transfer"
)

type exportCmd struct {
	Kind string `arg:"" help:"What: premis, bag or tsv." enum:"premis,bag,tsv"`
	What string `arg:"" help:"Batch, or the SHA-256 of a master." name:"batch-or-digest"`
	Out  string `help:"Folder to write into." default:"." type:"path"`
}

func (c *exportCmd) Run(s *session) error {
	req := event.ExportRequest{Batch: event.Name(c.What)}
	if d := event.Digest(c.What); d.Valid() {
		req.Batch, req.Digest = "", d
	}
	if req.Digest != "" && c.Kind != "premis" {
		return fmt.Errorf("%w: only PREMIS is made of a digest; tables and bags are of a batch", standalone.ErrUsage)
	}
	a, err := s.existing()
	if err != nil {
		return err
	}
	defer a.Close() //nolint:errcheck // only read
	if req.Digest == "" {
		st, err := a.Status(s, req.Batch)
		if err != nil {
			return err
		}
		if !st.Known {
			return fmt.Errorf("%w: batch %s is not known", standalone.ErrUsage, req.Batch.Display())
		}
		req.MinPosition = st.Position
	}
	files, err := c.whole(func(dir string) error {
		switch c.Kind {
		case "bag":
			return s.copyBag(dir, req.Batch)
		case "tsv":
			if err := fetch(s, a, req, "tsv-events", dir); err != nil {
				return err
			}
			return fetch(s, a, req, "tsv-frames", dir)
		}
		return fetch(s, a, req, c.Kind, dir)
	})
	if err != nil {
		return err
	}
	return s.print(struct {
		Files []string `json:"files"`
	}{files}, func() {
		for _, f := range files {
			fmt.Println(f)
		}
	})
}

// whole has an export made in a folder of its own; what it made gets its place
// only when all of it is there. A failed export leaves nothing.
func (c *exportCmd) whole(export func(dir string) error) (files []string, err error) {
	if err := os.MkdirAll(c.Out, 0o777); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(c.Out, ".colophon-export-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // empty, or of a failure that is told
	if err := export(dir); err != nil {
		return nil, err
	}
	made, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, m := range made {
		to := filepath.Join(c.Out, m.Name())
		if err := os.Rename(filepath.Join(dir, m.Name()), to); err != nil {
			return nil, err
		}
		files = append(files, to)
	}
	return files, nil
}

// exportWait bounds one export: a batch of 100,000 frames is some gigabytes.
const exportWait = 2 * time.Hour

func fetch(s *session, a *standalone.Archive, req event.ExportRequest, kind, dir string) error {
	req.Kind = kind
	ctx, cancel := context.WithTimeout(s, exportWait)
	defer cancel()
	// the ledger of a line that has just been started takes a moment to answer
	if _, err := standalone.Call[json.RawMessage](ctx, a.Client, event.EndpointPremisPosition, struct{}{}); err != nil {
		return err
	}
	return transfer.Fetch(ctx, a.NC, event.EndpointPremisExport, req, func(file string) (io.WriteCloser, error) {
		return os.Create(filepath.Join(dir, filepath.Base(file)))
	})
}

// copyBag copies the bag that stands, file by file.
func (s *session) copyBag(dir string, batch event.Name) error {
	from := filepath.Join(s.Archive, filepath.FromSlash(storage.BagKey(string(batch))))
	if _, err := os.Stat(from); err != nil {
		return fmt.Errorf("batch %s has no bag: it has not converged", batch.Display())
	}
	return os.CopyFS(filepath.Join(dir, filepath.Base(from)), os.DirFS(from))
}
