package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/lab"
	"github.com/ingotmetal/ingot/workflows/contract"
)

const monitoring = "../deploy/monitoring"

// TestMonitoring: Debian's Prometheus scrapes a server with the token of /metrics alone. The alerts about an open
// question and a missing backup fire and resolve, another tells of the failed run, each query of the board and each rule returns
// data, and the lines of the log of one run are joined by its keys.
func TestMonitoring(t *testing.T) {
	runInTurn(t, 40, 8)
	ctx := needLab(t)
	image, err := lab.SimImage(ctx, testWriter{t})
	require.NoError(t, err)
	dir := t.TempDir()
	backups, passphrase := filepath.Join(dir, "backups"), filepath.Join(dir, "passphrase")
	require.NoError(t, os.Mkdir(backups, 0o700))
	require.NoError(t, os.WriteFile(passphrase, []byte("correct horse battery\n"), 0o600))
	s, err := NewSite(ctx, Options{
		Root: "..", Dir: keepDir(t), LogFormat: "json", Top: fmt.Sprintf("backup: {dir: %s, passphrase_file: %s}", backups, passphrase),
	})
	require.NoError(t, err)
	s.keep(t)
	p := s.startPrometheus(ctx, t)

	// A run that ends well, with BMC, boot and agent.
	s.must(ctx, t, "image", "add", "sim", image.Zst)
	spec := lab.Spec{Name: "installed", Firmware: lab.Simulated, Agent: filepath.Join(s.bin, "worker-agent")}
	m, err := s.Add(ctx, spec, func(doc map[string]any) {
		doc["image"], doc["labels"] = "sim", map[string]string{inventory.LabelClass: "r640"}
	})
	require.NoError(t, err)
	run, err := s.Provision(ctx, contract.ProvisionInput{Machine: m.Name()})
	require.NoError(t, err)
	// At the same time: a BMC that refuses the password, a window that an operator has opened, and a run that asks which disk is meant.
	spec.Name = "refused"
	refused, err := s.Add(ctx, spec, func(doc map[string]any) { doc["bmc"].(map[string]any)["password"] = "wrong" })
	require.NoError(t, err)
	_, err = s.CLI(ctx, "bmc", "check", refused.Name())
	require.Error(t, err)
	armed := s.bare(ctx, t, "armed", 8)
	s.must(ctx, t, "netboot", "arm", armed.Name, "--for", "1h")
	asking := s.askForDisk(ctx, t)
	s.ended(ctx, t, m.Name(), inventory.StateSuccess)

	p.until(ctx, t, "the question alerts", func() bool { return p.fires(ctx, t, "IngotQuestionOpen", asking.Machine) })
	p.until(ctx, t, "the missing backup alerts", func() bool { return p.fires(ctx, t, "IngotBackupOld", "") })
	p.checkBoard(ctx, t)
	p.checkRules(ctx, t)
	s.must(ctx, t, "backup", "run")
	require.NoError(t, s.decides(ctx, asking.Machine, contract.Decision{Question: asking.Question.ID, Choice: contract.Abort}))
	s.of(ctx, t, asking.Run, final)
	p.until(ctx, t, "the alert is resolved", func() bool { return !p.fires(ctx, t, "IngotQuestionOpen", asking.Machine) })
	p.until(ctx, t, "there is a backup", func() bool { return !p.fires(ctx, t, "IngotBackupOld", "") })
	p.until(ctx, t, "the failed run alerts", func() bool { return p.fires(ctx, t, "IngotRunFailed", "") })
	require.Empty(t, p.query(ctx, t, `up{job="ingot"} == 0`), "a scrape has failed")

	p.promtool(ctx, t, s.must(ctx, t, "metrics", "show"), "check", "metrics")
	p.promtool(ctx, t, "", "test", "rules", filepath.Join(monitoring, "ingot.rules.test.yml"))
	s.checkLog(ctx, t, m.Name(), run)
}

// askForDisk starts a run that asks which of two disks is meant, and returns its record.
func (s *Site) askForDisk(ctx context.Context, t *testing.T) inventory.Workflow {
	t.Helper()
	s.template(ctx, t, "writes", `version: "0.1"
name: writes
tasks:
- name: t
  worker: "{{.device_1}}"
  actions:
  - {name: write, image: image2disk, timeout: 600, environment: {IMG_URL: "http://192.0.2.1/", IMG_SHA256: "{{.sum}}", DEST_DISK: /dev/vda}}
`)
	m := s.bare(ctx, t, "undecided", 9)
	m.Facts.Disks = []action.Disk{
		{Path: "/dev/vda", Serial: "A", Size: 64 << 20, Blank: true},
		{Path: "/dev/vdb", Serial: "B", Size: 64 << 20, Blank: true},
	}
	run, _ := s.begun(ctx, t, m,
		contract.ProvisionInput{Template: "writes", HardwareMap: map[string]string{"sum": strings.Repeat("0", 64)}})
	_, err := m.Boot(ctx)
	require.NoError(t, err)
	return s.of(ctx, t, run, func(w inventory.Workflow) bool { return w.Question != nil })
}

