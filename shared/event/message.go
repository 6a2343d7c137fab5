package event

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Schemas: "colophon/<what>/v<major>". A major this build does not know is
// refused, never guessed at.
const (
	SchemaCaptureBatch  = "colophon/capture.batch/v1"
	SchemaCaptureFrame  = "colophon/capture.frame/v1"
	SchemaCaptureFault  = "colophon/capture.fault/v1"
	SchemaFrameCaptured = "colophon/frame.captured/v1"
	SchemaFrameFixed    = "colophon/frame.fixed/v1"
	SchemaDerivative    = "colophon/derivative/v1"
	SchemaAttemptFailed = "colophon/attempt.failed/v1"
	SchemaBatch         = "colophon/batch/v1"
	SchemaProfilePinned = "colophon/profile.pinned/v1"
	SchemaCase          = "colophon/case/v1"
	SchemaOp            = "colophon/op/v1"
	SchemaDispatch      = "colophon/dispatch/v1"
)

// BatchDeclaration is the body of capture.batch: how many frames there will
// be, and under which pinned policy and profiles.
type BatchDeclaration struct {
	Schema   string          `json:"schema"`
	Batch    Name            `json:"batch"`
	Count    int             `json:"count"`
	Order    string          `json:"order,omitempty"` // default: sequence
	Policy   json.RawMessage `json:"policy,omitempty"`
	Profiles []string        `json:"profiles,omitempty"`
	Devices  []string        `json:"devices,omitempty"`
	Operator string          `json:"operator,omitempty"`
	// Follows is the number of the declaration this one corrects; left out, it
	// corrects whichever stands.
	Follows *int `json:"follows,omitempty"`
}

// Validate reports every fault at once.
func (b BatchDeclaration) Validate() error {
	var errs []error
	if b.Schema != SchemaCaptureBatch {
		errs = append(errs, fmt.Errorf("/schema: %q is not %q", b.Schema, SchemaCaptureBatch))
	}
	if err := ValidateBatch(b.Batch); err != nil {
		errs = append(errs, fmt.Errorf("/batch: %w", err))
	}
	if b.Count < 1 {
		errs = append(errs, fmt.Errorf("/count: %d is less than 1", b.Count))
	}
	if b.Order != "" && b.Order != OrderSequence && b.Order != OrderNatural {
		errs = append(errs, fmt.Errorf("/order: %q is neither %q nor %q", b.Order, OrderSequence, OrderNatural))
	}
	for i, d := range b.Devices {
		if d == "" || len(d) > MaxDeviceLen {
			errs = append(errs, fmt.Errorf("/devices/%d: empty, or longer than %d bytes", i, MaxDeviceLen))
		}
	}
	return errors.Join(errs...)
}

// DeclarationID is the message id of a declaration's body that follows the
// number-th accepted one (0 for the first).
func DeclarationID(body []byte, batch Name, number int) string {
	sum := sha256.Sum256(body)
	return fmt.Sprintf("batch:%x@%s#%d", sum, batch.Encode(), number)
}

// FrameMessage is the body of capture.frame: where the bytes of a slot are.
type FrameMessage struct {
	Schema      string            `json:"schema"`
	Slot                          // batch, frame
	Sequence    int               `json:"sequence"`         // from 1
	Sources     []string          `json:"sources"`          // URIs, tried in order
	Size        *int64            `json:"size,omitempty"`   // declared, bytes
	SHA256      Digest            `json:"sha256,omitempty"` // declared
	DeclaredBy  string            `json:"declared_by,omitempty"`
	Source      Digest            `json:"source_token,omitempty"` // [SourceToken] where nobody declared a digest
	Pass        int               `json:"pass,omitempty"`         // default 1
	Replaces    Digest            `json:"replaces,omitempty"`     // the digest it may supersede
	Answers     string            `json:"answers,omitempty"`      // message id of the [Dispatch] that asked for it
	Device      string            `json:"device,omitempty"`
	Operator    string            `json:"operator,omitempty"`
	ScannedAt   time.Time         `json:"scanned_at,omitzero"`
	Acquisition map[string]string `json:"acquisition,omitempty"`
}

