package e2e

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
	"github.com/ingotmetal/ingot/lab"
	"github.com/ingotmetal/ingot/workflows/contract"
)

// clusterToken is the secret of the document that the stand-in reads.
const clusterToken = "e2e-cluster-token-7f3a91"

func harvesterDocument(name, disk string) string {
	return fmt.Sprintf(`scheme_version: 1
token: %s
os:
  hostname: %s
  password: e2e-password-7f3a91
install:
  mode: create
  management_interface:
    interfaces:
      - name: eth0
    method: dhcp
  device: /dev/disk/by-id/virtio-%s
  vip: 10.10.20.250
  vip_mode: static
  iso_url: http://10.10.20.1:7080/images/harvester.iso
`, clusterToken, name, disk)
}

const wipedFirst = `version: "0.1"
name: wiped-first
documents:
  - {name: config, kind: harvester}
tasks:
  - name: clean
    worker: "{{.device_1}}"
    actions:
      - {name: wipe, image: wipe, timeout: 600}
installer:
  kernel: kernel-h
  initrd: [initrd-h]
  payload: rootfs-h
  parameters: ["root=live:{{ .boot_url }}rootfs-h", "harvester.install.config_url={{ .documents_url }}config"]
  complete: webhook
`

// impatient makes the run ask about its installer at once.
const impatient = `version: "0.1"
name: impatient
documents:
  - {name: config, kind: harvester}
installer:
  kernel: kernel-h
  initrd: [initrd-h]
  payload: rootfs-h
  parameters: ["root=live:{{ .boot_url }}rootfs-h", "harvester.install.config_url={{ .documents_url }}config"]
  complete: webhook
  timeout: 1
`

