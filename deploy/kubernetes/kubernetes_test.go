// Package kubernetes is tested here as a whole: the chart is the source, the kustomize base is the chart with its default values,
// and each overlay is the chart with the values of the same name.
package kubernetes

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"text/template"

	"github.com/Masterminds/sprig/v3"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/ingotmetal/ingot/internal/config"
)

var (
	tools = flag.Bool("tools", false, "run helm, kustomize and kubeconform from .tools (make deps-release)")
	write = flag.Bool("write", false, "write base/ingot.yaml")
)

const (
	toolsDir = "../../.tools"
	baseFile = "base/ingot.yaml"
	baseHead = "# The chart with its default values, written by: go test ./deploy/kubernetes -args -write\n"
)

// overlays are those of kustomize, each with its file of values for the chart.
var overlays = []string{"relay-only", "nfs", "monitoring"}

// object is one Kubernetes object.
type object = map[string]any

// idOf names an object within its namespace.
func idOf(o object) string {
	meta, _ := o["metadata"].(map[string]any)
	return fmt.Sprintf("%v %v", o["kind"], meta["name"])
}

// parse reads the objects of a YAML stream, by kind and name. It leaves out the namespace, which kustomize writes into each object
// and helm does not.
func parse(t *testing.T, text []byte) map[string]object {
	t.Helper()
	out := map[string]object{}
	for d := yaml.NewDecoder(bytes.NewReader(text)); ; {
		var o object
		err := d.Decode(&o)
		if errors.Is(err, io.EOF) {
			return out
		}
		require.NoError(t, err, "%s", text)
		if len(o) == 0 || o["kind"] == "Namespace" {
			continue
		}
		delete(o["metadata"].(map[string]any), "namespace")
		if o["kind"] == "Deployment" {
			dropChecksum(t, o)
		}
		require.NotContains(t, out, idOf(o))
		out[idOf(o)] = o
	}
}

// dropChecksum removes the checksum of the configuration, which kustomize cannot make.
func dropChecksum(t *testing.T, deployment object) {
	t.Helper()
	meta := get(t, deployment, "spec", "template", "metadata").(map[string]any)
	if annotations, ok := meta["annotations"].(map[string]any); ok {
		require.Len(t, annotations, 1)
		require.Len(t, annotations["checksum/config"], 64)
		delete(meta, "annotations")
	}
}

// render renders the chart with the values of a file, or with "" for the defaults.
func render(t *testing.T, values string) []byte {
	t.Helper()
	out, err := renderChart(t, values)
	require.NoError(t, err)
	return out
}

// chartFiles are the files of the chart that are no templates.
type chartFiles struct{}

// Get returns the text of a file.
func (chartFiles) Get(name string) (string, error) {
	b, err := os.ReadFile(filepath.Join("chart", name))
	return string(b), err
}

// renderChart renders the chart as release ingot.
func renderChart(t *testing.T, values string) ([]byte, error) {
	t.Helper()
	return renderRelease(t, "ingot", values)
}

// renderRelease renders the chart as helm does, as far as the chart needs it. Its error is one of the chart's templates.
func renderRelease(t *testing.T, release, values string) ([]byte, error) {
	t.Helper()
	merged := map[string]any{}
	for _, file := range slices.DeleteFunc([]string{"chart/values.yaml", values}, func(f string) bool { return f == "" }) {
		b, err := os.ReadFile(file)
		require.NoError(t, err)
		var v map[string]any
		require.NoError(t, yaml.Unmarshal(b, &v))
		merge(merged, v)
	}
	var chart map[string]any
	b, err := os.ReadFile("chart/Chart.yaml")
	require.NoError(t, err)
	require.NoError(t, yaml.Unmarshal(b, &chart))

	tmpl := template.New("chart").Option("missingkey=error")
	functions := sprig.TxtFuncMap()
	functions["include"] = func(name string, data any) (string, error) {
		var out bytes.Buffer
		err := tmpl.ExecuteTemplate(&out, name, data)
		return out.String(), err
	}
	functions["toYaml"] = func(v any) (string, error) {
		b, err := yaml.Marshal(v)
		return strings.TrimSuffix(string(b), "\n"), err
	}
	functions["fromYaml"] = func(text string) map[string]any {
		v := map[string]any{}
		if err := yaml.Unmarshal([]byte(text), &v); err != nil {
			v["Error"] = err.Error()
		}
		return v
	}
	tmpl.Funcs(functions)
	files, err := filepath.Glob("chart/templates/*")
	require.NoError(t, err)
	for _, file := range files {
		b, err := os.ReadFile(file)
		require.NoError(t, err)
		_, err = tmpl.New(file).Parse(string(b))
		require.NoError(t, err)
	}

	var out bytes.Buffer
	for _, file := range files {
		if strings.HasSuffix(file, ".yaml") {
			out.WriteString("---\n")
			data := map[string]any{
				"Values": merged, "Chart": map[string]any{"AppVersion": chart["appVersion"]},
				"Release": map[string]any{"Name": release}, "Files": chartFiles{},
			}
			if err := tmpl.ExecuteTemplate(&out, file, data); err != nil {
				return nil, err
			}
			out.WriteString("\n")
		}
	}
	return out.Bytes(), nil
}

