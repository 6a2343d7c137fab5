package verify

import (
	"context"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"colophon/shared/event"
	"colophon/shared/storage"
)

// payload judges the payload against the manifest: complete, and each file
// with the bytes it should have (RFC 8493, sections 2.1.2 and 3).
func (g *bag) payload(ctx context.Context) error {
	if err := g.mem.clear(memPayload); err != nil {
		return err
	}
	listed := int64(0)
	err := g.listed(bagManifest, func(d event.Digest, p string) error {
		twice, err := g.mem.has(memPayload, p)
		if err != nil {
			return err
		}
		if twice || !strings.HasPrefix(p, "data/") {
			g.out.damage("bag-manifest", g.key+"/"+bagManifest, "%q stands twice, or is no payload", p)
			return nil
		}
		listed++
		if err := g.mem.set(memPayload, p, []byte(d)); err != nil {
			return err
		}
		return g.compare(ctx, "bag-file", d, p)
	})
	if err != nil {
		return err
	}
	var files, octets int64
	err = g.walk(ctx, g.key+"/data", func(key string, e fs.DirEntry) (bool, error) {
		if e.IsDir() {
			return true, nil
		}
		info, err := e.Info()
		if err != nil {
			return false, nil //nolint:nilerr // gone; told as missing if it is listed
		}
		files++
		octets += info.Size()
		known, err := g.mem.has(memPayload, strings.TrimPrefix(key, g.key+"/"))
		if err == nil && !known {
			g.out.damage("bag-file-unlisted", key, "the manifest does not list it")
		}
		return false, err
	})
	if oxum := fmt.Sprintf("%d.%d", octets, files); err == nil && g.oxum != "" && g.oxum != oxum {
		g.out.damage("bag-oxum", g.key, "Payload-Oxum says %s; there are %s", g.oxum, oxum)
	}
	g.files = listed
	return err
}

// contents compares the payload with the done frames of the batch: all of
// them, and nothing else.
func (g *bag) contents(ctx context.Context) error {
	if err := g.names(); err != nil {
		return err
	}
	want := int64(0)
	for p, err := range g.frames() {
		if err != nil {
			return err
		}
		if p.State(g.Profiles) != event.StateDone || p.Fixed == nil {
			continue
		}
		n, err := g.holds(p)
		if err != nil {
			return err
		}
		want += n
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	if g.files != want {
		g.out.damage("bag-payload", g.key, "it lists %d files; the done frames of the batch have %d", g.files, want)
	}
	return g.copied()
}

// wanted is one file that a done frame has in the bag.
type wanted struct {
	frame, profile, page string
	ext                  string
	digest               event.Digest
}

// path is where the file is if the frame's name can stand as it is.
func (w wanted) path() string {
	folder := storage.Component(w.profile)
	switch w.profile {
	case "":
		folder = "masters"
	case "jp2":
		folder = "access"
	}
	p := "data/" + folder + "/" + w.frame + w.ext
	if w.page != "" {
		p += "/" + w.page
	}
	return p
}

// holds looks for the files of a frame in the payload, and counts them.
func (g *bag) holds(p *event.Progress) (int64, error) {
	files := []wanted{{frame: string(p.Frame), digest: p.Digest}}
	for _, profile := range slices.Sorted(maps.Keys(p.Derived)) {
		outputs := p.Derived[profile].Outputs
		for _, o := range outputs {
			w := wanted{frame: string(p.Frame), profile: profile, ext: path.Ext(o.Key), digest: o.Digest}
			if len(outputs) > 1 {
				w.page = path.Base(o.Key)
			}
			files = append(files, w)
		}
	}
	for _, w := range files {
		if err := g.find(w); err != nil {
			return 0, err
		}
	}
	told, err := g.mem.has(memTelling, accession(p))
	if err == nil && !told {
		g.out.damage("premis-incomplete", g.key, "the frame %s is done, and no PREMIS document of the bag has %q", p.Frame.Display(), accession(p))
	}
	return int64(len(files)), err
}

// find looks for a file at its own path, or at the one that names.tsv gives.
func (g *bag) find(w wanted) error {
	altered := false
	found := event.Digest("")
	for p, err := range g.mem.each(memPath, w.frame+"\x00"+w.profile+"\x00") {
		if err != nil {
			return err
		}
		if w.page != "" && path.Base(string(p.key)) != w.page {
			continue
		}
		altered = true
		d, err := g.mem.get(memPayload, string(p.key))
		if err != nil {
			return err
		}
		found = event.Digest(d)
	}
	if !altered {
		d, err := g.mem.get(memPayload, w.path())
		if err != nil {
			return err
		}
		found = event.Digest(d)
	}
	object := g.key + "/" + w.path()
	switch {
	case found == "":
		g.out.damage("bag-payload", object, "the frame is done, and the bag does not have this file of it")
	case found != w.digest:
		g.out.damage("bag-payload", object, "the bag has %s; the frame's is %s", found, w.digest)
	}
	return nil
}

// names reads metadata/names.tsv: the frames whose path is not their name.
func (g *bag) names() error {
	if _, err := g.root.Lstat(g.key + "/" + bagNames); err != nil {
		return nil //nolint:nilerr // most bags have none
	}
	f, err := g.root.Open(g.key + "/" + bagNames)
	if err != nil {
		g.out.damage("bag-names", g.key+"/"+bagNames, "%v", err)
		return nil
	}
	defer f.Close() //nolint:errcheck // only read from
	return g.eachName(f, func(p, profile, frame event.Name) error {
		return g.mem.set(memPath, string(frame)+"\x00"+string(profile)+"\x00"+string(p), nil)
	})
}

// copied judges the manifest that the bag holds a copy of.
func (g *bag) copied() error {
	h, ok := g.readManifest(g.key+"/"+bagCopy, " in the bag")
	if ok && (h.Batch != g.name || h.Convergence != g.convergence || h.State != "converged") {
		g.out.damage("bag-copy", g.key+"/"+bagCopy, "it is of batch %s, %s, convergence %d; the bag of convergence %d", h.Batch.Display(), h.State, h.Convergence, g.convergence)
	}
	return nil
}
