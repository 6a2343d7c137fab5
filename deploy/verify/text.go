package verify

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// WriteText writes a report for people: a line a finding, the worst first,
// then what was judged, then the verdict.
func WriteText(w io.Writer, r Report) error {
	b := bufio.NewWriter(w)
	for _, f := range r.Findings {
		fmt.Fprintf(b, "%-6s  %s  %s: %s\n", f.Severity, f.Kind, plain(f.Object), plain(f.Message))
	}
	writeOmitted(b, r)
	if len(r.Findings) > 0 {
		fmt.Fprintln(b)
	}
	writeOpen(b, r)
	writeChecked(b, r)
	writeVerdict(b, r)
	return b.Flush()
}

// plain keeps a text on its line.
func plain(s string) string {
	return strings.Map(func(c rune) rune {
		if c < ' ' || c == 0x7f {
			return ' '
		}
		return c
	}, s)
}

func writeOmitted(b *bufio.Writer, r Report) {
	kept := map[string]int{}
	for _, f := range r.Findings {
		kept[f.Kind]++
	}
	for _, kind := range slices.Sorted(maps.Keys(r.Counts)) {
		if more := r.Counts[kind] - kept[kind]; more > 0 {
			fmt.Fprintf(b, "        %s: %d more of this kind\n", kind, more)
		}
	}
}

func writeOpen(b *bufio.Writer, r Report) {
	for _, o := range r.Open {
		fmt.Fprintf(b, "batch %s is not converged: %d of %d done, %d failed, %d pending, %d missing, %d discarded",
			plain(o.Batch), o.Done, o.Declared, o.Failed, o.Pending, o.Missing, o.Discarded)
		if o.Surplus > 0 {
			fmt.Fprintf(b, ", %d more than declared", o.Surplus)
		}
		fmt.Fprintln(b)
	}
}

func writeChecked(b *bufio.Writer, r Report) {
	c := r.Checked
	if r.Batch != "" {
		fmt.Fprintf(b, "Judged batch %s: ", plain(r.Batch))
	} else {
		fmt.Fprint(b, "Judged ")
	}
	fmt.Fprintf(b, "%d masters and %d derivative files (%s read), %d facts of the log, %d records of the ledger, %d dead letters, %d batches with %d frames, %d bags with %d PREMIS documents, in %v.\n",
		c.Masters, c.Derivatives, size(c.Bytes), c.Facts, c.Records, c.Letters, c.Batches, c.Frames, c.Bags, c.Documents, r.Ended.Sub(r.Started).Round(time.Millisecond))
	if r.Root != "" {
		fmt.Fprintf(b, "Ledger %s: %d records, root %s, at %d of %d in the log.\n", plain(r.Origin), r.Size, r.Root, r.Position, r.Log)
	}
}

func writeVerdict(b *bufio.Writer, r Report) {
	if f := r.FirstBad; f != nil {
		fmt.Fprintf(b, "First bad record: %s (%s).\n", plain(recordObject(f.Number, f.Name)), f.Kind)
	}
	damage, drift, notes := r.Count(Damage), r.Count(Drift), r.Count(Note)
	switch {
	case damage > 0:
		fmt.Fprintf(b, "DAMAGED: %d findings of damage, %d of drift, %d notes.\n", damage, drift, notes)
	case drift > 0:
		fmt.Fprintf(b, "No damage; %d findings of drift, %d notes.\n", drift, notes)
	case notes > 0:
		fmt.Fprintf(b, "All is well; %d notes.\n", notes)
	default:
		fmt.Fprintln(b, "All is well.")
	}
}

func size(n int64) string {
	const unit = 1024
	if n < unit {
		return fmt.Sprintf("%d bytes", n)
	}
	v, i := float64(n)/unit, 0
	for v >= unit && i < 4 {
		v, i = v/unit, i+1
	}
	return fmt.Sprintf("%.1f %ciB", v, "KMGTP"[i])
}
