// Package bag writes a batch as a bag after BagIt 1.0 (RFC 8493) into the
// archive:
//
//	bags/<batch>/
//	  bagit.txt  bag-info.txt  manifest-sha256.txt  tagmanifest-sha256.txt
//	  data/masters/<frame>             hard links to the stored masters
//	  data/access/<frame>.jp2          profile jp2; of a master with many pages
//	  data/access/<frame>.jp2/0001.jp2
//	  data/<profile>/<frame>.jp2       other profiles
//	  metadata/…                       tag files: PREMIS, the batch manifest
//	  metadata/names.tsv               frames whose path is not their name, if any
//
// A bag appears whole, in place of the one before, or not at all.
package bag

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"

	"colophon/shared/storage"
)

// Request says what goes into a bag.
type Request struct {
	Store    *storage.Store
	Batch    string                    // original bytes; names the bag
	Info     Info                      // bag-info.txt
	Frames   iter.Seq2[Entry, error]   // in order; an error ends the writing
	Metadata iter.Seq2[TagFile, error] // written after the payload; may be nil
}

// Entry is one frame and what is stored for it.
type Entry struct {
	Frame string // original bytes of the frame's id, a relative path
	Files []File // the master first
}

// File is one stored object of a frame.
type File struct {
	Profile string         // "" for the master
	Page    string         // of a derivative with many pages: the page's own file name ("0001.jp2")
	Ext     string         // of a derivative, with its dot; "" means ".jp2"
	Key     string         // in the store
	Digest  storage.Digest // as verified when it was stored; it is not read again
	Size    int64          // in bytes; compared with the object's
}

// TagFile is one file below metadata/. Write is called once.
type TagFile struct {
	Name  string // below metadata/, a relative path of UTF-8 ("premis/batch.xml")
	Write func(io.Writer) error
}

// Result says what was written.
type Result struct {
	Key    string // of the bag
	Bytes  int64  // Payload-Oxum: octets
	Files  int64  // Payload-Oxum: streams
	Copied int64  // payload files that could not be hard links
	Names  []Name // payload files whose path is not made from the frame's name as it is
}

// Name tells under which path of the bag a frame's file is, if it is not
// data/masters/<frame> or data/access/<frame>.jp2.
type Name struct {
	Frame, Profile string
	Path           string // as on disk
}

// ErrDuplicate: a frame came twice, or a page of it.
var ErrDuplicate = errors.New("the same file comes twice")

// ErrRequest: the request cannot be written as a bag: a bug of the caller.
var ErrRequest = errors.New("not a bag")

// Write builds the bag beside its place and puts it there in one step, in
// exchange for the bag of that batch before it; durable on return. The same
// request gives the same bytes. Safe to repeat; of several at once the last
// stays. When it fails, the bag before it stays and nothing of the new one
// does. Memory does not grow with the batch, but for [Result].Names.
func Write(ctx context.Context, r Request) (Result, error) {
	tree, err := r.Store.NewTree(storage.BagKey(r.Batch))
	if err != nil {
		return Result{}, fmt.Errorf("bag: %w", err)
	}
	defer tree.Abort()
	w, err := newWriter(ctx, r, tree)
	if err != nil {
		return Result{}, fmt.Errorf("bag: %w", err)
	}
	if err := w.write(r); err != nil {
		return Result{}, fmt.Errorf("bag: %w", err)
	}
	if err := tree.Replace(ctx); err != nil {
		return Result{}, fmt.Errorf("bag: %w", err)
	}
	return w.result, nil
}
