// Package fault is the one place where a failure gets its class: what is
// retried, what halts a consumer, and what is quarantined. It decides from an
// explicit allow-list; an error nobody classified is permanent, since in
// preservation a silent loop is worse than a case somebody looks at.
package fault

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"slices"
	"strings"
	"syscall"
	"time"

	"colophon/shared/storage"
)

// Class says what happens to a failure.
type Class string

// The classes of the design page. Lost is how an attempt ends whose worker
// died with it; it is retried like a transient fault.
const (
	Transient   Class = "transient"
	Environment Class = "environment"
	Permanent   Class = "permanent"
	Lost        Class = "lost"
)

// Code is a stable token that a program can match.
type Code string

// Codes. A permanent code that comes from an image check is passed through
// from the deriver and need not stand here.
const (
	Timeout           Code = "timeout"
	ConnectionRefused Code = "connection-refused"
	ConnectionReset   Code = "connection-reset"
	TooManyRequests   Code = "too-many-requests"
	BadGateway        Code = "bad-gateway"
	Unavailable       Code = "service-unavailable"
	GatewayTimeout    Code = "gateway-timeout"
	IOError           Code = "io-error"
	DeviceBusy        Code = "device-busy"
	DeviceJam         Code = "device-jam"
	DeviceCoverOpen   Code = "device-cover-open"
	SourceUnsettled   Code = "source-unsettled"
	EncoderFailed     Code = "encoder-failed"
	DecoderFailed     Code = "decoder-failed"
	ReadFailed        Code = "read-failed"
	MemoryShort       Code = "memory-short"
	IdentifyFailed    Code = "identify-failed"
	WorkerLost        Code = "worker-lost"

	StoreFull         Code = "store-full"
	StoreReadOnly     Code = "store-read-only"
	StoreUnavailable  Code = "store-unavailable"
	EncoderMissing    Code = "encoder-missing"
	DecoderMissing    Code = "decoder-missing"
	ScratchFull       Code = "scratch-full"
	StoreUnwritable   Code = "store-unwritable"
	ProfileMismatch   Code = "profile-mismatch"
	BrokerUnavailable Code = "broker-unavailable"

	Malformed        Code = "malformed"
	UnknownSchema    Code = "unknown-schema"
	DigestMismatch   Code = "digest-mismatch"
	SizeMismatch     Code = "size-mismatch"
	MasterDamaged    Code = "master-damaged"
	BytesMissing     Code = "bytes-missing"
	SourceChanged    Code = "source-changed"
	SourceMissing    Code = "source-missing"
	SourceUnreadable Code = "source-unreadable"
	SourceNotAFile   Code = "source-not-a-file"
	PathRefused      Code = "path-refused"
	SchemeRefused    Code = "scheme-refused"
	HostRefused      Code = "host-refused"   // a source's host, or its address, is not on the list
	SourceRefused    Code = "source-refused" // the source's server does not let us in, or is not who it should be
	Empty            Code = "empty"
	BatchInvalid     Code = "batch-invalid"
	PolicyConflict   Code = "policy-conflict"
	UnknownProfile   Code = "unknown-profile"
	BatchUndeclared  Code = "batch-undeclared"
	Conflict         Code = "conflict"
	Unclassified     Code = "unclassified"
)

// classes is the allow-list: whatever is not in it is permanent.
var classes = map[Code]Class{
	Timeout: Transient, ConnectionRefused: Transient, ConnectionReset: Transient, TooManyRequests: Transient,
	BadGateway: Transient, Unavailable: Transient, GatewayTimeout: Transient, IOError: Transient,
	DeviceBusy: Transient, DeviceJam: Transient, DeviceCoverOpen: Transient, SourceUnsettled: Transient,
	EncoderFailed: Transient, DecoderFailed: Transient, ReadFailed: Transient, MemoryShort: Transient, IdentifyFailed: Transient, WorkerLost: Lost,
	StoreFull: Environment, StoreReadOnly: Environment, StoreUnavailable: Environment,
	EncoderMissing: Environment, DecoderMissing: Environment, ScratchFull: Environment, StoreUnwritable: Environment, ProfileMismatch: Environment, BrokerUnavailable: Environment,
}

// ClassOf gives the class of a code.
func ClassOf(c Code) Class {
	if class, ok := classes[c]; ok {
		return class
	}
	return Permanent
}

// imageFaults are the codes of bytes that are no whole image: what a scan that
// broke off, a bad memory or a bad wire leaves behind. The deriver's own codes
// stand here by their names.
//
// Scanning again helps with nothing else: it brings the same kind of file for
// every unsupported-… and format-mismatch, the same size for image-too-large,
// too-many-images and expansion-bomb. A digest-mismatch, size-mismatch or
// master-damaged is a fault of the way or of the store: the device may well
// hold the right bytes still, so a person decides whether to fetch them again.
var imageFaults = []Code{
	Empty, "truncated", "bad-structure", "bad-dimensions", "ifd-loop", "data-past-eof", "strip-short", "strip-surplus", "data-corrupt",
}

