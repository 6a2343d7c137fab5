package nats

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	natsgo "github.com/nats-io/nats.go"

	"colophon/shared/topology"
)

// matrix is who may publish to and who may subscribe to a subject, written a
// second time on purpose, from the page and not from the grants. A name that is
// not in a cell is denied.
type matrix struct {
	publish   map[string]string
	subscribe map[string]string
}

func (m *matrix) row(publishers string, subjects ...string) {
	for _, s := range subjects {
		m.publish[s] = publishers
	}
}

const (
	stages  = "capture hasher deriver"
	all     = "capture hasher deriver premis quarantine"
	clients = "cli scanroom1 operator"
	nobody  = ""
)

func expected() matrix {
	m := matrix{map[string]string{}, map[string]string{}}
	m.row("quarantine operator cli", "capture.fault.cli.b")
	m.row("capture quarantine operator cli", "capture.batch.cli.b", "capture.frame.cli.b")
	m.row("quarantine operator scanroom1", "capture.fault.scanroom1.b")
	m.row("capture quarantine operator scanroom1", "capture.batch.scanroom1.b", "capture.frame.scanroom1.b")
	m.row("quarantine operator", "capture.fault.other.b")
	m.row("capture quarantine operator", "capture.batch.other.b", "capture.batch.cli.b.more", "capture.frame.other.b", "capture.frame.cli.b.more")
	m.row(nobody, "capture.other.cli.b", "capture.frame", "capture", "anything")

	m.row("capture", "ingest.batch.opened", "ingest.batch.changed", "ingest.batch.converged")
	m.row("deriver", "ingest.profile.pinned", "ingest.derivative.jp2")
	m.row("capture quarantine operator", "ingest.frame.captured")
	m.row("capture hasher quarantine operator", "ingest.frame.fixed")
	m.row(stages, "ingest.attempt.failed")
	m.row("quarantine", "ingest.case.opened", "ingest.case.replayed", "ingest.case.discarded")
	m.row("capture", "gateway.dispatch.flatbed1", "gateway.dispatch.other")
	m.row(all+" provision", "ingest.op.halted")
	m.row(nobody, "ingest.frame.other", "ingest.other", "deadletter.premis", "deadletter.quarantine", "deadletter.other")
	for _, s := range strings.Fields(stages) {
		m.row(s, "deadletter."+s)
	}

	m.row(clients, "batch.status", "batch.frames", "batch.list", "quarantine.list")
	m.row("capture operator", "premis.export")
	m.row("operator", "batch.retry", "premis.position", "premis.checkpoint",
		"quarantine.show", "quarantine.replay", "quarantine.discard", "quarantine.rescan",
		"$SRV.PING", "$SRV.INFO", "$SRV.STATS", "$SRV.PING.capture", "$SRV.INFO.premis.x", "$SRV.STATS.quarantine.x")
	m.row(nobody, "$SRV.OTHER", "hasher.x", "standalone.root", "_INBOX.x", "_INBOX_hasher.x", "_INBOX_deriver.x", "_INBOX_provision.x",
		"$SYS.REQ.SERVER.PING", "$SYS.ACCOUNT.x", "$JS.FC.INGEST.x", "$KV.bucket.key", "$O.bucket.C.x", "$JS.EVENT.ADVISORY.x")
	m.row("premis operator", "_INBOX_capture.x")
	m.row("capture operator", "_INBOX_premis.x")
	m.row("operator", "_INBOX_quarantine.x")
	m.row("capture premis quarantine", "_INBOX_cli.x", "_INBOX_scanroom1.x", "_INBOX_operator.x")

	m.streams()
	m.consumers()
	m.row("provision operator", "$JS.API.INFO")
	m.row("operator", "$JS.API.STREAM.NAMES", "$JS.API.STREAM.LIST")
	m.row(nobody, "$JS.API.META.LEADER.STEPDOWN", "$JS.API.META.RESCUE", "$JS.API.SERVER.REMOVE", "$JS.API.SERVER.EVACUATE", "$JS.API.ACCOUNT.PURGE.x",
		"$JS.API.ACCOUNT.STREAM.MOVE.x.INGEST", "$JS.API.ACCOUNT.STREAM.CANCEL_MOVE.x.INGEST")

	for s := range m.publish {
		m.subscribe[s] = nobody
	}
	for _, s := range []string{">", "*", "capture.>", "ingest.>", "deadletter.*", "gateway.dispatch.*", "_INBOX.>", "_INBOX_*.>", "$JS.>", "$JS.API.>", "$JS.ACK.>", "$SYS.>", "$SRV.>"} {
		m.subscribe[s] = nobody
	}
	for service, subjects := range map[string][]string{
		"capture":    {"batch.status", "batch.frames", "batch.list", "batch.retry", "batch.*", "$SRV.PING.capture"},
		"premis":     {"premis.export", "premis.position", "premis.checkpoint", "premis.*", "$SRV.INFO.premis.x"},
		"quarantine": {"quarantine.list", "quarantine.show", "quarantine.replay", "quarantine.discard", "quarantine.rescan", "quarantine.*", "$SRV.STATS.quarantine.x"},
	} {
		for _, s := range subjects {
			m.subscribe[s] = service
		}
	}
	for _, s := range []string{"$SRV.PING", "$SRV.INFO", "$SRV.STATS"} {
		m.subscribe[s] = "capture premis quarantine"
	}
	for _, i := range Example().Identities {
		m.subscribe["_INBOX_"+i.Name+".x"], m.subscribe["_INBOX_"+i.Name+".>"] = i.Name, i.Name
	}
	return m
}