// TestInstaller installs machines with an installer other than the agent: a stand-in that uses
// Harvester's kernel arguments, configuration and webhooks. The server is killed while one of them
// writes.
func TestInstaller(t *testing.T) {
	runInTurn(t, 64, 2)
	ctx := needLab(t)
	image, err := lab.SimImage(ctx, testWriter{t})
	require.NoError(t, err)
	s := site(ctx, t)
	store := func(t *testing.T, name string, content []byte) {
		t.Helper()
		file := filepath.Join(t.TempDir(), name)
		require.NoError(t, os.WriteFile(file, content, 0o600))
		s.must(ctx, t, "image", "add", name, file, "--replace")
	}
	contents := map[string][]byte{"kernel-h": make([]byte, 1<<20), "initrd-h": make([]byte, 2<<20), "rootfs-h": make([]byte, 6<<20)}
	for name, b := range contents {
		_, _ = rand.Read(b) // never returns an error: it ends the program instead
		store(t, name, b)
	}
	s.template(ctx, t, "wiped-first", wipedFirst)
	s.template(ctx, t, "impatient", impatient)
	images := map[string]string{"kernel": "kernel-h", "initrd": "initrd-h", "rootfs": "rootfs-h"}
	add := func(t *testing.T, spec lab.Spec, device string) *lab.Machine {
		t.Helper()
		spec.Firmware, spec.Agent, spec.Installs, spec.Order = lab.Simulated, filepath.Join(s.bin, "worker-agent"), image.Raw, lab.NetworkFirst
		m, err := s.Add(ctx, spec, func(doc map[string]any) {
			doc["diskSelector"] = map[string]any{"serial": "DISK-" + spec.Name}
			doc["userData"] = harvesterDocument(spec.Name, device)
		})
		require.NoError(t, err)
		return m
	}
	provision := func(t *testing.T, in contract.ProvisionInput) {
		t.Helper()
		_, err := s.Provision(ctx, in)
		require.NoError(t, err)
	}

	t.Run("with a BMC, the server killed while it writes", func(t *testing.T) {
		gate := lab.NewGate(lab.StageWrite)
		m := add(t, lab.Spec{Name: "create", Stage: gate.Stage}, "DISK-create")
		require.NoError(t, m.PowerOn(ctx)) // the run has to switch it off
		provision(t, contract.ProvisionInput{Machine: "create", Template: "harvester-create", HardwareMap: images})
		require.NoError(t, gate.Reached(ctx))
		_, err := s.Follow(ctx, "create", func(w inventory.Workflow) bool {
			return w.Phase == inventory.PhaseInstall && w.State == inventory.StateRunning
		})
		require.NoError(t, err)

		line, err := m.WaitSerial(ctx, "LAB-SIM installer: .*config_url=")
		require.NoError(t, err)
		require.NotContains(t, line, clusterToken, "S44: no secret but the capability path")
		documents := regexp.MustCompile(`config_url=(\S+)`).FindStringSubmatch(line)[1]
		rootfs := regexp.MustCompile(`root=live:(\S+)`).FindStringSubmatch(line)[1]
		capability := strings.Split(documents, "/")[5]
		require.Len(t, capability, 64)

		sim := s.Simulate("create", m.Spec().MAC)
		script, err := sim.Script(ctx)
		require.NoError(t, err)
		require.Contains(t, script, "booting from disk", "the boot is spent with the installer's last payload")
		require.NotContains(t, script, capability)
		status, body := sim.fetch(ctx, t, documents)
		require.Equal(t, http.StatusOK, status, "the installer may ask again while it installs")
		require.Contains(t, body, clusterToken)
		require.Contains(t, body, "/webhook/SUCCEEDED")
		status, _ = sim.fetch(ctx, t, rootfs)
		require.Equal(t, http.StatusNotFound, status, "what boots is served once")
		require.Contains(t, s.must(ctx, t, "why", "create"), "is spent")

		s.Kill()
		gate.Open()
		_, err = m.WaitSerial(ctx, "LAB-SIM installer: webhook SUCCEEDED try=1 answer=0")
		require.NoError(t, err)
		require.NoError(t, s.Start(ctx))
		w := s.ended(ctx, t, "create", inventory.StateSuccess)
		require.Equal(t, "webhook", w.Evidence)
		_, err = m.WaitSerial(ctx, "LAB-MINI-BOOTED")
		require.NoError(t, err)
		require.Equal(t, 2, m.PowerOns(), "by hand, and by the run")
		s.closed(ctx, t, "create")
		s.holds(t, m, image)
		status, _ = sim.fetch(ctx, t, documents)
		require.Equal(t, http.StatusNotFound, status, "the run has ended")

		history, err := s.TemporalCLI(ctx, "workflow", "show", "--workflow-id", "machine/create", "--output", "json")
		require.NoError(t, err)
		log, err := os.ReadFile(s.log.Name())
		require.NoError(t, err)
		for _, secret := range []string{clusterToken, "e2e-password-7f3a91", capability} {
			require.NotContains(t, readable(t, history), secret)
			require.False(t, bytes.Contains(log, []byte(secret)), "the log shows %s", secret)
		}
	})

	t.Run("without a BMC, the agent first", func(t *testing.T) {
		m := add(t, lab.Spec{Name: "by-hand", NoBMC: true, VLAN: lab.RelayedVLAN}, "DISK-by-hand")
		provision(t, contract.ProvisionInput{Machine: "by-hand", Template: "wiped-first"})
		w, err := s.FollowUntilButton(ctx, "by-hand")
		require.NoError(t, err)
		require.Equal(t, "power the machine on now, with network boot (boot 1)", w.Message)
		require.NoError(t, m.PowerOn(ctx))
		w = s.ended(ctx, t, "by-hand", inventory.StateSuccess)
		require.Equal(t, "DISK-by-hand", w.Disk.Serial)
		_, err = m.WaitSerial(ctx, "LAB-MINI-BOOTED")
		require.NoError(t, err)
		require.Equal(t, 1, m.PowerOns(), "the button was not pressed twice")
		require.Equal(t, 2, m.Resets(), "to the installer, and to what it installed")
		s.closed(ctx, t, "by-hand")
		s.holds(t, m, image)
	})

	for _, stage := range []lab.Stage{lab.StageKernel, lab.StageInitrd, lab.StageInstaller} {
		t.Run("the server killed before the machine's stage "+string(stage), func(t *testing.T) {
			gate := lab.NewGate(stage)
			name := "at-" + string(stage)
			m := add(t, lab.Spec{Name: name, Stage: gate.Stage}, "DISK-"+name)
			provision(t, contract.ProvisionInput{Machine: name, Template: "harvester-create", HardwareMap: images})
			require.NoError(t, gate.Reached(ctx))
			s.Kill()
			gate.Open()
			require.NoError(t, s.Start(ctx))
			s.ended(ctx, t, name, inventory.StateSuccess)
			require.Equal(t, 1, m.PowerOns(), "it ends as it would have")
			s.closed(ctx, t, name)
			s.holds(t, m, image)
		})
	}

	t.Run("an installer that fails", func(t *testing.T) {
		m := add(t, lab.Spec{Name: "wrong"}, "DISK-of-another")
		provision(t, contract.ProvisionInput{Machine: "wrong", Template: "harvester-create", HardwareMap: images})
		w := s.ended(ctx, t, "wrong", inventory.StateFailed)
		require.Equal(t, "the installer reported that it failed: there is no disk /dev/disk/by-id/virtio-DISK-of-another", w.Message)
		s.closed(ctx, t, "wrong")
		require.Equal(t, 1, m.PowerOns())
	})

	t.Run("an image that was replaced, and a word that comes late", func(t *testing.T) {
		gate := lab.NewGate(lab.StageWrite)
		m := add(t, lab.Spec{Name: "late", NoBMC: true, Stage: gate.Stage}, "DISK-late")
		provision(t, contract.ProvisionInput{Machine: "late", Template: "impatient"})
		_, err := s.FollowUntilButton(ctx, "late")
		require.NoError(t, err)
		store(t, "initrd-h", []byte("another one"))
		sim := s.Simulate("late", m.Spec().MAC)
		script, err := sim.Script(ctx)
		require.NoError(t, err)
		require.Contains(t, script, "kernel ", "the planned file is served by its digest")
		require.NotContains(t, s.must(ctx, t, "why", "late"), "cannot be served")

		require.NoError(t, m.PowerOn(ctx))
		require.NoError(t, gate.Reached(ctx))
		_, err = s.Follow(ctx, "late", func(w inventory.Workflow) bool { return w.Question != nil })
		require.NoError(t, err)
		gate.Open()
		w := s.ended(ctx, t, "late", inventory.StateSuccess)
		require.Equal(t, "webhook", w.Evidence, "the operator did not have to answer")
		require.Equal(t, 1, m.PowerOns())
		s.closed(ctx, t, "late")
		s.holds(t, m, image)
		store(t, "initrd-h", contents["initrd-h"])
	})

	t.Run("refused before the power", func(t *testing.T) {
		m := add(t, lab.Spec{Name: "refused"}, "DISK-refused")
		provision(
			t,
			contract.ProvisionInput{
				Machine:     "refused",
				Template:    "harvester-create",
				HardwareMap: map[string]string{"kernel": "kernel-h", "initrd": "initrd-h", "rootfs": "missing"},
			},
		)
		w := s.ended(ctx, t, "refused", inventory.StateFailed)
		require.Contains(t, w.Message, `there is no image "missing"`)
		require.Zero(t, m.PowerOns())
	})
}

// fetch asks for url from inside the lab.
func (m *Simulated) fetch(ctx context.Context, t *testing.T, url string) (status int, body string) {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	require.NoError(t, err)
	res, err := m.plain.Do(req)
	require.NoError(t, err)
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	return res.StatusCode, string(b)
}

// holds requires that the disk begins with the image.
func (s *Site) holds(t *testing.T, m *lab.Machine, image lab.Image) {
	t.Helper()
	want, err := os.ReadFile(image.Raw)
	require.NoError(t, err)
	f, err := os.Open(m.DiskPath())
	require.NoError(t, err)
	defer f.Close()
	have := make([]byte, len(want))
	_, err = io.ReadFull(f, have)
	require.NoError(t, err)
	require.True(t, bytes.Equal(want, have), "the disk does not hold what the installer wrote")
}
