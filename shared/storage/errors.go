package storage

import (
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"
)

// What an error of the store calls for. Test with [errors.Is].
var (
	// ErrFull: no space, no quota, or free space below the low-water mark.
	// Halt, and go on when there is space again.
	ErrFull = errors.New("the archive is full")
	// ErrReadOnly: the file system is mounted read-only or refuses writes to
	// this user, or the store was opened with OpenReadOnly. Halt.
	ErrReadOnly = errors.New("the archive is read-only")
	// ErrUnavailable: the archive is not where it was, or its device fails.
	// Halt.
	ErrUnavailable = errors.New("the archive is not available")
	// ErrNotExist: there is no such object in an archive that is available.
	ErrNotExist = errors.New("no such object")
	// ErrKey: the key is no legal name of an object, or the operation is not
	// allowed on it (rewriting a master). A bug of the caller.
	ErrKey = errors.New("illegal key")
	// ErrExist: the name is taken already (from the methods of [Tree]).
	ErrExist = errors.New("the object exists already")
)

// Error is a failed operation on the store. Kind is one of the sentinels
// above, or nil when the cause is none of them.
type Error struct {
	Op   string // what was done: write, link, open, …
	Key  string // the object's key, or a folder
	Kind error
	Err  error // the cause
}

func (e *Error) Error() string {
	if e.Kind == nil {
		return fmt.Sprintf("storage: %s %q: %v", e.Op, e.Key, e.Err)
	}
	return fmt.Sprintf("storage: %s %q: %v: %v", e.Op, e.Key, e.Kind, e.Err)
}

// Unwrap gives the kind and the cause.
func (e *Error) Unwrap() []error {
	if e.Kind == nil {
		return []error{e.Err}
	}
	return []error{e.Kind, e.Err}
}

// ConflictError: the name is taken by an object with other bytes. Nothing was
// changed. Under masters it means that the stored master is damaged.
type ConflictError struct {
	Key          string
	Want, Have   Digest // Have is empty where the sizes already differ
	WantN, HaveN int64  // sizes in bytes
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("storage: %q is taken by other bytes: want %s (%d bytes), there is %s (%d bytes)",
		e.Key, e.Want, e.WantN, orUnknown(e.Have), e.HaveN)
}

// DigestError: the bytes read do not have the digest they should have. Nothing
// was stored.
type DigestError struct {
	Key        string
	Want, Have Digest
}

func (e *DigestError) Error() string {
	return fmt.Sprintf("storage: %q: digest %s, expected %s", e.Key, e.Have, e.Want)
}

// TooLargeError: the source has more bytes than the limit. Nothing was stored.
type TooLargeError struct {
	Key   string
	Limit int64 // in bytes
}

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("storage: %q: more than %d bytes", e.Key, e.Limit)
}

// SourceError: the reader that was to be stored failed. It keeps the faults of
// a source apart from the faults of the store: a source's missing file or bad
// disk is no [ErrNotExist] and no [ErrUnavailable]. Nothing was stored.
type SourceError struct {
	Key string
	Err error
}

func (e *SourceError) Error() string {
	return fmt.Sprintf("storage: read the source of %q: %v", e.Key, e.Err)
}

// Unwrap gives the reader's error.
func (e *SourceError) Unwrap() error { return e.Err }

// failure wraps the error of a system call with the kind it stands for.
// Errors that already carry a name of this package pass through.
func failure(op, key string, err error) error {
	if err == nil || named(err) {
		return err
	}
	return &Error{Op: op, Key: key, Kind: kindOf(err), Err: err}
}

// failure is the function of that name, and sees besides whether a missing
// file means a missing archive.
func (s *Store) failure(op, key string, err error) error {
	if err == nil || named(err) {
		return err
	}
	if errors.Is(err, fs.ErrNotExist) && s.vanished() {
		return &Error{Op: op, Key: key, Kind: ErrUnavailable, Err: err}
	}
	return failure(op, key, err)
}

func named(err error) bool {
	var (
		e        *Error
		conflict *ConflictError
		digest   *DigestError
		large    *TooLargeError
		source   *SourceError
	)
	return errors.As(err, &source) || errors.As(err, &e) || errors.As(err, &conflict) ||
		errors.As(err, &digest) || errors.As(err, &large) || errors.Is(err, ErrKey)
}

// kindOf is the table of what the system says and what it means here.
func kindOf(err error) error {
	var errno unix.Errno
	if !errors.As(err, &errno) {
		return nil
	}
	switch errno {
	case unix.ENOSPC, unix.EDQUOT:
		return ErrFull
	case unix.EROFS, unix.EACCES:
		return ErrReadOnly
	case unix.EIO, unix.ENODEV, unix.ENXIO, unix.ESTALE, unix.ENOTCONN, unix.ESHUTDOWN, unix.ETIMEDOUT:
		return ErrUnavailable
	case unix.ENOENT:
		return ErrNotExist
	default:
		return nil
	}
}

func orUnknown(d Digest) string {
	if d == "" {
		return "an unknown digest"
	}
	return string(d)
}