// merge puts the values of from over those of into.
func merge(into, from map[string]any) {
	for k, v := range from {
		inner, ok := v.(map[string]any)
		if old, both := into[k].(map[string]any); ok && both {
			merge(old, inner)
			continue
		}
		into[k] = v
	}
}

// TestBase: the base of kustomize is the chart with its default values.
func TestBase(t *testing.T) {
	want := parse(t, render(t, ""))
	if *write {
		require.NoError(t, os.WriteFile(baseFile, marshal(t, want), 0o644))
	}
	have, err := os.ReadFile(baseFile)
	require.NoError(t, err)
	require.Equal(t, want, parse(t, have), "go test ./deploy/kubernetes -args -write")
}

// marshal writes objects in the order of their kinds and names.
func marshal(t *testing.T, objects map[string]object) []byte {
	t.Helper()
	out := bytes.NewBufferString(baseHead)
	e := yaml.NewEncoder(out)
	e.SetIndent(2)
	ids := []string{}
	for id := range objects {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	for _, id := range ids {
		require.NoError(t, e.Encode(objects[id]))
	}
	require.NoError(t, e.Close())
	return out.Bytes()
}

// get returns the value at a path of keys, and of indexes of lists.
func get(t *testing.T, v any, path ...any) any {
	t.Helper()
	for _, step := range path {
		switch key := step.(type) {
		case string:
			m, ok := v.(map[string]any)
			require.True(t, ok, "%v: %v is a %T", path, step, v)
			require.Contains(t, m, key)
			v = m[key]
		case int:
			v = v.([]any)[key]
		}
	}
	return v
}

// TestChart: what the chart renders is what the program needs: its configuration is valid, its ports are open, its folders are on the
// volume, it is not root, and it has the capabilities that the program carries.
func TestChart(t *testing.T) {
	for _, name := range append([]string{""}, overlays...) {
		t.Run("values "+name, func(t *testing.T) {
			values := ""
			if name != "" {
				values = filepath.Join("values", name+".yaml")
			}
			objects := parse(t, render(t, values))
			cfg := checkConfig(t, objects)
			checkPod(t, objects["Deployment ingot"], cfg)
			require.Equal(t, name == "monitoring", objects["ServiceMonitor ingot"] != nil)
			if name == "monitoring" {
				require.Equal(t, map[string]any{
					"app.kubernetes.io/name": "ingot", "app.kubernetes.io/instance": "ingot", "release": "kube-prometheus-stack",
				}, get(t, objects["ServiceMonitor ingot"], "metadata", "labels"))
			}
			require.NotNil(t, objects["PodDisruptionBudget ingot"])
			require.Equal(t, !strings.HasPrefix(cfg.Listen, "127."), objects["Service ingot"] != nil)
			require.Nil(t, objects["Ingress ingot"])
		})
	}
}

// TestNames: two releases in one namespace share no name, and neither's Service reaches the other's pod.
func TestNames(t *testing.T) {
	const reachable = "api: {scheme: HTTPS}\nconfig: \"listen: 0.0.0.0:8080\"\n"
	for _, c := range []struct{ release, values, want string }{
		{"ingot", "", "ingot"},
		{"lab", "", "lab-ingot"},
		{"ingot-two", "", "ingot-two"},
		{"lab", "fullnameOverride: provisioning\n", "provisioning"},
	} {
		text, err := renderRelease(t, c.release, valuesFile(t, reachable+c.values))
		require.NoError(t, err)
		objects := parse(t, text)
		for id := range objects {
			require.Equal(t, c.want, strings.Fields(id)[1], id)
		}
		labels := get(t, objects["Deployment "+c.want], "spec", "template", "metadata", "labels")
		require.Equal(t, c.release, get(t, labels, "app.kubernetes.io/instance"))
		require.Equal(t, labels, get(t, objects["Service "+c.want], "spec", "selector"))
		require.Equal(t, labels, get(t, objects["PodDisruptionBudget "+c.want], "spec", "selector", "matchLabels"))
		volumes := get(t, objects["Deployment "+c.want], "spec", "template", "spec", "volumes")
		require.Equal(t, c.want, get(t, volumes, 0, "persistentVolumeClaim", "claimName"))
		require.Equal(t, c.want, get(t, volumes, 1, "configMap", "name"))
	}
}

// TestChecksum: another configuration makes another pod.
func TestChecksum(t *testing.T) {
	sum := regexp.MustCompile(`checksum/config: [0-9a-f]{64}`)
	first, second := sum.Find(render(t, "")), sum.Find(render(t, valuesFile(t, "config: \"probe_every: 5s\"\n")))
	require.NotEmpty(t, first)
	require.NotEmpty(t, second)
	require.NotEqual(t, first, second)
}

// TestIngress: it leads to the API, and is refused when the server would not answer it.
func TestIngress(t *testing.T) {
	const ingress = "ingress: {enabled: true, host: ingot.example.com, className: nginx, tlsSecret: ingot-tls}\napi: {scheme: HTTPS}\n"
	objects := parse(t, render(t, valuesFile(t, ingress+"config: \"{listen: ':8080', hosts: [ingot.example.com]}\"\n")))
	spec := get(t, objects["Ingress ingot"], "spec")
	require.Equal(t, "nginx", get(t, spec, "ingressClassName"))
	require.Equal(t, []any{"ingot.example.com"}, get(t, spec, "tls", 0, "hosts"))
	require.Equal(t, "ingot.example.com", get(t, spec, "rules", 0, "host"))
	require.Equal(t, object{"name": "ingot", "port": object{"name": "api"}},
		get(t, spec, "rules", 0, "http", "paths", 0, "backend", "service"))
	require.Equal(t, "api", get(t, objects["Service ingot"], "spec", "ports", 0, "name"))
	require.Len(t, get(t, spec, "rules"), 1)

	// Temporal's UI has a host of its own, to which the server's links lead.
	both := strings.Replace(ingress, "host:", "temporalHost: temporal.example.com, host:", 1)
	objects = parse(t, render(t, valuesFile(t, both+
		"config: \"{listen: ':8080', hosts: [ingot.example.com], temporal: {ui_url: 'https://temporal.example.com'}}\"\n")))
	spec = get(t, objects["Ingress ingot"], "spec")
	require.Equal(t, []any{"ingot.example.com", "temporal.example.com"}, get(t, spec, "tls", 0, "hosts"))
	require.Equal(t, "temporal.example.com", get(t, spec, "rules", 1, "host"))
	require.Equal(t, object{"name": "ingot", "port": object{"name": "temporal-ui"}},
		get(t, spec, "rules", 1, "http", "paths", 0, "backend", "service"))
	require.Equal(t, 8234, uiPort(t, get(t, objects["Service ingot"], "spec", "ports"), "port"))
	_, err := renderChart(t, valuesFile(t, both+"config: \"{listen: ':8080', hosts: [ingot.example.com]}\"\n"))
	require.ErrorContains(t, err, "write temporal: {ui_url: https://temporal.example.com}")

	_, err = renderChart(t, valuesFile(t, ingress+"config: \"listen: :8080\"\n"))
	require.ErrorContains(t, err, "write hosts: [ingot.example.com]")
	_, err = renderChart(t, valuesFile(t, ingress+"config: \"{tls_cert: /a, tls_key: /b, hosts: [ingot.example.com]}\"\n"))
	require.ErrorContains(t, err, "write listen: 0.0.0.0:8080")
}

// TestTemporalUIPort: pod and Service have the port on which the server of the configuration serves Temporal's UI.
func TestTemporalUIPort(t *testing.T) {
	for config, want := range map[string]int{
		"listen: 0.0.0.0:8080": 8234,
		"{listen: '[::]:8080', temporal: {ui_listen: '[::]:9000'}}": 9000,
		"{listen: 0.0.0.0:8080, temporal: {ui_listen: off}}":        0,
		"{listen: 0.0.0.0:8080, temporal: {ui_listen: false}}":      0, // as helm reads off
		"{listen: 0.0.0.0:8080, temporal: {address: 'cluster:1'}}":  0,
	} {
		objects := parse(t, render(t, valuesFile(t, fmt.Sprintf("api: {scheme: HTTPS}\nconfig: %q\n", config))))
		pod := get(t, objects["Deployment ingot"], "spec", "template", "spec", "containers", 0, "ports")
		require.Equal(t, want, uiPort(t, pod, "containerPort"), config)
		require.Equal(t, want, uiPort(t, get(t, objects["Service ingot"], "spec", "ports"), "port"), config)
	}
}

// uiPort returns the number of the port for Temporal's UI in a list of ports, or 0.
func uiPort(t *testing.T, ports any, number string) int {
	t.Helper()
	for _, p := range ports.([]any) {
		if get(t, p, "name") == "temporal-ui" {
			return get(t, p, number).(int)
		}
	}
	return 0
}

// TestRules: the chart can bring the alert rules and the board, as they are outside of it.
func TestRules(t *testing.T) {
	objects := parse(t, render(t, valuesFile(t, "prometheusRule: {enabled: true, labels: {release: stack}}\ndashboard: {enabled: true}\n")))
	text, err := os.ReadFile("../monitoring/ingot.rules.yml")
	require.NoError(t, err)
	var rules object
	require.NoError(t, yaml.Unmarshal(text, &rules))
	require.Equal(t, rules, get(t, objects["PrometheusRule ingot"], "spec"))
	require.Equal(t, "stack", get(t, objects["PrometheusRule ingot"], "metadata", "labels", "release"))
	board, err := os.ReadFile("../monitoring/ingot-board.json")
	require.NoError(t, err)
	require.JSONEq(t, string(board), get(t, objects["ConfigMap ingot-board"], "data", "ingot-board.json").(string))
	require.Equal(t, "1", get(t, objects["ConfigMap ingot-board"], "metadata", "labels", "grafana_dashboard"))
}

// TestScheme: the chart refuses probes that the server of its configuration would not answer. That speaks HTTPS beyond loopback and
// with a certificate.
func TestScheme(t *testing.T) {
	for values, scheme := range map[string]string{
		"config: \"probe_every: 5s\"":                               "HTTP",
		"config: \"listen: localhost:8080\"":                        "HTTP",
		"config: \"listen: '[::1]:8080'\"":                          "HTTP",
		"config: \"listen: 0.0.0.0:8080\"":                          "HTTPS",
		"config: \"listen: :8080\"":                                 "HTTPS",
		"config: \"{tls_cert: /etc/a.pem, tls_key: /etc/a.key}\"":   "HTTPS",
		"config: |\n  netboot: {listen: 0.0.0.0}\n  reserve_mib: 1": "HTTP",
	} {
		_, err := renderChart(t, valuesFile(t, values+"\napi: {scheme: "+scheme+"}\n"))
		require.NoError(t, err, values)
		other := map[string]string{"HTTP": "HTTPS", "HTTPS": "HTTP"}[scheme]
		_, err = renderChart(t, valuesFile(t, values+"\napi: {scheme: "+other+"}\n"))
		require.ErrorContains(t, err, "set api.scheme to "+scheme, values)
	}
	_, err := renderChart(t, valuesFile(t, "config: \"listen: [\"\n"))
	require.ErrorContains(t, err, "reading config")
}

// TestImagePullSecrets: the pod names the Secrets with which the node pulls the image.
func TestImagePullSecrets(t *testing.T) {
	objects := parse(t, render(t, valuesFile(t, "imagePullSecrets: [{name: my-registry}]\n")))
	have := get(t, objects["Deployment ingot"], "spec", "template", "spec", "imagePullSecrets")
	require.Equal(t, []any{object{"name": "my-registry"}}, have)
}

// TestTLSConfig: values replace the default of the ServiceMonitor, which verifies nothing.
func TestTLSConfig(t *testing.T) {
	const monitor = "api: {scheme: HTTPS}\nconfig: \"listen: 0.0.0.0:8080\"\nserviceMonitor: {enabled: true%s}\n"
	for tlsConfig, want := range map[string]object{
		"": {"insecureSkipVerify": true},
		", tlsConfig: {serverName: ingot.example.com, ca: {secret: {name: ingot-ca, key: ca.crt}}}": {
			"serverName": "ingot.example.com", "ca": object{"secret": object{"name": "ingot-ca", "key": "ca.crt"}},
		},
	} {
		objects := parse(t, render(t, valuesFile(t, fmt.Sprintf(monitor, tlsConfig))))
		require.Equal(t, want, get(t, objects["ServiceMonitor ingot"], "spec", "endpoints", 0, "tlsConfig"))
	}
}

// valuesFile writes values for the chart to a file.
func valuesFile(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "values.yaml")
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	return file
}

