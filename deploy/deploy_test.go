// Package deploy is tested here as a whole: what runs Ingot elsewhere names
// the files and ports that the program has.
package deploy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/ingotmetal/ingot/genesis"
	"github.com/ingotmetal/ingot/internal/config"
	"github.com/ingotmetal/ingot/internal/systems"
)

// strict decodes one YAML document that must hold no key that v has not.
func strict(t *testing.T, text []byte, v any) {
	t.Helper()
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	require.NoError(t, d.Decode(v))
}

// provisioning are the ports of the machines' side by default.
func provisioning() (out []string) {
	n := config.Default().Netboot
	out = append(out, "67/udp", fmt.Sprintf("%d/udp", n.TFTP))
	for _, p := range slices.Concat(n.HTTP, n.Metadata, []int{n.Agent}) {
		out = append(out, fmt.Sprintf("%d/tcp", p))
	}
	slices.Sort(out)
	return out
}

// composeFile is what the compose file may say.
type composeFile struct {
	Name     string
	Services map[string]struct {
		Image       string
		Command     []string
		NetworkMode string `yaml:"network_mode"`
		Restart     string
		Grace       string   `yaml:"stop_grace_period"`
		ReadOnly    bool     `yaml:"read_only"`
		CapDrop     []string `yaml:"cap_drop"`
		CapAdd      []string `yaml:"cap_add"`
		Tmpfs       []string
		Volumes     []string
		Healthcheck struct {
			Test              []string
			Interval, Timeout string
			Start             string `yaml:"start_period"`
		}
	}
	Volumes map[string]struct{}
	Ports   []string `yaml:"x-ports"`
}

// TestS43Vulncheck: every program is checked, and one with a vulnerability fails the whole. Without the database nothing is checked,
// and that is said.
func TestS43Vulncheck(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("GOVULNCHECK", filepath.Join(dir, "govulncheck"))
	require.NoError(t, os.WriteFile(os.Getenv("GOVULNCHECK"), []byte(`#!/bin/sh
echo "checks $*"
[ "$4" != bad ] || exit 3
`), 0o755))
	t.Setenv("VULNDB", "file://"+dir)
	check := func(programs ...string) (string, error) {
		out, err := exec.Command("./vulncheck.sh", programs...).CombinedOutput()
		return string(out), err
	}
	out, err := check("bad", "good")
	require.NoError(t, err)
	require.Equal(t, "vulncheck: NOT DONE: file://"+dir+" does not answer\n", out)

	require.NoError(t, os.Mkdir(filepath.Join(dir, "index"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "index", "db.json"), []byte("{}"), 0o644))
	out, err = check("bad", "good")
	var failed *exec.ExitError
	require.ErrorAs(t, err, &failed)
	require.Equal(t, 3, failed.ExitCode())
	for _, program := range []string{"bad", "good"} {
		require.Contains(t, out, "checks -db file://"+dir+" -mode=binary "+program+"\n")
	}
	out, err = check("good")
	require.NoError(t, err, out)
}

func TestCompose(t *testing.T) {
	b, err := os.ReadFile("compose.yaml")
	require.NoError(t, err)
	var c composeFile
	strict(t, b, &c)
	s := c.Services["ingot"]
	require.Len(t, c.Services, 1)
	require.Equal(t, "host", s.NetworkMode)
	require.Equal(t, []string{"ALL"}, s.CapDrop)
	require.Equal(t, []string{"NET_BIND_SERVICE", "NET_RAW"}, s.CapAdd, "those that the program in the image carries")
	slices.Sort(c.Ports)
	require.Equal(t, provisioning(), c.Ports)
	// The defaults of root, which the server is in a container.
	t.Setenv("XDG_CONFIG_HOME", "")
	t.Setenv("XDG_STATE_HOME", "")
	d := config.Default()
	mounted := map[string]bool{}
	for _, v := range s.Volumes {
		volume, at, ok := strings.Cut(v, ":")
		require.True(t, ok, v)
		require.Contains(t, c.Volumes, volume)
		mounted[at] = true
	}
	if os.Geteuid() == 0 {
		for _, dir := range []string{d.DataDir, filepath.Dir(d.KeyFile), filepath.Dir(d.TokenFile), filepath.Dir(config.DefaultFile())} {
			require.True(t, mounted[dir], "%s is on no volume: %v", dir, mounted)
		}
	}
}

// The Kubernetes objects, as far as the manifest may use them.
type (
	meta struct {
		Name, Namespace string
		Labels          map[string]string
	}
	namespace struct {
		APIVersion, Kind string
		Metadata         meta
	}
	configMap struct {
		APIVersion, Kind string
		Metadata         meta
		Data             map[string]string
	}
	mount struct {
		Name, MountPath, SubPath string
		ReadOnly                 bool
	}
	container struct {
		Name, Image string
		Args        []string
		Ports       []struct {
			Name, Protocol string
			ContainerPort  int
		}
		SecurityContext struct {
			RunAsUser                                        int
			AllowPrivilegeEscalation, ReadOnlyRootFilesystem bool
			Capabilities                                     struct{ Drop, Add []string }
			SeccompProfile                                   struct{ Type string }
		}
		LivenessProbe struct {
			HTTPGet struct {
				Host, Path string
				Port       int
			}
			PeriodSeconds, TimeoutSeconds, FailureThreshold int
		}
		Resources    struct{ Requests, Limits map[string]string }
		VolumeMounts []mount
	}
	deployment struct {
		APIVersion, Kind string
		Metadata         meta
		Spec             struct {
			Replicas int
			Strategy struct{ Type string }
			Selector struct{ MatchLabels map[string]string }
			Template struct {
				Metadata meta
				Spec     struct {
					HostNetwork                                      bool
					DNSPolicy                                        string
					AutomountServiceAccountToken, EnableServiceLinks bool
					TerminationGracePeriodSeconds                    int
					Tolerations                                      []struct{ Key, Operator, Effect string }
					InitContainers, Containers                       []container
					Volumes                                          []struct {
						Name      string
						HostPath  struct{ Path, Type string }
						ConfigMap struct{ Name string }
						Secret    struct {
							SecretName  string
							DefaultMode int
						}
						EmptyDir struct{}
					}
				}
			}
		}
	}
)

