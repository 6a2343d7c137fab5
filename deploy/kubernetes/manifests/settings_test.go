package manifests

import (
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

const root = "../../.."

// stageGrace is how long a stage lets work run after a stop, in seconds.
func stageGrace(t *testing.T) int64 {
	t.Helper()
	m := regexp.MustCompile(`c\.Grace = (\d+) \* time\.Second`).FindStringSubmatch(read(t, root+"/shared/stage/stage.go"))
	if m == nil {
		t.Fatal("the grace of a stage is not found")
	}
	n, err := strconv.ParseInt(m[1], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func read(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// programs builds what the images hold.
func programs(t *testing.T) string {
	t.Helper()
	if dir := os.Getenv("COLOPHON_BIN"); dir != "" { // make has built them
		return dir
	}
	bin := t.TempDir() + "/"
	args := []string{"build", "-o", bin, "./deploy/standalone/cmd/colophon"}
	for _, s := range services {
		args = append(args, "./services/"+s+"/cmd/"+s)
	}
	cmd := exec.Command("go", args...)
	cmd.Dir, cmd.Env = root, append(os.Environ(), "GOWORK=", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return bin
}

func help(t *testing.T, program string, command ...string) string {
	t.Helper()
	out, err := exec.Command(program, append(command, "--help")...).Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// TestSettingsExist: every flag and variable is one of the program's, every
// folder is mounted, and every key is a broker's identity.
func TestSettingsExist(t *testing.T) {
	bin := programs(t)
	accounts := read(t, root+"/deploy/nats/accounts.conf")
	for _, overlay := range overlays {
		for _, w := range workloads(t, overlay) {
			c := w.container()
			program := path.Base(strings.Split(c.Image, ":")[0])
			var command []string
			if w.name == "provision" {
				command = []string{"provision"}
			}
			says := help(t, filepath.Join(bin, program), command...)
			for _, a := range c.Args {
				flag, value, _ := strings.Cut(a, "=")
				if !strings.HasPrefix(flag, "--") {
					if len(command) == 0 || a != command[0] {
						t.Errorf("%s: argument %q", w.name, a)
					}
					continue
				}
				if !regexp.MustCompile(`(?m)` + regexp.QuoteMeta(flag) + `[=, \n]`).MatchString(says) {
					t.Errorf("%s: %s has no flag %s", w.name, program, flag)
				}
				if strings.HasPrefix(value, "/") && !mounted(c, value) {
					t.Errorf("%s: %s is not mounted", w.name, value)
				}
			}
			for _, e := range c.Env {
				if strings.HasPrefix(e.Name, "COLOPHON_") && !strings.Contains(says, "$"+e.Name) {
					t.Errorf("%s: %s reads no %s", w.name, program, e.Name)
				}
				if strings.HasPrefix(e.Value, "/") && !mounted(c, e.Value) {
					t.Errorf("%s: %s is not mounted", w.name, e.Value)
				}
			}
			if !strings.Contains(strings.Join(c.Args, " "), "/"+w.name+".nk") || secretOf(w) != "colophon-nkey-"+w.name {
				t.Errorf("%s: runs under another's key: %s, %v", w.name, secretOf(w), c.Args)
			}
			if !regexp.MustCompile(`# (service|provision) ` + w.name + "\n").MatchString(accounts) {
				t.Errorf("%s: the broker has no such identity", w.name)
			}
		}
	}
}

func secretOf(w workload) string {
	for _, v := range w.Spec.Volumes {
		if v.Name == "nkey" && v.Secret != nil {
			return v.Secret.SecretName
		}
	}
	return ""
}

func mounted(c corev1.Container, file string) bool {
	for _, m := range c.VolumeMounts {
		if file == m.MountPath || strings.HasPrefix(file, m.MountPath+"/") {
			return true
		}
	}
	return false
}

// TestVolumesAreThere: each mount has its volume, and what must outlive a pod
// lies in a claim.
func TestVolumesAreThere(t *testing.T) {
	each(t, func(t *testing.T, overlay string) {
		for _, w := range workloads(t, overlay) {
			have, kept := map[string]bool{}, map[string]bool{}
			for _, v := range w.Spec.Volumes {
				have[v.Name], kept[v.Name] = true, v.PersistentVolumeClaim != nil
			}
			for _, c := range w.claims {
				have[c.Name], kept[c.Name] = true, true
			}
			for _, m := range w.container().VolumeMounts {
				if !have[m.Name] {
					t.Errorf("%s: there is no volume %s", w.name, m.Name)
				}
			}
			if w.name != "provision" && w.name != "deriver" && !kept["state"] {
				t.Errorf("%s: its state goes with its pod", w.name)
			}
		}
	})
}

// TestMemory: what Go may take stays below what the pod may, and so do helpers
// beside it.
func TestMemory(t *testing.T) {
	each(t, func(t *testing.T, overlay string) {
		for _, w := range workloads(t, overlay) {
			c := w.container()
			limit := c.Resources.Limits.Memory().Value()
			var goLimit, helpers int64
			for _, e := range c.Env {
				if e.Name == "GOMEMLIMIT" {
					q := resource.MustParse(strings.TrimSuffix(e.Value, "B"))
					goLimit = q.Value()
				}
			}
			for _, a := range c.Args {
				if n, ok := strings.CutPrefix(a, "--memory-mib="); ok {
					mib, err := strconv.ParseInt(n, 10, 64)
					if err != nil {
						t.Error(err)
					}
					helpers = mib << 20
				}
			}
			if own := limit - helpers; goLimit*10 < own*7 || goLimit*10 > own*9 {
				t.Errorf("%s: GOMEMLIMIT is %d of %d bytes", w.name, goLimit, own)
			}
			if c.Resources.Requests.Cpu().IsZero() || c.Resources.Requests.Memory().IsZero() {
				t.Errorf("%s: asks for nothing", w.name)
			}
		}
	})
}

// TestSelectors: budgets and services mean the pods they are named after, and
// nothing scales what it may not.
func TestSelectors(t *testing.T) {
	each(t, func(t *testing.T, overlay string) {
		pods := map[string]labels.Set{}
		for _, w := range workloads(t, overlay) {
			pods[w.name] = w.Labels
		}
		only := func(name string, s labels.Selector) {
			t.Helper()
			for pod, l := range pods {
				if s.Matches(l) != (pod == name) {
					t.Errorf("%s selects %s: %v", name, pod, s.Matches(l))
				}
			}
		}
		for _, o := range objects(t, overlay) {
			switch o := o.(type) {
			case *policyv1.PodDisruptionBudget:
				s, err := metav1.LabelSelectorAsSelector(o.Spec.Selector)
				if err != nil {
					t.Fatal(err)
				}
				only(o.Name, s)
				if o.Spec.MaxUnavailable.IntValue() != 1 || o.Spec.UnhealthyPodEvictionPolicy == nil || *o.Spec.UnhealthyPodEvictionPolicy != policyv1.AlwaysAllow {
					t.Errorf("budget %s: %+v", o.Name, o.Spec)
				}
			case *corev1.Service:
				only(o.Name, labels.SelectorFromSet(o.Spec.Selector))
			case *appsv1.StatefulSet:
				if o.Spec.Replicas == nil && o.Name != "hasher" || o.Spec.Replicas != nil && *o.Spec.Replicas != 1 {
					t.Errorf("%s: one instance decides at a time, there are %v", o.Name, o.Spec.Replicas)
				}
			case *scaledObject:
				scales(t, o)
			}
		}
	})
}

// scales: a scaler reads the lag of consumers that the table has.
func scales(t *testing.T, o *scaledObject) {
	t.Helper()
	grants := read(t, root+"/deploy/nats/accounts.conf")
	if o.Spec.MinReplicaCount == nil || *o.Spec.MinReplicaCount < 1 || o.Spec.Fallback == nil {
		t.Errorf("scaler %s: %+v", o.Name, o.Spec)
	}
	for _, tr := range o.Spec.Triggers {
		m := tr.Metadata
		if tr.Type != "nats-jetstream" || m["account"] != "COLOPHON" || !strings.Contains(grants, fmt.Sprintf("%q", "$JS.API.CONSUMER.MSG.NEXT."+m["stream"]+"."+m["consumer"])) {
			t.Errorf("scaler %s: nobody works on %v", o.Name, m)
		}
	}
}

// TestBrokerValues: the values of the chart hold what the streams rely on.
func TestBrokerValues(t *testing.T) {
	values := read(t, "../nats/values.yaml")
	for _, want := range []string{"sync_interval: always", "replicas: 3", "readOnlyRootFilesystem: true", "podDisruptionBudget:", "topologySpreadConstraints:", "GOMEMLIMIT"} {
		if !strings.Contains(values, want) {
			t.Errorf("values.yaml has no %s", want)
		}
	}
	for _, w := range workloads(t, "prod") {
		if w.name == "provision" && !strings.Contains(strings.Join(w.container().Args, " "), "--replicas=3") {
			t.Errorf("streams of a cluster of three: %v", w.container().Args)
		}
	}
}