// TestExtraSecrets: both containers see each Secret where the configuration names its files, and others may not read them: the server
// refuses a file of keys otherwise.
func TestExtraSecrets(t *testing.T) {
	values := valuesFile(t, `
extraSecrets:
  - {name: ingot-temporal, mountPath: /etc/ingot-temporal}
  - {name: ingot.example.com-tls, mountPath: /etc/ingot-tls}
`)
	pod := get(t, parse(t, render(t, values))["Deployment ingot"], "spec", "template", "spec")
	for i, secret := range []struct{ name, mountPath string }{
		{"ingot-temporal", "/etc/ingot-temporal"}, {"ingot.example.com-tls", "/etc/ingot-tls"},
	} {
		name := fmt.Sprintf("secret-%d", i) // the name of a Secret may have dots, a volume's may not
		require.Contains(t, get(t, pod, "volumes"), object{"name": name, "secret": object{"secretName": secret.name, "defaultMode": 0o400}})
		for _, containers := range []string{"initContainers", "containers"} {
			require.Contains(t, get(t, pod, containers, 0, "volumeMounts"),
				object{"name": name, "mountPath": secret.mountPath, "readOnly": true})
		}
	}
}

// backupConfig and backupValues turn the backups of each night on.
const (
	backupConfig = "  backup: {dir: /var/backups/ingot, passphrase_file: /etc/ingot-backup/passphrase}\n" +
		"  netboot: {interfaces: [eth1]}\n  temporal: {mutual_tls: true}\n"
	backupValues = "backup: {enabled: true, nfs: {server: nas, path: /backups}}\nconfig: |\n" + backupConfig
)

