package e2e

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/lab"
	"github.com/ingotmetal/ingot/lab/registry"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// registryAddress is where the lab's registry of container images is.
const registryAddress = lab.DirectGateway + ":5000"

// siteWithRegistry starts a site and a registry without TLS, which has the image tools/busybox:1. It returns the digest of the image.
func siteWithRegistry(ctx context.Context, t *testing.T) (*Site, *registry.Registry, string) {
	t.Helper()
	s := siteWith(ctx, t, Options{Top: "images: {registries: [{host: \"" + registryAddress + "\", plain_http: true}]}\n"})
	l, err := s.Listen(ctx, lab.Router, registryAddress)
	require.NoError(t, err)
	r := registry.New(t)
	server := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: r}
	t.Cleanup(func() { require.NoError(t, server.Close()) })
	go func() { _ = server.Serve(l) }() // ends with Close
	return s, r, r.Push("tools/busybox", "1", busyboxImage(t))
}

// busyboxImage is a container image with busybox under its usual names.
func busyboxImage(t *testing.T) registry.Image {
	t.Helper()
	busybox, err := os.ReadFile(filepath.Join(lab.PackageDir("busybox"), "bin/busybox"))
	require.NoError(t, err)
	files := map[string]registry.File{"bin/busybox": {Content: string(busybox), Mode: 0o755}, "tmp": {Mode: os.ModeDir | 0o755}}
	for _, name := range strings.Fields("sh cat cp echo ls mount sleep wget head tail dd mkdir sync test trap ps id hostname nslookup") {
		files["bin/"+name] = registry.File{Content: "busybox", Mode: os.ModeSymlink | 0o777}
	}
	return registry.Image{
		Files: files,
		Cmd:   []string{"sh", "-c", "echo own command of the image"},
		Env:   []string{"PATH=/bin", "FROM_IMAGE=yes"},
	}
}

// TestContainers installs a machine with a template of native actions and containers, which share files with each other and write into the
// installed system. The server is killed while it pulls the image and while a container runs.
func TestContainers(t *testing.T) {
	runInTurn(t, 50, 8)
	ctx := needLab(t)
	image := mini(ctx, t)
	for _, firmware := range []lab.Firmware{lab.BIOS, lab.UEFI} {
		if firmware == lab.UEFI && !*full {
			continue
		}
		t.Run(string(firmware), func(t *testing.T) { installWithContainers(ctx, t, firmware, image) })
	}
}

func installWithContainers(ctx context.Context, t *testing.T, firmware lab.Firmware, image lab.Image) {
	s, r, digest := siteWithRegistry(ctx, t)
	s.must(ctx, t, "image", "add", "mini", image.Zst)
	ref := registryAddress + "/tools/busybox"
	s.template(ctx, t, "containers", fmt.Sprintf(`version: "0.1"
name: containers
tasks:
- name: install
  worker: "{{.device_1}}"
  volumes: [shared:/shared]
  environment: {FROM_TASK: "it's a task"}
  actions:
  - {name: write, image: image2disk, timeout: 300}
  - name: by-tag
    image: %[1]s:1
    timeout: 120
    command: [sh, -c, 'echo "$FROM_IMAGE, $FROM_TASK, $FROM_ACTION" > /shared/said; cat /proc/1/cmdline | head -c 2; ls /dev/vd* /dev/sd*; sleep 5']
    environment: {FROM_ACTION: "an action"}
  - name: by-digest
    image: %[1]s@%[2]s
    timeout: 120
    volumes: ["LABEL=labroot:/mnt"]
    command: [sh, -c, "cp /shared/said /mnt/root/said && test -b /dev/sda2 && test ! -e /dev/vdb && cat /mnt/root/said"]
  - name: host
    image: %[1]s:1
    timeout: 120
    namespaces: {network: host, pid: host}
    command: [sh, -c, "ps | head -n 3; wget -q -O - http://%[3]s/v2/ && echo reached; ! wget -q -T 5 -O - http://%[4]s:7172/2009-04-04/user-data"]
  - name: reads-metadata
    image: %[1]s:1
    timeout: 120
    environment: {HEGEL_URLS: "http://%[4]s:7172"}
    command: [sh, -c, 'wget -q -O - "$HEGEL_URLS/2009-04-04/user-data"']
  - name: alone
    image: %[1]s:1
    timeout: 120
    namespaces: {network: none}
    command: [sh, -c, "! wget -q -T 2 -O - http://%[3]s/v2/ && hostname"]
  - name: own-command
    image: %[1]s:1
    timeout: 120
`, ref, digest, registryAddress, lab.ServerAddress))
	m, err := s.Add(ctx, lab.Spec{Name: "c1", Firmware: firmware, Decoys: []string{"OTHER"}, MemoryMB: 768}, func(doc map[string]any) {
		doc["image"], doc["template"] = "mini", "containers"
		doc["diskSelector"] = map[string]any{"serial": "DISK-c1"}
		doc["userDataByAddress"], doc["userData"] = true, "#cloud-config\nhostname: lab-user-data\n"
	})
	require.NoError(t, err)

	// The first pull is interrupted: the registry holds the layer back until the server is killed.
	pulling, killed := make(chan struct{}), make(chan struct{})
	r.Intercept(func(_ http.ResponseWriter, q *http.Request) bool {
		if strings.Contains(q.URL.Path, "/blobs/") {
			select {
			case <-killed:
			default:
				close(pulling)
				<-killed
			}
		}
		return false
	})
	_, err = s.Provision(ctx, contract.ProvisionInput{Machine: "c1"})
	require.NoError(t, err)
	select {
	case <-pulling:
	case <-ctx.Done():
		require.NoError(t, ctx.Err(), "the server pulls the image")
	}
	s.Kill()
	close(killed)
	require.NoError(t, s.Start(ctx))

	_, err = s.Follow(ctx, "c1", func(w inventory.Workflow) bool { return len(w.Actions) > 1 && w.Actions[1].State == action.Running })
	require.NoError(t, err)
	s.Kill()
	require.NoError(t, s.Start(ctx))

	w := s.ended(ctx, t, "c1", inventory.StateSuccess)
	for _, a := range w.Actions {
		require.Equal(t, action.Success, a.State, "%s: %s", a.Name, a.Message)
		require.Equal(t, 1, a.Attempt, "%s was carried out once", a.Name)
	}
	logs := func(name string) string { return s.must(ctx, t, "workflow", "logs", "c1", "--action", name) }
	require.Contains(t, logs("by-digest"), "yes, it's a task, an action")
	require.Contains(t, logs("host"), "reached")
	require.NotContains(t, logs("host"), "multipart/mixed")
	require.Contains(t, logs("reads-metadata"), "multipart/mixed", "the user data")
	require.Contains(t, logs("own-command"), "own command of the image")
	require.NotContains(t, logs("by-tag"), "/dev/vda", "a container that does not name the disk sees none")
	s.closed(ctx, t, "c1")
	require.NoError(t, m.PowerOff(ctx))
}

