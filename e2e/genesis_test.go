package e2e

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
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

var realFirmware = flag.Bool("qemu", false, "the machines of a Genesis are real ones, under QEMU (make genesis)")

// needGenesisRun is needLab with the time limit for real machines.
func needGenesisRun(t *testing.T) context.Context {
	t.Helper()
	ctx := needLab(t)
	if !*realFirmware {
		return ctx
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	t.Cleanup(cancel)
	return ctx
}

// genesisKey is the key of the router's API.
const genesisKey = "e2e-router-key-7f3a91"

// genesisLab is the lab file of the test: the example in deploy/genesis with the hardware of the
// virtual lab.
const genesisLab = `name: home
seed: {address: 192.168.1.10, segment: 192.168.1.0/24}
network: {prefix: 10.10.20.0/24, gateway: 10.10.20.1}
images:
%s
machines:
  - name: vp6630
    template: %s
    image: vyos
    config: config.boot
    hardwareMap: {version: %s}
    interfaces:
      - {mac: "52:54:00:01:00:01", uefi: %t, address: 192.168.1.2, netmask: 255.255.255.0, gateway: 192.168.1.1}
      - {mac: "52:54:00:20:01:01", disableDHCP: true, disableNetboot: true}
      - {mac: "52:54:00:10:02:01", disableDHCP: true, disableNetboot: true}
    diskSelector: {serial: DISK-vp6630}
  - name: um760
    config: talos.yaml
    hardwareMap: {kernel: talos-kernel, initramfs: talos-initramfs}
    interfaces: [{mac: "52:54:00:20:00:02", uefi: %t, address: 10.10.20.11, netmask: 255.255.255.0, gateway: 10.10.20.1}]
    diskSelector: {serial: DISK-um760}
%srouter: {machine: vp6630, keyFile: vyos.key}
platform: {machine: um760, talosconfigFile: talosconfig}
cluster: {vip: 10.10.20.30, create: ms-02-a, join: [ms-02-b, ms-02-c]}
`

const genesisNode = `  - name: ms-02-%[1]s
    config: ms-02-%[1]s.yaml
    hardwareMap: {kernel: harvester-kernel, initrd: harvester-initrd, rootfs: harvester-rootfs, iso: harvester-iso}
    interfaces: [{mac: "52:54:00:20:00:0%[2]d", uefi: %[3]t, address: 10.10.20.2%[2]d, netmask: 255.255.255.0, gateway: 10.10.20.1}]
    diskSelector: {serial: DISK-ms-02-%[1]s}
    bmc: {driver: amt, host: 10.10.10.1%[2]d, user: admin}
    bmcPasswordFile: amt.password
`

const genesisHarvester = `scheme_version: 1
%stoken: e2e-cluster-token-7f3a91
os: {hostname: %s, password: e2e-password-7f3a91}
install:
  mode: %s
  management_interface: {interfaces: [{hwAddr: "%s"}], method: dhcp}
  device: /dev/disk/by-id/nvme-QEMU_NVMe_Ctrl_DISK-%s
%s  iso_url: http://192.168.1.10:7080/images/harvester-iso
`

// A genesisRun is a Genesis run in the lab: the server on the NAS, five machines, and a simulated
// operator at the machines without a BMC.
type genesisRun struct {
	*Site
	t        *testing.T
	image    string // root file system in which the servers run; empty: this host's
	machines map[string]*lab.Machine
	file     string      // the lab file
	absent   atomic.Bool // no machine requests an address to prove the relay
}

// newGenesisRun prepares a Genesis run; config is added to the server's configuration.
func newGenesisRun(ctx context.Context, t *testing.T, config ...string) *genesisRun {
	t.Helper()
	root := ""
	if *realFirmware {
		root = imageRoot(t)
	}
	dir := keepDir(t)
	s, err := NewSite(ctx,
		Options{Root: "..", Dir: dir, Programs: programs(), Home: true, Namespace: lab.Seed, Image: root, Top: strings.Join(config, "")})
	require.NoError(t, err)
	s.keep(t)
	e := &genesisRun{Site: s, t: t, image: root, machines: map[string]*lab.Machine{}}
	guest, err := lab.GuestProgram(ctx, t.TempDir())
	require.NoError(t, err)
	agent := filepath.Join(s.bin, "worker-agent")
	specs := []lab.Spec{
		{
			Name:     "vp6630",
			Firmware: lab.BIOS,
			VLAN:     lab.HomeVLAN,
			MAC:      "52:54:00:01:00:01",
			NoBMC:    true,
			DiskSize: 1 << 30,
			Cards:    []lab.Card{{VLAN: lab.DirectVLAN, MAC: "52:54:00:20:01:01"}, {VLAN: lab.BMCVLAN, MAC: "52:54:00:10:02:01"}},
		},
		{Name: "um760", Firmware: lab.UEFI, MAC: "52:54:00:20:00:02", NoBMC: true, MemoryMB: 768, Bus: lab.NVMe, DiskSize: 1 << 30},
		{
			Name:       "ms-02-a",
			Firmware:   lab.UEFI,
			MAC:        "52:54:00:20:00:03",
			MemoryMB:   1024,
			Controller: lab.ControllerAMT16,
			Bus:        lab.NVMe,
			DiskSize:   1 << 30,
		},
		{
			Name:       "ms-02-b",
			Firmware:   lab.BIOS,
			MAC:        "52:54:00:20:00:04",
			MemoryMB:   1024,
			Controller: lab.ControllerAMT16,
			Bus:        lab.NVMe,
			DiskSize:   1 << 30,
		},
		{
			Name:       "ms-02-c",
			Firmware:   lab.UEFIHTTP,
			MAC:        "52:54:00:20:00:05",
			MemoryMB:   1024,
			Controller: lab.ControllerAMT16,
			Bus:        lab.NVMe,
			DiskSize:   1 << 30,
		},
	}
	for _, spec := range specs {
		spec.Agent, spec.Guest = agent, guest
		if !*realFirmware {
			spec.Firmware = lab.Simulated
		}
		m, err := s.Machine(ctx, spec)
		require.NoError(t, err)
		e.machines[spec.Name] = m
	}
	e.write(ctx)
	require.NoError(t, s.RemoveRouter(ctx))
	cards, err := s.Command(ctx, lab.Seed, "ip", "-br", "-4", "addr").Output()
	require.NoError(t, err)
	require.Contains(t, string(cards), lab.SeedAddress)
	require.NotContains(t, string(cards), "10.10.", "the NAS has no interface in the machines' networks")
	go e.pressButtons(ctx)
	return e
}

// write writes the lab file and all files that it names.
func (e *genesisRun) write(ctx context.Context) {
	e.t.Helper()
	dir := e.t.TempDir()
	put := func(name, text string) {
		require.NoError(e.t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	example := func(name string) string {
		b, err := os.ReadFile(filepath.Join("..", "deploy", "genesis", name))
		require.NoError(e.t, err)
		return string(b)
	}
	vyos, err := lab.VyOSImage(ctx, testWriter{e.t})
	require.NoError(e.t, err)
	talos, err := lab.TalosFiles(ctx, testWriter{e.t})
	require.NoError(e.t, err)
	harvester, err := lab.HarvesterFiles(ctx, testWriter{e.t})
	require.NoError(e.t, err)
	images := ""
	for _, i := range [][2]string{
		{"vyos", vyos.Zst},
		{"talos-kernel", talos.Kernel},
		{"talos-initramfs", talos.Initramfs},
		{"harvester-kernel", harvester.Kernel},
		{"harvester-initrd", harvester.Initrd},
		{"harvester-rootfs", harvester.RootFS},
		{"harvester-iso", harvester.ISO},
	} {
		file := i[0] + strings.TrimPrefix(filepath.Ext(i[1]), " ")
		path, err := filepath.Abs(i[1])
		require.NoError(e.t, err)
		require.NoError(e.t, os.Symlink(path, filepath.Join(dir, file)))
		f, err := os.Open(path)
		require.NoError(e.t, err)
		h := sha256.New()
		_, err = io.Copy(h, f)
		require.NoError(e.t, err)
		require.NoError(e.t, f.Close())
		images += fmt.Sprintf("  - {name: %s, file: %s, sha256: %x}\n", i[0], file, h.Sum(nil))
	}
	nodes := ""
	for n, x := range []string{"a", "b", "c"} {
		nodes += fmt.Sprintf(genesisNode, x, n+3, e.uefi("ms-02-"+x))
		server, mode, vip := "", "create", "  vip: 10.10.20.30\n  vip_mode: static\n"
		if n > 0 {
			server, mode, vip = "server_url: https://10.10.20.30:443\n", "join", ""
		}
		put("ms-02-"+x+".yaml", fmt.Sprintf(genesisHarvester, server, "ms-02-"+x, mode, e.machines["ms-02-"+x].Spec().MAC, "ms-02-"+x, vip))
	}
	put("config.boot", lab.VyOSConfig(genesisKey))
	put("vyos.key", genesisKey+"\n")
	put("amt.password", "password\n")
	put("talosconfig", example("talosconfig"))
	put("talos.yaml", strings.Replace(example("talos.yaml"), "nvme-EXAMPLE_UM760_SSD_0001", "nvme-QEMU_NVMe_Ctrl_DISK-um760", 1))
	put("lab.yaml", fmt.Sprintf(genesisLab, images, e.vyosTemplate(ctx), lab.VyOSVersion, e.uefi("vp6630"), e.uefi("um760"), nodes))
	e.file = filepath.Join(dir, "lab.yaml")
}

// uefi reports whether a machine's firmware is UEFI.
func (e *genesisRun) uefi(machine string) bool {
	f := e.machines[machine].Spec().Firmware
	return f == lab.UEFI || f == lab.UEFIHTTP
}

// vyosTemplate is the built-in template. The agent of a simulated machine extracts and rebuilds
// file systems, and directories then lose the bit that gives new files their group: for such
// machines, the template does not request it.
func (e *genesisRun) vyosTemplate(ctx context.Context) string {
	if *realFirmware {
		return "vyos"
	}
	source, err := os.ReadFile(filepath.Join("..", "template", "builtin", "vyos.yaml"))
	require.NoError(e.t, err)
	e.template(
		ctx,
		e.t,
		"vyos-lab",
		strings.Replace(strings.ReplaceAll(string(source), `"2775"`, `"0775"`), "name: vyos", "name: vyos-lab", 1),
	)
	return "vyos-lab"
}

// now returns the operation from the server.
func (e *genesisRun) now(ctx context.Context) (inventory.Operation, error) {
	var o inventory.Operation
	err := e.REST(ctx, http.MethodGet, "/v1/genesis/home/status", nil, &o)
	return o, err
}

// pressButtons presses the buttons of machines without a BMC when the server waits for that.
func (e *genesisRun) pressButtons(ctx context.Context) {
	pressed := map[string]bool{}
	press := func(key, machine string) {
		if pressed[key] {
			return
		}
		m := e.machines[machine]
		m.SetNextBoot(lab.NextNetwork)
		if err := m.PowerCycle(ctx); err == nil {
			pressed[key] = true
		}
	}
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
			return
		case <-time.After(300 * time.Millisecond):
		}
		o, err := e.now(ctx)
		if err != nil || inventory.Final(o.State) {
			continue
		}
		for _, s := range o.Steps {
			switch {
			// A machine that is on starts its installer itself: pressing the button would interrupt
			// it.
			case s.State == inventory.StepWaiting && strings.Contains(s.Message, "(boot 1)") && (s.Machine == "vp6630" || s.Machine == "um760"):
				press(s.Run+s.Message, s.Machine)
			case s.Name == "relay" && s.State == inventory.StepRunning && !e.absent.Load():
				// It requests an address, and is told to boot from its disk.
				press(o.Run+s.Since.String(), "um760")
			}
		}
	}
}

// ends waits for the end of the operation.
func (e *genesisRun) ends(ctx context.Context) inventory.Operation {
	e.t.Helper()
	var o inventory.Operation
	var err error
	said := ""
	for {
		if o, err = e.now(ctx); err == nil && inventory.Final(o.State) {
			return o
		}
		if err == nil && o.Step+o.Message != said {
			said = o.Step + o.Message
			e.t.Logf("%s: %s", o.Step, o.Message)
		}
		select {
		case <-ctx.Done():
			e.t.Fatalf("the Genesis did not end: %+v, %v", o, err)
		case <-time.After(500 * time.Millisecond):
		}
	}
}

// whole checks that everything runs.
func (e *genesisRun) whole(ctx context.Context, o inventory.Operation) {
	e.t.Helper()
	for _, s := range o.Steps {
		e.t.Logf("%-14s %-8s %6.1f s  %s", s.Name, s.State, s.Ended.Sub(s.Since).Seconds(), s.Message)
	}
	require.Equal(e.t, inventory.StateSuccess, o.State, o.Message)
	for _, s := range o.Steps {
		require.Equal(e.t, inventory.StepDone, s.State, s.Name)
	}
	text, err := e.TemporalCLI(ctx, "workflow", "list", "--output", "json")
	require.NoError(e.t, err)
	var list []struct {
		Execution struct{ WorkflowID, RunID string }
	}
	require.NoError(e.t, json.Unmarshal([]byte(text), &list))
	var ids []string
	for _, x := range list {
		ids = append(ids, x.Execution.WorkflowID)
		history, err := e.TemporalCLI(ctx, "workflow", "show", "--workflow-id", x.Execution.WorkflowID, "--run-id",
			x.Execution.RunID, "--output", "json")
		require.NoError(e.t, err)
		e.without("history of "+x.Execution.WorkflowID, readable(e.t, history))
	}
	require.Contains(e.t, ids, "genesis/home")
	for name := range e.machines {
		require.Contains(e.t, ids, "machine/"+name)
	}
	log, err := os.ReadFile(filepath.Join(e.dir, "ingot.log"))
	require.NoError(e.t, err)
	e.without("the server's log", string(log))
	e.sealed()
	for name, m := range e.machines { // the kernel's command line is the first one on a console
		console, err := m.Serial()
		require.NoError(e.t, err)
		e.without("console of "+name, console)
	}
}

// sealed checks that no secret of the lab file, and none found during the run (the kubeconfig's
// key), is in a database in plain text.
func (e *genesisRun) sealed() {
	e.t.Helper()
	secrets := []canary{{text: []byte("PRIVATE KEY")}}
	for _, s := range genesisSecrets {
		secrets = append(secrets, canary{text: []byte(s)})
	}
	for _, pattern := range []string{"ingot.db*", "temporal/*.db*"} {
		files, err := filepath.Glob(filepath.Join(e.data(), pattern))
		require.NoError(e.t, err)
		known := false
		for _, file := range files {
			b, err := os.ReadFile(file)
			require.NoError(e.t, err)
			known = known || canary{text: []byte("um760")}.in(b)
			for _, c := range secrets {
				require.False(e.t, c.in(b), "S10: %s is in %s", c.text, file)
			}
		}
		require.True(e.t, known, "the search finds no machine in %s: it would find no secret there either", pattern)
	}
}

// genesisSecrets are in the files that the lab file names.
var genesisSecrets = []string{genesisKey, "e2e-cluster-token", "e2e-password"}

// readable adds the decoded payloads to a history; Temporal shows them in base64.
func readable(t *testing.T, history string) string {
	t.Helper()
	all := regexp.MustCompile(`"data": *"([^"]+)"`).FindAllStringSubmatch(history, -1)
	require.NotEmpty(t, all, "a run has at least its input")
	for _, x := range all {
		b, err := base64.StdEncoding.DecodeString(x[1])
		require.NoError(t, err)
		history += "\n" + string(b)
	}
	return history
}

// without checks that no secret of the lab file is in text.
func (e *genesisRun) without(what, text string) {
	e.t.Helper()
	talos, err := os.ReadFile(filepath.Join(filepath.Dir(e.file), "talos.yaml"))
	require.NoError(e.t, err)
	secrets := append(slices.Clone(genesisSecrets), "BEGIN ", "LS0tLS1CRUdJTi")
	secretLine := regexp.MustCompile(`(?m)^ +(?:token|secret|secretboxEncryptionSecret): (\S+)$`)
	for _, x := range secretLine.FindAllStringSubmatch(string(talos), -1) {
		secrets = append(secrets, x[1])
	}
	require.Len(e.t, secrets, len(genesisSecrets)+2+4, "of the node, of the cluster, of those who join, and of what etcd holds")
	for _, secret := range secrets {
		require.False(e.t, strings.Contains(text, secret), "S44: %s: %s", what, secret)
	}
}

// TestGenesis builds the lab of the example, except for the migration, from nothing to a cluster of
// three, with simulated machines and stand-in guests. Then it is verified again with Temporal's own
// command alone.
func TestGenesis(t *testing.T) {
	runInTurn(t, 57, 7)
	ctx := needGenesisRun(t)
	e := newGenesisRun(ctx, t)
	plan := e.must(ctx, t, "genesis", "plan", e.file)
	require.Contains(t, plan, "DISK-ms-02-c")
	e.must(ctx, t, "genesis", "start", e.file, "--yes")
	e.whole(ctx, e.ends(ctx))

	// Finished work is neither resumed nor repeated by mistake.
	out, err := e.CLI(ctx, "genesis", "resume", "home")
	require.ErrorContains(t, err, "genesis/home has already succeeded", "%s", out)
	e.must(ctx, t, "genesis", "start", "home", "--yes")
	eventually(ctx, t, "a second Genesis is refused", func() bool {
		o, err := e.now(ctx)
		return err == nil && o.State == inventory.StateFailed && strings.Contains(o.Message, "would overwrite vp6630 again")
	})
	require.Equal(t, 1, e.machines["ms-02-a"].PowerOns())

	// Temporal's own command starts a run that resumes, queries it, and answers it.
	e.absent.Store(true)
	e.machines["ms-02-c"].AMT().Pretend(lab.AMTFaults{OtherPassword: true})
	eventually(ctx, t, "a start once the refused run has ended in Temporal, too", func() bool {
		_, err = e.TemporalCLI(ctx, "workflow", "start", "--type", inventory.TypeGenesis, "--task-queue", workflows.TaskQueue,
			"--workflow-id", workflows.GenesisID("home"), "--id-conflict-policy", "Fail", "--fail-existing",
			"--input", `{"name":"home","resume":true}`)
		return err == nil || !strings.Contains(err.Error(), "already")
	})
	require.NoError(t, err)
	var q inventory.Question
	eventually(ctx, t, "a question, by a query", func() bool {
		text, err := e.TemporalCLI(ctx, "workflow", "query", "--workflow-id", workflows.GenesisID("home"), "--type",
			workflows.QueryStatus, "--output", "json")
		var now struct{ QueryResult []inventory.Operation }
		if err != nil || json.Unmarshal([]byte(text), &now) != nil || len(now.QueryResult) != 1 || now.QueryResult[0].Question == nil {
			return false
		}
		q = *now.QueryResult[0].Question
		return true
	})
	require.Contains(t, q.Text, `the BMC of "ms-02-c" does not report the power state`)
	e.machines["ms-02-c"].AMT().Pretend(lab.AMTFaults{})
	_, err = e.TemporalCLI(ctx, "workflow", "signal", "--workflow-id", workflows.GenesisID("home"), "--name", workflows.SignalDecide,
		"--input", fmt.Sprintf(`{"question":%q,"choice":%q}`, q.ID, contract.Retry))
	require.NoError(t, err)
	e.whole(ctx, e.ends(ctx))
	require.Equal(t, 1, e.machines["ms-02-a"].PowerOns())
}

// until waits until cond returns true for a step.
func (e *genesisRun) until(ctx context.Context, step string, cond func(o inventory.Operation, row inventory.OperationStep) bool) {
	e.t.Helper()
	for {
		if o, err := e.now(ctx); err == nil {
			for _, s := range o.Steps {
				if s.Name == step && cond(o, s) {
					return
				}
			}
		}
		select {
		case <-ctx.Done():
			e.t.Fatalf("timed out waiting for step %s", step)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// runOf returns the record of a machine's run.
func (e *genesisRun) runOf(ctx context.Context, run string) (inventory.Workflow, error) {
	var w inventory.Workflow
	return w, e.REST(ctx, "GET", "/v1/workflows/"+run, nil, &w)
}