// TestBackupJob: the server has the volume of the backups and their passphrase, and the job neither, but a token.
func TestBackupJob(t *testing.T) {
	objects := parse(t, render(t, valuesFile(t, backupValues)))
	cfg := checkConfig(t, objects)
	server := get(t, objects["Deployment ingot"], "spec", "template", "spec")
	require.Contains(t, get(t, server, "volumes"), object{"name": "backups", "nfs": object{"server": "nas", "path": "/backups"}})
	mounted := map[any]any{}
	for _, m := range get(t, server, "containers", 0, "volumeMounts").([]any) {
		mounted[get(t, m, "mountPath")] = get(t, m, "name")
	}
	require.Equal(t, "backups", mounted[cfg.Backup.Dir])
	require.Equal(t, "backup-passphrase", mounted[filepath.Dir(cfg.Backup.PassphraseFile)])

	job := get(t, objects["CronJob ingot-backup"], "spec", "jobTemplate", "spec", "template")
	pod := get(t, job, "spec")
	require.Equal(t, []any{
		object{"name": "config", "configMap": object{"name": "ingot"}},
		object{"name": "token", "secret": object{"secretName": "ingot-backup-token", "defaultMode": 0o400}},
	}, get(t, pod, "volumes"))
	require.Equal(t, []any{"backup", "run", "--token-file=/etc/ingot-backup-token/token"}, get(t, pod, "containers", 0, "args"))
	require.NotEqual(t, get(t, objects["Deployment ingot"], "spec", "selector", "matchLabels"), get(t, job, "metadata", "labels"),
		"the Deployment and the Service would take the job's pod for a server")
	require.Equal(t, get(t, server, "containers", 0, "securityContext"), get(t, pod, "containers", 0, "securityContext"))

	// The certificate that the server has made is all that the job sees of the site.
	const beyond = "backup: {enabled: true, existingClaim: backups}\napi: {scheme: HTTPS}\nconfig: |\n  listen: 0.0.0.0:8080\n"
	pod = get(
		t,
		parse(t, render(t, valuesFile(t, beyond+backupConfig)))["CronJob ingot-backup"],
		"spec",
		"jobTemplate",
		"spec",
		"template",
		"spec",
	)
	require.Contains(t, get(t, pod, "containers", 0, "volumeMounts"),
		object{"name": "site", "mountPath": "/etc/ingot/operator.pem", "subPath": "etc/operator.pem", "readOnly": true})

	for values, says := range map[string]string{
		"backup: {enabled: true, existingClaim: backups}\n":   "with backup.enabled, write into config",
		"backup: {enabled: true}\nconfig: |\n" + backupConfig: "backup.existingClaim or backup.nfs is needed",
	} {
		_, err := renderChart(t, valuesFile(t, values))
		require.ErrorContains(t, err, says)
	}
}

