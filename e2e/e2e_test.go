package e2e

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/lab"
	"github.com/ingotmetal/ingot/workflows"
	"github.com/ingotmetal/ingot/workflows/contract"
)

var (
	inLab = flag.Bool("lab", false, "run the tests that need the virtual lab (root, QEMU; see make e2e)")
	full  = flag.Bool("full", false, "the long form")
)

// needLab skips the test if the lab was not requested; if it was, anything that the lab
// lacks is a failure.
func needLab(t *testing.T) context.Context {
	t.Helper()
	return needLabFor(t, 15*time.Minute)
}

// needLabFor is needLab for a test that may take longer.
func needLabFor(t *testing.T, limit time.Duration) context.Context {
	t.Helper()
	if !*inLab {
		t.Skip("needs root and QEMU: make e2e")
	}
	require.NoError(t, lab.Requirements())
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	return ctx
}

// commit names the commit that is measured, for a page of docs/.
func commit() string {
	out, err := exec.Command("git", "describe", "--always", "--dirty").Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}

// site starts Ingot in a new lab. Its files are kept if the test fails.
func site(ctx context.Context, t *testing.T) *Site {
	t.Helper()
	return siteWith(ctx, t, Options{})
}

// measured is a site whose server logs as it does by default: the lines of the level debug take processor time.
func measured(ctx context.Context, t *testing.T) *Site {
	t.Helper()
	return siteWith(ctx, t, Options{LogLevel: "info"})
}

func siteWith(ctx context.Context, t *testing.T, o Options) *Site {
	t.Helper()
	o.Root, o.Dir = "..", keepDir(t)
	s, err := NewSite(ctx, o)
	require.NoError(t, err)
	s.keep(t)
	return s
}

// keep closes the site after the test. The histories of its runs must replay. After a failed
// test it keeps the files needed to examine it.
func (s *Site) keep(t *testing.T) {
	t.Cleanup(func() {
		// Deferred: a requirement that is not met ends the goroutine.
		defer func() { require.NoError(t, s.Close()) }()
		defer func() {
			if t.Failed() {
				s.evidence(t)
			}
		}()
		if !t.Failed() {
			s.replay(t)
		}
	})
}

func keepDir(t *testing.T) string {
	t.Helper()
	//nolint:usetesting // kept when the test fails
	dir, err := os.MkdirTemp("", "ingot-e2e-")
	require.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("kept: %s", dir)
			return
		}
		require.NoError(t, os.RemoveAll(dir))
	})
	return dir
}

// evidence writes files that are needed to examine a failed test, next to the logs.
func (s *Site) evidence(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for name, args := range map[string][]string{
		"machines.json":  {"machine", "list", "-o", "json"},
		"workflows.json": {"workflow", "list", "-o", "json"},
	} {
		out, err := s.CLI(ctx, args...)
		if err != nil {
			out = err.Error()
		}
		if err := os.WriteFile(filepath.Join(s.dir, name), []byte(out), 0o600); err != nil {
			t.Log(err)
		}
	}
	var machines struct{ Items []inventory.Machine }
	if err := s.REST(ctx, http.MethodGet, "/v1/machines", nil, &machines); err != nil {
		t.Log(err)
	}
	for _, m := range machines.Items {
		for name, args := range map[string][]string{
			"why":      {"why", m.Name},
			"workflow": {"workflow", "get", m.Name},
			"events":   {"workflow", "events", m.Name},
		} {
			out, err := s.CLI(ctx, args...)
			if err != nil {
				out += err.Error()
			}
			t.Logf("%s of %s:\n%s", name, m.Name, out)
		}
		out, err := s.TemporalCLI(ctx, "workflow", "show", "--workflow-id", workflows.MachineID(m.Name), "-o", "json")
		if err != nil {
			out = err.Error()
		}
		if err := os.WriteFile(filepath.Join(s.dir, m.Name+"-history.json"), []byte(out), 0o600); err != nil {
			t.Log(err)
		}
	}
}

func mini(ctx context.Context, t *testing.T) lab.Image {
	t.Helper()
	image, err := lab.MiniImage(ctx, testWriter{t})
	require.NoError(t, err)
	return image
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Log(strings.TrimRight(string(p), "\n"))
	return len(p), nil
}

