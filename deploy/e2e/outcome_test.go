package e2e

import (
	"encoding/json"
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"
)

// outcome is what a finished command came to.
type outcome struct {
	t      testing.TB
	args   []string
	code   int // -1: ended by a signal
	signal syscall.Signal
	stdout string
	text   string // of stderr, for people
	lines  []logLine
	took   time.Duration
	cpu    time.Duration // of the process, whatever else the machine does
	json   result
}

// result is the object that ingest prints.
type result struct {
	Batch      any         `json:"batch"`
	Pass       int         `json:"pass"`
	Frames     int         `json:"frames"`
	Dispatched int         `json:"dispatched"`
	Processed  int         `json:"processed"`
	Skipped    int         `json:"skipped"`
	Failed     int         `json:"failed"`
	Pending    int         `json:"pending"`
	Ignored    int         `json:"ignored"`
	Converged  bool        `json:"converged"`
	Cases      []caseShort `json:"cases"`
	Unread     []caseShort `json:"unread"`
}

type caseShort struct {
	Frame     any    `json:"frame"` // a string, or {"percent_encoded": …}
	Operation string `json:"operation"`
	Code      string `json:"code"`
	Reason    string `json:"reason"`
}

// last decodes the object on the last line of standard output.
func (o outcome) last(into any) {
	o.t.Helper()
	lines := strings.Split(strings.TrimRight(o.stdout, "\n"), "\n")
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), into); err != nil {
		o.t.Fatalf("%v: the last line of stdout is no JSON object: %v\nstatus %d\nstdout: %s\nstderr: %s", o.args, err, o.code, o.stdout, o.text)
	}
}

func (o outcome) parsed() outcome {
	o.t.Helper()
	if o.code == 0 || o.code == 3 {
		o.last(&o.json)
	}
	return o
}

// status demands an exit status.
func (o outcome) status(want int) outcome {
	o.t.Helper()
	if o.code != want {
		o.t.Fatalf("%v: exit status %d (signal %v), want %d\nstdout: %s\nstderr: %s\n%s", o.args, o.code, o.signal, want, o.stdout, o.text, o.tail(15))
	}
	return o
}

// tail gives the last lines of the log.
func (o outcome) tail(n int) string {
	var b strings.Builder
	for _, l := range o.lines[max(0, len(o.lines)-n):] {
		data, _ := json.Marshal(l)
		b.Write(data)
		b.WriteByte('\n')
	}
	return b.String()
}

// counts demands the numbers of the JSON object.
func (o outcome) counts(dispatched, processed, skipped, failed int) outcome {
	o.t.Helper()
	j := o.json
	if j.Dispatched != dispatched || j.Processed != processed || j.Skipped != skipped || j.Failed != failed || j.Pending != 0 {
		o.t.Fatalf("%v: dispatched %d, processed %d, skipped %d, failed %d, pending %d; want %d, %d, %d, %d, 0\n%s\n%s",
			o.args, j.Dispatched, j.Processed, j.Skipped, j.Failed, j.Pending, dispatched, processed, skipped, failed, o.stdout, o.tail(10))
	}
	return o
}

// converged demands that all n frames are done.
func (o outcome) converged(n int) outcome {
	o.t.Helper()
	o.status(0)
	if !o.json.Converged || o.json.Frames != n || len(o.json.Cases) != 0 {
		o.t.Fatalf("%v: not converged with %d frames: %s", o.args, n, o.stdout)
	}
	return o
}

// frameName gives a frame's own bytes from JSON.
func frameName(t testing.TB, v any) string {
	t.Helper()
	switch v := v.(type) {
	case string:
		return v
	case map[string]any:
		s, err := decodePercent(v["percent_encoded"].(string))
		ok(t, err)
		return s
	}
	t.Fatalf("a frame called %v", v)
	return ""
}

func decodePercent(s string) (string, error) {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '%' {
			b.WriteByte(s[i])
			continue
		}
		if i+2 >= len(s) {
			return "", errors.New("percent-encoding is cut off")
		}
		var v int
		for _, c := range []byte(s[i+1 : i+3]) {
			d := strings.IndexByte("0123456789ABCDEF", c)
			if d < 0 {
				return "", errors.New("not percent-encoded in upper case")
			}
			v = v<<4 | d
		}
		b.WriteByte(byte(v))
		i += 2
	}
	return b.String(), nil
}

// encode is the one encoding of ids, written a second time.
func encode(s string) string {
	var b strings.Builder
	for i := range len(s) {
		switch c := s[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '_', c == '-':
			b.WriteByte(c)
		default:
			b.Write([]byte{'%', "0123456789ABCDEF"[c>>4], "0123456789ABCDEF"[c&15]})
		}
	}
	return b.String()
}

// cases gives the code of each case, by "frame operation".
func (o outcome) cases() map[string]string {
	o.t.Helper()
	out := map[string]string{}
	for _, c := range o.json.Cases {
		key := frameName(o.t, c.Frame) + " " + c.Operation
		if _, twice := out[key]; twice {
			o.t.Errorf("two cases of %s", key)
		}
		if c.Reason == "" {
			o.t.Errorf("the case of %s gives no reason", key)
		}
		out[key] = c.Code
	}
	return out
}

// logged gives the log lines with a message.
func (o outcome) logged(msg string) []logLine {
	var out []logLine
	for _, l := range o.lines {
		if l.msg() == msg {
			out = append(out, l)
		}
	}
	return out
}
