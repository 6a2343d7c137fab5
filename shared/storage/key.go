package storage

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"
)

// The areas of the layout. Keys of other areas are refused: the databases
// beside them (state, jetstream) belong to others.
const (
	areaStaging     = "staging"
	areaMasters     = "masters"
	areaDerivatives = "derivatives"
	areaBatches     = "batches"
	areaBags        = "bags"
)

var areas = []string{areaStaging, areaMasters, areaDerivatives, areaBatches, areaBags}

// maxComponent is the longest file name of Linux file systems, in bytes.
const maxComponent = 255

// StagingKey names the bytes of one slot on their way in:
// staging/<batch>/<frame>.r<revision>.<digest>.
func StagingKey(batch, frame string, revision int, d Digest) string {
	return StagingFolder(batch) + "/" + StagingName(frame, revision, d)
}

// StagingFolder is the folder of a batch's staged frames: the dir to give to
// [Store.WriteNamed].
func StagingFolder(batch string) string { return areaStaging + "/" + Component(batch) }

// StagingName is the last component of [StagingKey]. Revision and digest
// follow the frame in one file name, so the frame is shortened earlier than by
// [Component]: over 150 bytes it keeps its first 100.
func StagingName(frame string, revision int, d Digest) string {
	return component(frame, 150, 100) + ".r" + strconv.Itoa(revision) + "." + string(d)
}

// MasterKey names the master with this digest. A digest that is not valid
// gives an illegal key.
func MasterKey(d Digest) string { return spread(areaMasters+"/sha256", d, "") }

// DerivativeKey names the derivative of the master d under a profile: a file
// with the extension ext (with or without its dot: "jp2"), or with ext "" the
// folder of a master with many pages.
func DerivativeKey(profile string, d Digest, ext string) string {
	if ext != "" {
		ext = "." + strings.TrimPrefix(ext, ".")
	}
	return spread(areaDerivatives+"/"+Component(profile), d, ext)
}

// ManifestKey names a batch's manifest.
func ManifestKey(batch string) string { return areaBatches + "/" + Component(batch) + ".json" }

// BagKey names a batch's bag, a folder.
func BagKey(batch string) string { return areaBags + "/" + Component(batch) }

// spread puts d two folders deep, so that no folder holds more than 1/65536 of
// the objects.
func spread(dir string, d Digest, ext string) string {
	if !d.Valid() {
		return ""
	}
	return path.Join(dir, string(d[:2]), string(d[2:4]), string(d)+ext)
}

// Component makes one path component out of any bytes: A-Z a-z 0-9 _ - stay,
// every other byte is %XX in upper-case hex. A result over 200 bytes keeps its
// first 160, then come "~" and the first 32 hex digits of the SHA-256 of the
// whole result, then the extension: what follows the last dot of s, with that
// dot (as %2E), if it is at most 20 bytes long encoded. Different s give different
// components; none starts with a dot; the empty s gives the empty component,
// which no key may hold.
func Component(s string) string { return component(s, 200, 160) }

func component(s string, limit, keep int) string {
	whole := escape(s)
	if len(whole) <= limit {
		return whole
	}
	return shorten(whole, escape(extension(s)), keep)
}

// shorten keeps the first bytes of a name and puts a digest of all of it
// behind them, before its extension.
func shorten(whole, ext string, keep int) string {
	sum := sha256.Sum256([]byte(whole))
	return whole[:keep] + "~" + hex.EncodeToString(sum[:16]) + ext
}

// extension is what follows the last dot of s, with the dot, if it is short
// enough to be one: at most 20 bytes encoded.
func extension(s string) string {
	dot := strings.LastIndexByte(s, '.')
	if dot < 0 || len(escape(s[dot:])) > 20 {
		return ""
	}
	return s[dot:]
}

func escape(s string) string {
	const hexDigits = "0123456789ABCDEF"
	var b strings.Builder
	b.Grow(len(s))
	for i := range len(s) {
		switch c := s[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '_', c == '-':
			b.WriteByte(c)
		default:
			b.Write([]byte{'%', hexDigits[c>>4], hexDigits[c&15]})
		}
	}
	return b.String()
}

// checkKey refuses every key that is not a plain path below one of the areas.
func checkKey(key string) error {
	area, rest, _ := strings.Cut(key, "/")
	for _, a := range areas {
		if a == area {
			top, inside, deep := strings.Cut(rest, "/")
			if area != areaBags || !deep {
				return checkNames(key, rest, true)
			}
			return errors.Join(checkNames(key, top, true), checkNames(key, inside, false))
		}
	}
	return fmt.Errorf("storage: %w %q", ErrKey, key)
}

// checkFile is checkKey for a single file to store. Bags are stored whole (see
// [Tree]): no temporary name must appear inside one.
func checkFile(key string) error {
	if insideBag(key) {
		return fmt.Errorf("storage: %w %q: bags are stored whole", ErrKey, key)
	}
	return checkKey(key)
}

// checkTree is checkKey for a folder to store: of a bag, only all of it.
func checkTree(key string) error {
	if insideBag(key) && insideBag(path.Dir(key)) {
		return fmt.Errorf("storage: %w %q: bags are stored whole", ErrKey, key)
	}
	return checkKey(key)
}

// checkFolder is checkKey for a place to put objects: an area itself will do.
func checkFolder(dir string) error {
	for _, a := range areas {
		if a == dir {
			return nil
		}
	}
	return checkKey(dir)
}

// checkNames refuses a relative path with a component that is empty, "." or
// "..", too long, or holds a zero byte; and, where temporary names live, one
// that looks like a temporary name.
func checkNames(key, rel string, temporaries bool) error {
	for c := range strings.SplitSeq(rel, "/") {
		if c == "" || c == "." || c == ".." || len(c) > maxComponent || strings.IndexByte(c, 0) >= 0 ||
			temporaries && strings.HasPrefix(c, tempPrefix) {
			return fmt.Errorf("storage: %w %q: component %q", ErrKey, key, c)
		}
	}
	return nil
}