// prometheus is Debian's Prometheus with the rules of deploy/monitoring.
type prometheus struct {
	site         *Site
	address, bin string
	process      *lab.Cmd
}

// durations are what a test makes shorter in the rules.
var durations = regexp.MustCompile(`for: \d+[mh]|> 3600`)

// startPrometheus scrapes the site every second.
func (s *Site) startPrometheus(ctx context.Context, t *testing.T) *prometheus {
	t.Helper()
	p := &prometheus{site: s, bin: filepath.Join(lab.PackageDir("prometheus"), "usr/bin")}
	require.FileExists(t, filepath.Join(p.bin, "prometheus"), "make deps")
	dir := filepath.Join(s.dir, "prometheus")
	require.NoError(t, os.MkdirAll(dir, 0o750))

	token := s.must(ctx, t, "metrics", "token")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "ingot.token"), []byte(token), 0o600))
	rules, err := os.ReadFile(filepath.Join(monitoring, "ingot.rules.yml"))
	require.NoError(t, err)
	rules = durations.ReplaceAllFunc(rules, func(b []byte) []byte {
		if bytes.HasPrefix(b, []byte("for")) {
			return []byte("for: 1s")
		}
		return []byte("> 1")
	})
	require.NoError(t, os.WriteFile(filepath.Join(dir, "ingot.rules.yml"), rules, 0o600))
	config, err := os.ReadFile(filepath.Join(monitoring, "prometheus.yml"))
	require.NoError(t, err)
	text := strings.ReplaceAll(strings.ReplaceAll(string(config), "127.0.0.1:8080", s.API), ": 15s", ": 1s")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "prometheus.yml"), []byte(text), 0o600))

	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p.address = l.Addr().String()
	require.NoError(t, l.Close())
	log, err := os.Create(filepath.Join(dir, "log"))
	require.NoError(t, err)
	p.process = s.Command(context.WithoutCancel(ctx), lab.Host, filepath.Join(p.bin, "prometheus"),
		"--config.file="+filepath.Join(dir, "prometheus.yml"), "--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address="+p.address, "--log.level=warn")
	p.process.Stdout, p.process.Stderr = log, log
	require.NoError(t, p.process.Start())
	t.Cleanup(func() {
		p.process.Kill()
		<-p.process.Done()
		require.NoError(t, log.Close())
	})
	p.until(ctx, t, "the server is scraped", func() bool {
		res, err := http.Get("http://" + p.address + "/-/ready")
		if err != nil {
			return false
		}
		defer res.Body.Close()
		return res.StatusCode == http.StatusOK && len(p.query(ctx, t, `up{job="ingot"} == 1`)) == 1
	})
	return p
}