// checkConfig reads the configuration as the server does.
func checkConfig(t *testing.T, objects map[string]object) config.Config {
	t.Helper()
	file := filepath.Join(t.TempDir(), "ingot.yaml")
	require.NoError(t, os.WriteFile(file, []byte(get(t, objects["ConfigMap ingot"], "data", "ingot.yaml").(string)), 0o600))
	cfg, err := config.Load(file, true)
	require.NoError(t, err)
	require.True(t, cfg.Netboot.On())
	require.True(t, cfg.Temporal.MutualTLS)
	return cfg
}

func checkPod(t *testing.T, deployment object, cfg config.Config) {
	t.Helper()
	pod := get(t, deployment, "spec", "template", "spec")
	require.Equal(t, true, get(t, pod, "hostNetwork"))
	require.Equal(t, true, get(t, pod, "securityContext", "runAsNonRoot"))
	require.Equal(t, get(t, deployment, "spec", "selector", "matchLabels"), get(t, deployment, "spec", "template", "metadata", "labels"))
	serve, first := get(t, pod, "containers", 0), get(t, pod, "initContainers", 0)
	require.Equal(t, get(t, serve, "volumeMounts"), get(t, first, "volumeMounts"))
	require.Equal(t, []any{"NET_BIND_SERVICE", "NET_RAW"}, get(t, serve, "securityContext", "capabilities", "add"))
	require.Equal(t, true, get(t, serve, "securityContext", "allowPrivilegeEscalation"))

	var ports []int
	for _, p := range get(t, serve, "ports").([]any) {
		ports = append(ports, get(t, p, "containerPort").(int))
	}
	n := cfg.Netboot
	_, ui, err := net.SplitHostPort(cfg.TemporalUIListen())
	require.NoError(t, err)
	require.Equal(t, "8234", ui)
	for _, p := range slices.Concat([]int{67, n.TFTP, n.Agent, 8080, 8234}, n.HTTP, n.Metadata) {
		require.Contains(t, ports, p)
	}
	scheme := "HTTP"
	if !strings.HasPrefix(cfg.Listen, "127.0.0.1:") {
		scheme = "HTTPS"
	}
	for probe, path := range map[string]string{"startupProbe": "/healthz", "readinessProbe": "/readyz", "livenessProbe": "/readyz"} {
		require.Equal(t, scheme, get(t, serve, probe, "httpGet", "scheme"), probe)
		require.Equal(t, path, get(t, serve, probe, "httpGet", "path"), probe)
	}
	require.Greater(t, get(t, serve, "livenessProbe", "failureThreshold"), 3, "longer than until the pod is not ready")

	volumes, mounted := map[any]bool{}, map[any]bool{}
	for _, v := range get(t, pod, "volumes").([]any) {
		volumes[get(t, v, "name")] = true
	}
	for _, m := range get(t, serve, "volumeMounts").([]any) {
		require.True(t, volumes[get(t, m, "name")], "%v", m)
		mounted[get(t, m, "mountPath")] = true
	}
	for _, at := range append([]string{"/etc/ingot", "/etc/ingot/ingot.yaml", "/var/lib/ingot", "/tmp"}, cfg.Images.Shares...) {
		require.True(t, mounted[at], at)
	}
}