func (s *Site) must(ctx context.Context, t *testing.T, args ...string) string {
	t.Helper()
	out, err := s.CLI(ctx, args...)
	require.NoError(t, err)
	return out
}

func (s *Site) ended(ctx context.Context, t *testing.T, machine, state string) inventory.Workflow {
	t.Helper()
	w, err := s.Follow(ctx, machine, func(w inventory.Workflow) bool { return inventory.Final(w.State) })
	require.NoError(t, err)
	require.Equal(t, state, w.State, "%s: %s", w.Phase, w.Message)
	return w
}

// closed requires that the machine is not allowed to boot from the network.
func (s *Site) closed(ctx context.Context, t *testing.T, machine string) {
	t.Helper()
	var m struct{ Netboot inventory.Netboot }
	require.NoError(t, json.Unmarshal([]byte(s.must(ctx, t, "machine", "get", machine, "-o", "json")), &m))
	require.False(t, m.Netboot.AllowPXE, "network boot of %s is open", machine)
	require.False(t, m.Netboot.AllowWorkflow, "a run still owns %s", machine)
}

// TestDemo runs the steps of the demo: a BIOS machine in the server's network and a UEFI machine
// behind a relay at the same time, real Debian, both ways of configuring it, observed with the
// unmodified temporal command and with a browser.
func TestDemo(t *testing.T) {
	runInTurn(t, 150, 16)
	ctx := needLab(t)
	image, err := lab.DebianImage(ctx, testWriter{t})
	require.NoError(t, err)
	s := site(ctx, t)
	page := make(chan error, 1)
	pictureCtx, stopWatching := context.WithCancel(ctx)
	defer stopWatching()
	go func() { page <- s.watchPage(pictureCtx, os.Getenv("INGOT_PICTURE")) }()

	machines, err := Demo(ctx, s, image, testWriter{t})
	require.NoError(t, err)
	require.NoError(t, <-page, "the page must have shown an installation in progress")
	for _, m := range machines {
		require.Equal(t, "phone-home", m.Run.Evidence)
		require.Equal(t, 1, m.PowerOns(), "%s was switched on more than once", m.Name)
		want := "ds=nocloud"
		require.Contains(t, strings.ToLower(m.Booted), want)
		s.closed(ctx, t, m.Name)
	}

	list, err := s.TemporalCLI(ctx, "workflow", "list", "--query", `IngotMachine="bios" AND IngotPhase="done"`)
	require.NoError(t, err)
	require.Contains(t, list, "machine/bios")
	require.Contains(t, list, "Completed")
	show, err := s.TemporalCLI(ctx, "workflow", "show", "--workflow-id", "machine/uefi")
	require.NoError(t, err)
	require.Contains(t, show, "WorkflowExecutionCompleted")
	query, err := s.TemporalCLI(ctx, "workflow", "query", "--workflow-id", "machine/bios", "--type", workflows.QueryStatus)
	require.NoError(t, err)
	require.Contains(t, query, `"phase":"done"`)
	for addr, want := range map[string]int{s.UI: http.StatusOK, s.SessionUI: http.StatusUnauthorized} {
		res, err := http.Get("http://" + addr + "/namespaces/default/workflows")
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
		require.Equal(t, want, res.StatusCode)
	}
	link := strings.Replace(strings.TrimSpace(s.must(ctx, t, "temporal", "ui")), fmt.Sprintf("127.0.0.1:%d", sessionPort), s.SessionUI, 1)
	tab := browser(ctx, t)
	onPage(tab, t, "Temporal's UI", chromedp.Navigate(link), see(`a[href*="workflows/machine%2Fbios"]`))
	require.NoError(t, chromedp.Cancel(tab), "closing the browser")
}

// shortOf returns the machine image and the firmware for a test of the server: a QEMU
// machine with the given firmware in the long form, otherwise a simulated machine.
func shortOf(ctx context.Context, t *testing.T, firmware lab.Firmware) (lab.Image, lab.Firmware) {
	t.Helper()
	if *full {
		return mini(ctx, t), firmware
	}
	image, err := lab.SimImage(ctx, testWriter{t})
	require.NoError(t, err)
	return image, lab.Simulated
}