// Validate reports every fault at once.
func (f FrameMessage) Validate() error {
	var errs []error
	if f.Schema != SchemaCaptureFrame {
		errs = append(errs, fmt.Errorf("/schema: %q is not %q", f.Schema, SchemaCaptureFrame))
	}
	if err := f.Slot.Validate(); err != nil {
		errs = append(errs, err)
	}
	if f.Sequence < 1 {
		errs = append(errs, fmt.Errorf("/sequence: %d is less than 1", f.Sequence))
	}
	if len(f.Sources) == 0 {
		errs = append(errs, errors.New("/sources: none given"))
	}
	if f.Size != nil && *f.Size < 0 {
		errs = append(errs, fmt.Errorf("/size: %d is negative", *f.Size))
	}
	for _, d := range []struct {
		at string
		d  Digest
	}{{"/sha256", f.SHA256}, {"/replaces", f.Replaces}} {
		if d.d != "" && !d.d.Valid() {
			errs = append(errs, fmt.Errorf("%s: %q is not a lower-case SHA-256", d.at, d.d))
		}
	}
	if f.Source != "" && !f.Source.IsSource() {
		errs = append(errs, fmt.Errorf("/source_token: %q does not begin with src-", f.Source))
	}
	if f.Pass < 0 || f.Pass > MaxPass {
		errs = append(errs, fmt.Errorf("/pass: %d is not in 0 to %d", f.Pass, MaxPass))
	}
	if len(f.Device) > MaxDeviceLen {
		errs = append(errs, fmt.Errorf("/device: longer than %d bytes", MaxDeviceLen))
	}
	return errors.Join(errs...)
}

// Token is the digest that stands in the message's id: the declared one, else
// the source token.
func (f FrameMessage) Token() Digest {
	switch {
	case f.SHA256 != "":
		return f.SHA256
	case f.Source != "":
		return f.Source
	}
	return SourceToken(strings.Join(f.Sources, "\n"), SourceStat{})
}

// MsgID is the id a gateway publishes the message under.
func (f FrameMessage) MsgID() string {
	return CaptureKey(f.Token(), f.Slot).MsgID(f.Slot, max(f.Pass, 1))
}

// SourceToken stands for the digest of a source that nobody hashed yet: a hash
// of its URI, size and modification time.
func SourceToken(uri string, st SourceStat) Digest {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\n%d\n%d", uri, st.Size, st.ModTime.UnixNano()))
	return Digest("src-" + hex.EncodeToString(sum[:16]))
}

// Dispatch is the body of gateway.dispatch: a frame asked of a device.
type Dispatch struct {
	Schema   string    `json:"schema"`
	Slot               // batch, frame
	Sequence int       `json:"sequence"` // place in the batch, from 1
	Device   string    `json:"device"`
	Pass     int       `json:"pass"`               // the pass that the answer runs under
	Number   int       `json:"number"`             // n-th dispatch of this slot and pass to this device, from 1
	Replaces Digest    `json:"replaces,omitempty"` // the digest that the answer may supersede
	Reason   string    `json:"reason"`             // for people
	Actor    string    `json:"actor,omitempty"`    // who decided the rescan
	Note     string    `json:"note,omitempty"`
	At       time.Time `json:"at"`
}

// Subject is where the device's gateway listens.
func (d Dispatch) Subject() string { return SubjectDispatch + "." + Encode(d.Device) }

// MsgID is the id the dispatch is published under, and what a frame message
// that follows it says in answers.
func (d Dispatch) MsgID() string {
	return fmt.Sprintf("dispatch:%s:%s#%d.%d", Encode(d.Device), d.Slot, d.Pass, d.Number)
}

// Kinds of a device's faults.
const (
	FaultBusy      = "busy"
	FaultJam       = "jam"
	FaultCoverOpen = "cover-open"
	FaultIO        = "io"
)

// CaptureFault is the body of capture.fault: what a device could not do. The
// frame it was about is named where the gateway knows it.
type CaptureFault struct {
	Schema   string    `json:"schema"`
	ID       string    `json:"id"` // UUID, made once per report
	Device   string    `json:"device"`
	Kind     string    `json:"kind"`
	Batch    Name      `json:"batch,omitempty"`
	Frame    Name      `json:"frame,omitempty"`
	Sequence int       `json:"sequence,omitempty"` // place in the batch, from 1
	Message  string    `json:"message,omitempty"`  // for people
	At       time.Time `json:"at"`
}

// Validate reports every fault at once.
func (f CaptureFault) Validate() error {
	var errs []error
	bad := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	bad(f.Schema == SchemaCaptureFault, "/schema: %q is not %q", f.Schema, SchemaCaptureFault)
	bad(isUUID(f.ID), "/id: %q is not a UUID", f.ID)
	bad(f.Device != "", "/device: none given")
	bad(len(f.Device) <= MaxDeviceLen, "/device: longer than %d bytes", MaxDeviceLen)
	switch f.Kind {
	case FaultBusy, FaultJam, FaultCoverOpen, FaultIO:
	default:
		bad(false, "/kind: %q is none of %s, %s, %s, %s", f.Kind, FaultBusy, FaultJam, FaultCoverOpen, FaultIO)
	}
	bad(f.Sequence >= 0, "/sequence: %d is negative", f.Sequence)
	bad(f.Batch != "" || f.Frame == "", "/batch: none given, but a frame of it")
	if f.Batch != "" {
		if err := ValidateBatch(f.Batch); err != nil {
			errs = append(errs, fmt.Errorf("/batch: %w", err))
		}
	}
	bad(len(f.Frame) <= MaxFrameLen, "/frame: longer than %d bytes", MaxFrameLen)
	return errors.Join(errs...)
}

