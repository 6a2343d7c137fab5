package gateway

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// renameNew renames a file to a name that must be free. File systems that
// cannot promise that get a look and a rename.
func renameNew(from, to string) error {
	err := unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) {
		if _, err := os.Lstat(to); err == nil {
			return fmt.Errorf("%s: %w", to, os.ErrExist)
		}
		return os.Rename(from, to)
	}
	if err != nil {
		return &os.LinkError{Op: "rename", Old: from, New: to, Err: err}
	}
	return nil
}