// TestDrivenByTheTemporalCommand starts a run with "temporal workflow start",
// drives it by a signal, lets an action fail and resumes from that step.
func TestDrivenByTheTemporalCommand(t *testing.T) {
	runInTurn(t, 20, 6)
	ctx := needLab(t)
	image, firmware := shortOf(ctx, t, lab.UEFI)
	s := site(ctx, t)
	s.must(ctx, t, "image", "add", "mini", image.Zst)
	s.template(ctx, t, "two-steps", `version: "0.1"
name: two-steps
global_timeout: 1800
tasks:
- name: install
  worker: "{{.device_1}}"
  actions:
  - {name: hello, image: noop, timeout: 60, environment: {LOG: "hello from the machine"}}
  - {name: write, image: image2disk, timeout: 600, environment: {IMG_URL: "{{.image.url}}", DEST_DISK: /dev/nvme0n1}}
  - {name: seed, image: configdrive, timeout: 60}
`)
	spec := lab.Spec{Name: "nvme", Firmware: firmware, Agent: filepath.Join(s.bin, "worker-agent"), Bus: lab.NVMe, NoBMC: true}
	m, err := s.Add(ctx, spec, nil)
	require.NoError(t, err)

	in, err := json.Marshal(contract.ProvisionInput{Machine: "nvme", Template: "two-steps", Image: "mini"})
	require.NoError(t, err)
	start := []string{
		"workflow",
		"start",
		"--type",
		inventory.TypeProvision,
		"--task-queue",
		workflows.TaskQueue,
		"--workflow-id",
		workflows.MachineID("nvme"),
		"--id-conflict-policy",
		"Fail",
		"--fail-existing",
		"--input",
		string(in),
	}
	_, err = s.TemporalCLI(ctx, start...)
	require.NoError(t, err)
	_, err = s.TemporalCLI(ctx, start...)
	require.Error(t, err, "a second start of a busy machine is refused")

	_, err = s.FollowUntilButton(ctx, "nvme")
	require.NoError(t, err)
	// The image's file is deleted after the plan was made: the agent's action fails.
	file := s.imageFile(ctx, t, "mini")
	require.NoError(t, os.Rename(file, file+".away"))
	m.SetNextBoot(lab.NextNetwork)
	require.NoError(t, m.PowerOn(ctx))
	_, err = s.TemporalCLI(ctx, "workflow", "signal", "--workflow-id", workflows.MachineID("nvme"), "--name", workflows.SignalPoweredOn)
	require.NoError(t, err)
	w := s.ended(ctx, t, "nvme", inventory.StateFailed)
	require.Contains(t, w.Message, "404")
	require.Equal(t, "SUCCESS", string(w.Actions[0].State))
	require.Equal(t, "FAILED", string(w.Actions[1].State))
	get := s.must(ctx, t, "workflow", "get", "nvme")
	require.Contains(t, get, "404", "workflow get shows the real error")
	require.Contains(t, s.must(ctx, t, "workflow", "logs", "nvme", "--action", "hello"), "hello from the machine")
	require.NotEmpty(t, s.must(ctx, t, "workflow", "logs", "nvme", "--action", "write"))
	s.closed(ctx, t, "nvme")

	require.NoError(t, os.Rename(file+".away", file))
	require.NoError(t, m.PowerOff(ctx))
	s.must(ctx, t, "workflow", "retry", "nvme", "--from", "failed-step")
	_, err = s.FollowUntilButton(ctx, "nvme")
	require.NoError(t, err)
	m.SetNextBoot(lab.NextNetwork)
	require.NoError(t, m.PowerOn(ctx)) // its first DISCOVER is enough
	w = s.ended(ctx, t, "nvme", inventory.StateSuccess)
	require.Contains(t, w.Actions[0].Message, "done by run", "the first step is not carried out again")
	s.closed(ctx, t, "nvme")
}

