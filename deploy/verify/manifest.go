package verify

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"colophon/shared/event"
)

// manifestSchema is the version this judge reads.
const manifestSchema = "colophon/manifest/v1"

// manifestHead is what batches/<batch>.json says of the batch as a whole.
type manifestHead struct {
	Schema      string       `json:"schema"`
	Batch       event.Name   `json:"batch"`
	State       string       `json:"state"`
	Convergence int          `json:"convergence"`
	Declaration int          `json:"declaration"`
	Order       string       `json:"order"`
	Profiles    []string     `json:"profiles"`
	PolicySHA   event.Digest `json:"policy_sha256"`
	Totals      event.Totals `json:"totals"`
}

// manifestFrame is what it says of one frame.
type manifestFrame struct {
	Frame    event.Name                `json:"frame"`
	Sequence int                       `json:"sequence"`
	State    event.State               `json:"state"`
	Revision int                       `json:"revision"`
	Digest   event.Digest              `json:"digest"`
	Size     int64                     `json:"size"`
	Master   string                    `json:"master"`
	Derived  map[string][]event.Output `json:"derivatives"`
	Waived   []event.Operation         `json:"waived"`
}

// readManifest reads a manifest, a frame at a time.
func readManifest(r io.Reader, each func(manifestFrame) error) (h manifestHead, err error) {
	d := json.NewDecoder(r)
	if err := expect(d, json.Delim('{')); err != nil {
		return h, err
	}
	fields := map[string]json.RawMessage{}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return h, err
		}
		if key == "frames" {
			err = readFrames(d, each)
		} else {
			var raw json.RawMessage
			err = d.Decode(&raw)
			fields[fmt.Sprint(key)] = raw
		}
		if err != nil {
			return h, err
		}
	}
	if err := expect(d, json.Delim('}')); err != nil {
		return h, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return h, errors.New("something stands behind its end")
	}
	data, err := json.Marshal(fields)
	if err != nil {
		return h, err
	}
	return h, json.Unmarshal(data, &h)
}

func readFrames(d *json.Decoder, each func(manifestFrame) error) error {
	if err := expect(d, json.Delim('[')); err != nil {
		return err
	}
	for d.More() {
		var f manifestFrame
		if err := d.Decode(&f); err != nil {
			return err
		}
		if err := each(f); err != nil {
			return err
		}
	}
	return expect(d, json.Delim(']'))
}

func expect(d *json.Decoder, want json.Delim) error {
	t, err := d.Token()
	if err != nil {
		return err
	}
	if t != want {
		return fmt.Errorf("%v where %v must stand", t, want)
	}
	return nil
}
