//go:build crashpoints

package crash

import (
	"os"
	"strconv"
	"sync/atomic"
	"syscall"
)

var hits atomic.Int64

// At ends the process with SIGKILL at the n-th passing of the point named by
// COLOPHON_CRASH_AT ("deriver.after-publish"), n from COLOPHON_CRASH_HIT (1).
func At(point string) {
	if os.Getenv("COLOPHON_CRASH_AT") != point {
		return
	}
	n, err := strconv.ParseInt(os.Getenv("COLOPHON_CRASH_HIT"), 10, 64)
	if err != nil {
		n = 1
	}
	if hits.Add(1) == n {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
}
