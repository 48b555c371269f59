package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/ingotmetal/ingot/lab"
)

// A docker is a Docker daemon of Debian in a namespace of a lab, whose network is the host's for its containers.
type docker struct {
	t   *testing.T
	dir string // of the daemon, and the working directory of commands
}

// startDocker starts a daemon that ends with the lab, and loads the image of bin/ into it.
func startDocker(ctx context.Context, t *testing.T, l *lab.Lab, ns lab.Namespace) docker {
	t.Helper()
	require.FileExists(t, filepath.Join(lab.PackageDir("docker"), ".stamp"), "run deploy/deps.sh e2e")
	d := docker{t, filepath.Join(l.Dir(), "docker")}
	require.NoError(t, os.Mkdir(d.dir, 0o755))
	// In a PID namespace, so that nothing survives the daemon. nsenter leaves the cgroups of /sys in place, which ip netns exec hides.
	const script = `set -e; mount -t proc proc /proc; mount -t tmpfs tmpfs /run
exec dockerd --host "unix://$1/socket" --data-root "$1/data" --exec-root /run/docker --pidfile /run/docker.pid \
  --bridge none --iptables=false --ip-forward=false --ip-masq=false`
	c := l.Command(ctx, lab.Host, "nsenter", "--net=/run/netns/"+l.NamespaceName(ns),
		"unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", script, "dockerd", d.dir)
	log, err := os.Create(filepath.Join(d.dir, "log"))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, log.Close()) })
	c.Env, c.Stdout, c.Stderr = d.env(), log, log
	require.NoError(t, c.Start())
	t.Cleanup(func() {
		d.run(context.WithoutCancel(ctx), "sh", "-c", "docker ps --quiet | xargs --no-run-if-empty docker stop --time 20")
		c.Kill()
		<-c.Done()
	})
	for {
		_, err := d.try(ctx, "docker", "version")
		if err == nil {
			break
		}
		select {
		case <-c.Done():
			require.FailNow(t, "the daemon ended", "see %s", log.Name())
		case <-time.After(100 * time.Millisecond):
			require.NoError(t, ctx.Err(), err)
		}
	}
	image := imageFile(t)
	d.run(ctx, "docker", "load", "--input", image)
	return d
}

func (d docker) env() []string {
	root := lab.PackageDir("docker")
	return append(os.Environ(), "DOCKER_HOST=unix://"+d.dir+"/socket",
		fmt.Sprintf("PATH=%s/usr/bin:%s/usr/sbin:%s", root, root, os.Getenv("PATH")),
		"LD_LIBRARY_PATH="+filepath.Join(root, "usr/lib/x86_64-linux-gnu"), "PYTHONPATH="+filepath.Join(root, "usr/lib/python3/dist-packages"))
}

// try runs a command and returns its standard output.
func (d docker) try(ctx context.Context, name string, args ...string) (string, error) {
	c := exec.CommandContext(ctx, "env", append([]string{name}, args...)...) // env looks for the program in its own PATH
	c.Env, c.Dir = d.env(), d.dir
	out, err := c.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, exit.Stderr)
	}
	return string(out), err
}

func (d docker) run(ctx context.Context, name string, args ...string) string {
	d.t.Helper()
	out, err := d.try(ctx, name, args...)
	require.NoError(d.t, err)
	return out
}

// compose runs the commands of the first lines of deploy/compose.yaml, and returns how to run ingot afterwards.
func (d docker) compose(ctx context.Context) func(ctx context.Context, args ...string) (string, error) {
	d.t.Helper()
	text, err := os.ReadFile("../deploy/compose.yaml")
	require.NoError(d.t, err)
	file := string(text)
	const name = "name: ingot\n" // unknown to Compose 1.29 of Debian
	require.Contains(d.t, file, name)
	require.NoError(d.t, os.WriteFile(filepath.Join(d.dir, "compose.yaml"), []byte(strings.Replace(file, name, "", 1)), 0o644))
	command := func(args ...string) []string {
		return append([]string{filepath.Join(lab.PackageDir("docker"), "usr/bin/docker-compose"), "--project-name", "ingot"}, args...)
	}
	for line := range strings.Lines(file) {
		line, ok := strings.CutPrefix(line, "#   docker compose ")
		if !ok || strings.HasPrefix(line, "exec") {
			continue
		}
		d.t.Logf("docker compose %s", line)
		d.run(ctx, "/usr/bin/python3", command(strings.Fields(line)...)...)
	}
	return func(ctx context.Context, args ...string) (string, error) {
		return d.try(ctx, "/usr/bin/python3", command(append([]string{"exec", "-T", "ingot", "/usr/bin/ingot"}, args...)...)...)
	}
}

// A pod is what the test needs to know of the pod of the chart.
type pod struct {
	HostNetwork     bool
	SecurityContext struct {
		RunAsUser, RunAsGroup, FSGroup int
	}
	InitContainers, Containers []container
	Volumes                    []struct {
		Name                  string
		ConfigMap             *struct{ Name string }
		EmptyDir              *struct{}
		PersistentVolumeClaim *struct{ ClaimName string }
	}
}

type container struct {
	Image           string
	Args            []string
	ReadinessProbe  struct{ HTTPGet httpGet }
	SecurityContext struct {
		AllowPrivilegeEscalation, ReadOnlyRootFilesystem bool
		Capabilities                                     struct{ Add, Drop []string }
	}
	VolumeMounts []struct {
		Name, MountPath, SubPath string
		ReadOnly                 bool
	}
}

