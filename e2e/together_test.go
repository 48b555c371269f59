package e2e

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/lab"
	"github.com/ingotmetal/ingot/workflows"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// gate is a web server in the lab that refuses requests, or holds them back, until it is opened.
type gate struct {
	content []byte
	asked   atomic.Int64
	refuses atomic.Bool
	open    chan struct{}
}

func newGate(ctx context.Context, t *testing.T, s *Site, content []byte) *gate {
	t.Helper()
	g := &gate{content: content, open: make(chan struct{})}
	l, err := s.Listen(ctx, lab.Router, registryAddress)
	require.NoError(t, err)
	server := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: g}
	t.Cleanup(func() { require.NoError(t, server.Close()) })
	go func() { _ = server.Serve(l) }() // ends with Close
	return g
}

func (g *gate) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	g.asked.Add(1)
	if g.refuses.Load() {
		http.Error(w, "not yet", http.StatusForbidden)
		return
	}
	select {
	case <-g.open:
		_, _ = w.Write(g.content) // the agent reports what it could not read
	case <-q.Context().Done():
	}
}

// togetherByTemporal starts an operation with Temporal's own command.
func (s *Site) togetherByTemporal(ctx context.Context, t *testing.T, in contract.TogetherInput) {
	t.Helper()
	input, err := json.Marshal(in)
	require.NoError(t, err)
	_, err = s.TemporalCLI(ctx, "workflow", "start", "--type", inventory.TypeTogether, "--task-queue", workflows.TaskQueue,
		"--workflow-id", contract.TogetherID(in.Name), "--input", string(input))
	require.NoError(t, err)
}