// TestCancelAndTerminate starts runs over REST, cancels one and terminates the next from outside:
// network boot is closed both times.
func TestCancelAndTerminate(t *testing.T) {
	runInTurn(t, 20, 6)
	ctx := needLab(t)
	image, firmware := shortOf(ctx, t, lab.BIOS)
	s := site(ctx, t)
	s.must(ctx, t, "image", "add", "mini", image.Zst)
	s.template(ctx, t, "long", `version: "0.1"
name: long
tasks:
- name: wait
  worker: "{{.device_1}}"
  actions:
  - {name: wait, image: noop, timeout: 600, environment: {SLEEP: "500"}}
`)
	spec := lab.Spec{Name: "relayed", Firmware: firmware, Agent: filepath.Join(s.bin, "worker-agent"), VLAN: lab.RelayedVLAN}
	m, err := s.Add(ctx, spec, nil)
	require.NoError(t, err)
	busy := func(w inventory.Workflow) bool { return w.Phase == inventory.PhaseAction }

	run, err := s.Provision(ctx, contract.ProvisionInput{Machine: "relayed", Template: "long"})
	require.NoError(t, err)
	_, err = s.Provision(ctx, contract.ProvisionInput{Machine: "relayed", Template: "long"})
	require.ErrorContains(t, err, "409")
	require.ErrorContains(t, err, run, "the refusal names the running one")
	_, err = s.Follow(ctx, "relayed", busy)
	require.NoError(t, err)
	s.must(ctx, t, "workflow", "cancel", "relayed")
	s.ended(ctx, t, "relayed", inventory.StateCancelled)
	s.closed(ctx, t, "relayed")
	require.Equal(t, 1, m.PowerOns())

	_, err = s.Provision(ctx, contract.ProvisionInput{Machine: "relayed", Template: "long"})
	require.NoError(t, err)
	_, err = s.Follow(ctx, "relayed", busy)
	require.NoError(t, err)
	_, err = s.TemporalCLI(ctx, "workflow", "terminate", "--workflow-id", workflows.MachineID("relayed"), "--reason", "test")
	require.NoError(t, err)
	// The workflow is terminated; the reconcile loop closes network boot.
	_, err = s.Follow(ctx, "relayed", func(w inventory.Workflow) bool { return inventory.Final(w.State) })
	require.NoError(t, err)
	s.closed(ctx, t, "relayed")

	// An operator does the same to the machine.
	s.must(ctx, t, "machine", "inspect", "relayed", "--wait")
	require.Contains(t, s.must(ctx, t, "machine", "disks", "relayed"), "DISK-relayed")
	require.Equal(t, lab.Off, m.PowerState(), "an inspection ends with the power off")
	for range 2 { // the second time it is found, not started
		s.must(ctx, t, "bmc", "job", "create", "relayed", "--yes", "--name", "wake", "--task", "boot:disk", "--task", "power:on")
	}
	require.Equal(t, 1, strings.Count(s.must(ctx, t, "bmc", "job", "list", "--machine", "relayed"), "wake"))
	require.NoError(t, m.WaitPower(ctx, lab.On))
	require.Contains(t, strings.ToLower(s.must(ctx, t, "machine", "power", "status", "relayed")), "on")
	s.must(ctx, t, "machine", "power", "off", "relayed", "--yes")
	require.NoError(t, m.WaitPower(ctx, lab.Off))
	s.closed(ctx, t, "relayed")
}

