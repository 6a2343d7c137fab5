package capture

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"strconv"
	"strings"

	"colophon/shared/event"
	"colophon/shared/storage"
)

// inspectLimit is how many batches one interval looks at on disk.
const inspectLimit = 200

// inspect touches the next batches, so that they are looked at on disk too: a
// manifest or bag that is gone, or of an older convergence, is made again.
func (k *keeper) inspect(limit int) error {
	for r, err := range k.view.batches(k.inspected) {
		if err != nil {
			return err
		}
		k.touch(r.Batch)
		k.tasks[r.Batch].inspect = true
		k.inspected = r.Batch.Encode()
		if limit--; limit == 0 {
			return nil
		}
	}
	k.inspected = "" // from the start again
	return nil
}

// stands compares what is noted of a batch's manifest and bag with the disk,
// and forgets what does not hold: what follows makes it again.
func (k *keeper) stands(b event.Name) error {
	r, err := k.view.batch(b)
	if err != nil {
		return err
	}
	m, err := k.view.made(b)
	if err != nil {
		return err
	}
	manifest, err := k.convergenceOf(storage.ManifestKey(string(r.Batch)), manifestConvergence)
	if err != nil {
		return err
	}
	bag, err := k.convergenceOf(storage.BagKey(string(r.Batch))+"/bag-info.txt", bagConvergence)
	if err != nil {
		return err
	}
	lost := m.Of != (read{}) && manifest < m.Manifest
	unbagged := m.Bag > 0 && r.Totals.Done > 0 && bag < m.Bag
	if !lost && !unbagged {
		return nil
	}
	k.Log.Error("batch_file_lost", slog.String("batch_id", r.Batch.Display()), slog.Bool("manifest", lost), slog.Bool("bag", unbagged))
	return k.view.note(r.Batch, func(m *made) {
		if lost {
			m.Of, m.Manifest, m.SHA256 = read{}, 0, ""
		}
		if unbagged {
			m.Bag = 0
		}
	})
}

// convergenceOf reads which convergence a stored file speaks of; -1 where it is
// not there or does not say.
func (k *keeper) convergenceOf(key string, find func(io.Reader) int) (int, error) {
	f, err := k.Store.Open(key)
	if errors.Is(err, storage.ErrNotExist) {
		return -1, nil
	}
	if err != nil { // the archive is away: that says nothing
		return 0, err
	}
	defer f.Close() //nolint:errcheck // only read
	return find(f), nil
}

func manifestConvergence(r io.Reader) int {
	d := json.NewDecoder(bufio.NewReader(r))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return -1
	}
	for d.More() {
		switch field, err := d.Token(); {
		case err != nil || field == "frames": // it stands before them
			return -1
		case field == "convergence":
			var n int
			if d.Decode(&n) != nil {
				return -1
			}
			return n
		}
		var other json.RawMessage
		if d.Decode(&other) != nil {
			return -1
		}
	}
	return -1
}

func bagConvergence(r io.Reader) int {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		if v, ok := strings.CutPrefix(lines.Text(), "Colophon-Convergence: "); ok {
			n, err := strconv.Atoi(v)
			if err != nil {
				return -1
			}
			return n
		}
	}
	return -1
}
