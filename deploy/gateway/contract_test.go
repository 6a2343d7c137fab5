package gateway

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"colophon/shared/event"
	"colophon/shared/schema"
	"colophon/shared/testkit"
)

// tiff is a small greyscale image, another one for each n.
func tiff(n int) []byte {
	const side = 16
	le := binary.LittleEndian
	entries := [][3]uint32{
		{256, 4, side}, {257, 4, side}, {258, 3, 8}, {259, 3, 1}, {262, 3, 1}, {273, 4, 0}, {277, 3, 1}, {278, 4, side}, {279, 4, side * side},
	}
	entries[5][2] = uint32(8 + 2 + len(entries)*12 + 4)
	b := le.AppendUint32([]byte("II*\x00"), 8)
	b = le.AppendUint16(b, uint16(len(entries)))
	for _, e := range entries {
		b = le.AppendUint16(le.AppendUint16(b, uint16(e[0])), uint16(e[1]))
		b = le.AppendUint32(le.AppendUint32(b, 1), e[2])
	}
	b = le.AppendUint32(b, 0)
	for i := range side * side {
		b = append(b, byte(i*7+n*13), 0)[:len(b)+1]
	}
	b[len(b)-1], b[len(b)-2] = byte(n), byte(n>>8)
	return b
}

// natscli is the version that the examples are written for.
const natscli = "github.com/nats-io/natscli/nats@v0.5.0"

var examples = regexp.MustCompile("(?s)```sh\n(.*?)```")

// TestContract runs the page's examples, in their order, against a real line:
// the batch converges.
func TestContract(t *testing.T) {
	t.Parallel()
	install := exec.Command("go", "install", natscli)
	install.Env = append(os.Environ(), "GOBIN="+binDir, "GOWORK=off", "GOFLAGS=-mod=mod")
	install.Dir = t.TempDir()
	if out, err := install.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	scans := testkit.TempDir(t)
	for n := 1; n <= 2; n++ {
		write(t, fmt.Sprintf("%s/%04d.tif", scans, n), tiff(n))
	}
	l := whole(t, "--root", scans)
	page, err := os.ReadFile("CONTRACT.md")
	testkit.OK(t, err)
	blocks := examples.FindAllStringSubmatch(string(page), -1)
	if len(blocks) < 5 {
		t.Fatalf("the page has %d examples", len(blocks))
	}
	for range 2 { // repeated, they change nothing
		for _, b := range blocks {
			cmd := exec.Command("bash", "-euo", "pipefail", "-c", b[1])
			cmd.Env = append(os.Environ(), "PATH="+binDir+":"+os.Getenv("PATH"), "NATS_URL="+l.url, "SCANS="+scans, "HOME="+l.dir, "XDG_CONFIG_HOME="+l.dir)
			out, err := cmd.CombinedOutput()
			if err != nil || strings.Contains(string(out), "Nats-Service-Error") {
				t.Fatalf("%s\n%v\n%s", b[1], err, out)
			}
			if strings.Contains(b[1], "batch.status") && !strings.Contains(string(out), `"count":2`) {
				t.Errorf("batch.status answers %s", out)
			}
		}
	}
	k := l.until("the batch of the page converges", "ledger-17", func(k Known) bool { return k.Converged && k.Bag == k.Convergence })
	if k.Totals.Done != 2 || k.Convergence != 1 {
		t.Errorf("%+v", k.BatchStatus)
	}
	ids := map[string]bool{}
	for _, m := range testkit.ReadAll(t, l.js, event.StreamCapture) {
		var f event.FrameMessage
		if strings.HasPrefix(m.Subject, event.SubjectCaptureFrame) && (json.Unmarshal(m.Data, &f) != nil || f.MsgID() != m.ID()) {
			t.Errorf("%s stands under %s", m.Data, m.ID())
		}
		ids[m.ID()] = true
	}
	if len(ids) != 1+2+2 { // the fault is another one each time
		t.Errorf("%d messages: %v", len(ids), ids)
	}
	if letters := testkit.ReadAll(t, l.js, event.StreamDeadLetter); len(letters) != 0 {
		t.Errorf("%s", letters[0].Header)
	}
}

// TestAsyncAPI: the document speaks of each message that there is a schema for
// and a subject; each of its references leads somewhere.
func TestAsyncAPI(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("asyncapi.json")
	testkit.OK(t, err)
	var doc struct {
		AsyncAPI string
		Channels map[string]struct {
			Address  *string
			Messages map[string]struct {
				Ref string `json:"$ref"`
			}
		}
	}
	testkit.OK(t, json.Unmarshal(data, &doc))
	var all any
	testkit.OK(t, json.Unmarshal(data, &all))
	if doc.AsyncAPI != "3.0.0" {
		t.Errorf("AsyncAPI %s", doc.AsyncAPI)
	}
	at := func(pointer string) any {
		node := all
		for _, p := range strings.Split(strings.TrimPrefix(pointer, "#/"), "/") {
			m, _ := node.(map[string]any)
			node = m[p]
		}
		return node
	}
	var walk func(v any)
	walk = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			if ref, ok := v["$ref"].(string); ok {
				if strings.HasPrefix(ref, "#/") && at(ref) == nil {
					t.Errorf("%s leads nowhere", ref)
				} else if _, err := os.Stat(ref); !strings.HasPrefix(ref, "#/") && err != nil {
					t.Error(err)
				}
			}
			for _, x := range v {
				walk(x)
			}
		case []any:
			for _, x := range v {
				walk(x)
			}
		}
	}
	walk(all)
	var said []string
	name := regexp.MustCompile(`\{[a-z]+\}`)
	for key, c := range doc.Channels {
		for _, m := range c.Messages {
			msg := at(m.Ref).(map[string]any)
			file := strings.TrimSuffix(filepath.Base(msg["payload"].(map[string]any)["$ref"].(string)), ".json")
			said = append(said, file)
			if c.Address == nil || strings.HasPrefix(*c.Address, "batch.") {
				continue
			}
			if of := schema.Of(name.ReplaceAllString(*c.Address, "x")); of != file {
				t.Errorf("%s: %s follows %q, not %q", key, *c.Address, of, file)
			}
		}
	}
	for _, n := range schema.Names() {
		if reply := strings.Contains(n, "request") || strings.Contains(n, "reply") || slices.Contains([]string{"policy", "ledger.position", "batch.list", "case.list", "case.decision"}, n); !reply && !slices.Contains(said, n) {
			t.Errorf("the document says nothing of %s", n)
		}
	}
}
