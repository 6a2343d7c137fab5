// Package fault names the ways in which making a derivative can end other
// than well. A fault carries a stable code for programs, a class that says
// what to do about it and a sentence for people; codes are part of the
// product's interface and never change their meaning.
package fault

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"
)

// Class says what may be done about a fault.
type Class string

const (
	// Permanent means that the same bytes will fail again: the master is
	// damaged or of a kind that is not read. Only our own checks decide this,
	// never a helper program's exit status alone.
	Permanent Class = "permanent"
	// Transient means that another attempt may do better.
	Transient Class = "transient"
	// Environment means that nothing is wrong with the master: a program is
	// not installed, the scratch disk is full. Work should halt until it is
	// mended.
	Environment Class = "environment"
)

// Codes of permanent faults: the master is damaged.
const (
	Empty          = "empty"           // no bytes at all
	Truncated      = "truncated"       // the file ends before its content does
	BadStructure   = "bad-structure"   // contradicts its own format's rules
	BadDimensions  = "bad-dimensions"  // width or height is zero or absurd
	IFDLoop        = "ifd-loop"        // a TIFF directory is visited twice
	DataPastEOF    = "data-past-eof"   // image data is said to begin after the end of the file
	StripShort     = "strip-short"     // a strip or tile holds fewer rows than it must
	StripSurplus   = "strip-surplus"   // a strip or tile holds more rows than it may
	DataCorrupt    = "data-corrupt"    // compressed data fails its checksum or code tables
	FormatMismatch = "format-mismatch" // the content is another format than the name says
	MasterDamaged  = "master-damaged"  // the bytes are not those of the expected digest
	ImageTooLarge  = "image-too-large" // beyond the limits on sides or pixels
	TooManyImages  = "too-many-images" // beyond the limit on directories
	ExpansionBomb  = "expansion-bomb"  // declares far more pixels than its bytes can hold
	NoFormat       = "unsupported-format"
	NoCompression  = "unsupported-compression"
	NoPhotometric  = "unsupported-photometric"
	NoDepth        = "unsupported-depth"
	NoSampleFormat = "unsupported-sample-format"
	NoPredictor    = "unsupported-predictor"
	NoLayout       = "unsupported-layout"
	NoICC          = "unsupported-icc"
	NoCameraRaw    = "unsupported-camera-raw"
	ProfileUnfit   = "unsupported-by-profile" // a good master, but not of the kind the profile is for
)

// Codes of faults that are not the master's.
const (
	EncoderFailed   = "encoder-failed"   // transient: the encoder failed after a clean check, or its output failed the gate
	DecoderFailed   = "decoder-failed"   // transient: a helper that decodes failed for a reason that is not the data's
	ReadFailed      = "read-failed"      // transient: the master could not be read
	MemoryShort     = "memory-short"     // transient: the page needs more memory than the limits grant
	EncoderMissing  = "encoder-missing"  // environment: opj_compress or opj_decompress is not installed
	DecoderMissing  = "decoder-missing"  // environment: djpeg is not installed
	ScratchFull     = "scratch-full"     // environment: no space left in the scratch directory
	StoreUnwritable = "store-unwritable" // environment: the scratch directory cannot be written
)

// MaxStderr bounds, in bytes, the tail of a helper's standard error that a
// fault keeps.
const MaxStderr = 2048

// Fault is an error with a decision in it.
type Fault struct {
	Code    string `json:"code"`
	Class   Class  `json:"class"`
	Message string `json:"message"`          // one sentence, for people
	Stderr  string `json:"stderr,omitempty"` // the last MaxStderr bytes of a helper's standard error
	Err     error  `json:"-"`                // the cause, if there is one
}

func (f *Fault) Error() string {
	if f.Err == nil {
		return f.Code + ": " + f.Message
	}
	return f.Code + ": " + f.Message + ": " + f.Err.Error()
}

// Unwrap returns the cause.
func (f *Fault) Unwrap() error { return f.Err }

// Refuse makes a permanent fault: the master itself is why.
func Refuse(code, format string, args ...any) *Fault {
	return &Fault{Code: code, Class: Permanent, Message: fmt.Sprintf(format, args...)}
}

// Later makes a transient fault with its cause, which may be nil.
func Later(code string, cause error, format string, args ...any) *Fault {
	return &Fault{Code: code, Class: Transient, Message: fmt.Sprintf(format, args...), Err: cause}
}

// Halt makes an environment fault with its cause, which may be nil.
func Halt(code string, cause error, format string, args ...any) *Fault {
	return &Fault{Code: code, Class: Environment, Message: fmt.Sprintf(format, args...), Err: cause}
}

// WithStderr keeps the tail of a helper's standard error in f and returns f.
func (f *Fault) WithStderr(stderr string) *Fault {
	if len(stderr) > MaxStderr {
		stderr = stderr[len(stderr)-MaxStderr:]
	}
	f.Stderr = stderr
	return f
}

// Scratch classes an error of writing to the scratch directory. A nil error
// gives nil; a Fault passes unchanged.
func Scratch(err error) error {
	if err == nil {
		return nil
	}
	var known *Fault
	if errors.As(err, &known) {
		return err
	}
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return Halt(ScratchFull, err, "There is no space left in the scratch directory")
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS), errors.Is(err, fs.ErrNotExist):
		return Halt(StoreUnwritable, err, "The scratch directory cannot be written")
	}
	return Later(ReadFailed, err, "A scratch file could not be read or written")
}
