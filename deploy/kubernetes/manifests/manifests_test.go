package manifests

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

var services = []string{"capture", "hasher", "deriver", "premis", "quarantine"}

var overlays = []string{"dev", "prod"}

func init() {
	if err := monitoring.AddToScheme(scheme.Scheme); err != nil {
		panic(err)
	}
}

// decode reads an object into its own type; a field that the type does not
// have is an error.
func decode(data []byte) (any, error) {
	if bytes.HasPrefix(data, []byte("apiVersion: keda.sh/")) {
		var o scaledObject
		err := yaml.UnmarshalStrict(data, &o)
		return &o, err
	}
	s := json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme.Scheme, scheme.Scheme, json.SerializerOptions{Yaml: true, Strict: true})
	o, _, err := s.Decode(data, nil, nil)
	return o, err
}

// rendered gives the objects of an overlay as YAML, each as "Kind/name".
func rendered(t testing.TB, overlay string) map[string][]byte {
	t.Helper()
	m, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), "../overlays/"+overlay)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][]byte{}
	for _, r := range m.Resources() {
		data, err := r.AsYAML()
		if err != nil {
			t.Fatal(err)
		}
		out[r.GetKind()+"/"+r.GetName()] = data
	}
	return out
}

func objects(t testing.TB, overlay string) map[string]any {
	t.Helper()
	out := map[string]any{}
	for name, data := range rendered(t, overlay) {
		o, err := decode(data)
		if err != nil {
			t.Errorf("%s: %s: %v", overlay, name, err)
			continue
		}
		out[name] = o
	}
	return out
}

// workload is a pod template with its name.
type workload struct {
	name string
	corev1.PodTemplateSpec
	claims []corev1.PersistentVolumeClaim
}

func (w workload) container() corev1.Container { return w.Spec.Containers[0] }

func workloads(t testing.TB, overlay string) (out []workload) {
	t.Helper()
	for _, o := range objects(t, overlay) {
		switch o := o.(type) {
		case *appsv1.StatefulSet:
			out = append(out, workload{o.Name, o.Spec.Template, o.Spec.VolumeClaimTemplates})
		case *appsv1.Deployment:
			out = append(out, workload{o.Name, o.Spec.Template, nil})
		case *batchv1.Job:
			out = append(out, workload{o.Name, o.Spec.Template, nil})
		}
	}
	if len(out) != len(services)+1 {
		t.Fatalf("%s: %d workloads", overlay, len(out))
	}
	return out
}

func each(t *testing.T, check func(t *testing.T, overlay string)) {
	t.Helper()
	for _, o := range overlays {
		t.Run(o, func(t *testing.T) {
			t.Parallel()
			check(t, o)
		})
	}
}

func TestEveryObjectIsWhatItsTypeSays(t *testing.T) {
	each(t, func(t *testing.T, overlay string) {
		all := objects(t, overlay)
		for _, s := range services {
			for _, kind := range []string{"Service", "PodDisruptionBudget"} {
				if all[kind+"/"+s] == nil {
					t.Errorf("there is no %s %s", kind, s)
				}
			}
		}
		want := map[string]string{"dev": "colophon-dev", "prod": "colophon"}[overlay]
		ns, ok := all["Namespace/"+want].(*corev1.Namespace)
		if !ok || ns.Labels["pod-security.kubernetes.io/enforce"] != "restricted" {
			t.Errorf("namespace %s is not restricted", want)
		}
		if overlay == "prod" {
			for _, o := range []string{"ScaledObject/hasher", "ScaledObject/deriver", "ServiceMonitor/colophon", "NetworkPolicy/default-deny", "NetworkPolicy/line"} {
				if all[o] == nil {
					t.Errorf("there is no %s", o)
				}
			}
		}
	})
}

