package fault

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"
	"testing"
)

func TestOfDecidesFromTheAllowList(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		err   error
		code  Code
		class Class
	}{
		{fmt.Errorf("write x: %w", syscall.ENOSPC), StoreFull, Environment},
		{fmt.Errorf("open: %w", syscall.EROFS), StoreReadOnly, Environment},
		{fmt.Errorf("read: %w", syscall.EIO), IOError, Transient},
		{&fs.PathError{Op: "open", Path: "/x", Err: syscall.ENOENT}, BytesMissing, Permanent},
		{errors.New("something new"), Unclassified, Permanent},
		{fmt.Errorf("derive: %w", New(EncoderFailed, nil, "exit status 1")), EncoderFailed, Transient},
		{New("ifd-loop", nil, "an IFD points back at itself"), "ifd-loop", Permanent},
		{New(WorkerLost, nil, "worker died"), WorkerLost, Lost},
	} {
		got := Of(tc.err)
		if got.Code != tc.code || got.Class() != tc.class {
			t.Errorf("Of(%v) = %s/%s, want %s/%s", tc.err, got.Code, got.Class(), tc.code, tc.class)
		}
	}
	if Of(nil) != nil {
		t.Error("Of(nil) is not nil")
	}
}

func TestCleanLeavesNoPathsCredentialsOrControls(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"open /srv/masters/a.tif: denied":         "open a.tif: denied",
		"get https://u:p@host/x?token=abc failed": "get https://host/x?… failed",
		"line\x00one\ntwo":                        "line one two",
		"bytes \xff end":                          "bytes   end",
		"rate 15/2 and image/png stay":            "rate 15/2 and image/png stay",
		`cannot read "/a/b c`:                     `cannot read "b c`,
	} {
		if got := Clean(in); got != want {
			t.Errorf("Clean(%q) = %q, want %q", in, got, want)
		}
	}
	if got := Clean(strings.Repeat("é", 4000)); len(got) > maxMessage {
		t.Errorf("%d bytes, want at most %d", len(got), maxMessage)
	}
}