// httpGet is a probe of a container.
type httpGet struct {
	Host, Path, Scheme string
	Port               int
}

// chart runs the pod that helm renders from the chart with its defaults. It returns how to run ingot in the pod, and the pod's
// readiness probe.
func (d docker) chart(ctx context.Context) (func(ctx context.Context, args ...string) (string, error), httpGet) {
	d.t.Helper()
	helm, err := filepath.Abs("../.tools/helm")
	require.NoError(d.t, err)
	require.FileExists(d.t, helm, "run deploy/deps.sh e2e")
	chart, err := filepath.Abs("../deploy/kubernetes/chart")
	require.NoError(d.t, err)
	p, config := readPod(d.t, d.run(ctx, helm, "template", "ingot", chart))
	require.True(d.t, p.HostNetwork)
	d.makeVolumes(p, config)

	require.Len(d.t, p.InitContainers, 1)
	require.Len(d.t, p.Containers, 1)
	d.run(ctx, "docker", "tag", "ingot:latest", p.Containers[0].Image)
	d.t.Logf("%s", d.run(ctx, "docker", append([]string{"run"}, d.arguments(p, p.InitContainers[0])...)...))
	d.run(ctx, "docker", append([]string{"run", "--detach", "--name", "ingot"}, d.arguments(p, p.Containers[0])...)...)
	return func(ctx context.Context, args ...string) (string, error) {
		return d.try(ctx, "docker", append([]string{"exec", "ingot", "/usr/bin/ingot"}, args...)...)
	}, p.Containers[0].ReadinessProbe.HTTPGet
}

// volume returns the folder of a volume, or of a path in it.
func (d docker) volume(name, subPath string) string {
	return filepath.Join(d.dir, "volumes", name, subPath)
}

// makeVolumes makes the volumes of a pod as the kubelet does: they belong to the pod's group, and so does what is made in them.
func (d docker) makeVolumes(p pod, config map[string]string) {
	d.t.Helper()
	for _, v := range p.Volumes {
		at := d.volume(v.Name, "")
		switch {
		case v.ConfigMap != nil:
			d.makeFolder(at, 0o755, p)
			for name, text := range config {
				require.NoError(d.t, os.WriteFile(filepath.Join(at, name), []byte(text), 0o644))
			}
		case v.EmptyDir != nil:
			d.makeFolder(at, 0o777|os.ModeSetgid, p)
		case v.PersistentVolumeClaim != nil:
			d.makeFolder(at, 0o775|os.ModeSetgid, p)
		default:
			require.Fail(d.t, "unknown volume", v.Name)
		}
	}
}

func (d docker) makeFolder(at string, mode os.FileMode, p pod) {
	d.t.Helper()
	require.NoError(d.t, os.MkdirAll(at, 0o755))
	require.NoError(d.t, os.Chown(at, 0, p.SecurityContext.FSGroup))
	require.NoError(d.t, os.Chmod(at, mode))
}

// arguments returns the arguments of "docker run" for a container of a pod.
func (d docker) arguments(p pod, c container) []string {
	d.t.Helper()
	args := []string{
		"--network", "host", fmt.Sprintf("--read-only=%t", c.SecurityContext.ReadOnlyRootFilesystem),
		"--user", fmt.Sprintf("%d:%d", p.SecurityContext.RunAsUser, p.SecurityContext.RunAsGroup),
		"--group-add", fmt.Sprint(p.SecurityContext.FSGroup),
		fmt.Sprintf("--security-opt=no-new-privileges:%t", !c.SecurityContext.AllowPrivilegeEscalation),
	}
	for _, name := range c.SecurityContext.Capabilities.Drop {
		args = append(args, "--cap-drop", name)
	}
	for _, name := range c.SecurityContext.Capabilities.Add {
		args = append(args, "--cap-add", name)
	}
	for _, m := range c.VolumeMounts {
		from := d.volume(m.Name, m.SubPath)
		if _, err := os.Stat(from); err != nil {
			d.makeFolder(from, 0o775|os.ModeSetgid, p) // a missing subPath
		}
		args = append(args, "--mount", fmt.Sprintf("type=bind,source=%s,target=%s,readonly=%t", from, m.MountPath, m.ReadOnly))
	}
	return append(append(args, c.Image), c.Args...)
}

// readPod returns the pod of the Deployment, and the files of the ConfigMap, in what helm has rendered.
func readPod(t *testing.T, rendered string) (p pod, config map[string]string) {
	t.Helper()
	for document := range strings.SplitSeq(rendered, "\n---\n") {
		var v any
		require.NoError(t, yaml.Unmarshal([]byte(document), &v))
		text, err := json.Marshal(v) // so that keys are compared as Kubernetes does
		require.NoError(t, err)
		var kind struct{ Kind string }
		require.NoError(t, json.Unmarshal(text, &kind))
		switch kind.Kind {
		case "Deployment":
			var o struct {
				Spec struct{ Template struct{ Spec *pod } }
			}
			o.Spec.Template.Spec = &p
			require.NoError(t, json.Unmarshal(text, &o))
		case "ConfigMap":
			var o struct{ Data *map[string]string }
			o.Data = &config
			require.NoError(t, json.Unmarshal(text, &o))
		}
	}
	require.NotEmpty(t, config)
	return p, config
}
