package derive

import (
	"time"

	"colophon/services/deriver/internal/fault"
	"colophon/services/deriver/internal/helper"
	"colophon/services/deriver/internal/raster"
)

// Limits bound what one master may cost.
type Limits struct {
	MaxSide      int           // pixels of a side
	MaxPixels    int64         // pixels of a page
	MaxSamples   int           // samples of a pixel
	MaxImages    int           // directories of a TIFF
	MaxExpansion int64         // decoded bytes a byte of image data
	Memory       int64         // bytes of address space of a helper
	CPU          time.Duration // of a helper
	Wall         time.Duration // of a helper
	Output       int64         // bytes of a file that a helper writes
}

// DefaultLimits are far above any page that is scanned and far below what
// would harm a machine that can scan.
func DefaultLimits() Limits {
	return Limits{
		MaxSide: 65535, MaxPixels: 1 << 30, MaxSamples: 5, MaxImages: 10000, MaxExpansion: 4096,
		Memory: 8 << 30, CPU: 30 * time.Minute, Wall: time.Hour, Output: 16 << 30,
	}
}

func (l Limits) bounds() raster.Bounds {
	return raster.Bounds{
		MaxSide: l.MaxSide, MaxPixels: l.MaxPixels, MaxSamples: l.MaxSamples,
		MaxImages: l.MaxImages, MaxExpansion: l.MaxExpansion,
	}
}

// Memory is what encoding, or decoding, a page takes, in bytes: four for each
// sample, the page itself, and the program. Measured: 440 to 520 MB for 35
// megapixels of 8-bit RGB, 620 MB of 16-bit.
func Memory(page raster.Info) int64 {
	samples := page.Pixels() * int64(page.Channels)
	return 4*samples + samples*int64(page.SampleBytes()) + 32<<20
}

// generosity is by how much an attempt exceeds the first one's memory and
// time: what failed may have failed for want of them.
func (j *job) generosity() int64 { return 1 << min(max(j.Attempt-1, 0), 4) }

// helperLimits gives what to reserve for one run of a helper on a page, in
// bytes, and its limits. Time grows with the samples: ten times what the
// slowest page measured took.
func (j *job) helperLimits(page raster.Info) (int64, helper.Limits, error) {
	l, need := j.Limits, Memory(page)
	if need > l.Memory {
		return 0, helper.Limits{}, fault.Later(fault.MemoryShort, nil,
			"A page of %d by %d pixels needs %d MB; the limit is %d MB", page.Width, page.Height, need>>20, l.Memory>>20)
	}
	need = min(need*j.generosity(), l.Memory)
	samples := page.Pixels() * int64(page.Channels)
	cpu := min((time.Minute+time.Duration(samples)*2*time.Microsecond)*time.Duration(j.generosity()), l.CPU)
	return need, helper.Limits{
		// Address space is not memory: room for libraries and fragments.
		Memory: min(2*need+512<<20, l.Memory),
		CPU:    cpu,
		Wall:   min(10*cpu, l.Wall),
		File:   min(4*samples+16<<20, l.Output),
	}, nil
}
