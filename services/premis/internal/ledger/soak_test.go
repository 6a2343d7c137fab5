//go:build soak

package ledger_test

import (
	"testing"

	"pgregory.net/rapid"
)

// TestTenThousandSequences is [TestLedgerIsAFunctionOfTheLog], a hundred times
// its hundred sequences.
func TestTenThousandSequences(t *testing.T) {
	for range 100 {
		rapid.Check(t, functionOfTheLog)
	}
}

// TestKilled200 is [TestKilled] with two hundred kills.
func TestKilled200(t *testing.T) { killed(t, 200) }
