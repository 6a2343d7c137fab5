// Package derive makes derivatives of masters: it checks a master strictly,
// decodes it, has it encoded by a limited child, and compares the result with
// the master's samples before anyone sees it.
//
// What is permanent is decided by the check, before the encoder runs; the
// encoder's exit status never decides it.
package derive

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"colophon/services/deriver/internal/fault"
	"colophon/services/deriver/internal/raster"

	recipes "colophon/shared/profile"
)

// Fault is the error of a derivative that was not made: a code, a class and a
// sentence. See package fault for the codes.
type Fault = fault.Fault

// Technical and Finding describe a master; see package raster.
type (
	Technical = raster.Technical
	Finding   = raster.Finding
)

// Request is one master and what is wanted of it.
type Request struct {
	Path   string // of the master
	Digest string // its SHA-256 in hexadecimal; "" if it is not known
	Name   string // its original name, whose extension must agree with its content; "" to leave that out
	Recipe recipes.Recipe
	// Attempt is the number of the try, from 1: each has twice the memory and
	// time of the one before, up to the limits.
	Attempt int
	Limits  Limits // zero: DefaultLimits
	// Scratch is the directory below which a directory is made for this master
	// and always removed, at the latest by Result.Close.
	Scratch string
	// Reserve, if given, is asked for the memory of a helper, in bytes, before
	// it starts, and may wait for it; release is called when it has ended.
	Reserve func(ctx context.Context, bytes int64) (release func(), err error)
}

// Output is the derivative of one page.
type Output struct {
	Page   int     `json:"page"` // from 1
	Path   string  `json:"-"`    // until Result.Close
	SHA256 string  `json:"sha256"`
	Size   int64   `json:"size"`
	Exact  bool    `json:"exact"`          // decodes to the master's samples
	PSNR   float64 `json:"psnr,omitempty"` // decibels at a quarter of the size, if not exact
	Width  int     `json:"width"`
	Height int     `json:"height"`
}

// Result is a finished derivative: all pages of the master.
type Result struct {
	Outputs   []Output
	Technical Technical
	Warnings  []Finding
	Helpers   []Helper
	Args      []string // of the encoder, for the first page

	dir string
}

// Close removes the output files. It may be called again.
func (r *Result) Close() error {
	if r.dir == "" {
		return nil
	}
	err := os.RemoveAll(r.dir)
	r.dir = ""
	return err
}

// scratchPrefix begins the names of the directories this package makes.
const scratchPrefix = "derive-"

// Sweep removes what a process that was killed has left below scratch. No
// other process may be deriving there.
func Sweep(scratch string) error {
	left, err := filepath.Glob(filepath.Join(scratch, scratchPrefix+"*"))
	if err != nil {
		return fmt.Errorf("sweep %s: %w", scratch, err)
	}
	var errs []error
	for _, dir := range left {
		errs = append(errs, os.RemoveAll(dir))
	}
	return errors.Join(errs...)
}

// Derive makes the derivative of one master: all its pages, or none. The error
// is a *Fault, or the context's own if it ended. Doing it twice gives the same
// bytes twice.
func Derive(ctx context.Context, req Request) (*Result, error) {
	if req.Limits == (Limits{}) {
		req.Limits = DefaultLimits()
	}
	dir, err := os.MkdirTemp(req.Scratch, scratchPrefix)
	if err != nil {
		return nil, fault.Scratch(err)
	}
	j := &job{Request: req, dir: dir, used: map[string]Helper{}}
	result, err := j.run(ctx)
	if err != nil {
		if rerr := os.RemoveAll(dir); rerr != nil {
			err = errors.Join(err, rerr)
		}
		return nil, classify(ctx, err)
	}
	return result, nil
}

// classify makes every error a fault, but the context's.
func classify(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var scratch *raster.ScratchError
	if errors.As(err, &scratch) {
		return fault.Scratch(scratch.Err)
	}
	var known *fault.Fault
	if errors.As(err, &known) {
		return known
	}
	return fault.Scratch(err)
}

// job is one call of Derive.
type job struct {
	Request
	dir  string
	used map[string]Helper
	args []string
}

func (j *job) path(name string) string { return filepath.Join(j.dir, name) }

func (j *job) run(ctx context.Context) (*Result, error) {
	if err := Probe(j.Recipe); err != nil {
		return nil, err
	}
	m, err := j.openMaster(ctx)
	if err != nil {
		return nil, err
	}
	defer m.close()
	image, err := j.read(ctx, m)
	if err = m.judge(err); err != nil {
		return nil, err
	}
	result := &Result{dir: j.dir}
	for i, page := range image.Pages {
		out, err := j.page(ctx, m, image, i+1, page)
		if err != nil {
			return nil, err
		}
		result.Outputs = append(result.Outputs, out)
	}
	if err := m.unchanged(); err != nil {
		return nil, err
	}
	result.Technical, result.Warnings, result.Args = image.Technical, image.Warnings, j.args
	for _, v := range j.used {
		result.Helpers = append(result.Helpers, v)
	}
	sortHelpers(result.Helpers)
	return result, nil
}

// page derives one page. Only the finished file stays.
func (j *job) page(ctx context.Context, m *master, image *raster.Image, number int, page raster.Page) (Output, error) {
	if err := j.suits(page.Info); err != nil {
		return Output{}, err
	}
	profile, err := j.profile(image, page)
	if err != nil {
		return Output{}, err
	}
	name := fmt.Sprintf("%04d", number) + j.Recipe.Extension()
	if j.Recipe.Encoder == recipes.JPEG {
		out, err := j.thumb(ctx, page, profile, name)
		out.Page = number
		return out, m.judge(err)
	}
	plain, err := raster.WritePlain(ctx, page, j.path("page.tif"))
	if err = j.blameDisk(m.judge(err), page.Info); err != nil {
		return Output{}, err
	}
	defer os.Remove(plain.Path)
	coded, err := j.encode(ctx, plain)
	if err != nil {
		return Output{}, err
	}
	defer os.Remove(coded.path)
	out, err := j.finish(coded, profile, upright(page), name)
	if err != nil {
		return Output{}, err
	}
	out.Page, out.Width, out.Height = number, plain.Width, plain.Height
	return out, nil
}

// suits refuses pages that the recipe is not made for.
func (j *job) suits(page raster.Info) error {
	switch r := j.Recipe; {
	case r.MaxChannels > 0 && page.Channels > r.MaxChannels:
		return fault.Refuse(fault.ProfileUnfit, "The profile %s is for pages of one colour; this one has %d", r.Name, page.Channels)
	case r.MaxBits > 0 && page.Bits > r.MaxBits:
		return fault.Refuse(fault.ProfileUnfit, "The profile %s is for samples of %d bits; these have %d", r.Name, r.MaxBits, page.Bits)
	}
	return nil
}

// upright is the page's resolution after turning it.
func upright(page raster.Page) raster.Resolution {
	r := page.Resolution
	if page.Orientation >= 5 {
		r.X, r.Y = r.Y, r.X
	}
	return r
}

// extension is a name's, in lower case with its dot.
func extension(name string) string { return strings.ToLower(filepath.Ext(name)) }
