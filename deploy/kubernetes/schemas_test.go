package kubernetes

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// The modules that describe the kinds of the manifests.
const (
	kubernetesModule = "k8s.io/kubernetes@v1.36.3"
	operatorModule   = "github.com/prometheus-operator/prometheus-operator@v0.93.0"
)

// moduleDir downloads a module and returns its folder.
func moduleDir(t *testing.T, module string) string {
	t.Helper()
	c := exec.Command("go", "mod", "download", "-json", module)
	c.Dir = t.TempDir() // outside of this module: it is no dependency
	out, err := c.Output()
	require.NoError(t, err, "%s", out)
	var m struct{ Dir string }
	require.NoError(t, json.Unmarshal(out, &m))
	return m.Dir
}

// writeSchemas writes one JSON Schema for each kind, made of the OpenAPI description in Kubernetes' own source, and those of
// ServiceMonitor and PrometheusRule from the Prometheus operator's. It returns where kubeconform finds them.
func writeSchemas(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(moduleDir(t, kubernetesModule), "api/openapi-spec/swagger.json"))
	require.NoError(t, err)
	var swagger struct{ Definitions map[string]map[string]any }
	require.NoError(t, json.Unmarshal(b, &swagger))

	dir := t.TempDir()
	save := func(name string, v any) {
		b, err := json.Marshal(v)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), b, 0o644))
	}
	for _, d := range swagger.Definitions {
		makeStrict(d)
	}
	for name, d := range swagger.Definitions {
		kinds, _ := d["x-kubernetes-group-version-kind"].([]any)
		for _, k := range kinds {
			kind := k.(map[string]any)
			save(schemaName(fmt.Sprint(kind["group"]), fmt.Sprint(kind["version"]), fmt.Sprint(kind["kind"])),
				map[string]any{"$ref": "definitions.json#/definitions/" + name})
		}
	}
	save("definitions.json", map[string]any{"definitions": swagger.Definitions})

	for _, kind := range []string{"ServiceMonitor", "PrometheusRule"} {
		file := "example/prometheus-operator-crd/monitoring.coreos.com_" + strings.ToLower(kind) + "s.yaml"
		b, err = os.ReadFile(filepath.Join(moduleDir(t, operatorModule), file))
		require.NoError(t, err)
		var crd struct {
			Spec struct {
				Versions []struct {
					Name   string
					Schema struct {
						OpenAPIV3Schema map[string]any `yaml:"openAPIV3Schema"`
					}
				}
			}
		}
		require.NoError(t, yaml.Unmarshal(b, &crd))
		for _, v := range crd.Spec.Versions {
			makeStrict(v.Schema.OpenAPIV3Schema)
			// Kubernetes itself judges metadata.
			v.Schema.OpenAPIV3Schema["properties"].(map[string]any)["metadata"] = map[string]any{"type": "object"}
			save(schemaName("monitoring.coreos.com", v.Name, kind), v.Schema.OpenAPIV3Schema)
		}
	}
	return dir + "/{{ .ResourceKind }}{{ .KindSuffix }}.json"
}

// schemaName is the name of kubeconform's KindSuffix: the first part of the group, and the version.
func schemaName(group, version, kind string) string {
	group, _, _ = strings.Cut(group, ".")
	name := strings.ToLower(kind)
	if group != "" {
		name += "-" + group
	}
	return name + "-" + version + ".json"
}

// makeStrict changes a definition in place so that unknown fields are refused, as the API server does for a strict client, and
// numbers are accepted where Kubernetes accepts them.
func makeStrict(v any) {
	switch v := v.(type) {
	case map[string]any:
		if v["format"] == "int-or-string" || v["x-kubernetes-int-or-string"] == true {
			delete(v, "type")
			delete(v, "format")
			delete(v, "anyOf")
			v["type"] = []any{"string", "integer"}
		}
		if _, ok := v["format"].(string); ok {
			delete(v, "format") // int32, date-time and others that JSON Schema does not define
		}
		if _, ok := v["properties"].(map[string]any); ok && v["additionalProperties"] == nil &&
			v["x-kubernetes-preserve-unknown-fields"] != true {
			v["additionalProperties"] = false
		}
		for _, inner := range v {
			makeStrict(inner)
		}
	case []any:
		for _, inner := range v {
			makeStrict(inner)
		}
	}
}
