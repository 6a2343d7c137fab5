package checkpoint

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/mod/sumdb/tlog"
)

// A tile has 256 hashes, and an entry bundle 256 records, or fewer at the
// right edge of the tree.
const (
	tileHeight = 8
	tileWidth  = 1 << tileHeight
)

// Tiles writes the static layout of C2SP tlog-tiles, without the checkpoint:
// the hash tiles of a log of size records, and its records. Files come one
// after the other; whatever the log's size, one of them is in memory.
func Tiles(size int64, nodes tlog.HashReader, record func(n int64) ([]byte, error), write func(path string, data []byte) error) error {
	for level := 0; size>>(level*tileHeight) > 0; level++ {
		err := each(size>>(level*tileHeight), func(n int64, width int) error {
			indexes := make([]int64, width)
			for i := range indexes {
				indexes[i] = tlog.StoredHashIndex(level*tileHeight, n*tileWidth+int64(i))
			}
			hashes, err := nodes.ReadHashes(indexes)
			if err != nil {
				return fmt.Errorf("checkpoint: tile %d of level %d: %w", n, level, err)
			}
			var data []byte
			for _, h := range hashes {
				data = append(data, h[:]...)
			}
			return write(fmt.Sprintf("tile/%d/%s", level, tileName(n, width)), data)
		})
		if err != nil {
			return err
		}
	}
	return each(size, func(n int64, width int) error {
		var data []byte
		for i := range int64(width) {
			r, err := record(n*tileWidth + i)
			if err != nil {
				return err
			}
			if len(r) > 1<<16-1 {
				return fmt.Errorf("checkpoint: record %d has %d bytes", n*tileWidth+i, len(r))
			}
			data = append(binary.BigEndian.AppendUint16(data, uint16(len(r))), r...)
		}
		return write("tile/entries/"+tileName(n, width), data)
	})
}

// each calls do for every tile over count hashes.
func each(count int64, do func(n int64, width int) error) error {
	for n := range (count + tileWidth - 1) / tileWidth {
		if err := do(n, int(min(count-n*tileWidth, tileWidth))); err != nil {
			return err
		}
	}
	return nil
}

// tileName is a tile's number in groups of three digits, with its width where
// it is not full.
func tileName(n int64, width int) string {
	name := fmt.Sprintf("%03d", n%1000)
	for n >= 1000 {
		n /= 1000
		name = fmt.Sprintf("x%03d/%s", n%1000, name)
	}
	if width < tileWidth {
		name = fmt.Sprintf("%s.p/%d", name, width)
	}
	return name
}
