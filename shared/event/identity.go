// Package event is the wire contract between Colophon's services: identities,
// subjects, messages, facts and their message ids. It knows the standard
// library and nothing else.
//
// Three identities are never mixed: the slot (one frame of one batch), the
// content (a digest) and the event (named from content and type).
package event

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Name is an identifier given by people or file systems: bytes, not
// necessarily UTF-8. In JSON a UTF-8 name is a string; any other stands
// percent-encoded and marked so: {"percent_encoded":"caf%E9"}.
type Name string

// Encode gives the one encoding of ids in subjects, message ids, ledger names
// and paths: bytes A-Za-z0-9_- stay, every other byte is %XX.
func (n Name) Encode() string { return Encode(string(n)) }

// Encode is [Name.Encode] for a plain string.
func Encode(s string) string {
	const upper = "0123456789ABCDEF"
	plain := true
	for i := range len(s) {
		if !unreserved(s[i]) {
			plain = false
			break
		}
	}
	if plain {
		return s
	}
	var b strings.Builder
	for i := range len(s) {
		if c := s[i]; unreserved(c) {
			b.WriteByte(c)
		} else {
			b.Write([]byte{'%', upper[c>>4], upper[c&15]})
		}
	}
	return b.String()
}

func unreserved(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-'
}

// DecodeName undoes [Name.Encode]. It refuses every spelling that Encode does
// not produce, so that one id has one encoding.
func DecodeName(s string) (Name, error) {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case unreserved(c):
			b.WriteByte(c)
		case c == '%' && i+2 < len(s):
			v, err := strconv.ParseUint(s[i+1:i+3], 16, 8)
			if err != nil {
				return "", fmt.Errorf("event: %q is not an encoded id: %w", s, err)
			}
			b.WriteByte(byte(v))
			i += 2
		default:
			return "", fmt.Errorf("event: %q is not an encoded id", s)
		}
	}
	if n := Name(b.String()); n.Encode() == s {
		return n, nil
	}
	return "", fmt.Errorf("event: %q is not the canonical encoding of an id", s)
}

type encodedName struct {
	PercentEncoded string `json:"percent_encoded"`
}

// MarshalJSON implements [json.Marshaler].
func (n Name) MarshalJSON() ([]byte, error) {
	if utf8.ValidString(string(n)) {
		return json.Marshal(string(n))
	}
	return json.Marshal(encodedName{n.Encode()})
}

// UnmarshalJSON implements [json.Unmarshaler].
func (n *Name) UnmarshalJSON(data []byte) error {
	if bytes.HasPrefix(bytes.TrimSpace(data), []byte("{")) {
		var e encodedName
		if err := json.Unmarshal(data, &e); err != nil {
			return err
		}
		d, err := DecodeName(e.PercentEncoded)
		if err == nil && utf8.ValidString(string(d)) {
			err = fmt.Errorf("event: %q is UTF-8 and stands as it is", d)
		}
		*n = d
		return err
	}
	if err := json.Unmarshal(data, (*string)(n)); err != nil {
		return err
	}
	// Go reads what is no UTF-8 (a lone surrogate) as U+FFFD: two names would
	// become one.
	if strings.ContainsRune(string(*n), utf8.RuneError) && !bytes.Contains(data, []byte("\uFFFD")) && !bytes.Contains(bytes.ToLower(data), []byte(`\ufffd`)) {
		return fmt.Errorf("event: the id %s is not UTF-8", data)
	}
	return nil
}

// Display gives the name for people: itself when it is UTF-8 and printable,
// otherwise its quoted form.
func (n Name) Display() string {
	if q := strconv.Quote(string(n)); q != `"`+string(n)+`"` {
		return q
	}
	return string(n)
}

// Limits on ids, in bytes: a batch is one path component before encoding, a
// frame is a relative path (PATH_MAX of Linux), and a device is a token of a
// subject: the broker takes 4 KiB for a whole line.
const (
	MaxBatchLen  = 255
	MaxFrameLen  = 4096
	MaxDeviceLen = 255
)

// Slot is one captured image's place in a batch.
type Slot struct {
	Batch Name `json:"batch"`
	Frame Name `json:"frame"`
}

// String gives the encoded form used in message ids: <batch>/<frame>.
func (s Slot) String() string { return s.Batch.Encode() + "/" + s.Frame.Encode() }