// lower gives the keys of Kubernetes the names that the YAML library expects
// of fields without tags.
func lower(n *yaml.Node, within string) {
	for i, c := range n.Content {
		if n.Kind == yaml.MappingNode && i%2 == 0 && !slices.Contains([]string{"labels", "matchLabels", "data", "requests", "limits"}, within) {
			lower(n.Content[i+1], c.Value)
			c.Value = strings.ToLower(c.Value)
		} else if n.Kind == yaml.SequenceNode {
			lower(c, within)
		}
	}
}

// manifest returns the objects of the platform as a genesis applies them.
func manifest(t *testing.T) (out [][]byte) {
	t.Helper()
	lab, err := genesis.Load(
		"lab.yaml",
		func(name string) ([]byte, error) { return os.ReadFile(filepath.Join("genesis", name)) },
		systems.All{},
	)
	require.NoError(t, err)
	require.NotContains(t, lab.Migrate.Manifest, "INGOT_")
	for d := yaml.NewDecoder(strings.NewReader(lab.Migrate.Manifest)); ; {
		var n yaml.Node
		err := d.Decode(&n)
		if errors.Is(err, io.EOF) {
			return out
		}
		require.NoError(t, err)
		lower(n.Content[0], "")
		b, err := yaml.Marshal(&n)
		require.NoError(t, err)
		out = append(out, b)
	}
}

func TestManifest(t *testing.T) {
	docs := manifest(t)
	require.Len(t, docs, 3)
	var ns namespace
	var cm configMap
	var d deployment
	strict(t, docs[0], &ns) // first: whatever is applied after it lies in it
	strict(t, docs[1], &cm)
	strict(t, docs[2], &d)
	for i, kind := range []string{ns.Kind, cm.Kind, d.Kind} {
		require.Equal(t, []string{"Namespace", "ConfigMap", "Deployment"}[i], kind)
	}
	require.Equal(t, []string{ns.Metadata.Name, ns.Metadata.Name}, []string{cm.Metadata.Namespace, d.Metadata.Namespace})

	// The configuration is read as the server reads it.
	file := filepath.Join(t.TempDir(), "ingot.yaml")
	require.NoError(t, os.WriteFile(file, []byte(cm.Data["ingot.yaml"]), 0o600))
	cfg, err := config.Load(file, true)
	require.NoError(t, err)
	require.True(t, cfg.Netboot.On())

	pod := d.Spec.Template.Spec
	require.True(t, pod.HostNetwork)
	require.Equal(t, d.Spec.Template.Metadata.Labels, d.Spec.Selector.MatchLabels)
	require.Equal(t, 1, d.Spec.Replicas)
	require.Equal(t, "Recreate", d.Spec.Strategy.Type)
	serve, standby := pod.Containers[0], pod.InitContainers[0]
	require.Equal(t, standby.Image, serve.Image)
	require.Equal(t, []string{"serve"}, serve.Args)
	require.Equal(t, []string{"standby"}, standby.Args)
	require.Equal(t, standby.VolumeMounts, serve.VolumeMounts)
	var ports []string
	for _, p := range serve.Ports {
		protocol := strings.ToLower(p.Protocol)
		if protocol == "" {
			protocol = "tcp"
		}
		ports = append(ports, fmt.Sprintf("%d/%s", p.ContainerPort, protocol))
	}
	slices.Sort(ports)
	want := append(provisioning(), strings.TrimPrefix(cfg.Site.Listen, ":")+"/tcp")
	slices.Sort(want)
	require.Equal(t, want, ports)
	probe := serve.LivenessProbe.HTTPGet
	require.Equal(t, cfg.Listen, fmt.Sprintf("%s:%d", probe.Host, probe.Port))
	require.True(t, strings.HasSuffix(cfg.Site.URL, cfg.Site.Listen), cfg.Site.URL)
	require.Equal(t, []string{"NET_BIND_SERVICE", "NET_RAW"}, serve.SecurityContext.Capabilities.Add)

	volumes := map[string]bool{}
	for _, v := range pod.Volumes {
		volumes[v.Name] = true
		if v.Name == "standby" {
			require.Equal(t, "ingot-standby", v.Secret.SecretName)
			require.Equal(t, 0o400, v.Secret.DefaultMode)
		}
	}
	mounted := map[string]bool{}
	for _, m := range serve.VolumeMounts {
		require.True(t, volumes[m.Name], m.Name)
		mounted[m.MountPath] = true
	}
	for _, at := range []string{
		"/etc/ingot", "/var/lib/ingot", "/etc/ingot/ingot.yaml", "/etc/ingot/site.pem", "/etc/ingot/standby.token",
		"/etc/ingot/token",
	} {
		require.True(t, mounted[at], at)
	}
	require.Equal(t, "registry.example.org/ingot:latest", serve.Image)
}