// OfImage reports whether a fault is the scanned image's own, so that scanning
// the page again may well mend it.
func OfImage(c Code) bool { return slices.Contains(imageFaults, c) }

// TransientCodes lists the codes that a policy retries by default, sorted.
func TransientCodes() []Code {
	var out []Code
	for c, class := range classes {
		if class == Transient || class == Lost {
			out = append(out, c)
		}
	}
	slices.Sort(out)
	return out
}

// Error is a classified failure.
type Error struct {
	Code    Code
	Message string // a sentence for people, without paths of machines
	Detail  string // evidence: the tail of a helper's stderr
	// Operation, where the case is of another operation than the work that
	// found it: other bytes for a done slot are a source-changed case.
	Operation string
	// Declared is the digest that was declared, where that is what failed.
	Declared string
	// DeclaredBy is who declared it.
	DeclaredBy string
	// After is how long the other side asked to be left alone (Retry-After);
	// zero where it said nothing.
	After time.Duration
	Cause error
}

// Error implements error.
func (e *Error) Error() string {
	if e.Cause != nil {
		return fmt.Sprintf("%s: %s: %v", e.Code, e.Message, e.Cause)
	}
	return fmt.Sprintf("%s: %s", e.Code, e.Message)
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Cause }

// Class is the class of the error's code.
func (e *Error) Class() Class { return ClassOf(e.Code) }

// New makes a classified failure.
func New(code Code, cause error, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...), Cause: cause}
}

// Of classifies any error: one that already has a class keeps it, well-known
// causes of the operating system and the network get theirs, and the rest is
// permanent. It returns nil for nil.
func Of(err error) *Error {
	if err == nil {
		return nil
	}
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	for _, c := range causes {
		if errors.Is(err, c.cause) {
			return &Error{Code: c.code, Message: c.message, Cause: err}
		}
	}
	var conflict *storage.ConflictError
	if errors.As(err, &conflict) {
		return &Error{Code: Conflict, Message: "the archive holds other bytes under this name", Cause: err}
	}
	var digest *storage.DigestError
	if errors.As(err, &digest) {
		return &Error{Code: MasterDamaged, Message: "the stored bytes do not have the digest they should have", Cause: err}
	}
	var ne net.Error
	if errors.As(err, &ne) && ne.Timeout() {
		return &Error{Code: Timeout, Message: "the other side did not answer in time", Cause: err}
	}
	return &Error{Code: Unclassified, Message: Clean(err.Error()), Cause: err}
}

var causes = []struct {
	cause   error
	code    Code
	message string
}{
	{storage.ErrFull, StoreFull, "no space left for the archive"},
	{storage.ErrReadOnly, StoreReadOnly, "the archive cannot be written"},
	{storage.ErrUnavailable, StoreUnavailable, "the archive is not where it was"},
	{storage.ErrNotExist, BytesMissing, "an object that should be in the archive is not"},
	{syscall.ENOSPC, StoreFull, "no space left on the file system"},
	{syscall.EDQUOT, StoreFull, "disk quota exceeded"},
	{syscall.EROFS, StoreReadOnly, "the file system is read-only"},
	{syscall.EIO, IOError, "input/output error"},
	{syscall.ESTALE, IOError, "stale file handle"},
	{syscall.ECONNREFUSED, ConnectionRefused, "connection refused"},
	{syscall.ECONNRESET, ConnectionReset, "connection reset by the other side"},
	{syscall.EPIPE, ConnectionReset, "connection closed by the other side"},
	{syscall.ETIMEDOUT, Timeout, "connection timed out"},
	{context.DeadlineExceeded, Timeout, "took longer than allowed"},
	{fs.ErrNotExist, BytesMissing, "a file that should be there is not"},
}

// maxMessage bounds an error text in a fact, bytes (MAPPING.md section 4).
const maxMessage = 2048

// Clean makes a text fit for a fact: no control characters, no absolute
// paths, no credentials in URLs, at most 2,048 bytes of whole runes.
func Clean(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < 0x20 || r == 0x7f || r == 0xfffd {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, " "))
	words := strings.Split(s, " ")
	for i, w := range words {
		words[i] = hideSecrets(w)
	}
	s = strings.Join(words, " ")
	if len(s) > maxMessage {
		s = strings.ToValidUTF8(s[:maxMessage-3], "") + "..."
	}
	return s
}

// hideSecrets drops the userinfo and query of a URL and the folders of an
// absolute path.
func hideSecrets(w string) string {
	if scheme, rest, ok := strings.Cut(w, "://"); ok {
		if rest, _, ok = strings.Cut(rest, "?"); ok {
			rest += "?…"
		}
		host, path, slash := strings.Cut(rest, "/")
		if i := strings.LastIndexByte(host, '@'); i >= 0 {
			host = host[i+1:]
		}
		if slash {
			host += "/" + path
		}
		return scheme + "://" + host
	}
	i := strings.IndexByte(w, '/')
	if i < 0 || i > 0 && !strings.ContainsRune(`"'(=[`, rune(w[i-1])) {
		return w
	}
	return w[:i] + w[strings.LastIndexByte(strings.TrimRight(w, "/:,"), '/')+1:]
}
