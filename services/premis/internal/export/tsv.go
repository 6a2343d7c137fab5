package export

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"iter"
	"strconv"
	"strings"
	"time"

	"colophon/shared/event"

	"colophon/services/premis/internal/ledger"
	"colophon/services/premis/internal/record"
)

// columns are those of both tables.
var columns = []string{"number", "time", "type", "outcome", "status", "frame", "digest", "agent", "note"}

// BatchTSV writes events.tsv: one row for each of a batch's records, in ledger
// order.
func (x *Exporter) BatchTSV(ctx context.Context, b event.Name, sink Sink) error {
	return x.table("events.tsv", sink, x.rows(ctx, x.view.ByBatch(b)))
}

// MasterTSV writes events.tsv for one file.
func (x *Exporter) MasterTSV(ctx context.Context, d event.Digest, sink Sink) error {
	return x.table("events.tsv", sink, x.rows(ctx, x.view.ByDigest(d)))
}

// FramesTSV writes frames.tsv: one row for each frame of a batch, in the
// batch's order. Number is the frame's sequence; status is ingested,
// accessioned, quarantined, discarded or pending.
func (x *Exporter) FramesTSV(ctx context.Context, b event.Name, sink Sink) error {
	return x.table("frames.tsv", sink, x.frameRows(ctx, b))
}

func (x *Exporter) table(file string, sink Sink, rows iter.Seq2[[]string, error]) error {
	out, err := sink(file)
	if err != nil {
		return fmt.Errorf("export: %s: %w", file, err)
	}
	if err := writeTable(out, rows); err != nil {
		return fmt.Errorf("export: %s: %w", file, err)
	}
	if err := out.Close(); err != nil {
		return fmt.Errorf("export: %s: %w", file, err)
	}
	return nil
}

func writeTable(out io.Writer, rows iter.Seq2[[]string, error]) error {
	w := bufio.NewWriter(out)
	fmt.Fprintln(w, strings.Join(columns, "\t"))
	for row, err := range rows {
		if err != nil {
			return err
		}
		for i, cell := range row {
			row[i] = escape(cell)
		}
		if _, err := fmt.Fprintln(w, strings.Join(row, "\t")); err != nil {
			return err
		}
	}
	return w.Flush()
}

// escape keeps a cell in its place, and from being taken for a formula.
func escape(s string) string {
	s = strings.NewReplacer(`\`, `\\`, "\t", `\t`, "\n", `\n`, "\r", `\r`).Replace(s)
	if s != "" && strings.ContainsRune("=+-@", rune(s[0])) {
		return "'" + s
	}
	return s
}

func (x *Exporter) rows(ctx context.Context, numbers iter.Seq2[int64, error]) iter.Seq2[[]string, error] {
	return func(yield func([]string, error) bool) {
		for n, err := range numbers {
			var r ledger.Numbered
			if err == nil {
				r, err = x.view.Get(n)
			}
			if err == nil {
				err = ctx.Err()
			}
			if err != nil {
				yield(nil, err)
				return
			}
			if !yield(row(r), nil) {
				return
			}
		}
	}
}

func row(r ledger.Numbered) []string {
	frame, agent, note := "", "", r.Detail
	if r.Slot != nil {
		frame = strings.TrimSuffix(r.Slot.Batch+"/"+r.Slot.Frame, "/")
	}
	if len(r.Agents) > 0 {
		agent = r.Agents[0].ID
	}
	if r.Note != "" {
		note += " " + r.Note
	}
	return []string{
		strconv.FormatInt(r.Number, 10), r.Time.UTC().Format(time.RFC3339Nano), r.Type, r.Outcome, status(r.Record), frame, string(r.Digest), agent, note,
	}
}

func status(r *record.Record) string {
	switch {
	case r.Data.Resolution != nil:
		return r.Data.Resolution.Status
	case r.Data.Closing != nil:
		return r.Data.Closing.Decision
	case r.Type == record.Quarantine.Label:
		return record.StatusQuarantined
	}
	return ""
}

// Statuses of a frame in its table.
const (
	frameIngested    = "ingested"
	frameAccessioned = "accessioned"
	frameQuarantined = "quarantined"
	frameDiscarded   = "discarded"
	framePending     = "pending"
)

func (x *Exporter) frameRows(ctx context.Context, b event.Name) iter.Seq2[[]string, error] {
	return func(yield func([]string, error) bool) {
		for frame, err := range x.view.Frames(b) {
			var row []string
			if err == nil {
				row, err = x.frameRow(b.Encode(), frame)
			}
			if err == nil {
				err = ctx.Err()
			}
			if !yield(row, err) || err != nil {
				return
			}
		}
	}
}

func (x *Exporter) frameRow(batch, frame string) ([]string, error) {
	held, err := x.view.Slot(batch, frame)
	if err != nil {
		return nil, err
	}
	var last ledger.Numbered
	open, discarded := map[event.Operation]bool{}, false
	for n, err := range x.view.ByFrame(batch, frame) {
		if err != nil {
			return nil, err
		}
		r, err := x.view.Get(n)
		if err != nil {
			return nil, err
		}
		if r.Type == record.Accession.Label || last.Record == nil {
			last = r
		}
		followCase(r.Record, open, &discarded)
	}
	row := []string{"", "", "frame", "", framePending, batch + "/" + frame, "", "", ""}
	if held == nil || last.Record == nil {
		return row, nil
	}
	row[0], row[1], row[6] = strconv.Itoa(held.Sequence), last.Time.UTC().Format(time.RFC3339Nano), string(held.Digest)
	if len(last.Agents) > 0 {
		row[7] = last.Agents[0].ID
	}
	row[8] = last.Note
	done := false
	if held.Digest != "" {
		if _, done, err = x.view.Number(record.Name(record.Ingestion, "", held.Digest)); err != nil {
			return nil, err
		}
	}
	row[3], row[4] = frameState(held.Digest != "", done, len(open) > 0, discarded)
	return row, nil
}

// followCase keeps which operations of a frame have an open case.
func followCase(r *record.Record, open map[event.Operation]bool, discarded *bool) {
	switch {
	case r.Type == record.Quarantine.Label && r.Data.Case != nil:
		open[r.Data.Case.Operation] = true
	case r.Data.Closing != nil:
		delete(open, r.Data.Closing.Operation)
		_, derived := r.Data.Closing.Operation.Profile()
		if r.Data.Closing.Decision == record.DecisionDiscard && !derived {
			*discarded = true
		}
	case r.Type == record.Operational && r.Data.Case != nil:
		delete(open, r.Data.Case.Operation)
	}
}

func frameState(accessioned, ingested, open, discarded bool) (outcome, state string) {
	switch {
	case open:
		return record.Fail, frameQuarantined
	case ingested:
		return record.Success, frameIngested
	case accessioned:
		return record.Success, frameAccessioned
	case discarded:
		return record.Fail, frameDiscarded
	}
	return "", framePending
}