// TestTogether carries out one template on two machines: the tasks alternate between them. The second machine's task fails, and the
// operation is retried from it. The server is killed while one machine waits for the other. After every kind of end, no window is open
// (security S68).
func TestTogether(t *testing.T) {
	runInTurn(t, 60, 4)
	ctx := needLab(t)
	image, err := lab.SimImage(ctx, testWriter{t})
	require.NoError(t, err)
	s := site(ctx, t)
	s.must(ctx, t, "image", "add", "sim", image.Zst)
	content, err := os.ReadFile(image.Zst)
	require.NoError(t, err)
	sum := sha256.Sum256(content)
	g := newGate(ctx, t, s, content)
	g.refuses.Store(true)
	s.template(ctx, t, "pair", fmt.Sprintf(`version: "0.1"
name: pair
tasks:
- {name: prepare, worker: "{{.device_1}}", actions: [{name: first, image: noop}]}
- {name: fetch, worker: "{{.device_2}}", actions: [{name: write, image: image2disk, timeout: 200, environment: {IMG_URL: "http://%s/x.zst", COMPRESSED: "true", IMG_SHA256: %s}}]}
- {name: finish, worker: "{{.device_1}}", actions: [{name: write, image: image2disk, timeout: 200}]}
`, registryAddress, hex.EncodeToString(sum[:])))
	machines := map[string]*lab.Machine{}
	for _, name := range []string{"server", "client"} {
		spec := lab.Spec{Name: name, Firmware: lab.Simulated, Agent: filepath.Join(s.bin, "worker-agent")}
		machines[name], err = s.Add(ctx, spec, func(doc map[string]any) { doc["image"] = "sim" })
		require.NoError(t, err)
	}
	in := contract.TogetherInput{Name: "pair", Template: "pair", HardwareMap: map[string]string{
		"device_1": machines["server"].Spec().MAC, "device_2": "client",
	}}

	// The client's task fails: the server, which waits for it, ends too.
	s.togetherByTemporal(ctx, t, in)
	o := s.operationEnds(ctx, t, "together.pair")
	require.Equal(t, inventory.StateFailed, o.State, o.Message)
	require.Contains(t, o.Message, `client: action "write"`)
	require.Contains(t, o.Message, `server: task "finish" was not begun: machine "client" ended as FAILED before its task "fetch" was done`)
	require.Equal(t, "ingot together retry pair", o.Next)
	for name := range machines {
		s.closed(ctx, t, name)
	}

	// The retry begins with the failed task. The server is killed while the client is in it.
	g.refuses.Store(false)
	asked := g.asked.Load()
	in.Resume = o.Run
	s.togetherByTemporal(ctx, t, in)
	require.Eventually(t, func() bool { return g.asked.Load() > asked }, 2*time.Minute, 100*time.Millisecond)
	s.Kill()
	require.NoError(t, s.Start(ctx))
	w, err := s.Follow(ctx, "server", func(w inventory.Workflow) bool { return w.Phase == inventory.PhaseAction })
	require.NoError(t, err)
	require.Equal(t, `waiting for task "fetch" of machine client`, w.Message)
	close(g.open)
	o = s.operationEnds(ctx, t, "together.pair")
	require.Equal(t, inventory.StateSuccess, o.State, o.Message)
	require.Equal(t, map[string]string{"server": inventory.StepDone, "client": inventory.StepDone}, states(o))
	client, server := s.ended(ctx, t, "client", inventory.StateSuccess), s.ended(ctx, t, "server", inventory.StateSuccess)
	require.Contains(t, server.Actions[0].Message, "done by run")
	require.False(t, server.Actions[1].StartedAt.Before(client.Ended), "the last task of a machine ends with its run")
	for name, m := range machines {
		require.Equal(t, 2, m.PowerOns(), name)
		require.Equal(t, 1, m.Writers(), name)
		s.closed(ctx, t, name)
	}

	// Of a pair that cannot be taken as a whole, no machine is touched.
	s.template(
		ctx,
		t,
		"long",
		`{version: "0.1", name: long, tasks: [{name: wait, worker: "{{.device_1}}", actions: [{name: wait, image: noop, environment: {SLEEP: "500"}}]}]}`,
	)
	_, err = s.Provision(ctx, contract.ProvisionInput{Machine: "server", Template: "long"})
	require.NoError(t, err)
	_, err = s.Follow(ctx, "server", func(w inventory.Workflow) bool { return w.Phase == inventory.PhaseAction })
	require.NoError(t, err)
	in.Name, in.Resume = "second", ""
	s.togetherByTemporal(ctx, t, in)
	o = s.operationEnds(ctx, t, "together.second")
	require.Equal(t, inventory.StateFailed, o.State, o.Message)
	require.Contains(t, o.Message, `machine "server" is busy with another run`)
	require.Equal(t, 2, machines["client"].PowerOns())
	s.closed(ctx, t, "client")
	s.must(ctx, t, "workflow", "cancel", "server")
	s.ended(ctx, t, "server", inventory.StateCancelled)

	// Cancelled, and ended from outside: the runs end with it.
	s.template(ctx, t, "slow", `version: "0.1"
name: slow
tasks:
- {name: one, worker: "{{.device_1}}", actions: [{name: wait, image: noop, environment: {SLEEP: "20"}}]}
- {name: two, worker: "{{.device_2}}", actions: [{name: wait, image: noop}]}
`)
	in.Template = "slow"
	waits := func(w inventory.Workflow) bool { return w.Message == `waiting for task "one" of machine server` }
	for name, ends := range map[string][]string{"cancelled": {"cancel"}, "terminated": {"terminate", "--reason", "test"}} {
		if name == "terminated" && !*full {
			continue // it takes a minute until the runs notice
		}
		in.Name = name
		s.togetherByTemporal(ctx, t, in)
		s.operationIs(ctx, t, "together."+name, func(o inventory.Operation) bool { return o.Step == inventory.PhaseAction })
		_, err = s.Follow(ctx, "client", waits)
		require.NoError(t, err)
		_, err = s.TemporalCLI(ctx, append(append([]string{"workflow"}, ends...), "--workflow-id", contract.TogetherID(name))...)
		require.NoError(t, err)
		s.operationEnds(ctx, t, "together."+name)
		for _, m := range []string{"server", "client"} {
			w, err := s.Follow(ctx, m, func(w inventory.Workflow) bool { return inventory.Final(w.State) })
			require.NoError(t, err)
			require.Equal(t, m == "server" && name == "terminated", w.State == inventory.StateSuccess, "%s %s: %s", name, m, w.Message)
			s.closed(ctx, t, m)
		}
	}
}

