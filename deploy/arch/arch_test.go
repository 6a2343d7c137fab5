package arch

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const root = "../.."

// file is one Go file and what it imports.
type file struct {
	path    string // below the root
	room    string // its folder below the root
	test    bool
	imports []string
}

func files(t *testing.T) (out []file) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != root && strings.HasPrefix(d.Name(), ".") {
			return fs.SkipDir
		}
		if d.IsDir() || filepath.Ext(path) != ".go" {
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		one := file{path: rel, room: filepath.ToSlash(filepath.Dir(rel)), test: strings.HasSuffix(rel, "_test.go")}
		for _, i := range f.Imports {
			p, err := strconv.Unquote(i.Path.Value)
			if err != nil {
				return err
			}
			one.imports = append(one.imports, p)
		}
		out = append(out, one)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(out) < 100 {
		t.Fatalf("only %d Go files were found", len(out))
	}
	return out
}

// within reports whether a path is, or lies below, one of some others.
func within(path string, of ...string) bool {
	return slices.ContainsFunc(of, func(o string) bool { return path == o || strings.HasPrefix(path, o+"/") })
}

func standard(path string) bool {
	first, _, _ := strings.Cut(path, "/")
	return !strings.Contains(first, ".") && first != "colophon"
}

// service gives the service that a path below services/ belongs to.
func service(path string) string {
	rest, ok := strings.CutPrefix(path, "services/")
	if !ok {
		return ""
	}
	s, _, _ := strings.Cut(rest, "/")
	return s
}

const (
	server  = "github.com/nats-io/nats-server/v2"
	client  = "github.com/nats-io/nats.go"
	pebble  = "github.com/cockroachdb/pebble"
	testkit = "colophon/shared/testkit"
)

func TestImports(t *testing.T) {
	for _, rule := range []struct {
		why   string
		holds func(f file, imported string) bool
	}{
		{"shared knows no service and nothing of deploy", func(f file, i string) bool {
			return !within(f.room, "shared") || !within(i, "colophon/services", "colophon/deploy")
		}},
		{"services meet only through events: none imports another", func(f file, i string) bool {
			other := service(strings.TrimPrefix(i, "colophon/"))
			return service(f.room) == "" || other == "" || other == service(f.room)
		}},
		{"a service knows nothing of how it is deployed", func(f file, i string) bool {
			return service(f.room) == "" || !within(i, "colophon/deploy")
		}},
		{"the judge imports no service: what it knows it was told twice", func(f file, i string) bool {
			return !within(f.room, "deploy/verify") || !within(i, "colophon/services", "colophon/deploy/standalone", "colophon/deploy/e2e")
		}},
		{"gateways are clients of the contract: they know no service and no line", func(f file, i string) bool {
			return !within(f.room, "deploy/gateway") || !within(i, "colophon/services", "colophon/deploy/standalone", "colophon/deploy/verify")
		}},
		{"end-to-end tests know no internals: they judge from outside", func(f file, i string) bool {
			return !within(f.room, "deploy/e2e") || !within(i, "colophon/services", "colophon/deploy/standalone")
		}},
		{"the wire contract needs the standard library only, so that anyone can speak it", func(f file, i string) bool {
			return f.test || !within(f.room, "shared/event") || standard(i)
		}},
		{"the completed-set knows no messages", func(f file, i string) bool {
			return f.test || !within(f.room, "shared/completed") || !within(i, client, server, "colophon/shared/event")
		}},
		{"the store knows neither messages nor Pebble", func(f file, i string) bool {
			return f.test || !within(f.room, "shared/storage") || !within(i, client, server, pebble+"/v2", "colophon/shared/event", "colophon/shared/stage")
		}},
		{"the order knows no Pebble and no files", func(f file, i string) bool {
			return f.test || !within(f.room, "shared/stage") || !within(i, pebble+"/v2", "os", "colophon/shared/storage")
		}},
		{"faults and policies know nobody who uses them", func(f file, i string) bool {
			return f.test || !within(f.room, "shared/fault", "shared/retry") || !within(i, client, server, pebble+"/v2", "colophon/shared/stage")
		}},
		{"the daemon knows no domain words", func(f file, i string) bool {
			return f.test || !within(f.room, "shared/daemon") || !within(i, "colophon/shared/event", "colophon/shared/stage", "colophon/shared/fault")
		}},
		{"test helpers are imported by tests only", func(f file, i string) bool {
			return f.test || within(f.room, "shared/testkit") || !within(i, testkit, "testing") || strings.HasSuffix(f.room, "test")
		}},
		{"only the standalone, test helpers and tests start a server", func(f file, i string) bool {
			return f.test || within(f.room, "deploy/standalone", "shared/testkit") || !within(i, server)
		}},
		{"PREMIS words live in premis and its judge", func(f file, i string) bool {
			return within(f.room, "services/premis") || !within(i, "colophon/services/premis/internal")
		}},
	} {
		for _, f := range files(t) {
			for _, i := range f.imports {
				if !rule.holds(f, i) {
					t.Errorf("%s imports %s; but %s", f.path, i, rule.why)
				}
			}
		}
	}
}