// Validate tells what is wrong with the slot's ids.
func (s Slot) Validate() error {
	var errs []error
	if err := ValidateBatch(s.Batch); err != nil {
		errs = append(errs, err)
	}
	switch {
	case s.Frame == "":
		errs = append(errs, errors.New("frame is empty"))
	case len(s.Frame) > MaxFrameLen:
		errs = append(errs, fmt.Errorf("frame is longer than %d bytes", MaxFrameLen))
	}
	return errors.Join(errs...)
}

// ValidateBatch tells what is wrong with a batch id.
func ValidateBatch(b Name) error {
	switch {
	case b == "":
		return errors.New("batch is empty")
	case len(b) > MaxBatchLen:
		return fmt.Errorf("batch is longer than %d bytes", MaxBatchLen)
	}
	return nil
}

// ParseSlot reads what [Slot.String] writes.
func ParseSlot(s string) (Slot, error) {
	b, f, ok := strings.Cut(s, "/")
	if !ok {
		return Slot{}, fmt.Errorf("event: %q is not a slot", s)
	}
	batch, err := DecodeName(b)
	if err != nil {
		return Slot{}, err
	}
	frame, err := DecodeName(f)
	return Slot{batch, frame}, err
}

// Digest is a SHA-256 in 64 lower-case hex digits; or, only in the id of a
// capture whose digest nobody declared, a source token "src-" and 32 hex
// digits; or empty where nothing was ever hashed.
type Digest string

// Valid reports whether d is a real SHA-256.
func (d Digest) Valid() bool {
	if len(d) != 64 || strings.ToLower(string(d)) != string(d) {
		return false
	}
	_, err := hex.DecodeString(string(d))
	return err == nil
}

// IsSource reports whether d stands for a source nobody hashed yet.
func (d Digest) IsSource() bool { return strings.HasPrefix(string(d), "src-") }

// Content gives d where it is a real digest, else the empty digest.
func (d Digest) Content() Digest {
	if d.Valid() {
		return d
	}
	return ""
}

// Operation is a stable name for something done.
type Operation string

// The operations of the line. [Derivative] makes those of the profiles.
const (
	Capture       Operation = "capture"
	Fixity        Operation = "fixity"
	SourceChanged Operation = "source-changed" // the case of other bytes for a done slot
	BatchInvalid  Operation = "batch-invalid"  // a batch-level case
)

// Derivative is the operation of one profile.
func Derivative(profile string) Operation { return Operation("derivative:" + profile) }

// Decode is the operation of a message a service could not read.
func Decode(service string) Operation { return Operation("decode:" + service) }

// Profile gives the profile of a derivative operation.
func (o Operation) Profile() (string, bool) { return strings.CutPrefix(string(o), "derivative:") }

// Key names a piece of work: equal keys are, by definition, the same work.
// Capture and fixity are work on a slot's own bytes: their keys carry the slot.
type Key struct {
	Operation Operation
	Digest    Digest
	Slot      Slot
}

// CaptureKey is the key of taking a slot's bytes in.
func CaptureKey(d Digest, s Slot) Key { return Key{Capture, d, s} }

// FixityKey is the key of fixing a slot's digest.
func FixityKey(d Digest, s Slot) Key { return Key{Fixity, d, s} }

// DerivativeKey is the key of one derivative of one content.
func DerivativeKey(profile string, d Digest) Key {
	return Key{Operation: Derivative(profile), Digest: d}
}

// String gives the token: operation:digest, and @batch/frame where the work is
// a slot's own.
func (k Key) String() string {
	if k.Slot == (Slot{}) {
		return string(k.Operation) + ":" + string(k.Digest)
	}
	return string(k.Operation) + ":" + string(k.Digest) + "@" + k.Slot.String()
}

// MsgID is the message id of work under key k for a slot in a pass.
func (k Key) MsgID(s Slot, pass int) string {
	return fmt.Sprintf("%s:%s@%s#%d", k.Operation, k.Digest, s, pass)
}

// NaturalKey gives bytes whose order is the natural order of names: runs of
// digits compare as numbers, folders before what they hold, ties by the bytes
// themselves.
func NaturalKey(name string) []byte {
	out := make([]byte, 0, len(name)*2+8)
	for i := 0; i < len(name); {
		switch c := name[i]; {
		case c >= '0' && c <= '9':
			j := i
			for j < len(name) && name[j] >= '0' && name[j] <= '9' {
				j++
			}
			run := strings.TrimLeft(name[i:j], "0")
			out = append(out, '0', byte(len(run)>>8), byte(len(run)))
			out = append(out, run...)
			i = j
		case c == '/':
			out = append(out, 1)
			i++
		default:
			out = append(out, c)
			i++
		}
	}
	out = append(out, 0)
	return append(out, name...)
}