// TestContainersFail lets containers fail in each way: by exit code, time-out, memory, and an order to stop. An operator skips each, so
// that one boot is enough.
func TestContainersFail(t *testing.T) {
	runInTurn(t, 120, 8)
	ctx := needLabFor(t, 4*time.Minute)
	s, _, _ := siteWithRegistry(ctx, t)
	const step = "  - {name: %s, image: \"" + registryAddress + "/tools/busybox:1\", timeout: %d, command: [sh, -c, %q]%s}\n"
	steps := ""
	for _, x := range []struct {
		name, command, more string
		timeout             int
	}{
		{"exit", "echo it fails; exit 7", `, on-failure: [sh, -c, "echo the handler runs in the image"]`, 60},
		{"late", "trap '' TERM; while true; do sleep 1; done", `, on-timeout: [echo, it is late]`, 3},
		{"memory", "tail /dev/zero", "", 120},
		{"fork", "f() { f | f & }; f; wait; exit 3", "", 30},
		{"daemon", "(sleep 600 > /dev/null 2>&1 &) ; echo left a process", "", 60},
		{"noise", "yes ABCDEFGHIJKLMNOPQRSTUVWXYZ | head -c 5000000; printf '\\033[2J\\007'; echo end of noise", "", 120},
		{"gone", "ls /proc/[0-9]*/exe | head -n 3", ", namespaces: {pid: host}", 60},
	} {
		steps += fmt.Sprintf(step, x.name, x.timeout, x.command, x.more)
	}
	s.template(ctx, t, "failing", "version: \"0.1\"\nname: failing\ntasks:\n- name: t\n  worker: \"{{.device_1}}\"\n  actions:\n"+steps)
	_, err := s.Add(ctx, lab.Spec{Name: "f1", MemoryMB: 768}, func(doc map[string]any) { doc["template"] = "failing" })
	require.NoError(t, err)
	_, err = s.Provision(ctx, contract.ProvisionInput{Machine: "f1", Policy: contract.Pause})
	require.NoError(t, err)
	last := ""
	for range 4 {
		w, err := s.Follow(ctx, "f1", func(w inventory.Workflow) bool { return w.Question != nil && w.Question.ID != last })
		require.NoError(t, err)
		last = w.Question.ID
		require.NoError(t, s.decides(ctx, "f1", contract.Decision{Question: last, Choice: contract.Skip}))
	}
	w, err := s.Follow(ctx, "f1", func(w inventory.Workflow) bool { return inventory.Final(w.State) })
	require.NoError(t, err)
	states := map[string]string{}
	for _, a := range w.Actions {
		states[a.Name] = fmt.Sprintf("%s %s", a.State, a.Message)
		t.Logf("%-12s %-10s %5.1f s %s", a.Name, a.State, a.Seconds, a.Message)
	}
	require.Contains(t, states["exit"], "exit code 7")
	require.Contains(t, states["late"], "exceeded its timeout")
	require.Contains(t, states["memory"], "memory")
	require.Contains(t, states["daemon"], string(action.Success))
	logs := func(name string) string { return s.must(ctx, t, "workflow", "logs", "f1", "--action", name) }
	require.Contains(t, logs("exit"), "the handler runs in the image")
	require.Contains(t, logs("late"), "it is late")
	require.Contains(t, logs("noise"), "end of noise")
	require.NotContains(t, logs("noise"), "\x1b[2J")
	require.NotContains(t, logs("gone"), "sleep", "the process that a container left behind was ended with it")
}
