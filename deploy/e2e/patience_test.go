//go:build !soak

package e2e

import "time"

// patience bounds every wait. Only a broken program ever waits for it.
const patience = 2 * time.Minute