// followers are those who read a stream by consumers of their own.
var followers = map[string]string{
	"CAPTURE": "capture quarantine provision operator", "INGEST": all + " provision operator",
	"DEADLETTER": stages + " quarantine provision operator", "DISPATCH": "provision operator",
}

func (m *matrix) streams() {
	for _, s := range []string{"CAPTURE", "INGEST", "DEADLETTER", "DISPATCH", "OTHER"} {
		readers, trims := followers[s], "provision"
		if s == "DISPATCH" {
			readers += " capture"
		}
		looks := readers
		switch s {
		case "CAPTURE":
			m.row(readers+" cli scanroom1", "$JS.API.DIRECT.GET.CAPTURE")
			looks += " cli scanroom1"
		case "INGEST":
			trims, looks = nobody, looks+" cli scanroom1"
		case "DISPATCH":
			looks += " scanroom1"
		}
		if s != "CAPTURE" {
			m.row(readers, "$JS.API.DIRECT.GET."+s)
		}
		if s == "OTHER" {
			trims = nobody
		}
		known := func(who string) string {
			if s == "OTHER" {
				return nobody
			}
			return who
		}
		m.row(looks, "$JS.API.STREAM.INFO."+s)
		m.row(readers, "$JS.API.STREAM.MSG.GET."+s)
		m.row(known("provision operator"), "$JS.API.DIRECT.GET."+s+".a.subject")
		m.row(known("provision"), "$JS.API.STREAM.CREATE."+s, "$JS.API.STREAM.UPDATE."+s)
		m.row(trims, "$JS.API.STREAM.PURGE."+s, "$JS.API.STREAM.MSG.DELETE."+s)
		m.row(known("operator"), "$JS.API.CONSUMER.NAMES."+s, "$JS.API.CONSUMER.LIST."+s)
		for _, verb := range []string{"DELETE", "SNAPSHOT", "RESTORE", "PEER.REMOVE", "PEER.EVACUATE", "CANCEL_MOVE", "LEADER.STEPDOWN"} {
			m.row(nobody, "$JS.API.STREAM."+verb+"."+s)
		}
	}
}

