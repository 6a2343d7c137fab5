// Command grants writes the broker's accounts of an example installation:
// accounts.conf for a server of one's own, and the chart's values for
// Kubernetes. `colophon provision --grants` makes those of a real one.
//
//	go run ./deploy/nats/cmd/grants        (from the repository's root)
package main

import (
	"bytes"
	"fmt"
	"io"
	"os"

	"colophon/deploy/nats"
	"colophon/shared/topology"
)

func main() {
	a := nats.Example()
	for path, write := range map[string]func(io.Writer, topology.Access) error{
		"deploy/nats/accounts.conf":            func(w io.Writer, a topology.Access) error { return nats.Config(w, a, nil) },
		"deploy/kubernetes/nats/accounts.yaml": nats.Values,
	} {
		var b bytes.Buffer
		err := write(&b, a)
		if err == nil {
			err = os.WriteFile(path, b.Bytes(), 0o644)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "grants:", err)
			os.Exit(1)
		}
	}
}
