// Package profile holds the named recipes of derivatives, as data: a batch names
// the profiles it wants, deriver makes them. A recipe is pinned in the log
// under its name; another recipe needs another name.
package profile

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
)

// Recipe says how a derivative is made, and nothing about where or by which
// build of the encoder. It is data: its canonical form is pinned in the log
// under its name, and another recipe needs another name.
type Recipe struct {
	Name    string   `json:"name"`
	Encoder string   `json:"encoder"` // program
	Args    []string `json:"args"`    // beside input, output and threads
	// Lossless says that Args lose nothing: the derivative is decoded whole and
	// must equal the master's samples.
	Lossless bool `json:"lossless"`
	// ExactArgs are used in place of Args, and the result must equal the
	// samples, for pages of fewer than ExactBelow pixels, to which a fixed ratio
	// would do harm, and for those that fall short of MinPSNR under Args.
	ExactArgs  []string `json:"exact_args,omitempty"`
	ExactBelow int64    `json:"exact_below,omitempty"`
	// MinPSNR is the least likeness, in decibels, of the derivative reduced by 4
	// to the master's samples reduced by 4.
	MinPSNR float64 `json:"min_psnr,omitempty"`
}

// base are the encoder's arguments that both recipes share: five halvings,
// tiles of 1,024, precincts for access by region, resolution first, and the
// markers that make damage findable and seeking fast. The comment is fixed,
// because the encoder's own carries its version into the bytes.
func base(comment string) []string {
	return []string{
		"-n", "6", "-t", "1024,1024", "-b", "64,64",
		"-c", "[256,256],[256,256],[128,128],[128,128],[128,128],[128,128]",
		"-p", "RPCL", "-SOP", "-EPH", "-M", "32", "-PLT", "-TLM", "-C", comment,
	}
}

// profiles are made anew for each caller, who may keep and change them.
func profiles() []Recipe {
	return []Recipe{
		{
			Name: "jp2", Encoder: "opj_compress",
			Args:      slices.Concat([]string{"-I", "-r", "15"}, base("access-1")),
			ExactArgs: base("access-1"), ExactBelow: 1_000_000, MinPSNR: 24,
		},
		{
			Name: "jp2-lossless", Encoder: "opj_compress",
			Args: base("lossless-1"), Lossless: true,
		},
	}
}

// Named gives the recipe of that name.
func Named(name string) (Recipe, bool) {
	for _, r := range profiles() {
		if r.Name == name {
			return r, true
		}
	}
	return Recipe{}, false
}

// Names lists all recipes, the default first.
func Names() []string {
	var names []string
	for _, r := range profiles() {
		names = append(names, r.Name)
	}
	return names
}

// Canonical is the one JSON form of r: keys sorted, no spaces.
func (r Recipe) Canonical() ([]byte, error) {
	plain, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("profile: recipe %s: %w", r.Name, err)
	}
	var sorted map[string]any
	if err := json.Unmarshal(plain, &sorted); err != nil {
		return nil, fmt.Errorf("profile: recipe %s: %w", r.Name, err)
	}
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(sorted); err != nil {
		return nil, fmt.Errorf("profile: recipe %s: %w", r.Name, err)
	}
	return bytes.TrimRight(out.Bytes(), "\n"), nil
}

// Digest is the SHA-256 of the canonical form, in hexadecimal.
func (r Recipe) Digest() (string, error) {
	c, err := r.Canonical()
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(c)
	return hex.EncodeToString(sum[:]), nil
}
