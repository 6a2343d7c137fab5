package verify

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"unicode/utf8"

	"colophon/shared/event"
	"colophon/shared/storage"
)

// Files of a bag, RFC 8493.
const (
	bagDeclaration = "bagit.txt"
	bagInfo        = "bag-info.txt"
	bagManifest    = "manifest-sha256.txt"
	bagTagManifest = "tagmanifest-sha256.txt"
	bagNames       = "metadata/names.tsv"
	bagCopy        = "metadata/manifest.json"
	bagPremis      = "metadata/premis/"
)

// maxText bounds the small text files of a bag.
const maxText = 1 << 20

// bag is one bag under judgement.
type bag struct {
	*batch
	key         string
	convergence int
	oxum        string
	files       int64 // of the payload, as the manifest lists them
}

// judgeBag judges a batch's bag by RFC 8493 alone, and at rest against the
// batch.
func (b *batch) judgeBag(ctx context.Context) error {
	g := &bag{batch: b, key: b.bagKey()}
	info, err := b.root.Lstat(g.key)
	if errors.Is(err, fs.ErrNotExist) {
		if b.rests() {
			b.out.drift("bag-missing", g.key, "the batch is converged, and has no bag")
		}
		return nil
	}
	if err != nil || !info.IsDir() {
		b.out.damage("bag-unreadable", g.key, "no folder: %v", err)
		return nil
	}
	if b.meanwhile(info) {
		return nil // newer than the log as it was read
	}
	b.out.checked.Bags++
	if err := b.mem.clear(memPayload, memPath, memTelling); err != nil {
		return err
	}
	g.declaration()
	g.info()
	if err := g.tags(ctx); err != nil {
		return err
	}
	if err := g.payload(ctx); err != nil {
		return err
	}
	switch {
	case !b.rests():
		return nil
	case g.convergence < b.Convergence:
		b.out.drift("bag-stale", g.key, "it is of convergence %d; the log says number %d", g.convergence, b.Convergence)
		return nil
	case g.convergence > b.Convergence:
		b.out.damage("bag-info", g.key, "it is of convergence %d; the log has only %d", g.convergence, b.Convergence)
		return nil
	}
	return g.contents(ctx)
}

// text reads one of the small files.
func (g *bag) text(name string) (string, bool) {
	f, err := g.root.Open(g.key + "/" + name)
	if err != nil {
		g.out.damage("bag-tag-missing", g.key+"/"+name, "%v", err)
		return "", false
	}
	defer f.Close() //nolint:errcheck // only read from
	data, err := io.ReadAll(io.LimitReader(f, maxText+1))
	if err != nil || len(data) > maxText || !utf8.Valid(data) {
		g.out.damage("bag-tag-damaged", g.key+"/"+name, "no text of UTF-8 below %d bytes: %v", maxText, err)
		return "", false
	}
	return string(data), true
}

// declaration judges bagit.txt, section 2.1.1.
func (g *bag) declaration() {
	text, ok := g.text(bagDeclaration)
	if ok && strings.ReplaceAll(text, "\r\n", "\n") != "BagIt-Version: 1.0\nTag-File-Character-Encoding: UTF-8\n" {
		g.out.damage("bag-declaration", g.key+"/"+bagDeclaration, "it does not declare BagIt 1.0 in UTF-8: %q", text)
	}
}

// info judges bag-info.txt, section 2.2.2, and keeps what it says of the
// payload and the convergence.
func (g *bag) info() {
	text, ok := g.text(bagInfo)
	if !ok {
		return
	}
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\r\n")
		label, value, ok := strings.Cut(line, ":")
		if !ok && !strings.HasPrefix(line, " ") && !strings.HasPrefix(line, "\t") {
			g.out.damage("bag-info", g.key+"/"+bagInfo, "no label in %q", line)
		}
		value = strings.TrimSpace(value)
		switch label {
		case "Payload-Oxum":
			if g.oxum != "" {
				g.out.damage("bag-info", g.key+"/"+bagInfo, "Payload-Oxum stands twice")
			}
			g.oxum = value
		case "Colophon-Convergence":
			g.convergence, _ = strconv.Atoi(value) // what is no number is 0, and stale
		}
	}
	if g.oxum == "" {
		g.out.damage("bag-info", g.key+"/"+bagInfo, "Payload-Oxum is missing")
	}
}

