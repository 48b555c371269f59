package docs_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/ingotmetal/ingot/internal/observe/metrics"
	"github.com/ingotmetal/ingot/inventory"
)

const monitoringFile = "monitoring.md"

// TestMetricsAreDocumented holds monitoring.md against the table of metrics and the alert rules.
func TestMetricsAreDocumented(t *testing.T) {
	writeParts(t, monitoringFile, map[string]string{"metrics": metricTable(), "alerts": alertText(t)})
	for _, key := range []string{
		inventory.LogMachine, inventory.LogRun, inventory.LogEpoch, inventory.LogBoot, inventory.LogPhase,
	} {
		if !strings.Contains(read(t, monitoringFile), "\n| `"+key+"` |") {
			t.Errorf("%s does not name the key %s of the log", monitoringFile, key)
		}
	}
}

// metricTable names the kind of a metric where its name does not tell it.
func metricTable() string {
	var b strings.Builder
	b.WriteString("| metric | labels | what |\n|---|---|---|\n")
	for _, m := range metrics.Table() {
		labels, kind := "", metrics.Gauge
		if m.Labels != "" {
			labels = codes(strings.Fields(m.Labels))
		}
		if strings.HasSuffix(m.Name, "_total") {
			kind = metrics.Counter
		}
		text := m.Help
		if m.Kind != kind {
			text += " " + strings.ToUpper(m.Kind[:1]) + m.Kind[1:] + "."
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", m.Name, labels, text)
	}
	return b.String()
}

// alertText has the alerts by severity. What to do is in the rule of each, and in the alert.
func alertText(t *testing.T) string {
	t.Helper()
	var file struct {
		Groups []struct {
			Rules []struct {
				Alert               string
				Labels, Annotations map[string]string
			}
		}
	}
	if err := yaml.Unmarshal([]byte(read(t, "../deploy/monitoring/ingot.rules.yml")), &file); err != nil {
		t.Fatal(err)
	}

	tests := read(t, "../deploy/monitoring/ingot.rules.test.yml")
	names := map[string][]string{}
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			if r.Annotations["summary"] == "" || r.Annotations["remedy"] == "" || r.Labels["severity"] == "" {
				t.Errorf("the alert %s lacks summary, remedy or severity", r.Alert)
			}
			if !strings.Contains(tests, "- alertname: "+r.Alert+"\n") {
				t.Errorf("ingot.rules.test.yml does not show when the alert %s fires", r.Alert)
			}
			names[r.Labels["severity"]] = append(names[r.Labels["severity"]], r.Alert)
		}
	}
	return fmt.Sprintf("- critical: %s\n- warning: %s\n", codes(names["critical"]), codes(names["warning"]))
}

// writeParts compares the generated parts of a file, or writes them ("make docs").
func writeParts(t *testing.T, file string, parts map[string]string) {
	t.Helper()
	text := read(t, file)
	want := generated.ReplaceAllStringFunc(text, func(old string) string {
		name := generated.FindStringSubmatch(old)[1]
		part, ok := parts[name]
		if !ok {
			t.Errorf("%s has a generated part %q, which nothing makes", file, name)
		}
		delete(parts, name)
		return fmt.Sprintf("<!-- generated: %s -->\n%s<!-- end -->\n", name, part)
	})
	for name := range parts {
		t.Errorf("%s lacks the lines <!-- generated: %s --> and <!-- end -->", file, name)
	}

	switch {
	case text == want || t.Failed():
	case *writeDocs:
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%s differs from the code: run make docs", file)
	}
}