// TestTyposAreFound spoils one field name after the other: strict decoding
// must find each.
func TestTyposAreFound(t *testing.T) {
	for name, data := range rendered(t, "prod") {
		n := 0
		free := "" // indentation below which keys are free: labels, data, selectors
		for i, line := range bytes.Split(data, []byte("\n")) {
			text := string(line)
			indent := text[:len(text)-len(strings.TrimLeft(text, " "))]
			if free != "" && len(indent) >= len(free) {
				continue
			}
			free = ""
			key, rest, found := strings.Cut(strings.TrimLeft(text, " -"), ":")
			if !found || strings.ContainsAny(key, `"'/ `) || key == "apiVersion" || key == "kind" {
				continue
			}
			if freeKeys[key] && strings.TrimSpace(rest) == "" {
				free = indent + "  "
			}
			spoiled := bytes.Split(bytes.Clone(data), []byte("\n"))
			spoiled[i] = []byte(strings.Replace(text, key+":", key+"s:", 1))
			if _, err := decode(bytes.Join(spoiled, []byte("\n"))); err == nil {
				t.Errorf("%s: %q is taken for a field", name, strings.TrimSpace(string(spoiled[i])))
			}
			n++
		}
		if n < 4 && !strings.HasPrefix(name, "Namespace") {
			t.Errorf("%s: only %d fields were tried", name, n)
		}
	}
}

var freeKeys = map[string]bool{"labels": true, "matchLabels": true, "requests": true, "limits": true, "selector": true, "annotations": true, "metadata": true}

func TestPodsAreRestricted(t *testing.T) {
	each(t, func(t *testing.T, overlay string) {
		for _, w := range workloads(t, overlay) {
			bad := func(format string, args ...any) { t.Errorf(w.name+": "+format, args...) }
			if len(w.Spec.Containers) != 1 || len(w.Spec.InitContainers) > 0 {
				bad("%d containers", len(w.Spec.Containers))
			}
			p, c := w.Spec.SecurityContext, w.container().SecurityContext
			if p == nil || p.RunAsNonRoot == nil || !*p.RunAsNonRoot || p.RunAsUser == nil || *p.RunAsUser != 65532 || p.SeccompProfile == nil || p.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault || p.FSGroup == nil {
				bad("pod security context %+v", p)
			}
			if c == nil || c.AllowPrivilegeEscalation == nil || *c.AllowPrivilegeEscalation || c.ReadOnlyRootFilesystem == nil || !*c.ReadOnlyRootFilesystem ||
				c.Capabilities == nil || fmt.Sprint(c.Capabilities.Drop) != "[ALL]" || len(c.Capabilities.Add) > 0 {
				bad("container security context %+v", c)
			}
			if a := w.Spec.AutomountServiceAccountToken; a == nil || *a {
				bad("has a token of the cluster")
			}
			if e := w.Spec.EnableServiceLinks; e == nil || *e {
				bad("services of the namespace become settings")
			}
			for _, v := range w.Spec.Volumes {
				if v.HostPath != nil {
					bad("mounts %s of the host", v.HostPath.Path)
				}
			}
			if i := w.container().Image; !strings.Contains(i, ":") || strings.HasSuffix(i, ":latest") {
				bad("image %s has no version", i)
			}
		}
	})
}

func TestProbesAndShutdown(t *testing.T) {
	grace := stageGrace(t)
	each(t, func(t *testing.T, overlay string) {
		for _, w := range workloads(t, overlay) {
			if w.name == "provision" {
				continue
			}
			c := w.container()
			for name, p := range map[string]*corev1.Probe{"/livez liveness": c.LivenessProbe, "/livez startup": c.StartupProbe, "/readyz readiness": c.ReadinessProbe} {
				path, _, _ := strings.Cut(name, " ")
				if p == nil || p.HTTPGet == nil || p.HTTPGet.Path != path || p.HTTPGet.Port.String() != "http" {
					t.Errorf("%s: %s probe %+v", w.name, name, p)
				}
			}
			if len(c.Ports) != 1 || c.Ports[0].Name != "http" || c.Ports[0].ContainerPort != 8080 {
				t.Errorf("%s: ports %+v", w.name, c.Ports)
			}
			if g := w.Spec.TerminationGracePeriodSeconds; g == nil || *g < 3*grace {
				t.Errorf("%s: has %v s to end, work alone may take %d", w.name, g, grace)
			}
			if len(w.Spec.TopologySpreadConstraints) != 1 || w.Spec.TopologySpreadConstraints[0].WhenUnsatisfiable != corev1.ScheduleAnyway {
				t.Errorf("%s: %+v", w.name, w.Spec.TopologySpreadConstraints)
			}
			if l := w.Labels; l["app.kubernetes.io/part-of"] != "colophon" || l["app.kubernetes.io/name"] != w.name {
				t.Errorf("%s: labels %v", w.name, l)
			}
		}
	})
}
