package gateway

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"path"
	"regexp"
	"strings"
	"unicode/utf8"
)

// checksum is what a vendor's list says of one file.
type checksum struct {
	Algorithm string // md5 or sha256
	Hex       string // lower case
	List      string // name of the list
}

// maxList bounds a list, bytes: 100,000 lines of 640.
const maxList = 64 << 20

// isList reports whether a name is one that vendors give their lists.
func isList(name string) bool {
	n := strings.ToLower(path.Base(name))
	switch path.Ext(n) {
	case ".md5", ".sha256", ".md5sum", ".sha256sum", ".md5sums", ".sha256sums":
		return true
	}
	n = strings.TrimSuffix(n, ".txt")
	switch n {
	case "md5sum", "md5sums", "md5", "sha256sum", "sha256sums", "sha256", "checksum", "checksums", "checksum.md5", "checksum.sha256", "manifest-md5", "manifest-sha256":
		return true
	}
	return false
}

// lists of a file's checksum: "hash name", "hash *name", with any blanks, or
// "ALGORITHM (name) = hash".
var (
	gnuLine = regexp.MustCompile(`^\\?([0-9A-Fa-f]{32}|[0-9A-Fa-f]{64})[ \t]+\*?(.+)$`)
	bsdLine = regexp.MustCompile(`^(?i:md5|sha-?256)[ \t]*\((.+)\)[ \t]*=[ \t]*([0-9A-Fa-f]{32}|[0-9A-Fa-f]{64})$`)
)

// readList reads a vendor's list: with a byte order mark or without, lines
// ended as Windows ends them, tabs, upper case, backslashes in paths, comments.
// folder is where the list lies, below the batch: names in it are relative to
// that. Nothing in it that could be read is an error, and so is what lies
// outside the batch.
func readList(list string, data []byte) (map[string]checksum, error) {
	data, err := plainText(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", list, err)
	}
	out := map[string]checksum{}
	var errs []error
	s := bufio.NewScanner(bytes.NewReader(data))
	s.Buffer(nil, 64<<10)
	for n := 1; s.Scan(); n++ {
		line := strings.TrimRight(s.Text(), " \t\r")
		if line = strings.TrimLeft(line, " \t"); line == "" || line[0] == '#' || line[0] == ';' {
			continue
		}
		sum, name := "", ""
		if m := gnuLine.FindStringSubmatch(line); m != nil {
			sum, name = m[1], m[2]
		} else if m := bsdLine.FindStringSubmatch(line); m != nil {
			name, sum = m[1], m[2]
		} else {
			errs = append(errs, fmt.Errorf("%s: line %d is no checksum and name", list, n))
			continue
		}
		name = path.Join(path.Dir(list), strings.ReplaceAll(name, `\`, "/"))
		if name == ".." || strings.HasPrefix(name, "../") || path.IsAbs(name) {
			errs = append(errs, fmt.Errorf("%s: line %d names a file outside the batch", list, n))
			continue
		}
		c := checksum{map[int]string{32: "md5", 64: "sha256"}[len(sum)], strings.ToLower(sum), list}
		if before, twice := out[name]; twice && before != c {
			errs = append(errs, fmt.Errorf("%s: line %d names %q again, with another checksum", list, n, name))
		}
		out[name] = c
	}
	errs = append(errs, s.Err())
	if len(out) == 0 {
		errs = append(errs, fmt.Errorf("%s: not one checksum in it", list))
	}
	return out, errors.Join(errs...)
}

// plainText gives the UTF-8 of a text with a byte order mark, or with none.
func plainText(data []byte) ([]byte, error) {
	switch {
	case bytes.HasPrefix(data, []byte("\xef\xbb\xbf")):
		return data[3:], nil
	case bytes.HasPrefix(data, []byte("\xff\xfe")), bytes.HasPrefix(data, []byte("\xfe\xff")):
		return utf16Text(data)
	}
	return data, nil
}

func utf16Text(data []byte) ([]byte, error) {
	low := data[0] == 0xff
	if len(data)%2 != 0 {
		return nil, errors.New("half a UTF-16 character at its end")
	}
	var out []byte
	var high rune
	for i := 2; i < len(data); i += 2 {
		c := rune(data[i])<<8 | rune(data[i+1])
		if low {
			c = rune(data[i+1])<<8 | rune(data[i])
		}
		switch {
		case c >= 0xd800 && c < 0xdc00:
			high = c
			continue
		case c >= 0xdc00 && c < 0xe000:
			c = (high-0xd800)<<10 + (c - 0xdc00) + 0x10000
		}
		out = utf8.AppendRune(out, c)
	}
	return out, nil
}

// matches compares a file's digests with the list's.
func (c checksum) matches(md5, sha256 []byte) bool {
	got := sha256
	if c.Algorithm == "md5" {
		got = md5
	}
	return hex.EncodeToString(got) == c.Hex
}
