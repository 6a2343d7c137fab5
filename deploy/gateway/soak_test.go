//go:build soak

package gateway

func init() { manyFiles = 10_000 }
