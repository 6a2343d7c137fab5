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
	Encoder string   `json:"encoder"` // a program, or [JPEG]
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
	// to the master's samples reduced by 4; of a thumbnail, to the samples
	// reduced to its size.
	MinPSNR float64 `json:"min_psnr,omitempty"`
	// MaxChannels and MaxBits bound what the recipe is made for: pages of more
	// colours, or of more bits a sample, are refused. 0: any.
	MaxChannels int `json:"max_channels,omitempty"`
	MaxBits     int `json:"max_bits,omitempty"`
	// Side is the longer side of a thumbnail, in pixels, and Quality that of its
	// JPEG, from 1 to 100. A page that is smaller is not enlarged.
	Side    int `json:"side,omitempty"`
	Quality int `json:"quality,omitempty"`
}

// JPEG is the encoder of thumbnails: this program's own.
const JPEG = "image/jpeg"

// Extension of the derivatives' files, with its dot.
func (r Recipe) Extension() string {
	if r.Encoder == JPEG {
		return ".jpg"
	}
	return ".jp2"
}

// base are the encoder's arguments that the two own recipes share: five
// halvings, tiles of 1,024, precincts for access by region, resolution first,
// and the markers that make damage findable and seeking fast. The comment is
// fixed, because the encoder's own carries its version into the bytes.
func base(comment string) []string {
	return []string{
		"-n", "6", "-t", "1024,1024", "-b", "64,64",
		"-c", "[256,256],[256,256],[128,128],[128,128],[128,128],[128,128]",
		"-p", "RPCL", "-SOP", "-EPH", "-M", "32", "-PLT", "-TLM", "-C", comment,
	}
}

// kb are the arguments of the national library of the Netherlands for access
// (2014) and, with the layers down to the last bit, for masters.
func kb(comment string) []string {
	return []string{
		"-n", "6", "-t", "1024,1024", "-b", "64,64",
		"-c", "[256,256],[256,256],[128,128],[128,128],[128,128],[128,128]",
		"-p", "RPCL", "-SOP", "-EPH", "-M", "32", "-C", comment,
	}
}

// kbRates halve the bytes from layer to layer, down to 20:1.
const kbRates = "2560,1280,640,320,160,80,40,20"

// ndnp are the arguments of the National Digital Newspaper Program (2.6).
func ndnp() []string {
	return []string{"-n", "7", "-t", "1024,1024", "-b", "64,64", "-p", "RLCP", "-M", "1", "-C", "ndnp"}
}

// ndnpRates are its 25 layers, published as 0.015625 to 1 bits a pixel of 8,
// as the ratios that the encoder counts in.
const ndnpRates = "512,430.57,361.99,320,256,215.29,181.04,160,128,114.29,90.909,80,64,53.333,44.444,38.095,32,26.667,22.857,20,16,13.333,11.429,9.5238,8"

// profiles are made anew for each caller, who may keep and change them.
func profiles() []Recipe {
	const small, floor = 1_000_000, 24
	return []Recipe{
		{
			Name: "jp2", Encoder: "opj_compress",
			Args:      slices.Concat([]string{"-I", "-r", "15"}, base("access-1")),
			ExactArgs: base("access-1"), ExactBelow: small, MinPSNR: floor,
		},
		{
			Name: "jp2-lossless", Encoder: "opj_compress",
			Args: base("lossless-1"), Lossless: true,
		},
		{
			Name: "kb-access-2014", Encoder: "opj_compress",
			Args:      slices.Concat([]string{"-I", "-r", kbRates}, kb("KB_ACCESS_LOSSY_01/01/2015")),
			ExactArgs: slices.Concat([]string{"-r", kbRates + ",10,5,1"}, kb("KB_MASTER_LOSSLESS_01/01/2015")), ExactBelow: small, MinPSNR: floor,
		},
		{
			// One component of 8 bits, as the program demands.
			Name: "ndnp", Encoder: "opj_compress", MaxChannels: 1, MaxBits: 8,
			Args: slices.Concat([]string{"-I", "-r", ndnpRates}, ndnp()), ExactArgs: ndnp(), ExactBelow: small, MinPSNR: floor,
		},
		{Name: "thumb", Encoder: JPEG, Args: []string{}, Side: 512, Quality: 85, MinPSNR: floor},
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