// modules are the folders with a go.mod.
func modules(t *testing.T) (out []string) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Name() == "go.mod" {
			rel, rerr := filepath.Rel(root, filepath.Dir(path))
			out, err = append(out, rel), rerr
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestModules(t *testing.T) {
	work, make := read(t, "go.work"), read(t, "Makefile")
	all := modules(t)
	for _, m := range all {
		if apart := "cd " + m + " && GOWORK=off"; strings.Contains(make, apart) { // its own target tests it
			if strings.Contains(work, "./"+m+"\n") {
				t.Errorf("module %s is in go.work: what it needs enters the services", m)
			}
			continue
		}
		if !strings.Contains(work, "./"+m+"\n") {
			t.Errorf("module %s is not in go.work", m)
		}
		line := make[strings.Index(make, "MODULES := "):]
		line, _, _ = strings.Cut(line, "\n")
		if !slices.Contains(strings.Fields(line), m) {
			t.Errorf("module %s is not in the Makefile's MODULES: nothing tests it", m)
		}
	}
	for _, s := range []string{"capture", "hasher", "deriver", "premis", "quarantine"} {
		if !slices.Contains(all, "services/"+s) {
			t.Errorf("services/%s is no module", s)
		}
	}
}

// TestAlone: each module builds without the workspace: what it needs stands in
// its own go.mod.
func TestAlone(t *testing.T) {
	for _, m := range modules(t) {
		t.Run(m, func(t *testing.T) { goIn(t, m, "build", "-o", os.DevNull, "./...") })
	}
}

// TestLinked: no service program carries a server or a test helper.
func TestLinked(t *testing.T) {
	for _, m := range modules(t) {
		s := service(m)
		if s == "" {
			continue
		}
		for dep := range strings.Lines(goIn(t, m, "list", "-deps", "./cmd/...")) {
			if dep = strings.TrimSpace(dep); within(dep, server+"/server", testkit, "testing") {
				t.Errorf("%s links %s", m, dep)
			}
		}
	}
}

// TestTop: the top of the tree is its map.
func TestTop(t *testing.T) {
	cmd := exec.Command("git", "ls-files")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Logf("NOT TESTED: git ls-files: %v", err)
		return
	}
	allowed := []string{"services", "shared", "deploy", "go.work", "go.work.sum", "README.md", "Makefile", "LICENSE"}
	for line := range strings.Lines(string(out)) {
		top, _, _ := strings.Cut(strings.TrimSpace(line), "/")
		if !slices.Contains(allowed, top) && !strings.HasPrefix(top, ".") {
			t.Errorf("%s stands at the top", top)
		}
	}
}

func goIn(t *testing.T, module string, args ...string) string {
	t.Helper()
	cmd := exec.Command("go", args...)
	cmd.Dir = filepath.Join(root, module)
	cmd.Env = append(os.Environ(), "GOWORK=off")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("go %s in %s: %v\n%s", strings.Join(args, " "), module, err, out)
	}
	return string(out)
}

func read(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
