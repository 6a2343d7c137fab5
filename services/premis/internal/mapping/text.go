package mapping

import (
	"fmt"
	"net/url"
	"path"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"

	"colophon/shared/event"
	"colophon/shared/fault"

	"colophon/services/premis/internal/record"
)

// folders is an absolute path's folders wherever they begin in a text, the
// scheme of a URL excepted.
var folders = regexp.MustCompile(`(^|[\s"'(=\[{:,;<>|@])(?:/[^\s/:"'<>]+)+/`)

// text makes any text fit for a record: no control characters, credentials or
// absolute paths, at most 2,048 bytes (MAPPING section 4).
func text(s string) string {
	if plain(s) {
		return strings.TrimSpace(s)
	}
	return strings.TrimSpace(folders.ReplaceAllString(fault.Clean(s), "$1"))
}

// plain reports a text with nothing in it to clean, as nearly all are.
func plain(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c >= 0x7f || c == '/' {
			return false
		}
	}
	return len(s) <= 2048
}

// shown is a name for a sentence: cut, since a name may be longer than any
// sentence; the full one stands in the record's slot.
func shown(n event.Name) string {
	const most = 120
	s := n.Display()
	if strings.Contains(s, "/") && folders.MatchString(s) { // a name that reads like a path of a machine
		s = n.Encode()
	}
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "..."
}

// source says where a frame came from without naming a machine or a folder.
func source(uri string) string {
	u, err := url.Parse(uri)
	if err != nil || u.Scheme == "" {
		return ""
	}
	last := path.Base(or(u.Path, u.Opaque))
	if !utf8.ValidString(last) {
		last = event.Encode(last)
	}
	return u.Scheme + ":" + text(last)
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.3f s", max(d, 0).Seconds()) }

// underlying is the event type an operation would have given.
func underlying(op event.Operation) (t record.Type, label string) {
	switch profile, derived := op.Profile(); {
	case derived:
		return record.Migration, "migration (" + profile + ")"
	case op == event.Fixity:
		return record.MessageDigest, record.MessageDigest.Label
	}
	return record.Capture, or(string(op), record.Capture.Label)
}

// bounded copies what a gateway says of the acquisition, within limits.
func bounded(in map[string]string) map[string]string {
	const most, longest = 64, 512
	if len(in) == 0 || len(in) > most {
		return nil
	}
	out := make(map[string]string, len(in))
	for k, v := range in {
		k, v = text(k), text(v)
		if k != "" && len(k)+len(v) <= longest {
			out[k] = v
		}
	}
	return out
}

func texts(in []string) []string {
	out := make([]string, 0, len(in))
	for _, s := range in {
		if s = text(s); s != "" {
			out = append(out, s)
		}
	}
	return out
}
