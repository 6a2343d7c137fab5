package derive

import (
	"context"
	"errors"
	"regexp"

	"colophon/services/deriver/internal/fault"
	"colophon/services/deriver/internal/helper"

	"colophon/shared/profile"
)

var openjpeg = regexp.MustCompile(`openjp2 library v(\d+\.\d+\.\d+)`)

// The helper programs. Each keeps the version it was last seen with.
var (
	encoder = &helper.Program{Name: "opj_compress", Ask: []string{"-h"}, Pattern: openjpeg}
	decoder = &helper.Program{Name: "opj_decompress", Ask: []string{"-h"}, Pattern: openjpeg}
	djpeg   = &helper.Program{Name: "djpeg", Ask: []string{"-version"}, Pattern: regexp.MustCompile(`version (\d+\.\d+\.\d+)`)}
)

// Helper is a program that had a part in a derivative.
type Helper = helper.Version

// Probe tells whether the programs that a recipe always needs are installed:
// nil, or an environment fault.
func Probe(r profile.Recipe) error {
	if r.Encoder == profile.JPEG {
		return nil
	}
	for _, p := range []*helper.Program{encoder, decoder} {
		if err := p.Installed(); err != nil {
			return fault.Halt(fault.EncoderMissing, err, "The program %s is not installed", p.Name)
		}
	}
	return nil
}

// Versions gives the versions of all helpers that are installed. They are
// asked once.
func Versions(ctx context.Context) ([]Helper, error) {
	var all []Helper
	for _, p := range []*helper.Program{encoder, decoder, djpeg} {
		v, err := p.Version(ctx)
		switch {
		case err == nil:
			all = append(all, v)
		case !errors.Is(err, helper.ErrMissing):
			return nil, err
		}
	}
	return all, nil
}