// TestFlippedBit serves an image with one wrong bit: the run fails and the disk does not boot. A
// start with a wrong workflow id does nothing.
func TestFlippedBit(t *testing.T) {
	runInTurn(t, 25, 9)
	ctx := needLab(t)
	image := mini(ctx, t)
	s := site(ctx, t)
	s.must(ctx, t, "image", "add", "mini", image.Raw, "--sha256", image.SHA256, "--as-is")
	m, err := s.Add(ctx, lab.Spec{Name: "bios"}, func(doc map[string]any) { doc["image"] = "mini" })
	require.NoError(t, err)

	in, err := json.Marshal(contract.ProvisionInput{Machine: "bios"})
	require.NoError(t, err)
	_, err = s.TemporalCLI(ctx, "workflow", "execute", "--type", inventory.TypeProvision, "--task-queue", workflows.TaskQueue,
		"--workflow-id", "machine/other", "--input", string(in))
	require.ErrorContains(t, err, "must run under the id")
	require.Zero(t, m.PowerOns())
	s.closed(ctx, t, "bios")

	f, err := os.OpenFile(s.imageFile(ctx, t, "mini"), os.O_RDWR, 0)
	require.NoError(t, err)
	var b [1]byte
	_, err = f.ReadAt(b[:], image.Size/2)
	require.NoError(t, err)
	b[0] ^= 0x10
	_, err = f.WriteAt(b[:], image.Size/2)
	require.NoError(t, err)
	require.NoError(t, f.Close())

	s.must(ctx, t, "machine", "provision", "bios", "--yes")
	w := s.ended(ctx, t, "bios", inventory.StateFailed)
	require.Contains(t, w.Message, "SHA-256")
	s.closed(ctx, t, "bios")
	require.NoError(t, m.PowerOff(ctx))
	first := make([]byte, 1<<20)
	disk, err := os.Open(m.DiskPath())
	require.NoError(t, err)
	_, err = disk.ReadAt(first, 0)
	require.NoError(t, err)
	require.NoError(t, disk.Close())
	require.Equal(t, make([]byte, 1<<20), first, "a half-written disk does not boot: its first MiB is zero")
}

// TestKilledInMidWrite kills the server while the image is being written and starts it again: the
// installation succeeds, and the decoy disk does not change.
func TestKilledInMidWrite(t *testing.T) {
	runInTurn(t, 65, 8)
	ctx := needLab(t)
	image := mini(ctx, t)
	s := site(ctx, t)
	s.must(ctx, t, "image", "add", "mini", image.Raw, "--sha256", image.SHA256, "--as-is")
	s.template(ctx, t, "write-only", `version: "0.1"
name: write-only
tasks:
- name: install
  worker: "{{.device_1}}"
  actions:
  - {name: write, image: image2disk, timeout: 1200, environment: {IMG_URL: "{{.image.url}}", DEST_DISK: /dev/vda}}
  - {name: "off", image: poweroff, timeout: 60}
`)
	m, err := s.Add(ctx, lab.Spec{Name: "vm", Decoys: []string{"DECOY"}}, func(doc map[string]any) {
		doc["diskSelector"] = map[string]any{"serial": "DISK-vm"}
	})
	require.NoError(t, err)
	decoy := m.DiskPathOf("DECOY")
	before, err := DigestOf(decoy, size(decoy))
	require.NoError(t, err)
	m.SetDecoysFirst(true)

	require.NoError(t, s.SlowServer(ctx, "20mbit"))
	_, err = s.Provision(ctx, contract.ProvisionInput{Machine: "vm", Template: "write-only", Image: "mini"})
	require.NoError(t, err)
	w, err := s.Follow(ctx, "vm", func(w inventory.Workflow) bool {
		return len(w.Actions) > 0 && w.Actions[0].Total > 0 && w.Actions[0].Done*10 > w.Actions[0].Total*3
	})
	require.NoError(t, err)
	require.Less(t, w.Actions[0].Done*10, w.Actions[0].Total*7, "the kill must fall between 30 and 70 %%")
	t.Logf("killed at %d %%", w.Actions[0].Done*100/w.Actions[0].Total)
	s.Kill()
	require.NoError(t, s.Start(ctx))
	require.NoError(t, s.UnslowServer(ctx))
	w = s.ended(ctx, t, "vm", inventory.StateSuccess)
	require.NoError(t, m.WaitPower(ctx, lab.Off))
	require.Equal(t, 1, m.PowerOns())

	got, err := DigestOf(m.DiskPath(), image.Size)
	require.NoError(t, err)
	require.Equal(t, image.SHA256, got, "the disk holds the image, bit by bit")
	require.Equal(t, "DISK-vm", w.Disk.Serial)
	after, err := DigestOf(decoy, size(decoy))
	require.NoError(t, err)
	require.Equal(t, before, after, "the decoy was touched")
	s.closed(ctx, t, "vm")
}

