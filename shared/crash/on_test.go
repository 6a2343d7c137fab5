//go:build crashpoints

package crash_test

import (
	"fmt"
	"os"
	"slices"
	"testing"

	"colophon/shared/crash"
	"colophon/shared/testkit"
)

func TestMain(m *testing.M) {
	testkit.Children(map[string]func([]string){"program": func([]string) {
		for i := range 4 {
			fmt.Println("before", i)
			crash.At("other.point")
			crash.At("x.after-publish")
		}
		fmt.Println("done")
	}})
	os.Exit(m.Run())
}

func TestAtKillsAtTheNthPassing(t *testing.T) {
	for _, tc := range []struct {
		at, hit string
		lines   int
		status  int
	}{
		{"", "", 5, 0}, {"x.after-publish", "", 1, -1}, {"x.after-publish", "3", 3, -1}, {"x.after-publish", "9", 5, 0}, {"no.such", "1", 5, 0},
	} {
		t.Setenv("COLOPHON_CRASH_AT", tc.at)
		t.Setenv("COLOPHON_CRASH_HIT", tc.hit)
		lines, status := testkit.StartChild(t, "program").End()
		if len(lines) != tc.lines || status != tc.status || slices.Contains(lines, "done") != (status == 0) {
			t.Errorf("%s %s: %q, status %d", tc.at, tc.hit, lines, status)
		}
	}
}
