package fault_test

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"
	"testing"

	"colophon/services/deriver/internal/fault"
)

func TestScratch(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		err   error
		class fault.Class
		code  string
	}{
		{&fs.PathError{Op: "write", Err: syscall.ENOSPC}, fault.Environment, fault.ScratchFull},
		{fmt.Errorf("x: %w", syscall.EDQUOT), fault.Environment, fault.ScratchFull},
		{&fs.PathError{Op: "open", Err: syscall.EROFS}, fault.Environment, fault.StoreUnwritable},
		{fs.ErrPermission, fault.Environment, fault.StoreUnwritable},
		{syscall.EIO, fault.Transient, fault.ReadFailed},
		{fault.Refuse(fault.Truncated, "x"), fault.Permanent, fault.Truncated},
	} {
		var f *fault.Fault
		if err := fault.Scratch(tt.err); !errors.As(err, &f) || f.Class != tt.class || f.Code != tt.code || !errors.Is(err, tt.err) {
			t.Errorf("%v: got %v", tt.err, err)
		}
	}
	if fault.Scratch(nil) != nil {
		t.Error("no error became one")
	}
}

func TestStderrIsCapped(t *testing.T) {
	t.Parallel()
	f := fault.Later(fault.EncoderFailed, nil, "x").WithStderr(strings.Repeat("a", 5000) + "end")
	if len(f.Stderr) != fault.MaxStderr || !strings.HasSuffix(f.Stderr, "end") {
		t.Errorf("kept %d bytes", len(f.Stderr))
	}
}