// rulesObject returns what the command of monitoring.md gives to kubectl.
func rulesObject(t *testing.T) []byte {
	t.Helper()
	page, err := os.ReadFile("../../docs/monitoring.md")
	require.NoError(t, err)
	command := regexp.MustCompile(`(?s)\n\(printf .*?\| kubectl -n ingot apply -f -\n`).Find(page)
	require.NotEmpty(t, command)
	c := exec.Command("bash", "-euc", "kubectl() { cat; }\n"+string(command))
	c.Dir = ".." // of monitoring/, as in the release's archive
	out, err := c.Output()
	require.NoError(t, err)
	return out
}

// TestRulesObject: the command of monitoring.md makes a PrometheusRule of the alert rules.
func TestRulesObject(t *testing.T) {
	text, err := os.ReadFile("../monitoring/ingot.rules.yml")
	require.NoError(t, err)
	var rules object
	require.NoError(t, yaml.Unmarshal(text, &rules))
	rule := parse(t, rulesObject(t))["PrometheusRule ingot"]
	require.Equal(t, rules, get(t, rule, "spec"))
}

// run runs a tool and returns its output.
func run(t *testing.T, input []byte, name string, args ...string) []byte {
	t.Helper()
	c := exec.Command(filepath.Join(toolsDir, name), args...)
	var out, errs bytes.Buffer
	c.Stdin, c.Stdout, c.Stderr = bytes.NewReader(input), &out, &errs
	require.NoError(t, c.Run(), "%s %v: %s%s", name, args, errs.String(), out.String())
	return out.Bytes()
}