// TestServerAndClient installs two machines in QEMU by one template: a server, and a client that fetches a file from the installed server. The
// client's task fails, and is retried from the failed action; the server is not touched again.
func TestServerAndClient(t *testing.T) {
	runInTurn(t, 60, 12)
	ctx := needLab(t)
	image := mini(ctx, t)
	s := site(ctx, t)
	s.must(ctx, t, "image", "add", "mini", image.Zst)
	g := newGate(ctx, t, s, []byte("go on"))
	g.refuses.Store(true)
	close(g.open)
	machines := map[string]*lab.Machine{}
	for name, firmware := range map[string]lab.Firmware{"server": lab.BIOS, "client": lab.UEFI} {
		var err error
		machines[name], err = s.Add(ctx, lab.Spec{Name: name, Firmware: firmware}, func(doc map[string]any) { doc["image"] = "mini" })
		require.NoError(t, err)
	}
	var server inventory.Machine
	require.NoError(t, json.Unmarshal([]byte(s.must(ctx, t, "machine", "get", "server", "-o", "json")), &server))
	s.template(ctx, t, "served", fmt.Sprintf(`version: "0.1"
name: served
tasks:
- name: serve
  worker: "{{.device_1}}"
  environment: &root {BLOCK_DEVICE: /dev/vda2, FS_TYPE: ext4, CHROOT: y, DEFAULT_INTERPRETER: /bin/sh -c}
  actions:
  - {name: write, image: image2disk, timeout: 300, environment: {DEST_DISK: /dev/vda}}
  - name: content
    image: cexec
    timeout: 60
    environment:
      CMD_LINE: "busybox mkdir /srv && echo served by the server >/srv/file && echo ::respawn:/bin/busybox httpd -f -p 8000 -h /srv >>/etc/inittab"
  - {name: seed, image: configdrive, timeout: 60}
- name: fetch
  worker: "{{.device_2}}"
  environment: *root
  actions:
  - {name: write, image: image2disk, timeout: 300, environment: {DEST_DISK: /dev/vda}}
  - name: fetch
    image: cexec
    timeout: 60
    environment:
      CMD_LINE: ". /etc/http; http GET http://%[1]s/ '' >/root/gate; http_ok /root/gate || exit 1; http GET http://%[2]s:8000/file '' >/root/answer; http_ok /root/answer && http_body /root/answer >/root/fetched"
  - {name: seed, image: configdrive, timeout: 60}
`, registryAddress, server.Interfaces[0].Address))
	in := contract.TogetherInput{Name: "pair", Template: "served", HardwareMap: map[string]string{
		"device_1": "server", "device_2": machines["client"].Spec().MAC,
	}}

	s.togetherByTemporal(ctx, t, in)
	o := s.operationEnds(ctx, t, "together.pair")
	require.Equal(t, inventory.StateFailed, o.State, o.Message)
	require.Equal(t, map[string]string{"server": inventory.StepDone, "client": inventory.StepFailed}, states(o), o.Message)
	require.Contains(t, o.Message, `client: action "fetch": command 1 of 1: /bin/sh: exit code 1`)
	for name := range machines {
		s.closed(ctx, t, name)
	}

	g.refuses.Store(false)
	in.Resume = o.Run
	s.togetherByTemporal(ctx, t, in)
	o = s.operationIs(
		ctx,
		t,
		"together.pair",
		func(again inventory.Operation) bool { return again.Run != o.Run && inventory.Final(again.State) },
	)
	require.Equal(t, inventory.StateSuccess, o.State, o.Message)
	client := s.ended(ctx, t, "client", inventory.StateSuccess)
	require.Contains(t, client.Actions[0].Message, "done by run", "the image is not written again")
	require.Equal(t, 1, machines["server"].PowerOns())
	require.Equal(t, 2, machines["client"].PowerOns())
	_, err := machines["client"].WaitSerial(ctx, "LAB-MINI-PHONED-HOME")
	require.NoError(t, err)
	require.NoError(t, machines["client"].PowerOff(ctx))
	require.Equal(t, "served by the server", strings.TrimSpace(readRoot(ctx, t, machines["client"], "/root/fetched")))
	for name := range machines {
		s.closed(ctx, t, name)
	}
}
