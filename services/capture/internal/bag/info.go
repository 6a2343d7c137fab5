package bag

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// declaration is bagit.txt.
const declaration = "BagIt-Version: 1.0\nTag-File-Character-Encoding: UTF-8\n"

// Info is what bag-info.txt says besides the payload's size.
type Info struct {
	Date         time.Time // Bagging-Date; the caller's, so that the same request gives the same bytes
	Organization string    // Source-Organization; "" leaves it out
	Group        string    // Bag-Group-Identifier; "" leaves it out
	Description  string    // External-Description; "" leaves it out
	Agent        string    // Bag-Software-Agent; "" leaves it out
	Convergence  int       // Colophon-Convergence: which convergence of the batch this is, from 1
}

// text makes bag-info.txt. External-Identifier is the batch; a batch that is
// not printable UTF-8 stands percent-encoded, and marked so.
func (i Info) text(batch string, r Result) (string, error) {
	if i.Date.IsZero() || i.Convergence < 1 {
		return "", fmt.Errorf("%w: bag-info.txt needs a date and the number of the convergence", ErrRequest)
	}
	encoding := ""
	if !printable(batch) {
		batch, encoding = escape(batch), "percent-encoded"
	}
	var b strings.Builder
	for _, field := range [][2]string{
		{"Source-Organization", i.Organization},
		{"External-Description", i.Description},
		{"Bagging-Date", i.Date.Format(time.DateOnly)},
		{"External-Identifier", batch},
		{"Colophon-External-Identifier-Encoding", encoding},
		{"Payload-Oxum", fmt.Sprintf("%d.%d", r.Bytes, r.Files)},
		{"Bag-Group-Identifier", i.Group},
		{"Bag-Software-Agent", i.Agent},
		{"Colophon-Convergence", strconv.Itoa(i.Convergence)},
	} {
		label, value := field[0], field[1]
		if value == "" {
			continue
		}
		if !printable(value) {
			return "", fmt.Errorf("%w: %s is not one line of UTF-8: %q", ErrRequest, label, value)
		}
		fmt.Fprintf(&b, "%s: %s\n", label, value)
	}
	return b.String(), nil
}

// printable reports whether s is one line of UTF-8 that no reader of tag files
// trims or folds.
func printable(s string) bool {
	if !utf8.ValidString(s) || strings.TrimSpace(s) != s {
		return false
	}
	return !strings.ContainsFunc(s, unicode.IsControl)
}