// everything switches on what is off by default.
const everything = `
api: {scheme: HTTPS}
config: "{listen: 0.0.0.0:8080, hosts: [ingot.example.com], temporal: {ui_url: 'https://temporal.example.com'}}"
service: {type: LoadBalancer, annotations: {a: b}}
ingress: {enabled: true, host: ingot.example.com, temporalHost: temporal.example.com, className: nginx, tlsSecret: ingot-tls, annotations: {a: b}}
serviceMonitor: {enabled: true}
prometheusRule: {enabled: true}
dashboard: {enabled: true}
`

// TestTools: helm accepts the chart and renders what this test renders; kustomize builds from base and overlays the same objects; and
// Kubernetes' own schemas accept all of them.
func TestTools(t *testing.T) {
	if !*tools {
		t.Skip("the long form: make manifests")
	}
	schemas := writeSchemas(t)
	all := run(t, nil, "helm", "template", "lab", "chart", "--values", valuesFile(t, everything))
	want, err := renderRelease(t, "lab", valuesFile(t, everything))
	require.NoError(t, err)
	require.Equal(t, parse(t, want), parse(t, all))
	t.Logf("all options: %s", run(t, all, "kubeconform", "-summary", "-schema-location", schemas, "-"))
	t.Logf("backup: %s", run(t, render(t, valuesFile(t, backupValues)), "kubeconform", "-summary", "-schema-location", schemas, "-"))
	t.Logf("rules: %s", run(t, rulesObject(t), "kubeconform", "-summary", "-schema-location", schemas, "-"))
	for _, name := range append([]string{""}, overlays...) {
		args, overlay := []string{"template", "ingot", "chart"}, "base"
		values := ""
		if name != "" {
			values, overlay = filepath.Join("values", name+".yaml"), filepath.Join("overlays", name)
			args = append(args, "--values", values)
			t.Logf("%s", run(t, nil, "helm", "lint", "--strict", "chart", "--values", values))
		} else {
			t.Logf("%s", run(t, nil, "helm", "lint", "--strict", "chart"))
		}
		helm := run(t, nil, "helm", args...)
		require.Equal(t, parse(t, render(t, values)), parse(t, helm), name)
		kustomize := run(t, nil, "kustomize", "build", overlay)
		require.Equal(t, sorted(parse(t, helm)), sorted(parse(t, kustomize)), overlay)

		for _, manifest := range [][]byte{helm, kustomize} {
			t.Logf("%s: %s", overlay, run(t, manifest, "kubeconform", "-summary", "-schema-location", schemas, "-"))
		}
		wrong := bytes.Replace(kustomize, []byte("containerPort:"), []byte("containrPort:"), 1)
		c := exec.Command(filepath.Join(toolsDir, "kubeconform"), "-schema-location", schemas, "-")
		c.Stdin = bytes.NewReader(wrong)
		require.Error(t, c.Run(), "a field that Kubernetes does not know is accepted")
	}
}

// sorted puts the lists whose order has no meaning into one order: kustomize prepends what a patch adds.
func sorted(objects map[string]object) map[string]object {
	pod, ok := objects["Deployment ingot"]["spec"].(map[string]any)
	if !ok {
		return objects
	}
	var visit func(v any)
	visit = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			for key, inner := range v {
				if list, ok := inner.([]any); ok && (key == "volumes" || key == "volumeMounts") {
					slices.SortFunc(list, func(a, b any) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
				}
				visit(inner)
			}
		case []any:
			for _, inner := range v {
				visit(inner)
			}
		}
	}
	visit(pod)
	return objects
}