// until waits; the end of Prometheus is a failure.
func (p *prometheus) until(ctx context.Context, t *testing.T, what string, so func() bool) {
	t.Helper()
	for !so() {
		select {
		case <-p.process.Done():
			t.Fatalf("waiting until %s: Prometheus has ended: %v", what, p.process.Wait())
		case <-ctx.Done():
			require.NoError(t, ctx.Err(), "waiting until %s", what)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// get reads the data of an answer of Prometheus' API.
func (p *prometheus) get(ctx context.Context, t *testing.T, path string, data any) {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.address+path, nil)
	require.NoError(t, err)
	res, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, res.StatusCode, "%s: %s", path, body)
	answer := struct{ Data any }{data}
	require.NoError(t, json.Unmarshal(body, &answer))
}

// vectorElement is one element of a vector.
type vectorElement struct {
	Metric map[string]string
	Value  [2]any
}

func (p *prometheus) query(ctx context.Context, t *testing.T, expr string) []vectorElement {
	t.Helper()
	var data struct{ Result []vectorElement }
	p.get(ctx, t, "/api/v1/query?query="+url.QueryEscape(expr), &data)
	return data.Result
}

// fires reports whether an alert about a machine is firing.
func (p *prometheus) fires(ctx context.Context, t *testing.T, alert, machine string) bool {
	t.Helper()
	var data struct {
		Alerts []struct {
			State               string
			Labels, Annotations map[string]string
		}
	}
	p.get(ctx, t, "/api/v1/alerts", &data)
	for _, a := range data.Alerts {
		if a.Labels["alertname"] == alert && a.Labels["machine"] == machine && a.State == "firing" {
			require.Contains(t, a.Annotations["remedy"], machine)
			return true
		}
	}
	return false
}

// checkBoard runs each query of the board. A rate needs two scrapes, so a query may need a moment.
func (p *prometheus) checkBoard(ctx context.Context, t *testing.T) {
	t.Helper()
	file, err := os.ReadFile(filepath.Join(monitoring, "ingot-board.json"))
	require.NoError(t, err)
	var board struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	require.NoError(t, json.Unmarshal(file, &board))
	queries := 0
	for _, panel := range board.Panels {
		for _, target := range panel.Targets {
			queries++
			expr := strings.NewReplacer("$instance", ".*", "$__rate_interval", "1m").Replace(target.Expr)
			require.NotContains(t, expr, "$")
			within, cancel := context.WithTimeout(ctx, 20*time.Second)
			p.until(within, t, fmt.Sprintf("%s: %s returns data", panel.Title, expr), func() bool {
				return len(p.query(ctx, t, expr)) > 0
			})
			cancel()
		}
	}
	require.Greater(t, queries, 30)
}

// checkRules requires that Prometheus can evaluate every rule, and that every metric of a rule is there.
func (p *prometheus) checkRules(ctx context.Context, t *testing.T) {
	t.Helper()
	var data struct {
		Groups []struct {
			Rules []struct{ Name, Query, Health, LastError string }
		}
	}
	p.get(ctx, t, "/api/v1/rules", &data)
	require.Len(t, data.Groups, 1)
	for _, r := range data.Groups[0].Rules {
		require.Equal(t, "ok", r.Health, "%s: %s", r.Name, r.LastError)
		for _, name := range regexp.MustCompile(`ingot_\w+`).FindAllString(r.Query, -1) {
			if name != "ingot_notice_oldest_timestamp_seconds" { // shown while a notice waits
				require.NotEmpty(t, p.query(ctx, t, name), r.Name)
			}
		}
	}
}

// promtool runs Debian's promtool, which must find nothing.
func (p *prometheus) promtool(ctx context.Context, t *testing.T, stdin string, args ...string) {
	t.Helper()
	c := p.site.Command(ctx, lab.Host, filepath.Join(p.bin, "promtool"), args...)
	var out bytes.Buffer
	c.Stdin, c.Stdout, c.Stderr = strings.NewReader(stdin), &out, &out
	require.NoError(t, c.Run(), "%s", out.String())
	require.NotContains(t, out.String(), "ingot_", "%s", out.String())
}

// checkLog joins the lines of a run by their keys.
func (s *Site) checkLog(ctx context.Context, t *testing.T, machine, run string) {
	t.Helper()
	f, err := os.Open(s.log.Name())
	require.NoError(t, err)
	defer f.Close()

	type line struct {
		Msg, Part, Level    string
		Machine, Run, Phase string
		Epoch               int64
		Boot                int
	}
	var phases []string
	parts, messages := map[string]bool{}, map[string]bool{}
	scanner := bufio.NewScanner(f)
	scanner.Buffer(nil, 1<<20)
	for scanner.Scan() {
		var l line
		require.NoError(t, json.Unmarshal(scanner.Bytes(), &l), scanner.Text())
		if l.Run != run {
			continue
		}
		if l.Machine != "" {
			require.Equal(t, machine, l.Machine, scanner.Text())
		}
		if l.Boot != 0 {
			require.Equal(t, 1, l.Boot, scanner.Text())
		}
		if l.Epoch != 0 {
			require.EqualValues(t, 1, l.Epoch, scanner.Text())
		}
		parts[l.Part], messages[l.Msg] = true, true
		if l.Msg == "a phase begins" {
			phases = append(phases, l.Phase)
		}
	}
	require.NoError(t, scanner.Err())

	var events struct{ Items []inventory.Event }
	require.NoError(t, s.REST(ctx, http.MethodGet, fmt.Sprintf("/v1/workflows/%s/events", run), nil, &events))
	var recorded []string
	for _, e := range events.Items {
		if e.Kind != inventory.EventPhase {
			continue
		}
		var change inventory.PhaseChange
		require.NoError(t, json.Unmarshal(e.Detail, &change))
		recorded = append(recorded, change.Phase)
	}
	require.NotEmpty(t, recorded)
	require.Equal(t, recorded, slices.Compact(phases), "the log has the phases of the record")
	for _, part := range []string{"worker", "activities", "boot", "api", "metadata"} {
		require.True(t, parts[part], "no line of the run is of part %s: %v", part, parts)
	}
	for _, message := range []string{"a BMC task is done", "an agent has claimed its boot", "an action has ended", "phone-home recorded"} {
		require.True(t, messages[message], "%s: %v", message, messages)
	}
}
