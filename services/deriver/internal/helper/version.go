package helper

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"sync"
	"time"
)

// Version is the version that a helper program gives of itself.
type Version struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

// Program is a helper and how to learn its version.
type Program struct {
	Name    string
	Ask     []string       // arguments that make it print its version
	Pattern *regexp.Regexp // whose first group is the version

	mu   sync.Mutex
	path string
	last Version
}

// askLimits bound the question for a version.
var askLimits = Limits{Memory: 1 << 30, CPU: 5 * time.Second, Wall: 20 * time.Second}

// Installed tells whether the program can be found; the error is ErrMissing.
func (p *Program) Installed() error {
	if _, err := exec.LookPath(p.Name); err != nil {
		return fmt.Errorf("%s: %w", p.Name, errors.Join(ErrMissing, err))
	}
	return nil
}

// Version asks the program for its version, once for each place it is found
// at. A program that says nothing recognisable has the version "unknown".
func (p *Program) Version(ctx context.Context) (Version, error) {
	path, err := exec.LookPath(p.Name)
	if err != nil {
		return Version{}, fmt.Errorf("%s: %w", p.Name, errors.Join(ErrMissing, err))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.path == path {
		return p.last, nil
	}
	out, err := Run(ctx, Command{Program: path, Args: p.Ask, Dir: "/", Limits: askLimits})
	var failed *Failure
	// opj_compress prints its help and exits with 1.
	if err != nil && !(errors.As(err, &failed) && failed.Status > 0) {
		return Version{}, fmt.Errorf("version of %s: %w", p.Name, err)
	}
	v := Version{Name: p.Name, Version: "unknown"}
	if m := p.Pattern.FindStringSubmatch(out.Stdout + out.Stderr); m != nil {
		v.Version = m[1]
	}
	p.path, p.last = path, v
	return v, nil
}
