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
	a, err := s.existing()
	if err != nil {
		return err
	}
	defer a.Close() //nolint:errcheck // only read
	var files []string
	req := event.ExportRequest{Batch: event.Name(c.What)}
	if d := event.Digest(c.What); d.Valid() {
		req.Batch, req.Digest = "", d
	} else {
		st, err := a.Status(s, req.Batch)
		if err != nil {
			return err
		}
		if !st.Known {
			return fmt.Errorf("%w: batch %s is not known", standalone.ErrUsage, req.Batch.Display())
		}
		req.MinPosition = st.Position
	}
	if err := os.MkdirAll(c.Out, 0o777); err != nil {
		return err
	}
	switch c.Kind {
	case "premis":
		files, err = c.fetch(s, a, req, "premis")
	case "tsv":
		if req.Digest != "" {
			return fmt.Errorf("%w: tables are of a batch", standalone.ErrUsage)
		}
		if files, err = c.fetch(s, a, req, "tsv-events"); err == nil {
			var more []string
			more, err = c.fetch(s, a, req, "tsv-frames")
			files = append(files, more...)
		}
	case "bag":
		files, err = c.bag(s, req)
	}
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

// exportWait bounds one export: a batch of 100,000 frames is some gigabytes.
const exportWait = 2 * time.Hour

func (c *exportCmd) fetch(s *session, a *standalone.Archive, req event.ExportRequest, kind string) (files []string, err error) {
	req.Kind = kind
	ctx, cancel := context.WithTimeout(s, exportWait)
	defer cancel()
	// the ledger of a line that has just been started takes a moment to answer
	if _, err := standalone.Call[json.RawMessage](ctx, a.Client, event.EndpointPremisPosition, struct{}{}); err != nil {
		return nil, err
	}
	err = transfer.Fetch(ctx, a.NC, event.EndpointPremisExport, req, func(file string) (io.WriteCloser, error) {
		path := filepath.Join(c.Out, filepath.Base(file))
		files = append(files, path)
		return os.Create(path)
	})
	return files, err
}

// bag copies the bag that stands, file by file.
func (c *exportCmd) bag(s *session, req event.ExportRequest) ([]string, error) {
	if req.Digest != "" {
		return nil, fmt.Errorf("%w: bags are of a batch", standalone.ErrUsage)
	}
	from := filepath.Join(s.Archive, filepath.FromSlash(storage.BagKey(string(req.Batch))))
	if _, err := os.Stat(from); err != nil {
		return nil, fmt.Errorf("batch %s has no bag: it has not converged", req.Batch.Display())
	}
	to := filepath.Join(c.Out, filepath.Base(from))
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		return nil, err
	}
	return []string{to}, nil
}