// TestNetworkFirst power-cycles an installed machine whose firmware boots from the network first,
// once while Ingot is stopped: it boots from its disk each time.
func TestNetworkFirst(t *testing.T) {
	runInTurn(t, 100, 9)
	firmwares, cycles := []lab.Firmware{lab.BIOS}, 2
	if *full {
		firmwares, cycles = append(firmwares, lab.UEFI), 3
	}
	for _, firmware := range firmwares {
		t.Run(string(firmware), func(t *testing.T) {
			ctx := needLab(t)
			image := mini(ctx, t)
			s := site(ctx, t)
			s.must(ctx, t, "image", "add", "mini", image.Zst)
			m, err := s.Add(
				ctx,
				lab.Spec{Name: "net", Firmware: firmware, Order: lab.NetworkFirst, Decoys: []string{"DECOY"}},
				func(doc map[string]any) {
					doc["image"], doc["diskSelector"] = "mini", map[string]any{"serial": "DISK-net"}
				},
			)
			require.NoError(t, err)
			decoy := m.DiskPathOf("DECOY")
			before, err := DigestOf(decoy, size(decoy))
			require.NoError(t, err)
			s.must(ctx, t, "machine", "provision", "net", "--wait") // exits 0 on success
			s.ended(ctx, t, "net", inventory.StateSuccess)
			s.closed(ctx, t, "net")
			for n := range cycles {
				if n == 1 {
					s.Stop()
				}
				m.SetDecoysFirst(n%2 == 0)
				require.NoError(t, m.PowerCycle(ctx))
				_, err := m.WaitSerial(ctx, "LAB-MINI-BOOTED")
				require.NoError(t, err)
				if n == 1 {
					require.NoError(t, s.Start(ctx))
				}
			}
			after, err := DigestOf(decoy, size(decoy))
			require.NoError(t, err)
			require.Equal(t, before, after, "the decoy was touched")
			var list struct{ Items []inventory.Workflow }
			require.NoError(t, s.REST(ctx, http.MethodGet, "/v1/workflows?machine=net", nil, &list))
			require.Len(t, list.Items, 1, "no machine reinstalls itself")
		})
	}
}

// imageFile is the server's copy of an image.
func (s *Site) imageFile(ctx context.Context, t *testing.T, name string) string {
	t.Helper()
	var image inventory.Image
	require.NoError(t, s.REST(ctx, http.MethodGet, "/v1/images/"+name, nil, &image))
	file := filepath.Join(s.dir, "state/ingot/images", image.File)
	require.FileExists(t, file)
	return file
}

func (s *Site) template(ctx context.Context, t *testing.T, name, source string) {
	t.Helper()
	file := filepath.Join(s.dir, name+".yaml")
	require.NoError(t, os.WriteFile(file, []byte(source), 0o600))
	s.must(ctx, t, "template", "create", "--file", file)
}

// TestEveryPath installs with each firmware, network path and disk (the long form).
func TestEveryPath(t *testing.T) {
	if !*full {
		t.Skip("the long form: make e2e FULL=1")
	}
	ctx := needLab(t)
	image := mini(ctx, t)
	s := site(ctx, t)
	s.must(ctx, t, "image", "add", "mini", image.Zst)
	for _, firmware := range []lab.Firmware{lab.BIOS, lab.UEFI, lab.UEFIHTTP} {
		for _, vlan := range []int{lab.DirectVLAN, lab.RelayedVLAN} {
			for _, bus := range []lab.Bus{lab.Virtio, lab.NVMe, lab.AHCI} {
				// "DISK-" and the name are the serial number of the disk, at most 20 characters.
				name := fmt.Sprintf("%s-%d-%s", strings.TrimPrefix(string(firmware), "uefi-"), vlan, bus)
				t.Run(name, func(t *testing.T) {
					ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
					defer cancel()
					m, err := s.Add(ctx, lab.Spec{Name: name, Firmware: firmware, VLAN: vlan, Bus: bus},
						func(doc map[string]any) { doc["image"] = "mini" })
					require.NoError(t, err)
					s.must(ctx, t, "machine", "provision", name)
					s.ended(ctx, t, name, inventory.StateSuccess)
					s.closed(ctx, t, name)
					require.NoError(t, m.PowerOff(ctx))
				})
			}
		}
	}
}