func (m *matrix) consumers() {
	owner := map[string]string{
		"CAPTURE capture-batch": "capture", "CAPTURE capture-frame": "capture", "CAPTURE capture-fault": "capture",
		"INGEST hasher": "hasher", "INGEST premis": "premis", "DEADLETTER quarantine": "quarantine", "DISPATCH gateway-flatbed1": "scanroom1", "DISPATCH gateway-other": nobody,
	}
	for _, p := range Example().Profiles {
		owner["INGEST deriver-"+p] = "deriver"
	}
	for sc, who := range owner {
		stream, name, _ := strings.Cut(sc, " ")
		durable := stream + "." + name
		m.row(who, "$JS.ACK."+durable+".1.2.3.4.5", "$JS.ACK.domain.account."+durable+".1.2.3.4.5.6")
		if stream == "DISPATCH" { // no consumer of the table: a gateway makes it
			m.row("provision operator", "$JS.API.CONSUMER.CREATE."+durable)
			m.row("provision operator "+who, "$JS.API.CONSUMER.MSG.NEXT."+durable, "$JS.API.CONSUMER.INFO."+durable)
			m.row("provision "+who, "$JS.API.CONSUMER.CREATE."+durable+".gateway.dispatch."+strings.TrimPrefix(name, "gateway-"))
			m.row("operator", "$JS.API.CONSUMER.DELETE."+durable)
		} else {
			m.row("provision", "$JS.API.CONSUMER.CREATE."+durable, "$JS.API.CONSUMER.CREATE."+durable+".ingest.frame.fixed")
			m.row(who, "$JS.API.CONSUMER.MSG.NEXT."+durable)
			m.row(followers[stream], "$JS.API.CONSUMER.INFO."+durable)
			m.row(nobody, "$JS.API.CONSUMER.DELETE."+durable)
		}
		for _, verb := range []string{"DURABLE.CREATE", "PAUSE", "RESET", "UNPIN", "LEADER.STEPDOWN", "PEER.REMOVE", "PEER.EVACUATE"} {
			m.row(nobody, "$JS.API.CONSUMER."+verb+"."+durable)
		}
	}
	for s, who := range followers {
		m.row(nobody, "$JS.API.CONSUMER.CREATE."+s, "$JS.ACK."+s+".reader.1.2.3.4.5", "$JS.API.CONSUMER.PAUSE."+s+".reader", "$JS.API.CONSUMER.DURABLE.CREATE."+s+".reader")
		m.row(who, "$JS.API.CONSUMER.INFO."+s+".reader", "$JS.API.CONSUMER.MSG.NEXT."+s+".reader")
		m.row("operator", "$JS.API.CONSUMER.DELETE."+s+".reader")
	}
	m.row(all+" provision operator", "$JS.API.CONSUMER.CREATE.INGEST.reader")
	m.row("capture quarantine provision operator", "$JS.API.CONSUMER.CREATE.CAPTURE.reader")
	m.row("quarantine provision operator", "$JS.API.CONSUMER.CREATE.DEADLETTER.reader")
	m.row("provision operator", "$JS.API.CONSUMER.CREATE.DISPATCH.reader")
	m.row("provision", "$JS.API.CONSUMER.CREATE.CAPTURE.reader.capture.frame.>", "$JS.API.CONSUMER.CREATE.CAPTURE.reader.capture.>", "$JS.API.CONSUMER.CREATE.INGEST.reader.ingest.>", "$JS.API.CONSUMER.CREATE.DEADLETTER.reader.deadletter.*",
		"$JS.API.CONSUMER.CREATE.DISPATCH.reader.gateway.dispatch.flatbed1")
	for _, s := range strings.Fields(stages) {
		m.row(s+" provision", "$JS.API.CONSUMER.CREATE.DEADLETTER.reader.deadletter."+s)
	}
}

// TestMatrix tries every cell on a real server.
func TestMatrix(t *testing.T) {
	t.Parallel()
	b := startSecured(t, Example())
	m := expected()
	for _, i := range Example().Identities {
		t.Run(i.Name, func(t *testing.T) {
			t.Parallel()
			published, subscribed := b.try(t, i, m)
			for subject, who := range m.publish {
				cell(t, i, "publish to", subject, who, published)
			}
			for subject, who := range m.subscribe {
				cell(t, i, "subscribe to", subject, who, subscribed)
			}
		})
	}
	t.Logf("%d identities × %d subjects = %d cells", len(Example().Identities), len(m.publish)+len(m.subscribe), len(Example().Identities)*(len(m.publish)+len(m.subscribe)))
}

func cell(t *testing.T, i topology.Identity, verb, subject, who string, denied map[string]bool) {
	t.Helper()
	if may := slices.Contains(strings.Fields(who), i.Name); may == denied[subject] {
		t.Errorf("%s may %s %s: %v, want %v", i.Name, verb, subject, !denied[subject], may)
	}
}

var violation = regexp.MustCompile(`(?i)permissions violation for (publish|subscription) to "([^"]*)"`)