// listed goes through a manifest's lines: digest and path.
func (g *bag) listed(name string, each func(event.Digest, string) error) error {
	key := g.key + "/" + name
	f, err := g.root.Open(key)
	if err != nil {
		g.out.damage("bag-tag-missing", key, "%v", err)
		return nil
	}
	defer f.Close() //nolint:errcheck // only read from
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 64<<10)
	for n := 1; lines.Scan(); n++ {
		digest, rest, ok := strings.Cut(lines.Text(), " ")
		p := manifestPath.Replace(strings.TrimLeft(rest, " *"))
		if !ok || !event.Digest(strings.ToLower(digest)).Valid() || !localPath(p) {
			g.out.damage("bag-manifest", key, "line %d: %q", n, lines.Text())
			continue
		}
		if err := each(event.Digest(strings.ToLower(digest)), p); err != nil {
			return err
		}
	}
	if err := lines.Err(); err != nil {
		g.out.damage("bag-manifest", key, "it cannot be read: %v", err)
	}
	return nil
}

// manifestPath undoes the encoding of section 2.1.3.
var manifestPath = strings.NewReplacer("%0A", "\n", "%0a", "\n", "%0D", "\r", "%0d", "\r", "%25", "%")

// localPath reports whether a path stays in its bag.
func localPath(p string) bool { return p != "" && path.Clean("/"+p) == "/"+p }

// tags judges the tag files against the tag manifest, section 2.2.1.
func (g *bag) tags(ctx context.Context) error {
	if err := g.listed(bagTagManifest, func(d event.Digest, p string) error {
		if strings.HasPrefix(p, "data/") {
			g.out.damage("bag-manifest", g.key+"/"+bagTagManifest, "%q is payload, and no tag file", p)
			return nil
		}
		if err := g.mem.set(memPayload, p, []byte(d)); err != nil {
			return err
		}
		return g.compare(ctx, "bag-tag", d, p)
	}); err != nil {
		return err
	}
	return g.walk(ctx, g.key, func(key string, e fs.DirEntry) (bool, error) {
		p := strings.TrimPrefix(key, g.key+"/")
		if e.IsDir() || p == bagTagManifest {
			return p != "data", nil
		}
		listed, err := g.mem.has(memPayload, p)
		if err == nil && !listed {
			g.out.damage("bag-tag-unlisted", key, "the tag manifest does not list it")
		}
		if err == nil && strings.HasPrefix(p, bagPremis) {
			err = g.document(p)
		}
		return false, err
	})
}

// compare judges one file against its manifest. Bytes that were verified in
// this run under another name of the same file are not read again.
func (g *bag) compare(ctx context.Context, kind string, want event.Digest, p string) error {
	key := g.key + "/" + p
	f, err := g.root.Open(key)
	if err != nil {
		g.out.damage(kind+"-missing", key, "the manifest lists it: %v", err)
		return nil
	}
	defer f.Close() //nolint:errcheck // only read from
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		g.out.damage(kind+"-missing", key, "no file: %v", err)
		return nil
	}
	have, err := g.digest(ctx, f, info)
	if err != nil {
		return err
	}
	if have != want {
		g.out.damage(kind+"-damaged", key, "it has %s; the manifest says %s", have, want)
	}
	return nil
}

func (g *bag) digest(ctx context.Context, f io.Reader, info fs.FileInfo) (event.Digest, error) {
	if id, ok := inode(info); ok {
		d, err := g.mem.get(memInode, id)
		if err != nil || d != nil {
			return event.Digest(d), err
		}
	}
	d, n, err := storage.Sum(ctx, f)
	g.out.bytes.Add(n)
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	if err != nil {
		return event.Digest(fmt.Sprintf("bytes that cannot be read at %d: %v", n, err)), nil //nolint:nilerr // a finding
	}
	return event.Digest(d), nil
}
