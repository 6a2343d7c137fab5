// Package nats makes the configuration of a broker that serves more than one
// machine: one account, one nkey for each identity, and exactly the grants of
// the table in shared/topology. Its tests run the whole line under them.
package nats

import (
	"fmt"
	"io"
	"strings"

	"colophon/shared/profile"
	"colophon/shared/topology"
)

// Account is the account that the line lives in.
const Account = "COLOPHON"

// KeyVariable names the environment variable of the server that holds an
// identity's public key.
func KeyVariable(i topology.Identity) string {
	return "NKEY_" + strings.ToUpper(strings.ReplaceAll(i.Name, "-", "_"))
}

// Config writes the accounts as a nats-server configuration, to be included in
// the server's own. key gives the public nkey of an identity; nil leaves it to
// the server's environment.
func Config(w io.Writer, a topology.Access, key func(topology.Identity) string) error {
	if err := a.Validate(); err != nil {
		return err
	}
	b := &strings.Builder{}
	b.WriteString("# Made by `colophon provision --grants`, from the table of subjects: do not edit.\n")
	fmt.Fprintf(b, "accounts {\n  %s {\n    jetstream: enabled\n    users: [\n", Account)
	for _, i := range a.Identities {
		k := "$" + KeyVariable(i)
		if key != nil {
			k = key(i)
		}
		g := a.Grants(i)
		fmt.Fprintf(b, "      # %s %s\n      { nkey: %s, permissions {\n", i.Kind, i.Name, k)
		configRule(b, "publish", g.Publish)
		configRule(b, "subscribe", g.Subscribe)
		b.WriteString("      } }\n")
	}
	b.WriteString("    ]\n  }\n}\n")
	_, err := io.WriteString(w, b.String())
	return err
}

func configRule(b *strings.Builder, name string, r topology.Rule) {
	fmt.Fprintf(b, "        %s {\n", name)
	for _, l := range []struct {
		name     string
		subjects []string
	}{{"allow", r.Allow}, {"deny", r.Deny}} {
		if len(l.subjects) == 0 {
			continue
		}
		fmt.Fprintf(b, "          %s: [\n", l.name)
		for _, s := range l.subjects {
			fmt.Fprintf(b, "            %q\n", s)
		}
		b.WriteString("          ]\n")
	}
	b.WriteString("        }\n")
}

// PublicKeys names the Secret that holds the public keys of a broker in
// Kubernetes, each under its [KeyVariable].
const PublicKeys = "colophon-nkeys-public"

// Values writes the same accounts as values of the official NATS chart.
func Values(w io.Writer, a topology.Access) error {
	if err := a.Validate(); err != nil {
		return err
	}
	b := &strings.Builder{}
	b.WriteString("# Made by deploy/nats/cmd/grants, from the table of subjects: do not edit.\n")
	b.WriteString("# Values of the official NATS chart; values.yaml beside it is the rest.\n")
	b.WriteString("container:\n  env:\n")
	for _, i := range a.Identities {
		fmt.Fprintf(b, "    %s:\n      valueFrom:\n        secretKeyRef:\n          name: %s\n          key: %[1]s\n", KeyVariable(i), PublicKeys)
	}
	fmt.Fprintf(b, "config:\n  merge:\n    accounts:\n      %s:\n        jetstream: enabled\n        users:\n", Account)
	for _, i := range a.Identities {
		g := a.Grants(i)
		fmt.Fprintf(b, "          # %s %s\n          - nkey: \"<< $%s >>\"\n            permissions:\n", i.Kind, i.Name, KeyVariable(i))
		valuesRule(b, "publish", g.Publish)
		valuesRule(b, "subscribe", g.Subscribe)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func valuesRule(b *strings.Builder, name string, r topology.Rule) {
	fmt.Fprintf(b, "              %s:\n                allow:\n", name)
	for _, s := range r.Allow {
		fmt.Fprintf(b, "                  - %q\n", s)
	}
	if len(r.Deny) == 0 {
		return
	}
	b.WriteString("                deny:\n")
	for _, s := range r.Deny {
		fmt.Fprintf(b, "                  - %q\n", s)
	}
}

// Example is an installation with the two default profiles, `colophon ingest`
// and one scan room with a device as gateways, and one operator.
func Example() topology.Access {
	return topology.DefaultAccess(profile.Names(),
		[]topology.Identity{
			{Kind: topology.KindGateway, Name: "cli"},
			{Kind: topology.KindGateway, Name: "scanroom1", Devices: []string{"flatbed1"}},
		},
		[]topology.Identity{{Kind: topology.KindOperator, Name: "operator"}})
}