// try publishes and subscribes to every subject and gives what was denied.
func (b *secured) try(t *testing.T, i topology.Identity, m matrix) (published, subscribed map[string]bool) {
	t.Helper()
	published, subscribed = map[string]bool{}, map[string]bool{}
	const last = "the.end" // denied to everybody, and told after all the others
	told := make(chan struct{})
	nc := b.connect(t, i, natsgo.ErrorHandler(func(_ *natsgo.Conn, _ *natsgo.Subscription, err error) {
		v := violation.FindStringSubmatch(err.Error())
		switch {
		case v == nil:
			t.Errorf("%s: %v", i.Name, err)
		case v[2] == last:
			close(told)
		case strings.EqualFold(v[1], "publish"):
			published[v[2]] = true
		default:
			subscribed[v[2]] = true
		}
	}))
	for s := range m.publish {
		if err := nc.Publish(s, nil); err != nil {
			t.Fatal(err)
		}
	}
	for s := range m.subscribe {
		if _, err := nc.SubscribeSync(s); err != nil {
			t.Fatal(err)
		}
	}
	if err := nc.Publish(last, nil); err != nil {
		t.Fatal(err)
	}
	closed(t, "the last denial", told)
	return published, subscribed
}

// TestMatrixIsComplete: no subject of the line and no request that the broker
// knows is without a row.
func TestMatrixIsComplete(t *testing.T) {
	t.Parallel()
	m := expected()
	probed := func(pattern string) bool {
		re := regexp.MustCompile("^" + strings.NewReplacer(`\*`, `[^.]+`, "%s", `[^.]+`, ">", ".+").Replace(regexp.QuoteMeta(pattern)) + "($|\\.)")
		for s := range m.publish {
			if re.MatchString(s) {
				return true
			}
		}
		return false
	}
	for _, file := range []string{"../../shared/event/subject.go", "../../shared/event/api.go"} {
		for name, value := range constants(t, file) {
			if (strings.HasPrefix(name, "Subject") || strings.HasPrefix(name, "Endpoint")) && !probed(value) {
				t.Errorf("%s = %s has no row", name, value)
			}
		}
	}
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/nats-io/nats-server/v2").Output()
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for name, value := range constants(t, filepath.Join(strings.TrimSpace(string(out)), "server", "jetstream_api.go")) {
		if strings.HasPrefix(value, "$JS.API.") && !strings.HasSuffix(value, ".>") && !strings.HasSuffix(value, ".") {
			if n++; !probed(value) {
				t.Errorf("%s = %s has no row", name, value)
			}
		}
	}
	if n < 40 {
		t.Errorf("only %d requests of the broker were found", n)
	}
}

// constants reads the string constants of a Go file.
func constants(t *testing.T, path string) map[string]string {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	ast.Inspect(f, func(n ast.Node) bool {
		v, ok := n.(*ast.ValueSpec)
		if !ok || len(v.Names) != len(v.Values) {
			return true
		}
		for i, name := range v.Names {
			if lit, ok := v.Values[i].(*ast.BasicLit); ok && lit.Kind == token.STRING {
				if s, err := strconv.Unquote(lit.Value); err == nil {
					out[name.Name] = s
				}
			}
		}
		return true
	})
	return out
}

// TestCommitted: what lies in the repository is what the table says.
func TestCommitted(t *testing.T) {
	t.Parallel()
	var conf, values bytes.Buffer
	if err := Config(&conf, Example(), nil); err != nil {
		t.Fatal(err)
	}
	if err := Values(&values, Example()); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{"accounts.conf": conf.String(), "../kubernetes/nats/accounts.yaml": values.String()} {
		got, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != want {
			t.Errorf("%s is not what the table says: run go run ./deploy/nats/cmd/grants", path)
		}
	}
}

// TestRefusedNames: a name must fit into a subject, and be nobody else's.
func TestRefusedNames(t *testing.T) {
	t.Parallel()
	for _, i := range []topology.Identity{
		{Kind: topology.KindGateway, Name: "a.b"}, {Kind: topology.KindGateway, Name: "*"}, {Kind: topology.KindGateway, Name: ">"}, {Kind: topology.KindOperator, Name: ""},
		{Kind: topology.KindOperator, Name: "capture"}, {Kind: topology.KindService, Name: "other"}, {Kind: topology.KindGateway, Name: "a\" } #"},
	} {
		a := Example()
		a.Identities = append(a.Identities, i)
		if err := Write(t.TempDir(), a); err == nil || !strings.Contains(fmt.Sprint(err), "topology:") {
			t.Errorf("%+v: %v", i, err)
		}
	}
}