func isUUID(s string) bool {
	hexes := strings.ReplaceAll(s, "-", "")
	b, err := hex.DecodeString(hexes)
	return err == nil && len(b) == 16 && len(s) == 36 && s[8] == '-' && s[13] == '-' && s[18] == '-' && s[23] == '-'
}

// MsgID is the id a gateway publishes the report under.
func (f CaptureFault) MsgID() string { return "fault:" + Encode(f.Device) + ":" + f.ID }

// Subject is where a gateway publishes it: below the batch, or, where none is
// being scanned, below the device.
func (f CaptureFault) Subject(gateway string) string {
	if f.Batch == "" {
		return CaptureSubject("fault", gateway, Name(f.Device))
	}
	return CaptureSubject("fault", gateway, f.Batch)
}

// ErrUnknownSchema marks a message of a version this build does not know.
var ErrUnknownSchema = errors.New("unknown schema")

// Unmarshal decodes one JSON value strictly enough for a contract: a single
// value in UTF-8, no trailing bytes, no key given twice in one object; unknown fields
// are ignored (they stay in the stored message as evidence).
func Unmarshal(data []byte, v any) error {
	if !utf8.Valid(data) { // Go would read each such byte as U+FFFD, and two ids as one
		return errors.New("not UTF-8")
	}
	if err := noDuplicateKeys(data); err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(data))
	if err := d.Decode(v); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("more than one JSON value")
	}
	return nil
}

// maxDepth bounds nesting: the contract's own messages have 4 levels.
const maxDepth = 32

func noDuplicateKeys(data []byte) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	return walk(d, 0)
}

func walk(d *json.Decoder, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("nested more than %d deep", maxDepth)
	}
	t, err := d.Token()
	if err != nil {
		return err
	}
	delim, ok := t.(json.Delim)
	if !ok {
		return nil
	}
	keys := map[string]bool{}
	for d.More() {
		if delim == '{' {
			k, err := d.Token()
			if err != nil {
				return err
			}
			if keys[k.(string)] {
				return fmt.Errorf("key %q given twice", k)
			}
			keys[k.(string)] = true
		}
		if err := walk(d, depth+1); err != nil {
			return err
		}
	}
	_, err = d.Token()
	return err
}

// DecodeFact reads the fact stored under a subject of the log. A subject or a
// schema this build does not know is [ErrUnknownSchema].
func DecodeFact(subject string, data []byte) (Fact, error) {
	switch {
	case strings.HasPrefix(subject, SubjectBatch+"."):
		return decode[BatchFact](data, SchemaBatch)
	case subject == SubjectProfilePinned:
		return decode[ProfilePinned](data, SchemaProfilePinned)
	case subject == SubjectFrameCaptured:
		return decode[FrameCaptured](data, SchemaFrameCaptured)
	case subject == SubjectFrameFixed:
		return decode[FrameFixed](data, SchemaFrameFixed)
	case strings.HasPrefix(subject, SubjectDerivative+"."):
		return decode[DerivativeMade](data, SchemaDerivative)
	case subject == SubjectAttemptFailed:
		return decode[AttemptFailed](data, SchemaAttemptFailed)
	case strings.HasPrefix(subject, SubjectCase+"."):
		return decode[CaseFact](data, SchemaCase)
	case strings.HasPrefix(subject, SubjectOp+"."):
		return decode[OpFact](data, SchemaOp)
	}
	return nil, fmt.Errorf("%w: subject %q", ErrUnknownSchema, subject)
}

func decode[F Fact](data []byte, schema string) (Fact, error) {
	// Facts are written with their schema first, and read once where it is the
	// only one in them.
	if !bytes.HasPrefix(data, []byte(`{"schema":"`+schema+`"`)) || bytes.Count(data, []byte(`"schema"`)) != 1 {
		var head struct {
			Schema string `json:"schema"`
		}
		if err := json.Unmarshal(data, &head); err != nil {
			return nil, err
		}
		if head.Schema != schema {
			return nil, fmt.Errorf("%w: %q, this build reads %q", ErrUnknownSchema, head.Schema, schema)
		}
	}
	var f F
	err := json.Unmarshal(data, &f)
	return f, err
}

// MaxPass bounds the pass that a message may be written for: a later one must
// always be left.
const MaxPass = 1 << 20

// PassOf gives the pass a message is written for: the header wins over the
// body's; at least 1.
func PassOf(header string, body int) (int, error) {
	if header == "" {
		return min(max(body, 1), MaxPass), nil
	}
	p, err := strconv.Atoi(header)
	if err != nil || p < 1 || p > MaxPass {
		return 0, fmt.Errorf("%s: %q is not a pass", HeaderPass, header)
	}
	return p, nil
}
