//go:build soak

package capture

func init() { hostileFrames = 4000 }
