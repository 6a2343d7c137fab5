package telemetry

import (
	"bytes"
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	promql "github.com/prometheus/prometheus/promql/parser"
	"gopkg.in/yaml.v3"
)

const root = "../.."

// metric is one metric as the code declares it.
type metric struct {
	name, help string
	kind       dto.MetricType
	labels     []string
}

// metrics reads every declaration below shared and services: NewXVec(Opts{…},
// labels), NewX(Opts{…}) and NewDesc(name, help, labels, nil).
func metrics(t *testing.T) map[string]metric {
	t.Helper()
	out := map[string]metric{}
	for _, top := range []string{"shared", "services"} {
		err := filepath.WalkDir(filepath.Join(root, top), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
				return err
			}
			f, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
			if err != nil {
				return err
			}
			ast.Inspect(f, func(n ast.Node) bool {
				if call, ok := n.(*ast.CallExpr); ok {
					if m, ok := declared(call); ok {
						out[m.name] = m
					}
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(out) < 15 {
		t.Fatalf("only %d metrics were found", len(out))
	}
	return out
}

var kinds = map[string]dto.MetricType{"Counter": dto.MetricType_COUNTER, "Gauge": dto.MetricType_GAUGE, "Histogram": dto.MetricType_HISTOGRAM}

func declared(call *ast.CallExpr) (m metric, ok bool) {
	f, isSelector := call.Fun.(*ast.SelectorExpr)
	if !isSelector || len(call.Args) == 0 {
		return m, false
	}
	if p, isIdent := f.X.(*ast.Ident); !isIdent || p.Name != "prometheus" {
		return m, false
	}
	if f.Sel.Name == "NewDesc" {
		m.name, m.help, m.labels = text(call.Args[0]), text(call.Args[1]), texts(call.Args[2])
		m.kind = dto.MetricType_GAUGE
		return m, m.name != ""
	}
	for kind, t := range kinds {
		if strings.HasPrefix(f.Sel.Name, "New"+kind) {
			m.kind = t
		} else {
			continue
		}
		opts, isLit := call.Args[0].(*ast.CompositeLit)
		if !isLit {
			return m, false
		}
		for _, e := range opts.Elts {
			if kv, isKV := e.(*ast.KeyValueExpr); isKV {
				switch kv.Key.(*ast.Ident).Name {
				case "Name":
					m.name = text(kv.Value)
				case "Help":
					m.help = text(kv.Value)
				}
			}
		}
		if strings.HasSuffix(f.Sel.Name, "Vec") {
			m.labels = texts(call.Args[1])
		}
		return m, m.name != ""
	}
	return m, false
}

func text(e ast.Expr) string {
	if lit, ok := e.(*ast.BasicLit); ok {
		if s, err := strconv.Unquote(lit.Value); err == nil {
			return s
		}
	}
	return ""
}

func texts(e ast.Expr) (out []string) {
	if lit, ok := e.(*ast.CompositeLit); ok {
		for _, x := range lit.Elts {
			out = append(out, text(x))
		}
	}
	return out
}

// TestNames: names, units and helps are as the linter wants them, and no label
// grows with the archive.
func TestNames(t *testing.T) {
	t.Parallel()
	for name, m := range metrics(t) {
		f := &dto.MetricFamily{Name: &name, Help: &m.help, Type: &m.kind}
		found, err := promlint.NewWithMetricFamilies([]*dto.MetricFamily{f}).Lint()
		if err != nil {
			t.Error(err)
		}
		for _, p := range found {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
		for _, l := range m.labels {
			if slices.Contains([]string{"batch", "batch_id", "frame", "frame_id", "object", "digest", "content_hash", "key", "case", "subject"}, l) {
				t.Errorf("%s has a label %s: there are as many as pages", name, l)
			}
		}
	}
}

// known reports what an expression asks for that nobody gives.
func known(t *testing.T, where, expr string, all map[string]metric) {
	t.Helper()
	e, err := promql.NewParser(promql.Options{}).ParseExpr(expr)
	if err != nil {
		t.Errorf("%s: %v", where, err)
		return
	}
	asked := 0
	promql.Inspect(e, func(n promql.Node, _ []promql.Node) error {
		v, ok := n.(*promql.VectorSelector)
		if !ok {
			return nil
		}
		asked++
		m, ok := all[strings.TrimSuffix(v.Name, "_bucket")]
		if !ok || strings.HasSuffix(v.Name, "_bucket") != (m.kind == dto.MetricType_HISTOGRAM) {
			t.Errorf("%s: there is no metric %s", where, v.Name)
		}
		for _, l := range v.LabelMatchers {
			if l.Name != "__name__" && !slices.Contains(m.labels, l.Name) {
				t.Errorf("%s: %s has no label %s", where, v.Name, l.Name)
			}
		}
		return nil
	})
	if asked == 0 {
		t.Errorf("%s asks for nothing: %s", where, expr)
	}
}

type rules struct {
	Groups []struct {
		Name  string `yaml:"name"`
		Rules []struct {
			Alert       string            `yaml:"alert"`
			Expr        string            `yaml:"expr"`
			For         string            `yaml:"for"`
			Labels      map[string]string `yaml:"labels"`
			Annotations map[string]string `yaml:"annotations"`
		} `yaml:"rules"`
	} `yaml:"groups"`
}

func TestAlerts(t *testing.T) {
	t.Parallel()
	data := read(t, "alerts.yaml")
	d := yaml.NewDecoder(bytes.NewReader(data))
	d.KnownFields(true)
	var r rules
	if err := d.Decode(&r); err != nil {
		t.Fatal(err)
	}
	all, seen := metrics(t), map[string]bool{}
	for _, g := range r.Groups {
		for _, a := range g.Rules {
			known(t, a.Alert, a.Expr, all)
			seen[a.Alert] = true
			if a.Annotations["summary"] == "" || a.Annotations["description"] == "" || a.Labels["severity"] == "" {
				t.Errorf("%s does not say what to do", a.Alert)
			}
		}
	}
	for _, want := range []string{"Stalled", "Halted", "QuarantineOld", "Conflict", "PermissionDenied", "CheckpointOld"} {
		if !seen["Colophon"+want] {
			t.Errorf("nobody is told of %s", want)
		}
	}
	// codes in the expressions are codes of the line
	codes := string(read(t, root+"/shared/fault/fault.go"))
	for _, m := range regexp.MustCompile(`code=~"([^"]*)"`).FindAllStringSubmatch(string(data), -1) {
		for code := range strings.SplitSeq(m[1], "|") {
			if !strings.Contains(codes, strconv.Quote(code)) {
				t.Errorf("there is no code %s", code)
			}
		}
	}
}

func TestDashboard(t *testing.T) {
	t.Parallel()
	var d struct {
		Title  string `json:"title"`
		Panels []struct {
			ID      int    `json:"id"`
			Title   string `json:"title"`
			Targets []struct {
				Expr string `json:"expr"`
			} `json:"targets"`
		} `json:"panels"`
	}
	if err := json.Unmarshal(read(t, "dashboard.json"), &d); err != nil {
		t.Fatal(err)
	}
	all, ids := metrics(t), map[int]bool{}
	for _, p := range d.Panels {
		if ids[p.ID] || p.Title == "" || len(p.Targets) == 0 {
			t.Errorf("panel %d %q", p.ID, p.Title)
		}
		ids[p.ID] = true
		for _, target := range p.Targets {
			known(t, p.Title, target.Expr, all)
		}
	}
	if len(ids) < 10 {
		t.Errorf("%d panels", len(ids))
	}
}

func read(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return data
}
