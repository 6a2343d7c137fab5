// Package export makes files of a ledger (MAPPING section 8): PREMIS 3.0 XML
// of a master or a batch, and tables for spreadsheets. What it writes is a
// function of the view: same ledger, same bytes. Its memory is bounded by one
// document, never by a batch.
package export

import (
	"context"
	"errors"
	"fmt"
	"io"

	"colophon/shared/event"

	"colophon/services/premis/internal/ledger"
	"colophon/services/premis/internal/premisxml"
	"colophon/services/premis/internal/record"
)

// MaxEvents is the most events in one document of a batch.
const MaxEvents = 10_000

// ErrNothing is the answer to a batch or a digest the ledger does not know.
var ErrNothing = errors.New("the ledger holds nothing of it")

// Sink opens a file by name; files come one after the other. A file is closed
// when it is whole. After a failure it is left as it is, since closing it would
// call it whole: who made it gives it up.
type Sink func(file string) (io.WriteCloser, error)

// Exporter exports one view.
type Exporter struct {
	view   ledger.View
	space  record.Namespace
	origin string
	most   int // events in a document
}

// New makes an exporter of a view.
func New(v ledger.View) *Exporter {
	origin := v.At().Origin
	return &Exporter{view: v, origin: origin, space: record.NamespaceOf(origin), most: MaxEvents}
}

// Master writes one document, premis-<digest>.xml, of one file: the content's
// events, those of every frame that holds it, and of their batches.
func (x *Exporter) Master(ctx context.Context, d event.Digest, sink Sink) error {
	c := x.collect()
	if err := c.content(d); err != nil {
		return err
	}
	if c.empty() {
		return fmt.Errorf("export: %s: %w", d, ErrNothing)
	}
	if err := c.around(d); err != nil {
		return err
	}
	return x.write(ctx, c, "premis-"+string(d)+".xml", sink)
}

// Batch writes a batch as premis-0001.xml, premis-0002.xml …, frames in the
// batch's order, each document complete in itself and of at most 10,000 events,
// cut between frames. The first one holds the batch's own events.
func (x *Exporter) Batch(ctx context.Context, b event.Name, sink Sink) error {
	part := 1
	c := x.collect()
	if err := c.batch(b, true); err != nil {
		return err
	}
	for frame, err := range x.view.Frames(b) {
		if err != nil {
			return err
		}
		numbers, err := c.frameEvents(b.Encode(), frame)
		if err != nil {
			return err
		}
		if c.frames > 0 && c.size()+c.fresh(numbers) > x.most {
			if err := x.write(ctx, c, partName(part), sink); err != nil {
				return err
			}
			part++
			c = x.collect()
			if err := c.batch(b, false); err != nil {
				return err
			}
		}
		c.frames++
		if err := c.addAll(numbers); err != nil {
			return err
		}
	}
	if c.empty() {
		return fmt.Errorf("export: batch %s: %w", b.Encode(), ErrNothing)
	}
	return x.write(ctx, c, partName(part), sink)
}

func partName(n int) string { return fmt.Sprintf("premis-%04d.xml", n) }

func (x *Exporter) write(ctx context.Context, c *collector, file string, sink Sink) error {
	d, err := c.document(ctx)
	if err != nil {
		return err
	}
	out, err := sink(file)
	if err != nil {
		return fmt.Errorf("export: %s: %w", file, err)
	}
	if err := premisxml.Write(out, d); err != nil {
		return fmt.Errorf("export: %s: %w", file, err)
	}
	if err := out.Close(); err != nil {
		return fmt.Errorf("export: %s: %w", file, err)
	}
	return nil
}
